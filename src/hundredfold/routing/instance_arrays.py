"""Instances as kernels read them: integer microseconds, one entry per stop, tight time windows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hundredfold.core.batch import FloatArray, IntArray
from hundredfold.routing.problem import (
    DROPOFF,
    EARLY,
    LATE,
    PICKUP,
    ROOM_BITS,
    UNLIMITED,
    Fleet,
    RouteProblems,
    TravelTable,
    microseconds_down,
    microseconds_up,
)


class FleetConstraints(NamedTuple):
    """Constraints on every route of every instance, as plain numbers; times in microseconds."""

    num_vehicles: int
    capacity: int
    max_route: int  # UNLIMITED if there is none
    free_vehicles: int
    extra_vehicle_cost: int  # fixed cost of a vehicle beyond the free ones
    max_shortcut: int  # largest violation of the triangle inequality
    has_duration_limits: bool  # whether any ride time or route duration is limited


class InstanceArrays(NamedTuple):
    """A batch of instances; times in microseconds, the second axis is the stop, 0 the depot."""

    drive: IntArray  # (cells, cells)
    num_requests: IntArray  # (instances,)
    cell: IntArray  # (instances, stops)
    early: IntArray  # (instances, stops)
    late: IntArray  # (instances, stops)
    service: IntArray  # (instances, stops)
    riders: IntArray  # (instances, stops) change of load: negative at dropoffs
    max_ride: IntArray  # (instances, stops) at pickups: limit between the starts of service
    vehicles: IntArray  # (vehicles, 4) places plus ROOM_BITS, shift start, shift end, number of the type


class TripTimes(NamedTuple):
    """Times of requests in microseconds; any leading axes, the last one is (pickup, dropoff)."""

    early: IntArray  # (..., 2)
    late: IntArray  # (..., 2)
    service: IntArray  # (..., 2)
    max_ride: IntArray  # (..., 2) at the pickup, 0 at the dropoff


class NewRequests(NamedTuple):
    """One new request for each of some instances, without its time windows."""

    cells: IntArray  # (rows, 2) pickup, dropoff
    riders: IntArray  # (rows,)
    service_minutes: FloatArray  # (rows, 2)
    max_ride_minutes: FloatArray  # (rows,)


def to_instance_arrays(problems: RouteProblems) -> tuple[InstanceArrays, FleetConstraints]:
    """The instances as integer arrays, and the constraints of their fleet."""
    fleet, travel = problems.fleet, problems.travel
    trips = trip_times(travel, problems.cells, problems.windows, problems.service_minutes, problems.max_ride_minutes)
    riders = problems.riders
    instances = InstanceArrays(
        drive=travel.microseconds,
        # Kernels need contiguous arrays. IncrementalRoutes relies on no copy being made.
        num_requests=np.ascontiguousarray(problems.num_requests),
        cell=_by_stop(problems.cells, fleet.depot_cell),
        early=_by_stop(trips.early, int(microseconds_up(fleet.depot_window[EARLY]))),
        late=_by_stop(trips.late, int(microseconds_down(fleet.depot_window[LATE]))),
        service=_by_stop(trips.service, 0),
        riders=_by_stop(np.stack([riders, -riders], axis=2), 0),
        max_ride=_by_stop(trips.max_ride, 0),
        vehicles=_vehicle_rows(fleet),
    )
    constraints = FleetConstraints(
        num_vehicles=int(fleet.num_vehicles),
        capacity=int(fleet.capacity),
        max_route=int(microseconds_down(fleet.max_route_minutes)),
        free_vehicles=int(fleet.free_vehicles),
        extra_vehicle_cost=int(microseconds_up(fleet.extra_vehicle_minutes)),
        max_shortcut=travel.max_shortcut,
        has_duration_limits=problems.has_duration_limits,
    )
    return instances, constraints


def _vehicle_rows(fleet: Fleet) -> IntArray:
    """(vehicles, 4) as in `InstanceArrays`."""
    kinds = fleet.vehicle_types
    numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    return np.array(
        [
            (
                kind.places + ROOM_BITS,
                int(microseconds_up(kind.shift[EARLY])),
                int(microseconds_down(kind.shift[LATE])),
                numbers[kind],
            )
            for kind in kinds
        ],
        np.int64,
    )


def trip_times(
    travel: TravelTable, cells: IntArray, windows: FloatArray, service_minutes: FloatArray, max_ride_minutes: FloatArray
) -> TripTimes:
    """Times of requests in microseconds, with tightened time windows (Cordeau 2006).

    A pickup before `early` would exceed the ride-time limit, one after `late` would miss the
    dropoff's window; likewise for dropoffs.

    Args:
        travel: travel-time matrix.
        cells: (..., 2) pickup and dropoff cell.
        windows: (..., 2, 2) minutes.
        service_minutes: (..., 2).
        max_ride_minutes: (...) inf where unlimited.

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


def write_requests(
    instances: InstanceArrays, rows: IntArray, request: IntArray, new: NewRequests, trips: TripTimes
) -> None:
    """Write request number `request` of these rows, which `num_requests` does not count yet."""
    row, stops = rows[:, None], 2 * request[:, None] + np.array([1, 2])
    instances.cell[row, stops] = new.cells
    instances.early[row, stops] = trips.early
    instances.late[row, stops] = trips.late
    instances.service[row, stops] = trips.service
    instances.riders[row, stops] = new.riders[:, None] * np.array([1, -1])
    instances.max_ride[row, stops] = trips.max_ride


def _by_stop(values: IntArray, depot: int) -> IntArray:
    """(instances, requests, 2) as (instances, stops), with the depot's value in front."""
    instances, requests, _ = values.shape
    table = np.full((instances, 2 * requests + 1), depot, np.int64)
    table[:, 1:] = values.reshape(instances, 2 * requests)
    return table
