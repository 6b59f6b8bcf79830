"""Operators of the search: insertions against an enumeration, and searches with fixed seeds.

Small enough to run in seconds without compilation, as `tests/mutants.py` does.
"""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from helpers.small_instances import small_instances
from hundredfold.core import rng
from hundredfold.routing.incremental import IncrementalRoutes, IncrementalSettings
from hundredfold.routing.instances import random_instances
from hundredfold.routing.lns_oracle import LNSOracle, LNSSettings
from hundredfold.routing.problem import Fleet, RouteProblems, TravelTable, VehicleType
from hundredfold.routing.solution import solutions_from_routes
from hundredfold.routing.verifier import violations

NO_IMPROVEMENT = IncrementalSettings(improve_passes=0, lns_iterations=0)
KINDS = {
    "plain": {},
    "limited": {"limited": True},
    "ride times": {"limited": True},
    "shortcuts": {"metric": False},
    "crowded": {"crowded": True},
}
SHIFTS = np.array([0.0, -40.0, 25.0])


def shortcut_table():
    """Whole minutes that violate the triangle inequality."""
    minutes = np.random.default_rng(0).integers(5, 40, (61, 61)).astype(float)
    np.fill_diagonal(minutes, 0.0)
    return TravelTable(minutes)


# Options of `random_instances`, and the costs in seconds of two instances: after construction by
# regret-2 insertion, with a second start by greedy insertion, and after 3 and 15 iterations.
SEARCHES = {
    "capacity": (
        {"fleet": Fleet(capacity=4), "detour_factor": 0.5, "share_of_pairs": 0.3},
        ((42391, 29880), (41988, 29880), (41807, 29880), (40984, 29880)),
    ),
    "vehicle costs": (
        {"fleet": Fleet(free_vehicles=1, extra_vehicle_minutes=45.0)},
        ((46005, 32864), (46005, 32643), (46005, 32864), (46005, 32643)),
    ),
    "ride times": (
        {"max_ride_factor": 1.0, "detour_factor": 0.5},
        ((43276, 30463), (42338, 30463), (43276, 30463), (41958, 30463)),
    ),
    "route durations": (
        {"fleet": Fleet(max_route_minutes=300.0), "max_ride_factor": 1.1},
        ((45944, 32853), (45944, 32853), (45944, 32853), (45550, 32804)),
    ),
    "shortcuts": (
        {"travel": shortcut_table(), "max_ride_factor": 1.5},
        ((42180, 34980), (41400, 34980), (42180, 34980), (41040, 34680)),
    ),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_with_a_fixed_seed_finds_the_same_costs_on_every_machine(name):
    """All times are integers, so these costs change only if the search itself does."""
    options, expected = SEARCHES[name]
    problems = random_instances(2, 18, seed=31, **options)
    for (iterations, restarts), costs in zip(((0, 1), (0, 2), (3, 1), (15, 2)), expected, strict=True):
        settings = LNSSettings(lns_iterations=iterations, final_restarts=restarts, max_removed=6)
        solutions = LNSOracle(settings).solve(problems)
        assert violations(problems, solutions) == []
        assert_allclose(60.0 * solutions.cost, costs, rtol=0, atol=1e-6)


SMALL_AND_LARGE = (VehicleType(count=3, seats=1), VehicleType(count=3, seats=3))
EARLY_AND_LATE = (VehicleType(count=3, seats=2, shift=(300.0, 1000.0)), VehicleType(count=3, shift=(400.0, 1440.0)))


@pytest.mark.parametrize(
    ("types", "seed", "costs"),
    [
        (SMALL_AND_LARGE, 1, (39741, 37046, 39670, 44598, 38840, 34413, 29624, 41033)),
        (EARLY_AND_LATE, 31, (43840, 30837)),
    ],
)
def test_vehicles_of_different_types_exchange_tails_that_fit_both(types, seed, costs):
    """Some of the exchanges are needed for these costs, and others would break a limit."""
    problems = random_instances(len(costs), 18, seed=seed, fleet=Fleet.of_types(types), share_of_pairs=0.5)
    solutions = LNSOracle(LNSSettings(lns_iterations=0, final_restarts=1, max_removed=6)).solve(problems)
    assert violations(problems, solutions) == []
    assert_allclose(60.0 * solutions.cost, costs, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("max_route_minutes", "is_served"), [(15.0, True), (14.999, False)])
def test_a_route_may_last_exactly_as_long_as_its_limit(max_route_minutes, is_served):
    fleet = Fleet(num_vehicles=1, max_route_minutes=max_route_minutes)
    windows = [[[60.0, 90.0], [60.0, 120.0]]]
    table = TravelTable(5.0 * (1.0 - np.eye(3)))
    problems = RouteProblems.from_arrays(table, fleet, [[[1, 2]]], [windows])
    solutions = LNSOracle(LNSSettings(lns_iterations=0, final_restarts=1)).solve(problems)
    assert solutions.unserved[0, 0] != is_served


@pytest.mark.parametrize(
    "fleet", [Fleet(), Fleet(free_vehicles=2, extra_vehicle_minutes=90.0)], ids=["no cost", "free"]
)
def test_a_vehicle_within_the_free_ones_is_used_where_that_saves_driving(fleet):
    """A trip in the morning and one in the afternoon, whose ends are best connected by way of the depot."""
    minutes = np.full((5, 5), 5.0)
    minutes[2, 3] = 60.0
    np.fill_diagonal(minutes, 0.0)
    windows = [[[60.0, 90.0], [60.0, 120.0]], [[400.0, 430.0], [400.0, 460.0]]]
    problems = RouteProblems.from_arrays(TravelTable(minutes), fleet, [[[1, 2], [3, 4]]], [windows])
    solutions = LNSOracle(LNSSettings(lns_iterations=0, final_restarts=1)).solve(problems)
    assert solutions.cost[0] == 30.0
    assert solutions.vehicles_used[0] == 2


def with_requests(problems, number):
    """Routes with the first requests of every instance, each at its cheapest place."""
    routes = IncrementalRoutes(problems.travel, problems.fleet, len(problems), problems.max_requests, NO_IMPROVEMENT)
    return add_requests(routes, problems, range(number))


def add_requests(routes, problems, indices, rows=None):
    keys = rng.stream_keys(5, np.arange(len(problems)), 0)
    for index in indices:
        routes.add(
            problems.cells[:, index],
            problems.windows[:, index],
            keys,
            riders=problems.riders[:, index],
            service_minutes=problems.service_minutes[:, index],
            max_ride_minutes=problems.max_ride_minutes[:, index],
            rows=rows,
        )
    return routes


def driving_cost(instance, routes):
    """Minutes of driving and of extra vehicles, added up leg by leg."""
    cell_of = [instance.fleet.depot_cell, *instance.cells[0].ravel()]
    used = [route for route in routes if route]
    legs = [(a, b) for route in used for a, b in zip([0, *route], [*route, 0], strict=True)]
    extra = max(len(used) - instance.fleet.free_vehicles, 0)
    return sum(instance.travel.minutes[cell_of[a], cell_of[b]] for a, b in legs) + (
        extra * instance.fleet.extra_vehicle_minutes
    )


def cheapest_by_enumeration(instance, routes, request):
    """Cost of the cheapest feasible solution with the request put anywhere into these routes."""
    pickup, dropoff = 2 * request + 1, 2 * request + 2
    costs = [np.inf]
    for vehicle, route in enumerate(routes):
        for i in range(len(route) + 1):
            for j in range(i, len(route) + 1):
                longer = [*route[:i], pickup, *route[i:j], dropoff, *route[j:]]
                trial = [*routes[:vehicle], longer, *routes[vehicle + 1 :]]
                if not violations(instance, solutions_from_routes(instance, [trial])):
                    costs.append(driving_cost(instance, trial))
    return min(costs)


def one_request_longer(routes, instance, window):
    """The instance of one row with its next request in this window."""
    state, row, number = routes.state(), slice(instance, instance + 1), int(routes.num_requests[instance])
    one = routes.problems.rows(row)
    windows = state["windows"][row].copy()
    windows[0, number] = window
    return RouteProblems.from_arrays(
        one.travel,
        one.fleet,
        state["cells"][row],
        windows,
        num_requests=number + 1,
        riders=state["riders"][row],
        service_minutes=state["service_minutes"][row],
        max_ride_minutes=state["max_ride_minutes"][row],
    )


@pytest.mark.parametrize("kind", KINDS)
def test_candidate_costs_are_those_of_the_cheapest_insertion(kind):
    problems = small_instances(4, 5, seed=21, full=True, **KINDS[kind])
    if kind == "ride times":  # of some requests, without a limit of route durations
        problems = replace(problems, fleet=replace(problems.fleet, max_route_minutes=np.inf))
        problems.max_ride_minutes[0] = np.inf
    routes = with_requests(problems, 4)
    candidates = problems.windows[:, 4, None] + SHIFTS[:, None, None]
    details = {
        "riders": problems.riders[:, 4],
        "service_minutes": problems.service_minutes[:, 4],
        "max_ride_minutes": problems.max_ride_minutes[:, 4],
    }
    found = routes.candidate_costs(problems.cells[:, 4], candidates, **details).insertion
    for name in ("cells", "riders", "service_minutes", "max_ride_minutes"):
        getattr(routes.problems, name)[:, 4] = getattr(problems, name)[:, 4]
    num_served = 0
    for instance in range(len(problems)):
        if routes.unserved[instance].any():
            continue
        stops = [
            route[:length].tolist()
            for route, length in zip(routes.routes[instance], routes.lengths[instance], strict=True)
        ]
        for candidate, window in enumerate(candidates[instance]):
            longer = one_request_longer(routes, instance, window)
            expected = cheapest_by_enumeration(longer, stops, 4)
            assert_allclose(found[instance, candidate], expected, rtol=0, atol=1e-6)
            num_served += 1
    assert num_served >= 3


def test_a_cleared_row_is_filled_as_if_it_were_new():
    problems = small_instances(3, 4, seed=23, full=True)
    routes = with_requests(problems, 4)
    routes.clear(np.array([False, True, False]))
    assert (routes.cost[1], routes.vehicles_used[1], routes.routes[1].any()) == (0.0, 0, False)
    fresh = with_requests(problems, 2)
    add_requests(routes, problems, range(2), rows=np.array([False, True, False]))
    assert_array_equal(routes.routes[1], fresh.routes[1])
    assert routes.cost[1] == fresh.cost[1]


@pytest.mark.parametrize("request_id", [0, 1, 3])
def test_removing_a_request_moves_the_later_ones_up(request_id):
    problems = small_instances(3, 6, seed=23, full=True)
    routes = with_requests(problems, 4)
    assert routes.remove(1, request_id, rng.stream_keys(5, np.arange(3), 0))
    rest = [request for request in range(4) if request != request_id]
    for name in ("cells", "windows", "riders", "service_minutes", "max_ride_minutes"):
        before, after = getattr(problems, name)[1], getattr(routes.problems, name)[1]
        assert_array_equal(after[:3], before[rest], err_msg=name)
    assert routes.num_requests.tolist() == [4, 3, 4]
    assert violations(routes.problems, routes.solutions()) == []
