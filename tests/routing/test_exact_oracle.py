"""The exact oracle against a naive search, and the properties an optimum must have."""

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


def book_on_a_line(windows, cells=((1, 3), (2, 3)), **fleet):
    return RouteProblems.from_arrays(LINE, Fleet(**fleet), [cells], [windows])


def test_two_riders_share_a_car_along_a_line():
    together = [[[0, 100], [0, 100]], [[0, 100], [0, 100]]]
    plans = ExactOracle().solve(book_on_a_line(together))
    assert plans.cost[0] == 60.0
    assert plans.route(0, 0) in ([1, 3, 2, 4], [1, 3, 4, 2])


def test_riders_at_different_hours_are_driven_one_after_the_other():
    apart = [[[0, 30], [0, 60]], [[500, 530], [500, 560]]]
    plans = ExactOracle().solve(book_on_a_line(apart))
    assert plans.cost[0] == 80.0
    assert plans.route(0, 0) == [1, 2, 3, 4]


def test_a_second_vehicle_drives_only_when_one_cannot():
    follow = [[[10, 11], [30, 31]], [[31, 52], [51, 72]]]
    clash = [[[10, 11], [30, 31]], [[31, 32], [51, 52]]]
    cells = ((1, 3), (1, 3))
    for windows, vehicles, price in ((follow, 1, 100.0), (clash, 2, 125.0)):
        plans = ExactOracle().solve(
            book_on_a_line(windows, cells, free_vehicles=1, extra_vehicle_minutes=5.0)
        )
        assert plans.vehicles_used[0] == vehicles
        assert plans.cost[0] == price


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("metric", [False, True])
def test_nothing_cheaper_exists_among_all_plans(limited, metric):
    books = small_instances(8, 2, seed=11, limited=limited, metric=metric)
    found = ExactOracle().solve(books).cost
    for book in range(len(books)):
        one = books.rows(slice(book, book + 1))
        assert found[book] == cheapest_by_enumeration(one)


def cheapest_by_enumeration(book):
    """Every assignment to two vehicles and every order, judged by the verifier."""
    num_requests = int(book.num_requests[0])
    best = np.inf if num_requests else 0.0
    for vehicles in product((0, 1), repeat=num_requests):
        stops = [[], []]
        for request, vehicle in enumerate(vehicles):
            stops[vehicle] += [2 * request + 1, 2 * request + 2]
        for routes in product(permutations(stops[0]), permutations(stops[1])):
            plans = solutions_from_routes(book, [[list(route) for route in routes]])
            if plans.cost[0] < best and not violations(book, plans):
                best = plans.cost[0]
    return best


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 10_000), st.integers(0, 4), st.floats(0.0, 60.0), st.floats(0.0, 60.0))
def test_relaxing_a_window_never_raises_the_price(seed, which, sooner, later):
    books = small_instances(1, 5, seed=seed, limited=seed % 2 == 0, full=True)
    before = ExactOracle().solve(books).cost
    books.windows[0, which, :, 0] -= sooner
    books.windows[0, which, :, 1] += later
    assert (ExactOracle().solve(books).cost <= before).all()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.permutations(range(5)))
def test_the_order_of_requests_changes_no_price(seed, order):
    books = small_instances(1, 5, seed=seed, limited=seed % 2 == 0, full=True)
    shuffled = RouteProblems.from_arrays(
        books.travel,
        books.fleet,
        books.cells[:, order],
        books.windows[:, order],
        riders=books.riders[:, order],
        service_minutes=books.service_minutes[:, order],
        max_ride_minutes=books.max_ride_minutes[:, order],
    )
    assert_array_equal(ExactOracle().solve(shuffled).cost, ExactOracle().solve(books).cost)


@pytest.mark.parametrize("limited", [False, True])
def test_insertion_is_never_cheaper_and_rarely_dearer_on_500_books(limited):
    books = small_instances(500, 5, seed=13, limited=limited)
    optimum = ExactOracle().solve(books).cost
    found = LNSOracle().solve(books).cost
    assert (found >= optimum).all()
    served = np.isfinite(optimum) & (optimum > 0.0)
    assert np.isfinite(found[served]).all()
    gap = 100.0 * (found[served] / optimum[served] - 1.0)
    print(f"mean gap of insertion to the optimum: {gap.mean():.4f} %")
    assert gap.mean() < 0.1
    assert (gap == 0.0).mean() > 0.97


def test_a_large_book_is_refused():
    books = small_instances(4, 4, seed=1, full=True)
    with pytest.raises(SettingsError, match="up to 3 requests and got one of 4"):
        ExactOracle(ExactSettings(max_requests=3)).solve(books)
