"""The desk on which one book is worked: all the arrays that kernels share, and how they compile.

A desk is laid out once per thread and used for one book after the other. Its arrays travel through
the kernels as one named tuple, so a kernel's arguments stay few and its lines say what they touch.

Plans put aside and fetched back: a stamp tells which routes really differ.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from hundredfold.core.numba_kernels import kernel, noalloc_kernel
from hundredfold.routing.problem import EARLY, LATE

# Columns of `stops`, after EARLY and LATE: who gets on, and the longest time from the start of the
# pickup's service to the start of the dropoff's.
RIDERS, MAX_RIDE = LATE + 1, LATE + 2
# Columns of a route's positions. ROOM: how much longer the leg from here may become before somebody
# on board rides too long; kept only where limits exist.
STOP, EARLIEST, LATEST, LOAD, ROOM = 0, 1, 2, 3, 4
# Columns of a route's head. TICKS: drive and service from depot to depot. STAMP: a number that
# changes whenever the route does, and 0 while it is empty.
LENGTH, TICKS, STAMP = 0, 1, 2
# Columns of an offer, the cheapest way to put one request into one route: what it adds, after which
# positions pickup and dropoff go, and the stamp of the route it was found for.
ADDED, PICKUP_AFTER, DROPOFF_AFTER, OFFER_STAMP = 0, 1, 2, 3
# Columns of the trial route on which schedules are worked out; the last one is the other way
# round: the position of each stop.
TRIAL_STOP, TRIAL_LEG, TRIAL_TIME, TRIAL_WHERE = 0, 1, 2, 3

# Constants with a type, because Numba compiles a kernel anew for every plain number passed to it.
ACCEPTED: Final = np.int64(0)  # places on the shelf
BEST: Final = np.int64(1)
DEPOT: Final = np.int64(0)
NOBODY: Final = np.int64(-1)


class Desk(NamedTuple):
    """One book, the plan in hand, two plans on the shelf, and room to work."""

    travel: Any  # (stops, stops) service at the first, then the drive to the second
    stops: Any  # (stops, 4) EARLY, LATE, RIDERS, MAX_RIDE
    route: Any  # (vehicles, positions, 5) the depot at both ends
    head: Any  # (vehicles, 3) LENGTH (stops without the depot), TICKS, STAMP
    vehicle: Any  # (requests,) NOBODY where unserved
    shelf_route: Any  # two more plans, ACCEPTED and BEST; the first axis tells them apart
    shelf_head: Any
    shelf_vehicle: Any
    offers: Any  # (requests, vehicles, 4)
    pool: Any  # (requests,) requests waiting to be put in
    score: Any  # (requests,)
    touched: Any  # (vehicles,)
    stamps: Any  # (1,) the last stamp given out
    trial: Any  # (positions, 4)


@kernel
def new_desk(num_vehicles: Any, num_requests: Any) -> Any:
    """An empty desk for books of up to this size."""
    stops = 2 * num_requests + 1
    positions = stops + 1
    return Desk(
        np.zeros((stops, stops), np.int64),
        np.zeros((stops, 4), np.int64),
        np.zeros((num_vehicles, positions, 5), np.int64),
        np.zeros((num_vehicles, 3), np.int64),
        np.zeros(num_requests, np.int64),
        np.zeros((2, num_vehicles, positions, 5), np.int64),
        np.zeros((2, num_vehicles, 3), np.int64),
        np.zeros((2, num_requests), np.int64),
        np.zeros((num_requests, num_vehicles, 4), np.int64),
        np.zeros(num_requests, np.int64),
        np.zeros(num_requests, np.float64),
        np.zeros(num_vehicles, np.bool_),
        np.zeros(1, np.int64),
        np.zeros((positions, 4), np.int64),
    )


@noalloc_kernel
def lay_out(desk: Any, books: Any, book: Any, num_requests: Any) -> None:
    """Put a book's first requests on the desk, all still waiting, and forget the one before."""
    num_stops = 2 * num_requests + 1
    for stop in range(num_stops):
        desk.stops[stop, EARLY] = books.early[book, stop]
        desk.stops[stop, LATE] = books.late[book, stop]
        desk.stops[stop, RIDERS] = books.riders[book, stop]
        desk.stops[stop, MAX_RIDE] = books.max_ride[book, stop]
        cell = books.cell[book, stop]
        service = books.service[book, stop]
        for other in range(num_stops):
            desk.travel[stop, other] = service + books.drive[cell, books.cell[book, other]]
    for request in range(num_requests):
        desk.vehicle[request] = NOBODY
        for vehicle in range(desk.head.shape[0]):
            desk.offers[request, vehicle, OFFER_STAMP] = NOBODY
    desk.stamps[0] = 0
    for vehicle in range(desk.head.shape[0]):
        desk.shelf_head[ACCEPTED, vehicle, STAMP] = NOBODY
        desk.shelf_head[BEST, vehicle, STAMP] = NOBODY


@noalloc_kernel
def shelve(desk: Any, rules: Any, num_requests: Any, place: Any) -> None:
    """Put a copy of the plan in hand on the shelf."""
    for vehicle in range(rules.num_vehicles):
        if desk.shelf_head[place, vehicle, STAMP] != desk.head[vehicle, STAMP]:
            shelve_route(desk, vehicle, place)
    for request in range(num_requests):
        desk.shelf_vehicle[place, request] = desk.vehicle[request]


@noalloc_kernel
def fetch(desk: Any, rules: Any, num_requests: Any, place: Any) -> None:
    """Take a copy of the plan on the shelf in hand."""
    for vehicle in range(rules.num_vehicles):
        if desk.shelf_head[place, vehicle, STAMP] != desk.head[vehicle, STAMP]:
            fetch_route(desk, vehicle, place)
    for request in range(num_requests):
        desk.vehicle[request] = desk.shelf_vehicle[place, request]


@noalloc_kernel
def shelve_route(desk: Any, vehicle: Any, place: Any) -> None:
    """Put a copy of one route on the shelf."""
    for column in range(desk.head.shape[1]):
        desk.shelf_head[place, vehicle, column] = desk.head[vehicle, column]
    for k in range(desk.head[vehicle, LENGTH] + 2):
        for column in range(desk.route.shape[2]):
            desk.shelf_route[place, vehicle, k, column] = desk.route[vehicle, k, column]


@noalloc_kernel
def fetch_route(desk: Any, vehicle: Any, place: Any) -> None:
    """Take a copy of one route on the shelf in hand."""
    for column in range(desk.head.shape[1]):
        desk.head[vehicle, column] = desk.shelf_head[place, vehicle, column]
    for k in range(desk.head[vehicle, LENGTH] + 2):
        for column in range(desk.route.shape[2]):
            desk.route[vehicle, k, column] = desk.shelf_route[place, vehicle, k, column]
