"""The cheapest plan of a small book, proven: every route is tried, then the best set of routes.

All orders of stops that respect pairs, capacity and windows are walked through depth first; each
time nobody is on board, a route for the requests served so far is complete. Dynamic programming
over sets of requests then picks routes that together serve everybody. Work grows like
(2n)! / 2^n, so books stay small; the other oracles are tested against this one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hundredfold.core.batch import IntArray
from hundredfold.core.errors import SettingsError
from hundredfold.core.numba_kernels import kernel
from hundredfold.routing.instance_arrays import FleetConstraints, InstanceArrays, to_instance_arrays
from hundredfold.routing.problem import EARLY, LATE, UNLIMITED, RouteProblems, Solutions
from hundredfold.routing.route_kernels import schedule_exists
from hundredfold.routing.solution import solutions_from_routes
from hundredfold.routing.workspace import DEPOT, RIDERS, TRIAL_LEG, TRIAL_STOP, lay_out, new_desk


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactSettings:
    """How large a book may be before it is refused."""

    max_requests: int = 6
    """Six requests with wide windows take about a second; each further one a hundred times more."""


class ExactOracle:
    """Proven optima for small books."""

    def __init__(self, settings: ExactSettings | None = None) -> None:
        self.settings = settings or ExactSettings()

    def solve(self, problems: RouteProblems) -> Solutions:
        """The cheapest plan of every book; one that cannot be served keeps empty routes."""
        largest = int(problems.num_requests.max(initial=0))
        if largest > self.settings.max_requests:
            raise SettingsError(
                f"exact takes books of up to {self.settings.max_requests} requests and got one "
                f"of {largest}; use `insertion`, or raise max_requests and bring patience."
            )
        books, rules = to_instance_arrays(problems)
        found = [_cheapest_routes(books, rules, book) for book in range(len(problems))]
        return solutions_from_routes(problems, found)


def _cheapest_routes(books: InstanceArrays, rules: FleetConstraints, book: int) -> list[list[int]]:
    num_requests = int(books.num_requests[book])
    num_sets = 1 << num_requests
    ticks = np.full(num_sets, UNLIMITED, np.int64)
    orders = np.zeros((num_sets, 2 * num_requests), np.int64)
    _try_all_routes(books, rules, book, ticks, orders)
    return [
        [int(stop) for stop in orders[chosen] if stop > 0]
        for chosen in _cheapest_partition(ticks, rules)
    ]


def _cheapest_partition(ticks: IntArray, rules: FleetConstraints) -> list[int]:
    """The sets of requests, one per vehicle, that together hold everybody at the least price."""
    everybody = len(ticks) - 1
    cheapest = {0: 0}  # set of requests served so far -> ticks
    options: list[tuple[int, list[int]]] = [(0, [])] if everybody == 0 else []
    parts: dict[int, list[int]] = {0: []}
    for vehicle in range(rules.num_vehicles):
        opening = rules.extra_vehicle_cost if vehicle >= rules.free_vehicles else 0
        larger: dict[int, int] = {}
        larger_parts: dict[int, list[int]] = {}
        for served, spent in cheapest.items():
            # The new route takes the lowest request still waiting, so each split is seen once.
            waiting = everybody & ~served
            lowest = waiting & -waiting
            route = waiting
            while route:
                total = spent + opening + int(ticks[route])
                if route & lowest and total < larger.get(served | route, UNLIMITED):
                    larger[served | route] = total
                    larger_parts[served | route] = [*parts[served], route]
                route = (route - 1) & waiting
        cheapest, parts = larger, larger_parts
        if everybody in cheapest:
            options.append((cheapest[everybody], parts[everybody]))
    return min(options, default=(UNLIMITED, []))[1]


@kernel
def _try_all_routes(books: Any, rules: Any, book: Any, ticks: Any, orders: Any) -> None:
    """Write, for every set of requests, the ticks and order of its cheapest route."""
    num_requests = books.num_requests[book]
    desk = new_desk(1, num_requests)
    lay_out(desk, books, book, num_requests)
    travel, stops, trial = desk.travel, desk.stops, desk.trial
    last = 2 * num_requests
    time = np.zeros(last + 1, np.int64)
    spent = np.zeros(last + 1, np.int64)
    load = np.zeros(last + 1, np.int64)
    tried = np.zeros(last + 1, np.int64)
    taken = np.zeros(last + 1, np.bool_)
    time[0] = stops[DEPOT, EARLY]
    served = 0
    on_board = 0
    depth = 0
    while depth >= 0:
        stop = tried[depth] + 1 if depth < last else last + 1
        if stop > last:
            # Every continuation was tried: step back.
            tried[depth] = 0
            leaving = trial[depth, TRIAL_STOP]
            if depth > 0:
                taken[leaving] = False
                request = (leaving - 1) >> 1
                if leaving % 2 == 1:
                    on_board &= ~(1 << request)
                else:
                    on_board |= 1 << request
                    served &= ~(1 << request)
            depth -= 1
            continue
        tried[depth] = stop
        request = (stop - 1) >> 1
        if taken[stop] or (stop % 2 == 0 and not on_board >> request & 1):
            continue
        here = trial[depth, TRIAL_STOP]
        leg = travel[here, stop]
        arrival = max(time[depth] + leg, stops[stop, EARLY])
        riders = load[depth] + stops[stop, RIDERS]
        if arrival > stops[stop, LATE] or riders > rules.capacity:
            continue
        trial[depth, TRIAL_LEG] = leg
        depth += 1
        trial[depth, TRIAL_STOP] = stop
        time[depth] = arrival
        load[depth] = riders
        spent[depth] = spent[depth - 1] + leg
        taken[stop] = True
        if stop % 2 == 1:
            on_board |= 1 << request
            continue
        on_board &= ~(1 << request)
        served |= 1 << request
        home = travel[stop, DEPOT]
        total = spent[depth] + home
        if on_board or total >= ticks[served] or time[depth] + home > stops[DEPOT, LATE]:
            continue
        if rules.has_duration_limits:
            trial[depth, TRIAL_LEG] = home
            trial[depth + 1, TRIAL_STOP] = DEPOT
            if not schedule_exists(stops, trial, depth, rules.max_route):
                continue
        ticks[served] = total
        for k in range(last):
            orders[served, k] = trial[k + 1, TRIAL_STOP] if k < depth else 0
