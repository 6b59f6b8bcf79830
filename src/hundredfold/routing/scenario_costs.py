"""Costs under sampled future requests: the final cost of a day, for each window of a new request.

A scenario is a list of trips drawn from a table. All candidate windows are evaluated on the same
scenarios (common random numbers), so that their differences have little noise. The routes given
stay as they are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hundredfold.core.batch import BoolArray, FloatArray, IntArray
from hundredfold.core.errors import ShapeError
from hundredfold.core.numba_kernels import kernel, noalloc_kernel
from hundredfold.core.rng import Keys
from hundredfold.routing.incremental import IncrementalRoutes
from hundredfold.routing.instance_arrays import NewRequests, TripTimes, trip_times, write_requests
from hundredfold.routing.lns import (
    REGRET_ORDER,
    LNSParams,
    construct_and_improve,
    load_routes,
    parallel_ranges,
    set_window,
)
from hundredfold.routing.operators import UNSERVED_PENALTY
from hundredfold.routing.problem import TravelTable, broadcast_copy, to_minutes
from hundredfold.routing.workspace import START, load_instance, new_workspace, restore_solution, save_solution


class TripTable(NamedTuple):
    """Trips that scenarios are drawn from; times in microseconds."""

    cell: IntArray  # (trips, 2)
    early: IntArray  # (trips, 2)
    late: IntArray  # (trips, 2)
    service: IntArray  # (trips, 2)
    max_ride: IntArray  # (trips, 2)
    riders: IntArray  # (trips,) packed as in a RouteProblems
    has_duration_limits: bool  # whether any of them has a ride-time limit


class SampledRequests(NamedTuple):
    """Sampled future requests of every env."""

    trips: IntArray  # (envs, scenarios, width) indices into the trip table
    number: IntArray  # (envs,) requests in each scenario; the rest of the width is not read


def trip_table(
    travel: TravelTable,
    cells: IntArray,
    windows: FloatArray,
    service_minutes: float,
    max_ride_minutes: FloatArray,
    riders: ArrayLike = 1,
) -> TripTable:
    """Build the table that scenarios are drawn from.

    Args:
        travel: travel-time matrix.
        cells: (trips, 2) pickup and dropoff cell.
        windows: (trips, 2, 2) minutes.
        service_minutes: service at every stop.
        max_ride_minutes: (trips,) ride-time limit, inf where there is none.
        riders: (trips,) seats, plus `WHEELCHAIR` for each wheelchair.

    """
    service = np.full(cells.shape, service_minutes)
    times = trip_times(travel, cells, windows, service, max_ride_minutes)
    limited = bool(np.isfinite(max_ride_minutes).any())
    people = broadcast_copy(riders, (len(cells),), np.int64, "riders")
    return TripTable(np.ascontiguousarray(cells), *times, people, limited)


def final_costs(
    present: IncrementalRoutes,
    request: NewRequests,
    windows: FloatArray,
    candidate_mask: BoolArray,
    table: TripTable,
    sampled: SampledRequests,
    params: LNSParams,
    keys: Keys,
    unserved_minutes: float,
) -> FloatArray:
    """Cost of the day after a new request and all sampled ones, per candidate window and scenario.

    Requests are inserted by regret-2, then improved by large neighbourhood search. Service counts
    as driving here; it is the same for every candidate.

    Args:
        present: the routes so far.
        request: the new request of every env.
        windows: (envs, candidates, 2, 2) its candidate windows in minutes.
        candidate_mask: (envs, candidates) candidates to evaluate; the others get 0.
        table: trips that `sampled` refers to.
        sampled: the scenarios.
        params: parameters of the search.
        keys: (envs, scenarios) stream keys of the search.
        unserved_minutes: cost of an unserved request.

    Returns:
        (envs, candidates, scenarios) minutes.

    """
    envs, candidates = candidate_mask.shape
    index = present.num_requests
    room = present.problems.max_requests - index - 1
    if (room < 0).any() or (sampled.number > np.minimum(room, sampled.trips.shape[2])).any():
        raise ShapeError(
            f"scenarios of {sampled.number.max()} requests do not fit after {index.max()} requests "
            f"and the new one in instances of {present.problems.max_requests}."
        )
    trips = trip_times(
        present.problems.travel,
        request.cells[:, None],
        windows,
        request.service_minutes[:, None],
        request.max_ride_minutes[:, None],
    )
    first = TripTimes(*(times[:, 0] for times in trips))
    write_requests(present.instances, np.arange(envs), index, request, first)
    limited = table.has_duration_limits or bool(np.isfinite(request.max_ride_minutes).any())
    constraints = present.constraints
    if limited:
        constraints = constraints._replace(has_duration_limits=True)
    objective = np.zeros((envs, candidates, sampled.trips.shape[1]), np.int64)
    parallel_ranges(
        present.settings.threads,
        envs,
        lambda start, end: _final_costs_range(
            present.instances,
            constraints,
            params,
            trips.early,
            trips.late,
            candidate_mask,
            table,
            sampled,
            keys,
            present.routes,
            present.lengths,
            objective,
            start,
            end,
        ),
    )
    unserved, served = np.divmod(objective, UNSERVED_PENALTY)
    return np.asarray(to_minutes(served) + unserved_minutes * unserved)


@kernel
def _final_costs_range(
    instances: Any,
    constraints: Any,
    params: Any,
    early: Any,
    late: Any,
    candidate_mask: Any,
    table: Any,
    sampled: Any,
    keys: Any,
    routes: Any,
    lengths: Any,
    objective: Any,
    first: Any,
    last: Any,
) -> None:
    ws = new_workspace(constraints.num_vehicles, instances.cell.shape[1] // 2)
    for env in range(first, last):
        request = instances.num_requests[env]
        total = request + 1 + sampled.number[env]
        for scenario in range(sampled.trips.shape[1]):
            # Entries behind an instance's own requests are free; sampled requests go there.
            for k in range(sampled.number[env]):
                _write_trip(instances, env, request + 1 + k, table, sampled.trips[env, scenario, k])
            load_instance(ws, instances, env, total)
            load_routes(ws, constraints, routes, lengths, env)
            save_solution(ws, constraints, total, START)
            for candidate in range(candidate_mask.shape[1]):
                if not candidate_mask[env, candidate]:
                    continue
                set_window(ws, request, early, late, env, candidate)
                restore_solution(ws, constraints, total, START)
                objective[env, candidate, scenario] = construct_and_improve(
                    ws, constraints, params, REGRET_ORDER, total, keys[env, scenario]
                )


@noalloc_kernel
def _write_trip(instances: Any, instance: Any, request: Any, table: Any, trip: Any) -> None:
    for side in range(2):
        stop = 2 * request + 1 + side
        instances.cell[instance, stop] = table.cell[trip, side]
        instances.early[instance, stop] = table.early[trip, side]
        instances.late[instance, stop] = table.late[trip, side]
        instances.service[instance, stop] = table.service[trip, side]
        instances.riders[instance, stop] = (1 - 2 * side) * table.riders[trip]
        instances.max_ride[instance, stop] = table.max_ride[trip, side]
