"""Whether routes keep every promise, compiled: what a policy proposes is checked before it counts.

`oracles/verifier.py` says the same in sentences, slowly and independently.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hundredfold.core.compiled import kernel
from hundredfold.oracles.desk import (
    DEPOT,
    MAX_RIDE,
    RIDERS,
    TRIAL_LEG,
    TRIAL_STOP,
    bare_kernel,
)
from hundredfold.oracles.problem import EARLY, LATE
from hundredfold.oracles.schedule import schedule_exists


@kernel
def plans_hold(books: Any, rules: Any, routes: Any, lengths: Any) -> Any:
    """(books,) True where no stop comes twice and every route is feasible.

    Requests may be left out, with both of their stops.
    """
    num_stops = books.cell.shape[1]
    stops = np.zeros((num_stops, 4), np.int64)
    trial = np.zeros((num_stops + 1, 4), np.int64)
    seen = np.zeros(num_stops, np.bool_)
    holds = np.ones(len(books.num_requests), np.bool_)
    for book in range(len(holds)):
        stops[:, EARLY] = books.early[book]
        stops[:, LATE] = books.late[book]
        stops[:, RIDERS] = books.riders[book]
        stops[:, MAX_RIDE] = books.max_ride[book]
        seen[:] = False
        for vehicle in range(rules.num_vehicles):
            length = lengths[book, vehicle]
            if length > 0 and not (
                _in_order(books, book, rules, stops, seen, routes[book, vehicle], length)
                and _in_time(books, book, rules, stops, trial, routes[book, vehicle], length)
            ):
                holds[book] = False
                break
    return holds


@bare_kernel
def _in_order(
    books: Any, book: Any, rules: Any, stops: Any, seen: Any, route: Any, length: Any
) -> Any:
    """Whether every rider gets on before getting off, once, and finds a seat."""
    load, aboard = 0, 0
    for k in range(length):
        stop = route[k]
        if stop < 1 or stop > 2 * books.num_requests[book] or seen[stop]:
            return False
        seen[stop] = True
        load += stops[stop, RIDERS]
        if load > rules.seats:
            return False
        if stop % 2 == 1:
            aboard += 1
            continue
        aboard -= 1
        before = False
        for other in range(k):
            before |= route[other] == stop - 1
        if not before:
            return False
    return aboard == 0


@bare_kernel
def _in_time(
    books: Any, book: Any, rules: Any, stops: Any, trial: Any, route: Any, length: Any
) -> Any:
    trial[0, TRIAL_STOP] = DEPOT
    trial[length + 1, TRIAL_STOP] = DEPOT
    for k in range(length):
        trial[k + 1, TRIAL_STOP] = route[k]
    for k in range(length + 1):
        here, after = trial[k, TRIAL_STOP], trial[k + 1, TRIAL_STOP]
        drive = books.drive[books.cell[book, here], books.cell[book, after]]
        trial[k, TRIAL_LEG] = books.service[book, here] + drive
    return schedule_exists(stops, trial, length, rules.max_route)
