"""Routes and costs of a batch of days, updated booking by booking.

`RouteCosts` serves the env. `TrackedRoutes` rebuilds the same routes from a `StepBatch`, for
policies that evaluate future costs themselves. `day_problems` poses whole days to an oracle.
"""

from __future__ import annotations

import time
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import ArrayLike

from hundredfold.core import rng
from hundredfold.core.batch import Arrays, BoolArray, FloatArray, IntArray, StepBatch
from hundredfold.core.rng import Keys
from hundredfold.envs.dvrp.observation import ScheduleSummary
from hundredfold.envs.dvrp.population import Population
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.routing.incremental import CandidateCosts, IncrementalRoutes, IncrementalSettings
from hundredfold.routing.problem import Fleet, RouteProblems, Solutions

if TYPE_CHECKING:
    from hundredfold.routing.neural.oracle import NeuralOracle

# Cost of an unserved customer, where one does not end the day.
UNSERVED_PENALTY_MINUTES: Final = 200.0
# Iterations of large neighbourhood search that tell what an offer costs once routes are improved.
CANDIDATE_LNS_ITERATIONS: Final = 6


def fleet_for(population: Population, settings: DvrpSettings) -> Fleet:
    """The fleet of an env."""
    depot, types = population.city.depot_cell, population.vehicle_types
    num_vehicles = sum(kind.count for kind in types) or settings.fleet_size
    free_vehicles = 0 if settings.vehicle_cost else num_vehicles
    if types:
        cost = settings.vehicle_cost
        return Fleet.of_types(types, depot_cell=depot, free_vehicles=free_vehicles, extra_vehicle_minutes=cost)
    return Fleet(
        num_vehicles=num_vehicles,
        capacity=settings.capacity,
        depot_cell=depot,
        depot_window=(0.0, float(settings.day_minutes)),
        free_vehicles=free_vehicles,
        extra_vehicle_minutes=settings.vehicle_cost,
    )


def day_problems(
    cells: IntArray,
    windows: FloatArray,
    max_ride_minutes: FloatArray,
    population: Population,
    settings: DvrpSettings,
    riders: ArrayLike = 1,
) -> RouteProblems:
    """Routing instances of whole days.

    Args:
        cells: (days, customers, 2) pickup and dropoff cells.
        windows: (days, customers, 2, 2) time windows in minutes.
        max_ride_minutes: (days, customers) ride-time limits.
        population: Its city has the travel times and the depot.
        settings: Fleet and service times.
        riders: (days, customers) riders of the requests, packed; see `Population.riders`.
    """
    return RouteProblems.from_arrays(
        population.city.travel,
        fleet_for(population, settings),
        cells,
        windows,
        riders=riders,
        service_minutes=settings.service_minutes,
        max_ride_minutes=max_ride_minutes,
    )


def penalised_costs(routes: Solutions | IncrementalRoutes, vehicle_cost: float) -> FloatArray:
    """(days,) driving minutes plus the cost of vehicles and a fixed penalty per unserved customer."""
    served = np.isfinite(routes.cost)
    if served.all():
        return routes.cost.copy()
    penalty = UNSERVED_PENALTY_MINUTES * routes.unserved.sum(axis=1)
    return np.where(served, routes.cost, served_costs(routes, vehicle_cost) + penalty)


def served_costs(routes: Solutions | IncrementalRoutes, vehicle_cost: float) -> FloatArray:
    """(days,) cost of the customers who are served: driving minutes plus the cost of vehicles."""
    return np.asarray(routes.driving_minutes + vehicle_cost * routes.vehicles_used, np.float64)


class RouteCosts:
    """Routes of a batch of days and their costs, extended by one booking per day and step."""

    def __init__(self, num_days: int, population: Population, settings: DvrpSettings) -> None:
        self.population = population
        self.settings = settings
        self.routes = _new_routes(num_days, population, settings)
        # Scratch routes for `cost_with`, created on first use.
        self.trial: IncrementalRoutes | None = None
        self.riders = np.ones(num_days, np.int64)  # (days,) of the request that is added or priced
        self.seconds = 0.0  # spent on routing so far

    @property
    def cost(self) -> FloatArray:
        """(days,) see `penalised_costs`."""
        return penalised_costs(self.routes, self.settings.vehicle_cost)

    @property
    def num_unserved(self) -> IntArray:
        """(days,) booked customers whom no vehicle can serve."""
        return np.asarray(self.routes.unserved.sum(axis=1), np.int64)

    @property
    def vehicles_used(self) -> IntArray:
        """(days,) vehicles with at least one stop."""
        return self.routes.vehicles_used

    def clear(self, rows: BoolArray) -> None:
        """Remove all bookings of these days."""
        self.routes.clear(rows)

    def add(self, cells: IntArray, windows: FloatArray, max_ride_minutes: FloatArray, keys: Keys) -> FloatArray:
        """Insert one request per day and improve the routes.

        Args:
            cells: (days, 2) pickup and dropoff cells.
            windows: (days, 2, 2) time windows in minutes.
            max_ride_minutes: (days,) ride-time limits.
            keys: (days,) RNG keys of the search.

        Returns:
            (days,) new costs.
        """
        start = time.perf_counter()
        self._add_to(self.routes, cells, windows, max_ride_minutes, keys)
        self.seconds += time.perf_counter() - start
        return self.cost

    def cost_with(self, cells: IntArray, windows: FloatArray, max_ride_minutes: FloatArray, keys: Keys) -> FloatArray:
        """The costs that `add` would return, without changing the routes."""
        start = time.perf_counter()
        if self.trial is None:
            self.trial = _new_routes(self.routes.num_envs, self.population, self.settings)
        self.trial.restore(self.routes.state())
        self._add_to(self.trial, cells, windows, max_ride_minutes, keys)
        self.seconds += time.perf_counter() - start
        return penalised_costs(self.trial, self.settings.vehicle_cost)

    def insertion_costs(
        self,
        cells: IntArray,
        windows: FloatArray,
        max_ride_minutes: FloatArray,
        improved: BoolArray | None = None,
        keys: Keys | None = None,
    ) -> CandidateCosts:
        """Cost of one more request per day, for several candidate windows.

        Args:
            cells: (days, 2) pickup and dropoff cells.
            windows: (days, candidates, 2, 2) candidate time windows in minutes.
            max_ride_minutes: (days,) ride-time limits.
            improved: (days, candidates) windows for which the routes are improved after the insertion;
                by default none.
            keys: (days,) RNG keys of that search, as for `add`; needed with `improved`.

        Returns:
            Minutes added; where no insertion is feasible, the unserved penalty and the cost of a vehicle.
        """
        start = time.perf_counter()
        costs = self.routes.candidate_costs(
            cells,
            windows,
            riders=self.riders,
            service_minutes=self.settings.service_minutes,
            max_ride_minutes=max_ride_minutes,
            improved=improved,
            keys=keys,
            lns_iterations=CANDIDATE_LNS_ITERATIONS,
        )
        self.seconds += time.perf_counter() - start
        present = served_costs(self.routes, self.settings.vehicle_cost)[:, None]
        most = UNSERVED_PENALTY_MINUTES + self.settings.vehicle_cost
        return CandidateCosts(*(np.minimum(cost - present, most) for cost in costs))

    def schedule_summary(self) -> ScheduleSummary:
        """Vehicle and stop times of every booking."""
        stops = self.routes.stop_minutes[:, 1:]
        return ScheduleSummary(
            num_vehicles=self.routes.problems.fleet.num_vehicles,
            vehicle=self.routes.vehicle,
            stop_minutes=stops.reshape(len(stops), -1, 2),
        )

    def state_arrays(self) -> Arrays:
        """Live arrays of the routes, for a snapshot; the first axis is the day."""
        problems = self.routes.problems
        return {
            "num_requests": problems.num_requests,
            "cells": problems.cells,
            "windows": problems.windows,
            "riders": problems.riders,
            "service_minutes": problems.service_minutes,
            "max_ride_minutes": problems.max_ride_minutes,
            "routes": self.routes.routes,
            "lengths": self.routes.lengths,
        }

    def refresh(self) -> None:
        """Recompute derived values after a snapshot was written into `state_arrays`."""
        self.routes.restore(self.routes.state())

    def _add_to(
        self, routes: IncrementalRoutes, cells: IntArray, windows: FloatArray, max_ride_minutes: FloatArray, keys: Keys
    ) -> None:
        routes.add(
            cells,
            windows,
            keys,
            riders=self.riders,
            service_minutes=self.settings.service_minutes,
            max_ride_minutes=max_ride_minutes,
        )


class TrackedRoutes:
    """Routes of a policy's own that follow the bookings of the batches it sees.

    Args:
        population: Customers and city of the env.
        settings: Settings of the env.
        key: RNG key of the search.
    """

    def __init__(self, population: Population, settings: DvrpSettings, key: Keys) -> None:
        self.population = population
        self.settings = settings
        self.key = key
        self.env_ids = np.zeros(0, np.int64)
        self.routes = _new_routes(0, population, settings)

    def sync(self, batch: StepBatch) -> None:
        """Insert the bookings made since the last batch; restart the routes of other days."""
        if not np.array_equal(self.env_ids, batch.env_ids):
            self.env_ids = batch.env_ids.copy()
            self.routes = _new_routes(len(batch), self.population, self.settings)
        state, routes = batch.true_state, self.routes
        routes.clear(self._is_stale(batch))
        keys = rng.spawn(self.key, batch.env_ids)
        while (behind := routes.num_requests < state["num_booked"]).any():
            at = (np.arange(len(batch)), np.where(behind, routes.num_requests, 0))
            routes.add(
                state["cells"][at],
                state["booked_windows"][at],
                keys,
                riders=self.population.riders[state["trip_id"][at]],
                service_minutes=self.settings.service_minutes,
                max_ride_minutes=state["max_ride_minutes"][at],
                rows=behind,
            )

    def _is_stale(self, batch: StepBatch) -> BoolArray:
        """(envs,) whether the routes contain a request that is not booked."""
        state, problems = batch.true_state, self.routes.problems
        positions = np.arange(self.settings.num_customers)
        routed = positions < problems.num_requests[:, None]
        differs = (problems.cells != state["cells"]).any(axis=2)
        differs |= (problems.windows != state["booked_windows"]).any(axis=(2, 3))
        too_many = problems.num_requests > state["num_booked"]
        return np.asarray(too_many | (routed & differs).any(axis=1), bool)


def _new_routes(num_days: int, population: Population, settings: DvrpSettings) -> IncrementalRoutes:
    travel, fleet = population.city.travel, fleet_for(population, settings)
    if settings.oracle == "neural":
        # Imports torch.
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
    """One oracle for all routes of an env, so that a halved batch size stays halved."""
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
