"""From routes to plans: every oracle's routes are timed and priced here, by one rule.

Stops are served as early as the rules allow; a vehicle leaves the depot just in time for its first
stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from hundredfold.core.batch import BoolArray, FloatArray, IntArray
from hundredfold.core.numba_kernels import kernel
from hundredfold.routing.instance_arrays import FleetConstraints, InstanceArrays, to_instance_arrays
from hundredfold.routing.problem import EARLY, LATE, RouteProblems, Solutions, to_minutes
from hundredfold.routing.route_kernels import schedule_exists
from hundredfold.routing.workspace import DEPOT, MAX_RIDE, NOBODY, TRIAL_LEG, TRIAL_STOP, TRIAL_TIME

# Marks a time that does not exist: a stop nobody serves, a vehicle that stays in the depot.
NEVER: Final = -(2**62)


class Timetable(NamedTuple):
    """When everything happens, in ticks; NEVER where nothing does."""

    driving: IntArray  # (books,)
    vehicle: IntArray  # (books, requests), NOBODY where unserved
    stop: IntArray  # (books, stops) start of service
    start: IntArray  # (books, vehicles) leaving the depot
    end: IntArray  # (books, vehicles) back at the depot


def empty_timetable(num_books: int, num_requests: int, num_vehicles: int) -> Timetable:
    """A timetable in which nobody drives."""
    return Timetable(
        driving=np.zeros(num_books, np.int64),
        vehicle=np.full((num_books, num_requests), NOBODY),
        stop=np.full((num_books, 2 * num_requests + 1), NEVER),
        start=np.full((num_books, num_vehicles), NEVER),
        end=np.full((num_books, num_vehicles), NEVER),
    )


def solutions_from_routes(
    problems: RouteProblems, found: Sequence[Sequence[Sequence[int]]]
) -> Solutions:
    """Plans from lists: for every book, one list of stops per vehicle that is used."""
    width = max(1, 2 * problems.max_requests)
    routes = np.zeros((len(problems), problems.fleet.num_vehicles, width), np.int64)
    lengths = np.zeros(routes.shape[:2], np.int64)
    for book, vehicles in enumerate(found):
        for vehicle, stops in enumerate(vehicles):
            routes[book, vehicle, : len(stops)] = stops
            lengths[book, vehicle] = len(stops)
    books, rules = to_instance_arrays(problems)
    return build_solutions(books, rules, routes, lengths)


def build_solutions(
    books: InstanceArrays, rules: FleetConstraints, routes: IntArray, lengths: IntArray
) -> Solutions:
    """Plans with these routes: (books, vehicles, width) stops without the depot."""
    num_books, num_stops = books.cell.shape
    timetable = empty_timetable(num_books, num_stops // 2, rules.num_vehicles)
    time_rows(books, rules, np.arange(num_books), routes, lengths, timetable)
    return Solutions(
        cost=prices(books, rules, lengths, timetable),
        driving_minutes=to_minutes(timetable.driving),
        routes=routes,
        lengths=lengths,
        vehicle=timetable.vehicle,
        stop_minutes=minutes_or_nan(timetable.stop),
        start_minutes=minutes_or_nan(timetable.start),
        end_minutes=minutes_or_nan(timetable.end),
        unserved=unserved(books, timetable),
    )


def prices(
    books: InstanceArrays, rules: FleetConstraints, lengths: IntArray, timetable: Timetable
) -> FloatArray:
    """(books,) minutes, inf where somebody is left out."""
    price = to_minutes(price_ticks(rules, lengths, timetable))
    return np.where(unserved(books, timetable).any(axis=1), np.inf, price)


def price_ticks(rules: FleetConstraints, lengths: IntArray, timetable: Timetable) -> IntArray:
    """(books,) driving and extra vehicles, whoever may be left out."""
    extra = np.maximum(np.count_nonzero(lengths, axis=1) - rules.free_vehicles, 0)
    return np.asarray(timetable.driving + extra * rules.extra_vehicle_cost)


def unserved(books: InstanceArrays, timetable: Timetable) -> BoolArray:
    """(books, requests) True where a booked request has no vehicle."""
    booked = np.arange(timetable.vehicle.shape[1]) < books.num_requests[:, None]
    return np.asarray(booked & (timetable.vehicle == NOBODY))


def minutes_or_nan(ticks: IntArray) -> FloatArray:
    """Minutes, NaN where NEVER."""
    return np.where(ticks == NEVER, np.nan, to_minutes(ticks))


@kernel
def time_rows(books: Any, rules: Any, rows: Any, routes: Any, lengths: Any, timetable: Any) -> None:
    """Work out the timetable of these rows from their routes, which must be feasible."""
    num_stops = books.cell.shape[1]
    stops = np.zeros((num_stops, 4), np.int64)
    trial = np.zeros((num_stops + 1, 4), np.int64)
    for row in rows:
        timetable.driving[row] = 0
        timetable.vehicle[row] = NOBODY
        timetable.stop[row] = NEVER
        timetable.start[row] = NEVER
        timetable.end[row] = NEVER
        stops[:, EARLY] = books.early[row]
        stops[:, LATE] = books.late[row]
        stops[:, MAX_RIDE] = books.max_ride[row]
        for vehicle in range(rules.num_vehicles):
            length = lengths[row, vehicle]
            if length == 0:
                continue
            trial[0, TRIAL_STOP] = DEPOT
            trial[length + 1, TRIAL_STOP] = DEPOT
            for k in range(length):
                stop = routes[row, vehicle, k]
                trial[k + 1, TRIAL_STOP] = stop
                timetable.vehicle[row, (stop - 1) >> 1] = vehicle
            for k in range(length + 1):
                here, after = trial[k, TRIAL_STOP], trial[k + 1, TRIAL_STOP]
                drive = books.drive[books.cell[row, here], books.cell[row, after]]
                timetable.driving[row] += drive
                trial[k, TRIAL_LEG] = books.service[row, here] + drive
            schedule_exists(stops, trial, length, rules.max_route)
            for k in range(1, length + 1):
                timetable.stop[row, trial[k, TRIAL_STOP]] = trial[k, TRIAL_TIME]
            timetable.start[row, vehicle] = trial[1, TRIAL_TIME] - trial[0, TRIAL_LEG]
            timetable.end[row, vehicle] = trial[length + 1, TRIAL_TIME]
