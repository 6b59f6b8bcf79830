"""Lower bounds on the cost of dial-a-ride instances, by column generation.

The cheapest solution is the cheapest choice of at most `num_vehicles` routes that serve every
request. Its linear relaxation is solved by column generation (Ropke and Cordeau 2009): OR-Tools
finds dual values for the routes generated so far, and labelling finds the route with the smallest
reduced cost, cost minus dual values of its requests.

The bound does not rely on the linear program. Whatever the dual values are, every solution costs at
least their sum plus `num_vehicles` times the smallest reduced cost, if that is negative (Lasdon
1970). Dual values and reduced costs are integer microseconds, as in the oracles, so nothing is
rounded. Ride-time and route-duration limits are relaxed except for what they imply for time
windows, and travel times that violate the triangle inequality are replaced by shortest paths; both
can only lower the bound.
"""

from __future__ import annotations

import heapq
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from hundredfold.core.batch import FloatArray, IntArray
from hundredfold.core.bounds import AtLeastOne, NonNegative, check_bounds
from hundredfold.core.errors import MissingExtraError, SettingsError
from hundredfold.core.numba_kernels import kernel
from hundredfold.routing.instance_arrays import to_instance_arrays
from hundredfold.routing.lns_oracle import LNSOracle, LNSSettings
from hundredfold.routing.problem import INFEASIBLE, MICROSECONDS_PER_MINUTE, RouteProblems, to_minutes

# Sets of requests are the bits of one signed integer.
MAX_REQUESTS: Final = 62
# Minutes that the linear program pays per vehicle beyond the fleet, so that it is never infeasible.
EXTRA_VEHICLE_MINUTES: Final = 1000.0

# Columns of a label, a partial route.
STOP, TIME, COST, VISITED, OPEN, LOAD, PARENT, NEXT, NUM_FIELDS = range(9)


@dataclass(frozen=True, slots=True, kw_only=True)
class LowerBoundSettings:
    """Effort of column generation."""

    gap: NonNegative = 1e-4
    """Stop when the bound is this close to the linear relaxation, relatively."""
    max_rounds: AtLeastOne = 200
    """Rounds of column generation."""
    max_labels: AtLeastOne = 1_000_000
    """Partial routes kept in one round; where they do not suffice, the bound of the rounds before
    holds."""
    threads: AtLeastOne = 1
    """Threads over instances; bounds do not depend on it."""

    def __post_init__(self) -> None:
        check_bounds(self)


def lower_bounds(problems: RouteProblems, settings: LowerBoundSettings | None = None) -> FloatArray:
    """(instances,) cost in minutes below which no solution that serves every request can be.

    Needs the extra `routing` (OR-Tools).

    Args:
        problems: Instances of up to 62 requests.
        settings: Effort.
    """
    settings = settings or LowerBoundSettings()
    largest = int(problems.num_requests.max(initial=0))
    if largest > MAX_REQUESTS:
        raise SettingsError(f"lower bounds take instances of up to {MAX_REQUESTS} requests and got one of {largest}.")
    instances, constraints = to_instance_arrays(problems)
    drive = shortest_paths(instances.drive) if constraints.max_shortcut else instances.drive
    solutions = LNSOracle(LNSSettings(threads=settings.threads)).solve(problems)

    def bound(row: int) -> int:
        stops = slice(2 * int(instances.num_requests[row]) + 1)
        cell = instances.cell[row, stops]
        pricing = RoutePricing(
            travel=np.ascontiguousarray(drive[cell[:, None], cell]),
            early=instances.early[row, stops],
            late=instances.late[row, stops],
            service=instances.service[row, stops],
            riders=instances.riders[row, stops],
            capacity=constraints.capacity,
            max_labels=settings.max_labels,
            # The bound does not know which routes have a free vehicle.
            vehicle_cost=0 if constraints.free_vehicles else constraints.extra_vehicle_cost,
        )
        routes = [solutions.route(row, vehicle) for vehicle in range(constraints.num_vehicles)]
        return _column_generation(pricing, [route for route in routes if route], constraints.num_vehicles, settings)

    with ThreadPoolExecutor(settings.threads) as pool:
        return to_minutes(np.array(list(pool.map(bound, range(len(problems)))), np.int64))


def shortest_paths(drive: IntArray) -> IntArray:
    """(cells, cells) shortest travel times over any number of cells (Floyd-Warshall)."""
    shortest = drive.copy()
    for via in range(len(shortest)):
        np.minimum(shortest, shortest[:, via : via + 1] + shortest[via : via + 1, :], out=shortest)
    return shortest


@dataclass(slots=True, kw_only=True)
class RoutePricing:
    """Routes of one instance with the smallest reduced costs; times in microseconds by stop."""

    travel: IntArray  # (stops, stops), satisfies the triangle inequality
    early: IntArray
    late: IntArray
    service: IntArray
    riders: IntArray
    capacity: int
    max_labels: int
    vehicle_cost: int = 0  # fixed cost of a route

    @property
    def num_requests(self) -> int:
        return len(self.early) // 2

    def cost(self, route: list[int]) -> int:
        """Driving time of a route, both depot legs included, and its fixed cost."""
        stops = np.array([0, *route, 0])
        return self.vehicle_cost + int(self.travel[stops[:-1], stops[1:]].sum())

    def best_routes(self, duals: IntArray) -> tuple[int, list[list[int]]] | None:
        """The smallest reduced cost, and routes with a negative one: the best by last stop.

        Returns None if `max_labels` is exceeded.
        """
        labels, best = _label_routes(
            self.travel, self.early, self.late, self.service, self.riders, self.capacity, duals, self.max_labels
        )
        if len(best) == 0:
            return None
        ends = [(self._reduced_cost(labels, label), label) for label in best.tolist() if label >= 0]
        smallest = min((cost for cost, _ in ends), default=INFEASIBLE)
        return smallest, [_stops_of(labels, label) for cost, label in ends if cost < 0]

    def _reduced_cost(self, labels: IntArray, label: int) -> int:
        return self.vehicle_cost + int(labels[label, COST] + self.travel[labels[label, STOP], 0])


def _stops_of(labels: IntArray, label: int) -> list[int]:
    stops: list[int] = []
    while labels[label, PARENT] >= 0:
        stops.append(int(labels[label, STOP]))
        label = int(labels[label, PARENT])
    return stops[::-1]


def _column_generation(
    pricing: RoutePricing, routes: list[list[int]], num_vehicles: int, settings: LowerBoundSettings
) -> int:
    """Lower bound on the cost of one instance in microseconds."""
    master = _MasterProblem(pricing, num_vehicles)
    master.add([*routes, *([2 * request + 1, 2 * request + 2] for request in range(pricing.num_requests))])
    bound = 0
    for _ in range(settings.max_rounds):
        objective, duals = master.solve()
        priced = pricing.best_routes(duals)
        if priced is None:
            break
        smallest, columns = priced
        bound = max(bound, int(duals.sum()) + num_vehicles * min(smallest, 0))
        if not columns or objective - bound <= settings.gap * objective:
            break
        master.add(columns)
    return bound


class _MasterProblem:
    """Linear program over the routes generated so far."""

    def __init__(self, pricing: RoutePricing, num_vehicles: int) -> None:
        try:
            from ortools.linear_solver import pywraplp
        except ImportError:
            raise MissingExtraError("ortools", "routing", "The lower bound") from None
        self.pricing = pricing
        self.solver: Any = pywraplp.Solver.CreateSolver("GLOP")
        self.objective = self.solver.Objective()
        self.served = [self.solver.Constraint(1.0, self.solver.infinity()) for _ in range(pricing.num_requests)]
        self.fleet = self.solver.Constraint(-self.solver.infinity(), float(num_vehicles))
        extra = self.solver.NumVar(0.0, self.solver.infinity(), "")
        self.objective.SetCoefficient(extra, EXTRA_VEHICLE_MINUTES)
        self.fleet.SetCoefficient(extra, -1.0)

    def add(self, routes: list[list[int]]) -> None:
        """Add routes, given by their stops."""
        for route in routes:
            column = self.solver.NumVar(0.0, self.solver.infinity(), "")
            self.objective.SetCoefficient(column, self.pricing.cost(route) / MICROSECONDS_PER_MINUTE)
            self.fleet.SetCoefficient(column, 1.0)
            for stop in route:
                if stop % 2 == 1:
                    self.served[stop // 2].SetCoefficient(column, 1.0)

    def solve(self) -> tuple[float, IntArray]:
        """The optimal value and the dual value of every request, in microseconds."""
        self.solver.Solve()
        duals = np.array([constraint.dual_value() for constraint in self.served])
        return (
            self.objective.Value() * MICROSECONDS_PER_MINUTE,
            np.rint(np.maximum(duals, 0.0) * MICROSECONDS_PER_MINUTE).astype(np.int64),
        )


@kernel
def _label_routes(
    travel: Any, early: Any, late: Any, service: Any, riders: Any, capacity: Any, duals: Any, max_labels: Any
) -> Any:
    """Extend partial routes in order of time and discard dominated ones.

    A label dominates another at the same stop if it is there no later and no dearer, and if the
    requests it has visited, and those on board, are among the other's. Requests that can no longer
    be reached count as visited. Labels that cannot become a route of negative reduced cost are
    discarded as well.

    Returns:
        The labels, and for every request the label of the best route that ends with it, or -1;
        an empty array if there are more labels than `max_labels`.
    """
    num_requests = len(duals)
    labels = np.zeros((1024, NUM_FIELDS), np.int64)
    labels[0, TIME], labels[0, PARENT] = early[0], -1
    count = 1
    queue = [(early[0], 0)]
    first = np.full(len(early), -1, np.int64)  # labels by stop, linked by NEXT
    best = np.full(num_requests, -1, np.int64)
    best_cost = np.zeros(num_requests, np.int64)
    while len(queue) > 0:
        _, here = heapq.heappop(queue)
        stop = labels[here, STOP]
        if _is_dominated(labels, here, first[stop]):
            continue
        labels[here, NEXT] = first[stop]
        first[stop] = here
        on_board = labels[here, OPEN]
        leave = labels[here, TIME] + service[stop]
        cost = labels[here, COST] + travel[stop, 0]
        if stop > 0 and on_board == 0 and leave + travel[stop, 0] <= late[0]:
            last = (stop - 1) // 2
            if cost < best_cost[last]:
                best_cost[last] = cost
                best[last] = here
        for request in range(num_requests):
            bit = 1 << request
            if labels[here, VISITED] & bit and not on_board & bit:
                continue
            to = 2 * request + (2 if on_board & bit else 1)
            arrival = max(early[to], leave + travel[stop, to])
            load = labels[here, LOAD] + riders[to]
            if arrival > late[to] or load > capacity:
                continue
            cost = labels[here, COST] + travel[stop, to] - (0 if on_board & bit else duals[request])
            visited = labels[here, VISITED] | bit
            still_open = on_board ^ bit
            # Lower bound on the reduced cost of every route that continues this one.
            smallest = cost + travel[to, 0]
            on_time = True
            for other in range(num_requests):
                other_bit = 1 << other
                if still_open & other_bit:
                    on_time &= arrival + service[to] + travel[to, 2 * other + 2] <= late[2 * other + 2]
                elif not visited & other_bit:
                    if arrival + service[to] + travel[to, 2 * other + 1] > late[2 * other + 1]:
                        visited |= other_bit
                    else:
                        smallest -= duals[other]
            if not on_time or smallest >= 0:
                continue
            if count == len(labels):
                if count >= max_labels:
                    return labels, best[:0]
                grown = np.zeros((2 * count, NUM_FIELDS), np.int64)
                grown[:count] = labels
                labels = grown
            labels[count, STOP], labels[count, TIME], labels[count, COST] = to, arrival, cost
            labels[count, VISITED], labels[count, OPEN], labels[count, LOAD] = visited, still_open, load
            labels[count, PARENT] = here
            heapq.heappush(queue, (arrival, count))
            count += 1
    return labels, best


@kernel
def _is_dominated(labels: Any, label: Any, other: Any) -> Any:
    """Whether a label of the linked list that starts with `other` dominates this one."""
    time, cost, visited, on_board = (
        labels[label, TIME],
        labels[label, COST],
        labels[label, VISITED],
        labels[label, OPEN],
    )
    while other >= 0:
        if (
            labels[other, COST] <= cost
            and labels[other, TIME] <= time
            and labels[other, VISITED] & ~visited == 0
            and labels[other, OPEN] & ~on_board == 0
        ):
            return True
        other = labels[other, NEXT]
    return False
