"""Exact oracle: the optimal solution of small instances, by enumeration and dynamic programming.

A depth-first search enumerates all stop orders that respect pairing, capacity and time windows;
whenever the vehicle is empty, a route for the requests served so far is complete. Dynamic
programming over sets of requests then selects the cheapest routes that serve every request. Work
grows like (2n)! / 2^n. The other oracles are tested against this one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hundredfold.core.batch import IntArray
from hundredfold.core.errors import SettingsError
from hundredfold.core.numba_kernels import kernel
from hundredfold.routing.instance_arrays import FleetConstraints, InstanceArrays, to_instance_arrays
from hundredfold.routing.problem import EARLY, INFEASIBLE, LATE, RouteProblems, Solutions
from hundredfold.routing.route_kernels import schedule_exists
from hundredfold.routing.solution import solutions_from_routes
from hundredfold.routing.workspace import DEPOT, RIDERS, TRIAL_LEG, TRIAL_STOP, load_instance, new_workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactSettings:
    """Size limit of the exact oracle."""

    max_requests: int = 6
    """Largest instance accepted. Six requests with wide windows take about a second; each further
    one takes a hundred times longer."""


class ExactOracle:
    """Optimal solutions of small instances."""

    def __init__(self, settings: ExactSettings | None = None) -> None:
        self.settings = settings or ExactSettings()

    def solve(self, problems: RouteProblems) -> Solutions:
        """Return an optimal solution per instance; an infeasible instance gets empty routes."""
        problems.fleet.require_identical("exact")
        largest = int(problems.num_requests.max(initial=0))
        if largest > self.settings.max_requests:
            raise SettingsError(
                f"exact takes instances of up to {self.settings.max_requests} requests and got one "
                f"of {largest}; use `insertion`, or raise max_requests (run time grows like "
                "(2n)!/2^n)."
            )
        instances, constraints = to_instance_arrays(problems)
        found = [_cheapest_routes(instances, constraints, instance) for instance in range(len(problems))]
        return solutions_from_routes(problems, found)


def _cheapest_routes(instances: InstanceArrays, constraints: FleetConstraints, instance: int) -> list[list[int]]:
    num_requests = int(instances.num_requests[instance])
    num_sets = 1 << num_requests
    costs = np.full(num_sets, INFEASIBLE, np.int64)
    orders = np.zeros((num_sets, 2 * num_requests), np.int64)
    _enumerate_routes(instances, constraints, instance, costs, orders)
    return [[int(stop) for stop in orders[chosen] if stop > 0] for chosen in _cheapest_partition(costs, constraints)]


def _cheapest_partition(costs: IntArray, constraints: FleetConstraints) -> list[int]:
    """The cheapest partition of all requests into sets, one per route."""
    all_requests = len(costs) - 1
    cost = {0: 0}  # set of requests served so far -> cost
    options: list[tuple[int, list[int]]] = [(0, [])] if all_requests == 0 else []
    partition: dict[int, list[int]] = {0: []}
    for vehicle in range(constraints.num_vehicles):
        open_cost = constraints.extra_vehicle_cost if vehicle >= constraints.free_vehicles else 0
        next_cost: dict[int, int] = {}
        next_partition: dict[int, list[int]] = {}
        for served, spent in cost.items():
            # The new route takes the lowest remaining request, so each partition is seen once.
            remaining = all_requests & ~served
            lowest = remaining & -remaining
            route = remaining
            while route:
                total = spent + open_cost + int(costs[route])
                if route & lowest and total < next_cost.get(served | route, INFEASIBLE):
                    next_cost[served | route] = total
                    next_partition[served | route] = [*partition[served], route]
                route = (route - 1) & remaining
        cost, partition = next_cost, next_partition
        if all_requests in cost:
            options.append((cost[all_requests], partition[all_requests]))
    return min(options, default=(INFEASIBLE, []))[1]


@kernel
def _enumerate_routes(instances: Any, constraints: Any, instance: Any, costs: Any, orders: Any) -> None:
    """Write cost and stop order of the cheapest route of every set of requests."""
    num_requests = instances.num_requests[instance]
    ws = new_workspace(1, num_requests)
    load_instance(ws, instances, instance, num_requests)
    travel, stops, trial = ws.travel, ws.stops, ws.trial
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
            # Every continuation was tried: backtrack.
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
        if arrival > stops[stop, LATE] or riders > constraints.capacity:
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
        if on_board or total >= costs[served] or time[depth] + home > stops[DEPOT, LATE]:
            continue
        if constraints.has_duration_limits:
            trial[depth, TRIAL_LEG] = home
            trial[depth + 1, TRIAL_STOP] = DEPOT
            if not schedule_exists(stops, trial, depth, constraints.max_route):
                continue
        costs[served] = total
        for k in range(last):
            orders[served, k] = trial[k + 1, TRIAL_STOP] if k < depth else 0
