"""What a day may come to: plans with one more request and a number of guessed requests after it.

A guess is a list of trips out of a table, the same for every candidate window of the request, so
that candidates are compared under the same luck. The plans that are kept stay as they are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hundredfold.core.batch import BoolArray, FloatArray, IntArray
from hundredfold.core.errors import ShapeError
from hundredfold.core.numba_kernels import kernel, noalloc_kernel
from hundredfold.core.rng import Keys
from hundredfold.routing.incremental import IncrementalRoutes
from hundredfold.routing.instance_arrays import NewRequests, TripTimes, trip_times, write_requests
from hundredfold.routing.lns import (
    REGRET_ORDER,
    LNSParams,
    improved_objective,
    load_plan,
    parallel_ranges,
)
from hundredfold.routing.operators import UNSERVED_TICKS
from hundredfold.routing.problem import EARLY, LATE, TravelTable, to_minutes
from hundredfold.routing.workspace import NOBODY, OFFER_STAMP, lay_out, new_desk


class TripTable(NamedTuple):
    """Trips that guesses are made of, one rider each, in ticks."""

    cell: IntArray  # (trips, 2)
    early: IntArray  # (trips, 2)
    late: IntArray  # (trips, 2)
    service: IntArray  # (trips, 2)
    max_ride: IntArray  # (trips, 2)
    has_duration_limits: bool  # whether any of them has a ride limit


class SampledRequests(NamedTuple):
    """Who may call later today, several times over."""

    trips: IntArray  # (envs, guesses, width) places in the trip table
    number: IntArray  # (envs,) how many of them call; the rest of the width is not read


def trip_table(
    travel: TravelTable,
    cells: IntArray,
    windows: FloatArray,
    service_minutes: float,
    max_ride_minutes: FloatArray,
) -> TripTable:
    """The table of these trips: `cells` (trips, 2), `windows` (trips, 2, 2), limits (trips,)."""
    service = np.full(cells.shape, service_minutes)
    times = trip_times(travel, cells, windows, service, max_ride_minutes)
    limited = bool(np.isfinite(max_ride_minutes).any())
    return TripTable(np.ascontiguousarray(cells), *times, limited)


def final_costs(
    kept: IncrementalRoutes,
    request: NewRequests,
    windows: FloatArray,
    wanted: BoolArray,
    table: TripTable,
    guesses: SampledRequests,
    search: LNSParams,
    keys: Keys,
    left_out_minutes: float,
) -> FloatArray:
    """(envs, candidates, guesses) minutes of the day after the request and all guessed trips.

    `windows` (envs, candidates, 2, 2) are the request's; candidates that are not `wanted` (envs,
    candidates) stay 0. Everybody goes in where it is cheapest, whoever would lose most by waiting
    first, and `search` improves what came out; `keys` (envs, guesses) are its streams. Service at
    stops counts as driving here, the same for every candidate. Whoever fits nowhere costs
    `left_out_minutes`.
    """
    envs, candidates = wanted.shape
    place = kept.num_requests
    room = kept.problems.max_requests - place - 1
    if (room < 0).any() or (guesses.number > np.minimum(room, guesses.trips.shape[2])).any():
        raise ShapeError(
            f"guesses of {guesses.number.max()} requests do not fit behind {place.max()} booked "
            f"ones and the new one in books of {kept.problems.max_requests}."
        )
    trips = trip_times(
        kept.problems.travel,
        request.cells[:, None],
        windows,
        request.service_minutes[:, None],
        request.max_ride_minutes[:, None],
    )
    first = TripTimes(*(times[:, 0] for times in trips))
    write_requests(kept.instances, np.arange(envs), place, request, first)
    limited = bool(np.isfinite(request.max_ride_minutes).any())
    rules = kept.constraints._replace(
        has_duration_limits=kept.constraints.has_duration_limits
        or table.has_duration_limits
        or limited
    )
    ticks = np.zeros((envs, candidates, guesses.trips.shape[1]), np.int64)
    parallel_ranges(
        kept.settings.threads,
        envs,
        lambda start, end: _roll_out_some(
            kept.instances,
            rules,
            search,
            trips.early,
            trips.late,
            wanted,
            table,
            guesses,
            keys,
            kept.routes,
            kept.lengths,
            ticks,
            start,
            end,
        ),
    )
    left, spent = np.divmod(ticks, UNSERVED_TICKS)
    return np.asarray(to_minutes(spent) + left_out_minutes * left)


@kernel
def _roll_out_some(
    books: Any,
    rules: Any,
    search: Any,
    early: Any,
    late: Any,
    wanted: Any,
    table: Any,
    guesses: Any,
    keys: Any,
    routes: Any,
    lengths: Any,
    ticks: Any,
    first: Any,
    last: Any,
) -> None:
    desk = new_desk(rules.num_vehicles, books.cell.shape[1] // 2)
    for env in range(first, last):
        request = books.num_requests[env]
        total = request + 1 + guesses.number[env]
        for guess in range(guesses.trips.shape[1]):
            # What stands behind the requests of a book is nobody's; guesses are written there.
            for k in range(guesses.number[env]):
                _write_trip(books, env, request + 1 + k, table, guesses.trips[env, guess, k])
            lay_out(desk, books, env, total)
            for candidate in range(wanted.shape[1]):
                if not wanted[env, candidate]:
                    continue
                for side in range(2):
                    desk.stops[2 * request + 1 + side, EARLY] = early[env, candidate, side]
                    desk.stops[2 * request + 1 + side, LATE] = late[env, candidate, side]
                desk.offers[request, :, OFFER_STAMP] = NOBODY
                desk.vehicle[:total] = NOBODY
                load_plan(desk, rules, routes, lengths, env)
                ticks[env, candidate, guess] = improved_objective(
                    desk, rules, search, REGRET_ORDER, total, keys[env, guess]
                )


@noalloc_kernel
def _write_trip(books: Any, book: Any, request: Any, table: Any, trip: Any) -> None:
    for side in range(2):
        stop = 2 * request + 1 + side
        books.cell[book, stop] = table.cell[trip, side]
        books.early[book, stop] = table.early[trip, side]
        books.late[book, stop] = table.late[trip, side]
        books.service[book, stop] = table.service[trip, side]
        books.riders[book, stop] = 1 - 2 * side
        books.max_ride[book, stop] = table.max_ride[trip, side]
