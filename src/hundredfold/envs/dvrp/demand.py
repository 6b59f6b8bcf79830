"""Demand of a day: which customers request which trips, in which order, and how they respond.

The arrays of a day are the env's `true_state`. Privileged policies read them there, and a snapshot
of the env's buffers already includes them.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from hundredfold.core import rng
from hundredfold.core.batch import Arrays, ArraySpec, BoolArray, IntArray
from hundredfold.core.rng import Keys
from hundredfold.envs.dvrp.custom_data import load_population
from hundredfold.envs.dvrp.population import Population, synthetic_population
from hundredfold.envs.dvrp.settings import DvrpSettings, Split

# Children of an episode's RNG stream.
CUSTOMERS_CHILD, TRIPS_CHILD, RESPONSES_CHILD, ROUTES_CHILD, MASKS_CHILD, FUTURES_CHILD = range(6)


def true_state_specs(num_customers: int, num_offers: int) -> dict[str, ArraySpec]:
    """Arrays of one day; the customer axis is in order of request."""
    return {
        "num_booked": ArraySpec((), "int64", 0, num_customers),
        "customer_id": ArraySpec((num_customers,), "int64"),
        "trip_id": ArraySpec((num_customers,), "int64"),
        "type": ArraySpec((num_customers,), "int64"),
        "cells": ArraySpec((num_customers, 2), "int64"),
        # Pickup and dropoff x early and late, in minutes after midnight.
        "requested_windows": ArraySpec((num_customers, 2, 2), "float64"),
        "booked_windows": ArraySpec((num_customers, 2, 2), "float64"),
        "max_ride_minutes": ArraySpec((num_customers,), "float64"),
        "tolerance": ArraySpec((num_customers, 2), "float64"),
        "accepts": ArraySpec((num_customers, num_offers), "bool"),
        "allowed": ArraySpec((num_customers, num_offers), "bool"),
        "offers": ArraySpec((num_customers,), "int64"),
        "accepted": ArraySpec((num_customers,), "bool"),
        "cost": ArraySpec((), "float64"),
        # Cost of the same day without offers, after each booking; 0 before the first.
        "baseline_cost": ArraySpec((num_customers + 1,), "float64"),
    }


class DemandSampler:
    """Samples the requests of days from one split of a population.

    Args:
        population: Customers and their trips.
        split: Which customers and trips may occur.
        num_customers: Requests per day.
    """

    def __init__(self, population: Population, split: Split, num_customers: int) -> None:
        self.population = population
        self.num_customers = num_customers
        self.customers, self.first_trip, self.num_trips = population.split_customers(split)

    def sample(self, keys: Keys) -> tuple[IntArray, IntArray]:
        """Customers in order of request, without replacement, and the trip of each.

        Args:
            keys: (days,) RNG keys of the episodes.

        Returns:
            Customer ids and trip ids, (days, customers) each.
        """
        uniforms = rng.uniforms(rng.spawn(keys, CUSTOMERS_CHILD)[:, None], np.arange(len(self.customers)))
        chosen = np.argsort(uniforms, axis=1, kind="stable")[:, : self.num_customers]
        trip_keys = rng.spawn(keys, TRIPS_CHILD)[:, None]
        which = rng.integers(trip_keys, np.arange(self.num_customers), self.num_trips[chosen])
        return self.customers[chosen], self.first_trip[chosen] + which

    def write(self, state: Arrays, rows: BoolArray, keys: Keys) -> None:
        """Write newly sampled days into these rows of the `true_state`, one key per row."""
        customers, trip = self.sample(keys)
        trips = self.population.trips
        state["num_booked"][rows] = 0
        state["customer_id"][rows] = customers
        state["trip_id"][rows] = trip
        state["type"][rows] = self.population.customers.types[customers]
        state["cells"][rows] = trips.cells[trip]
        state["requested_windows"][rows] = trips.windows[trip]
        state["booked_windows"][rows] = 0.0
        state["max_ride_minutes"][rows] = self.population.max_ride_minutes[trip]
        state["tolerance"][rows] = trips.tolerance[trip]
        state["accepts"][rows] = self.population.accepts[trip]
        state["allowed"][rows] = self.population.allowed[trip]
        state["offers"][rows] = self.population.offers.no_change
        state["accepted"][rows] = False
        state["cost"][rows] = 0.0
        state["baseline_cost"][rows] = 0.0


def responses(
    state: Arrays, at: tuple[IntArray, IntArray], offers: IntArray, keys: Keys, noise: float, no_change: int
) -> BoolArray:
    """Whether each env's current customer accepts its offer.

    Args:
        state: The `true_state` arrays.
        at: (envs,) rows and (envs,) customers of the current requests.
        offers: (envs,) offers made.
        keys: (envs,) RNG keys of the episodes.
        noise: Probability that a response is flipped.
        no_change: The offer that is always accepted.
    """
    truthful: BoolArray = state["accepts"][(*at, offers)]
    if noise == 0.0:
        return truthful
    uniforms = rng.uniforms(rng.spawn(keys, RESPONSES_CHILD), at[1])
    flipped: BoolArray = (uniforms < noise) & (offers != no_change)
    return np.asarray(truthful ^ flipped, bool)


def population_for(settings: DvrpSettings) -> Population:
    """The population of the settings' CSV files, or else the synthetic one; cached per process."""
    return _population(settings, tuple(_modified(path) for path in settings.data_files.values()))


def data_notes(settings: DvrpSettings) -> tuple[str, ...]:
    """What was assumed when the settings' CSV files were read, a sentence each; empty without files."""
    return () if settings.trips is None else population_for(settings).notes


@lru_cache(maxsize=16)
def _population(settings: DvrpSettings, modified: tuple[int, ...]) -> Population:
    # `modified` is only part of the cache key, so that edited files are read again.
    if settings.trips is None:
        return synthetic_population(settings)
    return load_population(settings)


def _modified(path: str) -> int:
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return 0  # the reader reports what is wrong
