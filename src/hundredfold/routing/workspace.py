"""Preallocated workspace of the large neighbourhood search, and its saved solutions.

A `Workspace` holds one instance at a time; every thread owns one and reuses it. Kernels take it as
one named tuple, called `ws`, so that their arguments stay few. Route versions tell which routes of
a saved solution differ from the present ones.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from hundredfold.core.numba_kernels import kernel, noalloc_kernel
from hundredfold.routing.problem import EARLY, LATE

# Columns of `stops`, after EARLY and LATE (the time window): change of load, and the ride-time
# limit from the start of the pickup's service to the start of the dropoff's.
RIDERS, MAX_RIDE = LATE + 1, LATE + 2
# Columns of a position on a route: stop, earliest and latest start of service, load on leaving, and
# how much longer the next leg may become within all ride-time limits (only where limits exist).
STOP, EARLIEST, LATEST, LOAD, RIDE_SLACK = 0, 1, 2, 3, 4
ROUTE_COLUMNS: Final = 5
# Columns of `stats`: number of stops, driving and service time from depot to depot, and a version
# that changes whenever the route does (0 while it is empty).
LENGTH, TRAVEL_TIME, VERSION = 0, 1, 2
ROUTE_STATS: Final = 3
# Further columns, which never change: places plus ROOM_BITS, begin and end of the shift, and the type.
PLACES, SHIFT_START, SHIFT_END, TYPE = 3, 4, 5, 6
# Columns of a cached insertion, the cheapest of one request in one route: added cost, positions
# after which pickup and dropoff go, and the version of the route it was computed for.
ADDED, PICKUP_AFTER, DROPOFF_AFTER, INSERTION_VERSION = 0, 1, 2, 3
# Columns of a cached removal of a request from its route: what it saves, what the cheapest insertion
# into that route costs then, and the version of the route.
REMOVAL_SAVED, ADDED_AGAIN, REMOVAL_VERSION = 0, 1, 2
# Columns of the trial route, on which schedules are computed; the last one is indexed by stop.
TRIAL_STOP, TRIAL_LEG, TRIAL_TIME, TRIAL_POSITION = 0, 1, 2, 3

# Typed constants: Numba would compile a kernel again for every literal integer passed to it.
CURRENT: Final = np.int64(0)  # saved solutions: the incumbent of the search, the best found,
BEST: Final = np.int64(1)
START: Final = np.int64(2)  # and the one that several searches start from
NUM_SAVED: Final = 3
DEPOT: Final = np.int64(0)
UNASSIGNED: Final = np.int64(-1)  # vehicle of an unserved request
STALE: Final = np.int64(-1)  # version that no route has


class Workspace(NamedTuple):
    """One instance, its present solution, saved solutions, and scratch arrays."""

    travel: Any  # (stops, stops) service at the first, then the drive to the second
    stops: Any  # (stops, 4) EARLY, LATE, RIDERS, MAX_RIDE
    route: Any  # (vehicles, positions, 5) the depot at both ends
    flat_route: Any  # (vehicles, positions x 5) the same memory, which is copied faster as one row
    stats: Any  # (vehicles, 7) LENGTH (without the depot), TRAVEL_TIME, VERSION, and the vehicle's own
    vehicle: Any  # (requests,) or UNASSIGNED
    saved_route: Any  # flat_route, stats and vehicle of the CURRENT, the BEST and the START solution
    saved_stats: Any
    saved_vehicle: Any
    insertions: Any  # (requests, vehicles, 4) cached insertions
    removals: Any  # (requests, 3) cached removals
    bank: Any  # (requests,) request bank: the unassigned requests
    score: Any  # (requests,) removal scores
    changed: Any  # (vehicles,) routes changed in this iteration
    last_version: Any  # (1,)
    trial: Any  # (positions, 4)


@kernel
def new_workspace(num_vehicles: Any, num_requests: Any) -> Any:
    """An empty workspace for instances of up to this size."""
    stops = 2 * num_requests + 1
    positions = stops + 1
    route = np.zeros((num_vehicles, positions, ROUTE_COLUMNS), np.int64)
    return Workspace(
        np.zeros((stops, stops), np.int64),
        np.zeros((stops, 4), np.int64),
        route,
        route.reshape(num_vehicles, positions * ROUTE_COLUMNS),
        np.zeros((num_vehicles, 7), np.int64),
        np.zeros(num_requests, np.int64),
        np.zeros((NUM_SAVED, num_vehicles, positions * ROUTE_COLUMNS), np.int64),
        np.zeros((NUM_SAVED, num_vehicles, ROUTE_STATS), np.int64),
        np.zeros((NUM_SAVED, num_requests), np.int64),
        np.zeros((num_requests, num_vehicles, 4), np.int64),
        np.zeros((num_requests, 3), np.int64),
        np.zeros(num_requests, np.int64),
        np.zeros(num_requests, np.float64),
        np.zeros(num_vehicles, np.bool_),
        np.zeros(1, np.int64),
        np.zeros((positions, 4), np.int64),
    )


@noalloc_kernel
def load_instance(ws: Any, instances: Any, instance: Any, num_requests: Any) -> None:
    """Load the first requests of an instance, all unassigned; routes are loaded separately."""
    num_stops = 2 * num_requests + 1
    for stop in range(num_stops):
        ws.stops[stop, EARLY] = instances.early[instance, stop]
        ws.stops[stop, LATE] = instances.late[instance, stop]
        ws.stops[stop, RIDERS] = instances.riders[instance, stop]
        ws.stops[stop, MAX_RIDE] = instances.max_ride[instance, stop]
        cell = instances.cell[instance, stop]
        service = instances.service[instance, stop]
        for other in range(num_stops):
            ws.travel[stop, other] = service + instances.drive[cell, instances.cell[instance, other]]
    for request in range(num_requests):
        ws.vehicle[request] = UNASSIGNED
        for vehicle in range(ws.stats.shape[0]):
            ws.insertions[request, vehicle, INSERTION_VERSION] = STALE
        ws.removals[request, REMOVAL_VERSION] = STALE
    ws.last_version[0] = 0
    for vehicle in range(ws.stats.shape[0]):
        for column in range(instances.vehicles.shape[1]):
            ws.stats[vehicle, ROUTE_STATS + column] = instances.vehicles[vehicle, column]
        ws.saved_stats[CURRENT, vehicle, VERSION] = STALE
        ws.saved_stats[BEST, vehicle, VERSION] = STALE
        ws.saved_stats[START, vehicle, VERSION] = STALE


@noalloc_kernel
def save_solution(ws: Any, constraints: Any, num_requests: Any, slot: Any) -> None:
    """Save the present solution as CURRENT, BEST or START."""
    for vehicle in range(constraints.num_vehicles):
        if ws.saved_stats[slot, vehicle, VERSION] != ws.stats[vehicle, VERSION]:
            save_route(ws, vehicle, slot)
    for request in range(num_requests):
        ws.saved_vehicle[slot, request] = ws.vehicle[request]


@noalloc_kernel
def restore_solution(ws: Any, constraints: Any, num_requests: Any, slot: Any) -> None:
    """Replace the present solution by CURRENT, BEST or START."""
    for vehicle in range(constraints.num_vehicles):
        if ws.saved_stats[slot, vehicle, VERSION] != ws.stats[vehicle, VERSION]:
            restore_route(ws, vehicle, slot)
    for request in range(num_requests):
        ws.vehicle[request] = ws.saved_vehicle[slot, request]


@noalloc_kernel
def save_route(ws: Any, vehicle: Any, slot: Any) -> None:
    """Save one route."""
    for column in range(ROUTE_STATS):
        ws.saved_stats[slot, vehicle, column] = ws.stats[vehicle, column]
    source, target = ws.flat_route[vehicle], ws.saved_route[slot, vehicle]
    for k in range((ws.stats[vehicle, LENGTH] + 2) * ROUTE_COLUMNS):
        target[k] = source[k]


@noalloc_kernel
def restore_route(ws: Any, vehicle: Any, slot: Any) -> None:
    """Replace one route by its saved copy."""
    for column in range(ROUTE_STATS):
        ws.stats[vehicle, column] = ws.saved_stats[slot, vehicle, column]
    source, target = ws.saved_route[slot, vehicle], ws.flat_route[vehicle]
    for k in range((ws.stats[vehicle, LENGTH] + 2) * ROUTE_COLUMNS):
        target[k] = source[k]
