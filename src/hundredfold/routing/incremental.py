"""Plans that grow with their books: one new request per env and step, all envs in one call.

This is the form an env uses. A new request goes where it is cheapest (of equal places the lowest
vehicle's, then the earliest); relocation, trades of tails and a few rounds of search, half of them
around the new request, then repair what the insertion upset. A plan depends on the requests in the
order they were booked and on the env's stream key, never on other rows or on threads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from hundredfold.core import rng
from hundredfold.core.batch import Arrays, BoolArray, FloatArray, IntArray, State, copies, fill
from hundredfold.core.errors import SettingsError, ShapeError
from hundredfold.core.rng import Keys
from hundredfold.routing.instance_arrays import (
    NewRequests,
    TripTimes,
    check_requests,
    finite,
    to_instance_arrays,
    trip_times,
    write_requests,
)
from hundredfold.routing.lns import REQUEST_ORDER, LNSParams, added_by_candidates, improve_batch
from hundredfold.routing.problem import (
    UNLIMITED,
    Fleet,
    RouteProblems,
    Solutions,
    TravelTable,
    filled,
    to_minutes,
)
from hundredfold.routing.solution import (
    build_solutions,
    empty_timetable,
    minutes_or_nan,
    price_ticks,
    prices,
    time_rows,
    unserved,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IncrementalSettings:
    """How much a plan is improved after each booking."""

    improve_passes: int = 1
    """Relocate passes."""
    lns_iterations: int = 4
    """Rounds of large neighbourhood search."""
    max_removed: int = 8
    """Requests that one round takes out, at most."""
    threads: int = 1
    """Threads over envs; plans do not depend on it."""

    def __post_init__(self) -> None:
        if min(self.improve_passes, self.lns_iterations) < 0 or self.max_removed < 1:
            raise SettingsError(
                "kept plans need improve_passes and lns_iterations >= 0 and max_removed >= 1; "
                f"got {self}."
            )
        if self.threads < 1:
            raise SettingsError(f"threads must be at least 1, got {self.threads}.")

    def search(self) -> LNSParams:
        """The same as kernels take it. A kept plan stays cold: it never gets worse on purpose."""
        return LNSParams(
            improve_passes=self.improve_passes,
            iterations=self.lns_iterations,
            max_removed=self.max_removed,
            infeasible_iterations=30,
            start_threshold=0.0,
            new_request_share=0.5,
        )


class IncrementalRoutes:
    """One growing book and its plan per env.

    Whatever comes in has one row per env; `rows` (envs,) tells who takes part, everybody if left
    out, and the rows of the others are not read.
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
        nowhere = np.zeros((num_envs, max_requests, 2), np.int64)
        self.problems = RouteProblems.from_arrays(travel, fleet, nowhere, 0.0, num_requests=0)
        self.instances, self.constraints = to_instance_arrays(self.problems)
        vehicles, width = fleet.num_vehicles, max(1, 2 * max_requests)
        self.routes: IntArray = np.zeros((num_envs, vehicles, width), np.int64)
        self.lengths: IntArray = np.zeros((num_envs, vehicles), np.int64)
        self.timetable = empty_timetable(num_envs, max_requests, vehicles)
        self.cost: FloatArray = np.zeros(num_envs)  # (envs,) inf where somebody is left out

    @property
    def num_requests(self) -> IntArray:
        """(envs,) requests booked so far."""
        return self.problems.num_requests

    @property
    def driving_minutes(self) -> FloatArray:
        """(envs,) driving for those who are served."""
        return to_minutes(self.timetable.driving)

    @property
    def vehicle(self) -> IntArray:
        """(envs, requests) who serves each request, -1 for nobody."""
        return self.timetable.vehicle

    @property
    def stop_minutes(self) -> FloatArray:
        """(envs, stops) planned start of service, NaN where nobody comes."""
        return minutes_or_nan(self.timetable.stop)

    @property
    def vehicles_used(self) -> IntArray:
        """(envs,) vehicles that leave the depot."""
        return np.asarray(np.count_nonzero(self.lengths, axis=1))

    @property
    def unserved(self) -> BoolArray:
        """(envs, requests) True where a booked request has no vehicle."""
        return unserved(self.instances, self.timetable)

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
        """Book one more request per env and return the new prices (envs,), a live view.

        `cells` (envs, 2), `windows` (envs, 2, 2) minutes. `keys` (envs,) are the envs' stream keys
        for routing, the same all day long: draws differ with the number of requests booked.
        """
        chosen, place = self._next_places(rows)
        new = self._asked(cells, riders, service_minutes, max_ride_minutes, chosen)
        when = finite(filled(windows, (self.num_envs, 2, 2), np.float64, "windows")[chosen])
        problems = self.problems
        problems.cells[chosen, place] = new.cells
        problems.windows[chosen, place] = when
        problems.riders[chosen, place] = new.riders
        problems.service_minutes[chosen, place] = new.service_minutes
        problems.max_ride_minutes[chosen, place] = new.max_ride_minutes
        trips = trip_times(
            problems.travel, new.cells, when, new.service_minutes, new.max_ride_minutes
        )
        self._write(chosen, place, new, trips)
        self.num_requests[chosen] += 1
        self._insert_and_improve(chosen, rng.spawn(keys, self.num_requests))
        self._write_timetable(chosen)
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
    ) -> FloatArray:
        """What each plan would cost with one more request, for several windows of that request.

        `windows` is (envs, candidates, 2, 2). The request goes where it is cheapest and nobody else
        moves, so whoever is left out stays out. Returns (envs, candidates) minutes, inf where the
        request fits nowhere and in rows that take no part; the plans stay as they are.
        """
        chosen, place = self._next_places(rows)
        new = self._asked(cells, riders, service_minutes, max_ride_minutes, chosen)
        offered: FloatArray = np.asarray(windows, np.float64)
        if offered.ndim != 4 or len(offered) != self.num_envs or offered.shape[2:] != (2, 2):
            raise ShapeError(
                f"candidate windows came with shape {offered.shape}; pass (envs, candidates, 2, 2) "
                f"for {self.num_envs} envs."
            )
        trips = trip_times(
            self.problems.travel,
            new.cells[:, None],
            finite(offered[chosen]),
            new.service_minutes[:, None],
            new.max_ride_minutes[:, None],
        )
        self._write(chosen, place, new, TripTimes(*(times[:, 0] for times in trips)))
        early: IntArray = np.zeros(offered.shape[:3], np.int64)
        late: IntArray = np.zeros(offered.shape[:3], np.int64)
        early[chosen], late[chosen] = trips.early, trips.late
        added = added_by_candidates(
            self.instances,
            self.constraints,
            chosen,
            early,
            late,
            self.routes,
            self.lengths,
            self.settings.threads,
        )[chosen]
        # Kernels add up service and driving; service has no price.
        spent = price_ticks(self.constraints, self.lengths, self.timetable)[chosen, None]
        total = to_minutes(spent + added - trips.service.sum(axis=2))
        found: FloatArray = np.full(offered.shape[:2], np.inf)
        found[chosen] = np.where(added < UNLIMITED, total, np.inf)
        return found

    def clear(self, rows: BoolArray) -> None:
        """Begin an empty book in these envs."""
        chosen = np.flatnonzero(rows)
        self.num_requests[chosen] = 0
        self.routes[chosen] = 0
        self.lengths[chosen] = 0
        self._write_timetable(chosen)

    def solutions(self) -> Solutions:
        """Copies of all plans, as an oracle returns them."""
        return build_solutions(
            self.instances, self.constraints, self.routes.copy(), self.lengths.copy()
        )

    def state(self) -> Arrays:
        """Copies of everything that is needed to go on from here; the first axis is the env."""
        return copies(self._kept())

    def restore(self, state: State) -> None:
        """Go on from a snapshot."""
        fill(self._kept(), state)
        self.instances, self.constraints = to_instance_arrays(self.problems)
        self._write_timetable(np.arange(self.num_envs))

    def _kept(self) -> Arrays:
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

    def _insert_and_improve(self, chosen: IntArray, keys: Keys) -> IntArray:
        """Put the newest request of these envs into their plans; returns (envs,) objectives."""
        ticks = np.full(self.num_envs, UNLIMITED)
        improve_batch(
            self.instances,
            self.constraints,
            self.settings.search(),
            REQUEST_ORDER,
            chosen,
            keys,
            self.routes,
            self.lengths,
            ticks,
            self.settings.threads,
        )
        return ticks

    def _next_places(self, rows: BoolArray | None) -> tuple[IntArray, IntArray]:
        """The envs that take part, and the number their next request will have."""
        chosen: IntArray = np.arange(self.num_envs) if rows is None else np.flatnonzero(rows)
        place = self.num_requests[chosen]
        if (place >= self.problems.max_requests).any():
            full = chosen[place >= self.problems.max_requests][0]
            raise ShapeError(
                f"the book of env {full} is full with {self.problems.max_requests} requests; "
                "clear it, or make room for more when creating IncrementalRoutes."
            )
        return chosen, place

    def _asked(
        self,
        cells: ArrayLike,
        riders: ArrayLike,
        service_minutes: ArrayLike,
        max_ride_minutes: ArrayLike,
        chosen: IntArray,
    ) -> NewRequests:
        envs = self.num_envs
        new = NewRequests(
            filled(cells, (envs, 2), np.int64, "cells")[chosen],
            filled(riders, (envs,), np.int64, "riders")[chosen],
            filled(service_minutes, (envs, 2), np.float64, "service_minutes")[chosen],
            filled(max_ride_minutes, (envs,), np.float64, "max_ride_minutes")[chosen],
        )
        check_requests(new, self.problems.travel)
        return new

    def _write(self, chosen: IntArray, place: IntArray, new: NewRequests, trips: TripTimes) -> None:
        write_requests(self.instances, chosen, place, new, trips)
        if np.isfinite(new.max_ride_minutes).any():
            self.constraints = self.constraints._replace(has_duration_limits=True)

    def _write_timetable(self, chosen: IntArray) -> None:
        time_rows(
            self.instances, self.constraints, chosen, self.routes, self.lengths, self.timetable
        )
        self.cost[:] = prices(self.instances, self.constraints, self.lengths, self.timetable)
