"""What every oracle promises; a new one joins by its line in ORACLES and one in SOLVERS."""

import dataclasses

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from helpers.small_instances import small_instances
from hundredfold.routing import ORACLES
from hundredfold.routing.exact_oracle import ExactOracle
from hundredfold.routing.lns_oracle import LNSOracle, LNSSettings
from hundredfold.routing.neural.oracle import NeuralOracle, NeuralSettings
from hundredfold.routing.ortools_oracle import OrToolsOracle, OrToolsSettings
from hundredfold.routing.pyvrp_oracle import PyVRPOracle, PyVRPSettings
from hundredfold.routing.verifier import violations

# Every oracle with settings that repeat.
SOLVERS = {
    "insertion": LNSOracle,
    "neural": lambda: NeuralOracle(NeuralSettings(oracle_samples=2)),
    "exact": ExactOracle,
    "or_tools": lambda: OrToolsOracle(OrToolsSettings(seconds=30.0, max_solutions=20)),
    "pyvrp": lambda: PyVRPOracle(PyVRPSettings(seconds=None, max_iterations=50)),
}
PACKAGES = {"or_tools": "ortools", "pyvrp": "pyvrp"}


@pytest.fixture(params=ORACLES, scope="module")
def solver(request):
    name = request.param
    if name in PACKAGES:
        pytest.importorskip(PACKAGES[name])
    return SOLVERS[name]()


@pytest.fixture(params=["plain", "limited", "shortcuts", "crowded"])
def books(request, solver):
    kind = request.param
    limited = kind == "limited"
    if limited and isinstance(solver, PyVRPOracle):
        pytest.skip("PyVRP knows no limit on ride time")
    if kind == "crowded" and isinstance(solver, OrToolsOracle):
        pytest.skip("OR-Tools looks for an impossible plan until its time is up")
    return small_instances(
        12, 4, seed=3, limited=limited, metric=kind != "shortcuts", crowded=kind == "crowded"
    )


def test_every_name_has_its_line_here():
    assert SOLVERS.keys() == ORACLES.keys()


def test_every_plan_passes_the_verifier(solver, books):
    assert violations(books, solver.solve(books)) == []


def test_no_price_lies_below_the_optimum(solver, books):
    optimum = ExactOracle().solve(books).cost
    assert (solver.solve(books).cost >= optimum).all()


def test_a_book_has_one_price_alone_and_in_any_batch(solver, books):
    together = solver.solve(books)
    backwards = solver.solve(books.rows(np.arange(len(books))[::-1].copy()))
    assert_array_equal(backwards.cost[::-1], together.cost)
    for book in (0, 5, 11):
        alone = solver.solve(books.rows(slice(book, book + 1)))
        assert_array_equal(alone.cost, together.cost[book : book + 1])
        assert_array_equal(alone.routes[0], together.routes[book])


def test_padding_changes_no_price(solver):
    books = small_instances(6, 3, seed=4)
    wide = small_instances(6, 5, seed=4)
    for name in ("cells", "windows", "riders", "service_minutes", "max_ride_minutes"):
        getattr(wide, name)[:, :3] = getattr(books, name)
    wide = dataclasses.replace(wide, num_requests=books.num_requests, travel=books.travel)
    assert_array_equal(solver.solve(wide).cost, solver.solve(books).cost)


def test_a_request_that_nobody_can_serve_is_priced_inf(solver):
    books = small_instances(3, 4, seed=5, full=True)
    too_many = dataclasses.replace(books, riders=books.riders.copy())
    too_many.riders[1, 2] = books.fleet.capacity + 1
    too_late = dataclasses.replace(books, windows=books.windows.copy())
    too_late.windows[1, 2, 1, 1] = too_late.windows[1, 2, 0, 0] - 1.0
    for impossible in (too_many, too_late):
        plans = solver.solve(impossible)
        assert_array_equal(np.isinf(plans.cost), [False, True, False])
        assert plans.unserved[1].any()
        assert violations(impossible, plans) == []


def test_an_empty_book_costs_nothing(solver):
    books = small_instances(2, 3, seed=6)
    books.num_requests[:] = 0
    plans = solver.solve(books)
    assert_array_equal(plans.cost, [0.0, 0.0])
    assert_array_equal(plans.vehicles_used, [0, 0])


def test_threads_change_nothing():
    books = small_instances(40, 5, seed=7, limited=True)
    one = LNSOracle(LNSSettings(threads=1)).solve(books)
    two = LNSOracle(LNSSettings(threads=2)).solve(books)
    assert_array_equal(one.cost, two.cost)
    assert_array_equal(one.routes, two.routes)
    assert_array_equal(one.stop_minutes, two.stop_minutes)
