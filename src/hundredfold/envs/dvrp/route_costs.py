"""Prices of a batch of days: plans that are kept and extended booking by booking.

The same books as problems for an oracle that starts from nothing are made by `day_problems`.

Plans that a rule keeps for itself, booking by booking, from what it sees of the day.

A rule that looks further ahead than the price hint needs a plan to look ahead in. This one grows
with the bookings, takes up any day wherever it stands, and asks nothing of the env.
"""

from __future__ import annotations

import time
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np

from hundredfold.core import rng
from hundredfold.core.batch import Arrays, BoolArray, FloatArray, IntArray, StepBatch
from hundredfold.core.rng import Keys
from hundredfold.envs.dvrp.observation import ScheduleSummary
from hundredfold.envs.dvrp.population import Population
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.routing.incremental import IncrementalRoutes, IncrementalSettings
from hundredfold.routing.problem import Fleet, RouteProblems, Solutions

if TYPE_CHECKING:
    from hundredfold.routing.neural.oracle import NeuralOracle

# What a customer costs who cannot be served, where that does not end the day.
UNSERVED_PENALTY_MINUTES: Final = 200.0


def fleet_for(population: Population, settings: DvrpSettings) -> Fleet:
    """The vehicles of an env; all of them are free to use."""
    return Fleet(
        num_vehicles=settings.fleet_size,
        capacity=settings.capacity,
        depot_cell=population.city.depot_cell,
        depot_window=(0.0, float(settings.day_minutes)),
        free_vehicles=settings.fleet_size,
    )


def day_problems(
    cells: IntArray,
    windows: FloatArray,
    max_ride_minutes: FloatArray,
    population: Population,
    settings: DvrpSettings,
) -> RouteProblems:
    """Whole days as books for an oracle; (days, customers, ...)."""
    return RouteProblems.from_arrays(
        population.city.travel,
        fleet_for(population, settings),
        cells,
        windows,
        service_minutes=settings.service_minutes,
        max_ride_minutes=max_ride_minutes,
    )


def penalised_costs(plans: Solutions) -> FloatArray:
    """(books,) prices in which everybody left out costs a fixed number of minutes."""
    penalty = UNSERVED_PENALTY_MINUTES * plans.unserved.sum(axis=1)
    return np.where(np.isfinite(plans.cost), plans.cost, plans.driving_minutes + penalty)


class RouteCosts:
    """The kept plans of a batch of days, one booking per day and call."""

    def __init__(self, num_days: int, population: Population, settings: DvrpSettings) -> None:
        self.population = population
        self.settings = settings
        self.kept = _kept_plans(num_days, population, settings)
        # Where requests are tried out while the plans above stay as they are; made when needed.
        self.trial: IncrementalRoutes | None = None
        self.seconds = 0.0  # spent on plans so far

    @property
    def price(self) -> FloatArray:
        """(days,) driving minutes, with a fixed price for everybody left out."""
        return _finite(self.kept)

    @property
    def left_out(self) -> IntArray:
        """(days,) customers whom no vehicle can serve."""
        return np.asarray(self.kept.unserved.sum(axis=1), np.int64)

    @property
    def vehicles_used(self) -> IntArray:
        """(days,) vehicles that leave the depot."""
        return self.kept.vehicles_used

    def clear(self, rows: BoolArray) -> None:
        """Begin an empty day in these rows."""
        self.kept.clear(rows)

    def add(
        self, cells: IntArray, windows: FloatArray, max_ride_minutes: FloatArray, keys: Keys
    ) -> FloatArray:
        """Book one request per day and return the prices; `keys` are the days' routing streams."""
        began = time.perf_counter()
        self._book(self.kept, cells, windows, max_ride_minutes, keys)
        self.seconds += time.perf_counter() - began
        return self.price

    def price_with(
        self, cells: IntArray, windows: FloatArray, max_ride_minutes: FloatArray, keys: Keys
    ) -> FloatArray:
        """(days,) what `add` would return; the plans stay as they are."""
        began = time.perf_counter()
        if self.trial is None:
            self.trial = _kept_plans(self.kept.num_envs, self.population, self.settings)
        self.trial.restore(self.kept.state())
        self._book(self.trial, cells, windows, max_ride_minutes, keys)
        self.seconds += time.perf_counter() - began
        return _finite(self.trial)

    def added_minutes(
        self, cells: IntArray, windows: FloatArray, max_ride_minutes: FloatArray
    ) -> FloatArray:
        """(days, candidates) what one more request would add if nobody else moved.

        `windows` (days, candidates, 2, 2). A candidate that fits nowhere costs as much as leaving
        it out.
        """
        began = time.perf_counter()
        found = self.kept.candidate_costs(
            cells,
            windows,
            service_minutes=self.settings.service_minutes,
            max_ride_minutes=max_ride_minutes,
        )
        self.seconds += time.perf_counter() - began
        added = found - self.kept.driving_minutes[:, None]
        return np.minimum(added, UNSERVED_PENALTY_MINUTES)

    def glance(self) -> ScheduleSummary:
        """What the plans say about every booking."""
        stops = self.kept.stop_minutes[:, 1:]
        return ScheduleSummary(
            num_vehicles=self.settings.fleet_size,
            vehicle=self.kept.vehicle,
            stop_minutes=stops.reshape(len(stops), -1, 2),
        )

    def arrays(self) -> Arrays:
        """The live arrays that make up the plans, for a snapshot; first axis day."""
        problems = self.kept.problems
        return {
            "num_requests": problems.num_requests,
            "cells": problems.cells,
            "windows": problems.windows,
            "riders": problems.riders,
            "service_minutes": problems.service_minutes,
            "max_ride_minutes": problems.max_ride_minutes,
            "routes": self.kept.routes,
            "lengths": self.kept.lengths,
        }

    def refresh(self) -> None:
        """Work out again what follows from `arrays`, after a snapshot was written into them."""
        self.kept.restore(self.kept.state())

    def _book(
        self,
        plans: IncrementalRoutes,
        cells: IntArray,
        windows: FloatArray,
        max_ride_minutes: FloatArray,
        keys: Keys,
    ) -> None:
        plans.add(
            cells,
            windows,
            keys,
            service_minutes=self.settings.service_minutes,
            max_ride_minutes=max_ride_minutes,
        )


def _kept_plans(num_days: int, population: Population, settings: DvrpSettings) -> IncrementalRoutes:
    travel, fleet = population.city.travel, fleet_for(population, settings)
    if settings.oracle == "neural":
        # Torch and the policy are loaded for whoever asks for them.
        from hundredfold.routing.neural.oracle import NeuralIncrementalRoutes

        oracle = _neural_oracle(settings)
        return NeuralIncrementalRoutes(travel, fleet, num_days, settings.num_customers, oracle)
    return IncrementalRoutes(
        travel,
        fleet,
        num_days,
        settings.num_customers,
        IncrementalSettings(
            improve_passes=settings.improve_passes,
            lns_iterations=settings.lns_iterations,
            threads=settings.oracle_threads,
        ),
    )


@lru_cache(maxsize=4)
def _neural_oracle(settings: DvrpSettings) -> NeuralOracle:
    """One oracle for all plans of an env, so that a batch halved once stays halved."""
    from hundredfold.routing.neural.oracle import NeuralOracle, NeuralSettings

    return NeuralOracle(
        NeuralSettings(
            weights=settings.oracle_weights,
            oracle_samples=settings.oracle_samples,
            improve_passes=settings.improve_passes,
            oracle_batch=settings.oracle_batch,
            device=settings.oracle_device,
            threads=settings.oracle_threads,
        )
    )


def _finite(plans: IncrementalRoutes) -> FloatArray:
    served = np.isfinite(plans.cost)
    if served.all():
        return plans.cost.copy()
    penalty = UNSERVED_PENALTY_MINUTES * plans.unserved.sum(axis=1)
    return np.where(served, plans.cost, plans.driving_minutes + penalty)


class TrackedRoutes:
    """One kept plan per env of whatever batch comes."""

    def __init__(self, population: Population, settings: DvrpSettings, key: Keys) -> None:
        self.population = population
        self.settings = settings
        self.key = key
        self.env_ids = np.zeros(0, np.int64)
        self.plans = RouteCosts(0, population, settings)

    @property
    def kept(self) -> IncrementalRoutes:
        """The plans themselves."""
        return self.plans.kept

    def follow(self, batch: StepBatch) -> None:
        """Bring every plan to where its day stands; a plan of another day begins anew."""
        if not np.array_equal(self.env_ids, batch.env_ids):
            self.env_ids = batch.env_ids.copy()
            self.plans = RouteCosts(len(batch), self.population, self.settings)
        day, kept = batch.true_state, self.kept
        kept.clear(self._of_another_day(batch))
        keys = rng.spawn(self.key, batch.env_ids)
        while (behind := kept.num_requests < day["num_booked"]).any():
            at = (np.arange(len(batch)), np.where(behind, kept.num_requests, 0))
            kept.add(
                day["cells"][at],
                day["booked_windows"][at],
                keys,
                service_minutes=self.settings.service_minutes,
                max_ride_minutes=day["max_ride_minutes"][at],
                rows=behind,
            )

    def _of_another_day(self, batch: StepBatch) -> BoolArray:
        """(envs,) whose plan holds something that was not booked."""
        day, problems = batch.true_state, self.kept.problems
        places = np.arange(self.settings.num_customers)
        planned = places < problems.num_requests[:, None]
        differs = (problems.cells != day["cells"]).any(axis=2)
        differs |= (problems.windows != day["booked_windows"]).any(axis=(2, 3))
        too_many = problems.num_requests > day["num_booked"]
        return np.asarray(too_many | (planned & differs).any(axis=1), bool)
