"""The exact oracle against brute force, and properties of an optimum."""

from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from helpers.small_instances import small_instances
from hundredfold.core.errors import SettingsError
from hundredfold.routing.exact_oracle import ExactOracle, ExactSettings
from hundredfold.routing.lns_oracle import LNSOracle
from hundredfold.routing.problem import Fleet, RouteProblems, TravelTable
from hundredfold.routing.solution import solutions_from_routes
from hundredfold.routing.verifier import violations

LINE = TravelTable(np.abs(np.subtract.outer([0.0, 10.0, 20.0, 30.0], [0.0, 10.0, 20.0, 30.0])))


def instance_on_a_line(windows, cells=((1, 3), (2, 3)), **fleet):
    return RouteProblems.from_arrays(LINE, Fleet(**fleet), [cells], [windows])


def test_two_requests_share_a_ride_along_a_line():
    together = [[[0, 100], [0, 100]], [[0, 100], [0, 100]]]
    solutions = ExactOracle().solve(instance_on_a_line(together))
    assert solutions.cost[0] == 60.0
    assert solutions.route(0, 0) in ([1, 3, 2, 4], [1, 3, 4, 2])


def test_requests_at_different_hours_are_served_one_after_the_other():
    apart = [[[0, 30], [0, 60]], [[500, 530], [500, 560]]]
    solutions = ExactOracle().solve(instance_on_a_line(apart))
    assert solutions.cost[0] == 80.0
    assert solutions.route(0, 0) == [1, 2, 3, 4]


def test_a_second_vehicle_is_used_only_if_one_does_not_suffice():
    follow = [[[10, 11], [30, 31]], [[31, 52], [51, 72]]]
    clash = [[[10, 11], [30, 31]], [[31, 32], [51, 52]]]
    cells = ((1, 3), (1, 3))
    for windows, vehicles, cost in ((follow, 1, 100.0), (clash, 2, 125.0)):
        solutions = ExactOracle().solve(instance_on_a_line(windows, cells, free_vehicles=1, extra_vehicle_minutes=5.0))
        assert solutions.vehicles_used[0] == vehicles
        assert solutions.cost[0] == cost


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("metric", [False, True])
def test_no_solution_of_a_full_enumeration_is_cheaper(limited, metric):
    problems = small_instances(8, 2, seed=11, limited=limited, metric=metric)
    found = ExactOracle().solve(problems).cost
    for instance in range(len(problems)):
        one = problems.rows(slice(instance, instance + 1))
        assert found[instance] == cheapest_by_enumeration(one)


def cheapest_by_enumeration(instance):
    """Every assignment to two vehicles and every order, checked by the verifier."""
    num_requests = int(instance.num_requests[0])
    best = np.inf if num_requests else 0.0
    for vehicles in product((0, 1), repeat=num_requests):
        stops = [[], []]
        for request, vehicle in enumerate(vehicles):
            stops[vehicle] += [2 * request + 1, 2 * request + 2]
        for routes in product(permutations(stops[0]), permutations(stops[1])):
            solutions = solutions_from_routes(instance, [[list(route) for route in routes]])
            if solutions.cost[0] < best and not violations(instance, solutions):
                best = solutions.cost[0]
    return best


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 10_000), st.integers(0, 4), st.floats(0.0, 60.0), st.floats(0.0, 60.0))
def test_relaxing_a_time_window_never_raises_the_cost(seed, which, sooner, later):
    problems = small_instances(1, 5, seed=seed, limited=seed % 2 == 0, full=True)
    before = ExactOracle().solve(problems).cost
    problems.windows[0, which, :, 0] -= sooner
    problems.windows[0, which, :, 1] += later
    assert (ExactOracle().solve(problems).cost <= before).all()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.permutations(range(5)))
def test_the_order_of_requests_does_not_change_the_cost(seed, order):
    problems = small_instances(1, 5, seed=seed, limited=seed % 2 == 0, full=True)
    shuffled = RouteProblems.from_arrays(
        problems.travel,
        problems.fleet,
        problems.cells[:, order],
        problems.windows[:, order],
        riders=problems.riders[:, order],
        service_minutes=problems.service_minutes[:, order],
        max_ride_minutes=problems.max_ride_minutes[:, order],
    )
    assert_array_equal(ExactOracle().solve(shuffled).cost, ExactOracle().solve(problems).cost)


@pytest.mark.parametrize("limited", [False, True])
def test_lns_is_never_below_the_optimum_and_rarely_above_on_500_instances(limited):
    problems = small_instances(500, 5, seed=13, limited=limited)
    optimum = ExactOracle().solve(problems).cost
    found = LNSOracle().solve(problems).cost
    assert (found >= optimum).all()
    served = np.isfinite(optimum) & (optimum > 0.0)
    assert np.isfinite(found[served]).all()
    gap = 100.0 * (found[served] / optimum[served] - 1.0)
    print(f"mean gap of LNS to the optimum: {gap.mean():.4f} %")
    assert gap.mean() < 0.1
    assert (gap == 0.0).mean() > 0.97


def test_a_large_instance_is_rejected():
    problems = small_instances(4, 4, seed=1, full=True)
    with pytest.raises(SettingsError, match="up to 3 requests and got one of 4"):
        ExactOracle(ExactSettings(max_requests=3)).solve(problems)
