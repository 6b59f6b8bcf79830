"""Books as kernels read them: whole ticks, one row per stop, windows tightened."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hundredfold.core.batch import FloatArray, IntArray
from hundredfold.core.errors import ShapeError
from hundredfold.routing.problem import (
    DROPOFF,
    EARLY,
    LAST_MINUTE,
    LATE,
    PICKUP,
    UNLIMITED,
    Fleet,
    RouteProblems,
    TravelTable,
    microseconds_down,
    microseconds_up,
)


class FleetConstraints(NamedTuple):
    """What holds for every route of every book; plain numbers, durations in ticks."""

    num_vehicles: int
    capacity: int
    max_route: int  # UNLIMITED when unlimited
    free_vehicles: int
    extra_vehicle_cost: int  # price of a vehicle beyond the free ones
    max_shortcut: int  # the most that a stop on the way can save
    has_duration_limits: bool  # whether rides or routes have a longest duration


class InstanceArrays(NamedTuple):
    """A batch of books in ticks; the second axis is the stop, 0 the depot."""

    drive: IntArray  # (cells, cells)
    num_requests: IntArray  # (books,)
    cell: IntArray  # (books, stops)
    early: IntArray  # (books, stops)
    late: IntArray  # (books, stops)
    service: IntArray  # (books, stops)
    riders: IntArray  # (books, stops) who get on, negative where they leave
    max_ride: IntArray  # (books, stops) from start of the pickup's service, kept at its stop


class TripTimes(NamedTuple):
    """Times of requests in ticks, with any leading axes; the last one is pickup, dropoff."""

    early: IntArray  # (..., 2)
    late: IntArray  # (..., 2)
    service: IntArray  # (..., 2)
    max_ride: IntArray  # (..., 2) at the pickup, 0 at the dropoff


class NewRequests(NamedTuple):
    """One more request for each of some books, all but its windows."""

    cells: IntArray  # (rows, 2) pickup, dropoff
    riders: IntArray  # (rows,)
    service_minutes: FloatArray  # (rows, 2)
    max_ride_minutes: FloatArray  # (rows,)


def fleet_constraints(fleet: Fleet, travel: TravelTable, limited: bool) -> FleetConstraints:
    """The fleet's rules in ticks."""
    return FleetConstraints(
        num_vehicles=int(fleet.num_vehicles),
        capacity=int(fleet.capacity),
        max_route=int(microseconds_down(fleet.max_route_minutes)),
        free_vehicles=int(fleet.free_vehicles),
        extra_vehicle_cost=int(microseconds_up(fleet.extra_vehicle_minutes)),
        max_shortcut=travel.max_shortcut,
        has_duration_limits=limited,
    )


def to_instance_arrays(problems: RouteProblems) -> tuple[InstanceArrays, FleetConstraints]:
    """The books in ticks and the rules they are planned by."""
    fleet, travel = problems.fleet, problems.travel
    trips = trip_times(
        travel,
        problems.cells,
        problems.windows,
        problems.service_minutes,
        problems.max_ride_minutes,
    )
    riders = problems.riders
    books = InstanceArrays(
        drive=travel.microseconds,
        # Kernels are compiled for unbroken arrays; the one of kept plans is passed on as it is.
        num_requests=np.ascontiguousarray(problems.num_requests),
        cell=_by_stop(problems.cells, fleet.depot_cell),
        early=_by_stop(trips.early, int(microseconds_up(fleet.depot_window[EARLY]))),
        late=_by_stop(trips.late, int(microseconds_down(fleet.depot_window[LATE]))),
        service=_by_stop(trips.service, 0),
        riders=_by_stop(np.stack([riders, -riders], axis=2), 0),
        max_ride=_by_stop(trips.max_ride, 0),
    )
    return books, fleet_constraints(fleet, travel, problems.has_duration_limits)


def trip_times(
    travel: TravelTable,
    cells: IntArray,
    windows: FloatArray,
    service_minutes: FloatArray,
    max_ride_minutes: FloatArray,
) -> TripTimes:
    """Times in ticks, without what the other end of the trip rules out anyway.

    A pickup that starts before `early` would keep its rider on board for too long, one that starts
    after `late` would miss the dropoff's window; and likewise for dropoffs.
    """
    early, late = microseconds_up(windows[..., EARLY]), microseconds_down(windows[..., LATE])
    service = microseconds_up(service_minutes)
    longest = np.minimum(microseconds_down(max_ride_minutes) + service[..., PICKUP], UNLIMITED)
    shortest = service[..., PICKUP]
    if travel.max_shortcut == 0:
        shortest = shortest + travel.microseconds[cells[..., PICKUP], cells[..., DROPOFF]]
    tight_early = np.stack(
        [
            np.maximum(early[..., PICKUP], early[..., DROPOFF] - longest),
            np.maximum(early[..., DROPOFF], early[..., PICKUP] + shortest),
        ],
        axis=-1,
    )
    tight_late = np.stack(
        [
            np.minimum(late[..., PICKUP], late[..., DROPOFF] - shortest),
            np.minimum(late[..., DROPOFF], late[..., PICKUP] + longest),
        ],
        axis=-1,
    )
    max_ride = np.stack([longest, np.zeros_like(longest)], axis=-1)
    return TripTimes(tight_early, tight_late, service, max_ride)


def check_requests(new: NewRequests, travel: TravelTable) -> None:
    """Refuse requests that a kernel would stumble over."""
    if ((new.cells < 0) | (new.cells >= travel.num_cells)).any():
        raise ShapeError(
            f"cells must lie in 0..{travel.num_cells - 1}, the size of the travel table; "
            f"got {new.cells.min()}..{new.cells.max()}."
        )
    if (new.riders < 1).any() or (new.service_minutes < 0.0).any():
        raise ShapeError("riders must be at least 1 and service_minutes at least 0.")
    if not (new.max_ride_minutes >= 0.0).all():
        raise ShapeError("max_ride_minutes must be >= 0; use inf where there is no limit.")


def finite(windows: FloatArray) -> FloatArray:
    """The same windows, refused when an end is missing."""
    if not (np.abs(windows) <= LAST_MINUTE).all():
        raise ShapeError("some window is NaN or endless; give every window both ends.")
    return windows


def write_requests(
    books: InstanceArrays, rows: IntArray, place: IntArray, new: NewRequests, trips: TripTimes
) -> None:
    """Write request number `place` of these rows; the books do not count it yet."""
    row, stops = rows[:, None], 2 * place[:, None] + np.array([1, 2])
    books.cell[row, stops] = new.cells
    books.early[row, stops] = trips.early
    books.late[row, stops] = trips.late
    books.service[row, stops] = trips.service
    books.riders[row, stops] = new.riders[:, None] * np.array([1, -1])
    books.max_ride[row, stops] = trips.max_ride


def _by_stop(values: IntArray, depot: int) -> IntArray:
    """(books, requests, 2) as (books, stops), with the depot's value in front."""
    books, requests, _ = values.shape
    table = np.full((books, 2 * requests + 1), depot, np.int64)
    table[:, 1:] = values.reshape(books, 2 * requests)
    return table
