"""Incremental routing: solutions that grow by one request per env and step, all envs in one call.

This is the form an env uses. A new request gets its cheapest insertion (ties go to the lowest
vehicle, then to the earliest position); relocate, 2-opt* and a few iterations of large
neighbourhood search, half of them seeded at the new request, then improve the routes. A solution
depends on the requests in their order and on the env's stream key: not on other rows or on threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hundredfold.core import rng
from hundredfold.core.batch import Arrays, BoolArray, FloatArray, IntArray, State, copies, fill
from hundredfold.core.bounds import AtLeastOne, NonNegativeInt, check_bounds
from hundredfold.core.errors import ShapeError
from hundredfold.core.rng import Keys
from hundredfold.routing.instance_arrays import NewRequests, TripTimes, to_instance_arrays, trip_times, write_requests
from hundredfold.routing.lns import REQUEST_ORDER, LNSParams, RouteArrays, candidate_insertion_costs, improve_batch
from hundredfold.routing.problem import (
    INFEASIBLE,
    Fleet,
    RouteProblems,
    Solutions,
    TravelTable,
    broadcast_copy,
    check_requests,
    to_minutes,
)
from hundredfold.routing.solution import (
    build_solutions,
    cost_microseconds,
    cost_minutes,
    empty_schedule,
    minutes_or_nan,
    schedule_rows,
    unserved_requests,
)
from hundredfold.routing.verifier import violations


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalSettings:
    """Search effort after each new request."""

    improve_passes: NonNegativeInt = 1
    """Relocate passes."""
    lns_iterations: NonNegativeInt = 4
    """Iterations of large neighbourhood search."""
    max_removed: AtLeastOne = 8
    """Requests removed in one iteration, at most."""
    threads: AtLeastOne = 1
    """Threads over envs; solutions do not depend on it."""

    def __post_init__(self) -> None:
        check_bounds(self)

    def lns_params(self) -> LNSParams:
        """The settings as kernels take them; the threshold is 0, so solutions never get worse."""
        return LNSParams(
            improve_passes=self.improve_passes,
            iterations=self.lns_iterations,
            max_removed=self.max_removed,
            infeasible_iterations=30,
            start_threshold=0.0,
            new_request_share=0.5,
        )


class CandidateCosts(NamedTuple):
    """Costs with one more request, (envs, candidates) minutes; inf where it fits nowhere and in other rows."""

    insertion: FloatArray  # nothing else moves
    improved: FloatArray  # after the routes were improved, where that was asked for


class IncrementalRoutes:
    """One growing instance and its solution per env.

    Arguments of methods have one row per env; `rows` (envs,) selects the envs that take part, all
    by default, and the other rows are not read.

    Args:
        travel: travel-time matrix.
        fleet: vehicles and depot.
        num_envs: number of instances.
        max_requests: requests an instance can hold.
        settings: search effort after each new request.
    """

    def __init__(
        self,
        travel: TravelTable,
        fleet: Fleet,
        num_envs: int,
        max_requests: int,
        settings: IncrementalSettings | None = None,
    ) -> None:
        self.settings = settings or IncrementalSettings()
        self.num_envs = num_envs
        no_cells = np.zeros((num_envs, max_requests, 2), np.int64)
        self.problems = RouteProblems.from_arrays(travel, fleet, no_cells, 0.0, num_requests=0)
        self.instances, self.constraints = to_instance_arrays(self.problems)
        vehicles, width = fleet.num_vehicles, max(1, 2 * max_requests)
        self.routes: IntArray = np.zeros((num_envs, vehicles, width), np.int64)
        self.lengths: IntArray = np.zeros((num_envs, vehicles), np.int64)
        self.schedule = empty_schedule(num_envs, max_requests, vehicles)
        self.cost: FloatArray = np.zeros(num_envs)  # (envs,) minutes, inf if a request is unserved

    @property
    def num_requests(self) -> IntArray:
        """(envs,) requests added so far."""
        return self.problems.num_requests

    @property
    def driving_minutes(self) -> FloatArray:
        """(envs,) driving for the requests that are served."""
        return to_minutes(self.schedule.driving)

    @property
    def vehicle(self) -> IntArray:
        """(envs, requests) vehicle of each request, -1 where unserved."""
        return self.schedule.vehicle

    @property
    def stop_minutes(self) -> FloatArray:
        """(envs, stops) scheduled start of service, NaN where unserved."""
        return minutes_or_nan(self.schedule.stop)

    @property
    def vehicles_used(self) -> IntArray:
        """(envs,) vehicles that leave the depot."""
        return np.asarray(np.count_nonzero(self.lengths, axis=1))

    @property
    def unserved(self) -> BoolArray:
        """(envs, requests) True where a request has no vehicle."""
        return unserved_requests(self.instances, self.schedule)

    def add(
        self,
        cells: ArrayLike,
        windows: ArrayLike,
        keys: Keys,
        *,
        riders: ArrayLike = 1,
        service_minutes: ArrayLike = 0.0,
        max_ride_minutes: ArrayLike = np.inf,
        rows: BoolArray | None = None,
    ) -> FloatArray:
        """Add one request per env and improve the routes.

        Args:
            cells: (envs, 2) pickup and dropoff cell.
            windows: (envs, 2, 2) time windows in minutes.
            keys: (envs,) stream keys, the same for all requests of an episode: draws differ with
                the number of requests.
            riders: (envs,).
            service_minutes: (envs, 2).
            max_ride_minutes: (envs,) ride-time limit.
            rows: (envs,) envs that get a request.

        Returns:
            (envs,) the new costs in minutes, a live view.

        """
        chosen, index = self._next_index(rows)
        times = broadcast_copy(windows, (self.num_envs, 2, 2), np.float64, "windows")[chosen]
        new = self._parse_requests(cells, times, riders, service_minutes, max_ride_minutes, chosen)
        problems = self.problems
        problems.cells[chosen, index] = new.cells
        problems.windows[chosen, index] = times
        problems.riders[chosen, index] = new.riders
        problems.service_minutes[chosen, index] = new.service_minutes
        problems.max_ride_minutes[chosen, index] = new.max_ride_minutes
        trips = trip_times(problems.travel, new.cells, times, new.service_minutes, new.max_ride_minutes)
        self._write(chosen, index, new, trips)
        self.num_requests[chosen] += 1
        self._insert_and_improve(chosen, rng.spawn(keys, self.num_requests))
        self._update_schedule(chosen)
        return self.cost

    def candidate_costs(
        self,
        cells: ArrayLike,
        windows: ArrayLike,
        *,
        riders: ArrayLike = 1,
        service_minutes: ArrayLike = 0.0,
        max_ride_minutes: ArrayLike = np.inf,
        rows: BoolArray | None = None,
        improved: BoolArray | None = None,
        keys: Keys | None = None,
        lns_iterations: int | None = None,
    ) -> CandidateCosts:
        """Cost of each solution with one more request, for several windows of that request.

        The request gets its cheapest insertion; solutions stay as they are.

        Args:
            cells: (envs, 2) pickup and dropoff cell.
            windows: (envs, candidates, 2, 2) time windows in minutes.
            riders: (envs,).
            service_minutes: (envs, 2).
            max_ride_minutes: (envs,) ride-time limit.
            rows: (envs,) envs to compute.
            improved: (envs, candidates) windows for which the routes are improved after the insertion,
                as `add` improves them; by default none.
            keys: (envs,) stream keys of that search, as for `add`; needed with `improved`.
            lns_iterations: its iterations of large neighbourhood search; by default those of `add`.

        """
        if (improved is None) != (keys is None):
            raise ShapeError("candidate_costs takes improved and keys together: routes are improved by a keyed search.")
        chosen, index = self._next_index(rows)
        candidates: FloatArray = np.asarray(windows, np.float64)
        shape = candidates.shape
        if len(shape) != 4 or shape[0] != self.num_envs or shape[2:] != (2, 2):
            raise ShapeError(
                f"candidate windows came with shape {shape}; pass (envs, candidates, 2, 2) for {self.num_envs} envs."
            )
        times = candidates[chosen]
        new = self._parse_requests(cells, times, riders, service_minutes, max_ride_minutes, chosen)
        trips = trip_times(
            self.problems.travel, new.cells[:, None], times, new.service_minutes[:, None], new.max_ride_minutes[:, None]
        )
        self._write(chosen, index, new, TripTimes(*(values[:, 0] for values in trips)))
        early: IntArray = np.zeros(shape[:3], np.int64)
        late: IntArray = np.zeros(shape[:3], np.int64)
        early[chosen], late[chosen] = trips.early, trips.late
        params = self.settings.lns_params()
        if lns_iterations is not None:
            params = params._replace(iterations=lns_iterations)
        search_keys = np.zeros(self.num_envs, np.uint64) if keys is None else rng.spawn(keys, self.num_requests + 1)
        added = candidate_insertion_costs(
            self.instances,
            self.constraints,
            params,
            chosen,
            early,
            late,
            np.zeros(shape[:2], bool) if improved is None else improved,
            search_keys,
            self.routes,
            self.lengths,
            self.settings.threads,
        )
        # Kernels add up service and driving; service is not part of the cost.
        present = cost_microseconds(self.constraints, self.lengths, self.schedule)[chosen, None]
        without_service = present - trips.service.sum(axis=2)
        costs = CandidateCosts(np.full(shape[:2], np.inf), np.full(shape[:2], np.inf))
        for total, cost in zip(costs, added, strict=True):
            total[chosen] = np.where(cost[chosen] < INFEASIBLE, to_minutes(without_service + cost[chosen]), np.inf)
        return costs

    def remove(self, env: int, request: int, keys: Keys) -> bool:
        """Remove one request and improve the routes; later requests of the env move up by one.

        Without its two stops a route stays on time if the travel times satisfy the triangle
        inequality. If a route would be late, nothing changes.

        Args:
            env: the instance.
            request: number of the request in its instance.
            keys: (envs,) stream keys, as for `add`.

        Returns:
            Whether the request was removed.
        """
        before = self.state()
        problems, last = self.problems, int(self.num_requests[env]) - 1
        fields = (
            problems.cells,
            problems.windows,
            problems.riders,
            problems.service_minutes,
            problems.max_ride_minutes,
        )
        for array in fields:
            array[env, request:last] = array[env, request + 1 : last + 1]
            array[env, last] = 0
        problems.max_ride_minutes[env, last] = np.inf
        self.num_requests[env] = last
        gone = (2 * request + 1, 2 * request + 2)
        for vehicle, length in enumerate(self.lengths[env]):
            stops = self.routes[env, vehicle, :length].copy()
            stops = stops[~np.isin(stops, gone)]
            self.routes[env, vehicle] = 0
            self.routes[env, vehicle, : len(stops)] = np.where(stops > gone[1], stops - 2, stops)
            self.lengths[env, vehicle] = len(stops)
        self.refresh()
        if self.problems.travel.max_shortcut and violations(self.problems, self.solutions()):
            self.restore(before)
            return False
        chosen = np.array([env])
        self._insert_and_improve(chosen, rng.spawn(keys, self.num_requests))
        self._update_schedule(chosen)
        return True

    def clear(self, rows: BoolArray) -> None:
        """Remove all requests of these envs."""
        chosen = np.flatnonzero(rows)
        self.num_requests[chosen] = 0
        self.routes[chosen] = 0
        self.lengths[chosen] = 0
        self._update_schedule(chosen)

    def solutions(self) -> Solutions:
        """Copies of all solutions, as an oracle returns them."""
        routes, lengths = self.routes.copy(), self.lengths.copy()
        return build_solutions(self.instances, self.constraints, routes, lengths)

    def state(self) -> Arrays:
        """Copies of the state arrays, to continue from later."""
        return copies(self.state_arrays())

    def restore(self, state: State) -> None:
        """Continue from what `state` returned."""
        fill(self.state_arrays(), state)
        self.refresh()

    def state_arrays(self) -> Arrays:
        """The live arrays that define requests and routes; the first axis is the env."""
        problems = self.problems
        return {
            "num_requests": problems.num_requests,
            "cells": problems.cells,
            "windows": problems.windows,
            "riders": problems.riders,
            "service_minutes": problems.service_minutes,
            "max_ride_minutes": problems.max_ride_minutes,
            "routes": self.routes,
            "lengths": self.lengths,
        }

    def refresh(self) -> None:
        """Recompute what follows from `state_arrays`, after they were written to."""
        self.instances, self.constraints = to_instance_arrays(self.problems)
        self._update_schedule(np.arange(self.num_envs))

    def _insert_and_improve(self, chosen: IntArray, keys: Keys) -> IntArray:
        """Insert the newest request of these envs; returns (envs,) objectives."""
        objective = np.full(self.num_envs, INFEASIBLE)
        improve_batch(
            self.instances,
            self.constraints,
            self.settings.lns_params(),
            REQUEST_ORDER,
            chosen,
            keys,
            RouteArrays(self.routes, self.lengths, objective),
            self.settings.threads,
        )
        return objective

    def _next_index(self, rows: BoolArray | None) -> tuple[IntArray, IntArray]:
        """The envs that take part, and the index of their next request."""
        chosen: IntArray = np.arange(self.num_envs) if rows is None else np.flatnonzero(rows)
        index = self.num_requests[chosen]
        if (index >= self.problems.max_requests).any():
            full = chosen[index >= self.problems.max_requests][0]
            raise ShapeError(
                f"the instance of env {full} is full with {self.problems.max_requests} requests; "
                "clear it, or create IncrementalRoutes with a larger max_requests."
            )
        return chosen, index

    def _parse_requests(
        self,
        cells: ArrayLike,
        times: FloatArray,
        riders: ArrayLike,
        service_minutes: ArrayLike,
        max_ride_minutes: ArrayLike,
        chosen: IntArray,
    ) -> NewRequests:
        envs = self.num_envs
        new = NewRequests(
            broadcast_copy(cells, (envs, 2), np.int64, "cells")[chosen],
            broadcast_copy(riders, (envs,), np.int64, "riders")[chosen],
            broadcast_copy(service_minutes, (envs, 2), np.float64, "service_minutes")[chosen],
            broadcast_copy(max_ride_minutes, (envs,), np.float64, "max_ride_minutes")[chosen],
        )
        check_requests(self.problems.travel, new.cells, times, new.riders, new.service_minutes, new.max_ride_minutes)
        return new

    def _write(self, chosen: IntArray, index: IntArray, new: NewRequests, trips: TripTimes) -> None:
        write_requests(self.instances, chosen, index, new, trips)
        if np.isfinite(new.max_ride_minutes).any():
            self.constraints = self.constraints._replace(has_duration_limits=True)

    def _update_schedule(self, chosen: IntArray) -> None:
        schedule_rows(self.instances, self.constraints, chosen, self.routes, self.lengths, self.schedule)
        self.cost[:] = cost_minutes(self.instances, self.constraints, self.lengths, self.schedule)
