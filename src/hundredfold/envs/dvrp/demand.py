"""Days: who calls, in which order and with which trip; and the arrays that hold a day.

The arrays of a day are the env's true state itself: whoever may look behind the curtain reads
them as they are, and a snapshot of the env's buffers has them already.

Which population an env plays with: the user's own when files are named, else the built-in.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from hundredfold.core import rng
from hundredfold.core.batch import Arrays, ArraySpec, BoolArray, IntArray
from hundredfold.core.rng import Keys
from hundredfold.envs.dvrp.custom_data import load_population
from hundredfold.envs.dvrp.offers import NO_CHANGE, NUM_OFFERS
from hundredfold.envs.dvrp.population import Population, synthetic_population
from hundredfold.envs.dvrp.settings import DvrpSettings, Split

# Children of the stream of an env's episode.
CALLERS_CHILD, TRIPS_CHILD, ANSWERS_CHILD, PLANS_CHILD, MASKS_CHILD = range(5)


def true_state_specs(num_customers: int) -> dict[str, ArraySpec]:
    """The arrays of one day; the axis of customers is the order in which they call."""
    return {
        "num_booked": ArraySpec((), "int64", 0, num_customers),
        "customer_id": ArraySpec((num_customers,), "int64"),
        "trip_id": ArraySpec((num_customers,), "int64"),
        "type": ArraySpec((num_customers,), "int64"),
        "cells": ArraySpec((num_customers, 2), "int64"),
        # Pickup and dropoff, early and late, in minutes.
        "requested_windows": ArraySpec((num_customers, 2, 2), "float64"),
        "booked_windows": ArraySpec((num_customers, 2, 2), "float64"),
        "max_ride_minutes": ArraySpec((num_customers,), "float64"),
        "tolerance": ArraySpec((num_customers, 2), "float64"),
        "accepts": ArraySpec((num_customers, NUM_OFFERS), "bool"),
        "allowed": ArraySpec((num_customers, NUM_OFFERS), "bool"),
        "offers": ArraySpec((num_customers,), "int64"),
        "accepted": ArraySpec((num_customers,), "bool"),
        "cost": ArraySpec((), "float64"),
        # The same day with nothing offered, after each booking; 0 before the first.
        "baseline_cost": ArraySpec((num_customers + 1,), "float64"),
    }


class DemandSampler:
    """Draws days of one split of a population."""

    def __init__(self, population: Population, split: Split, num_customers: int) -> None:
        self.population = population
        self.num_customers = num_customers
        self.people, self.first_trip, self.num_trips = population.split_customers(split)

    def draw(self, keys: Keys) -> tuple[IntArray, IntArray]:
        """(days, customers) people in calling order, nobody twice, and the trip each asks for."""
        luck = rng.uniforms(rng.spawn(keys, CALLERS_CHILD)[:, None], np.arange(len(self.people)))
        chosen = np.argsort(luck, axis=1, kind="stable")[:, : self.num_customers]
        trip_keys = rng.spawn(keys, TRIPS_CHILD)[:, None]
        which = rng.integers(trip_keys, np.arange(self.num_customers), self.num_trips[chosen])
        return self.people[chosen], self.first_trip[chosen] + which

    def write(self, day: Arrays, rows: BoolArray, keys: Keys) -> None:
        """Fill these rows of a day's arrays with new days, one key each; prices come later."""
        people, trip = self.draw(keys)
        trips = self.population.trips
        day["num_booked"][rows] = 0
        day["customer_id"][rows] = people
        day["trip_id"][rows] = trip
        day["type"][rows] = self.population.customers.types[people]
        day["cells"][rows] = trips.cells[trip]
        day["requested_windows"][rows] = trips.windows[trip]
        day["booked_windows"][rows] = 0.0
        day["max_ride_minutes"][rows] = self.population.max_ride_minutes[trip]
        day["tolerance"][rows] = trips.tolerance[trip]
        day["accepts"][rows] = self.population.accepts[trip]
        day["allowed"][rows] = self.population.allowed[trip]
        day["offers"][rows] = NO_CHANGE
        day["accepted"][rows] = False
        day["cost"][rows] = 0.0
        day["baseline_cost"][rows] = 0.0


def answers(
    day: Arrays, at: tuple[IntArray, IntArray], offers: IntArray, keys: Keys, noise: float
) -> BoolArray:
    """(envs,) whether each caller accepts; `at` is (rows, callers), `keys` the episodes' streams.

    With noise, an answer to a real offer is now and then the opposite of what was meant.
    """
    meant: BoolArray = day["accepts"][(*at, offers)]
    if noise == 0.0:
        return meant
    luck = rng.uniforms(rng.spawn(keys, ANSWERS_CHILD), at[1])
    turned: BoolArray = (luck < noise) & (offers != NO_CHANGE)
    return np.asarray(meant ^ turned, bool)


def population_for(settings: DvrpSettings) -> Population:
    """The population of these settings; envs in one process share it."""
    files = (settings.trips, settings.travel_times, settings.recorded_responses)
    return _population(settings, tuple(_last_change(path) for path in files))


@lru_cache(maxsize=16)
def _population(settings: DvrpSettings, changes: tuple[int, ...]) -> Population:
    # `changes` is part of the key alone: a file that was edited is read again.
    if settings.trips is None:
        return synthetic_population(settings)
    return load_population(settings)


def _last_change(path: str | None) -> int:
    try:
        return 0 if path is None else Path(path).stat().st_mtime_ns
    except OSError:
        return 0  # reading it will say what is wrong
