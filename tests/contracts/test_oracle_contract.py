"""Contract of every oracle; a new one joins by its line in ORACLES and one in SOLVERS."""

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

# Every oracle with reproducible settings.
SOLVERS = {
    "insertion": LNSOracle,
    "neural": lambda: NeuralOracle(NeuralSettings(oracle_samples=2)),
    "exact": ExactOracle,
    "or_tools": lambda: OrToolsOracle(OrToolsSettings(seconds=600.0, max_solutions=20)),
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
def problems(request, solver):
    kind = request.param
    limited = kind == "limited"
    if limited and isinstance(solver, PyVRPOracle):
        pytest.skip("PyVRP supports no ride-time limit")
    if kind == "crowded" and isinstance(solver, OrToolsOracle):
        pytest.skip("OR-Tools searches an infeasible instance until its time limit")
    return small_instances(12, 4, seed=3, limited=limited, metric=kind != "shortcuts", crowded=kind == "crowded")


def test_every_registered_oracle_is_tested():
    assert SOLVERS.keys() == ORACLES.keys()


def test_every_solution_passes_the_verifier(solver, problems):
    assert violations(problems, solver.solve(problems)) == []


def test_no_cost_is_below_the_optimum(solver, problems):
    optimum = ExactOracle().solve(problems).cost
    assert (solver.solve(problems).cost >= optimum).all()


def test_costs_do_not_depend_on_the_batch(solver, problems):
    together = solver.solve(problems)
    backwards = solver.solve(problems.rows(np.arange(len(problems))[::-1].copy()))
    assert_array_equal(backwards.cost[::-1], together.cost)
    for row in (0, 5, 11):
        alone = solver.solve(problems.rows(slice(row, row + 1)))
        assert_array_equal(alone.cost, together.cost[row : row + 1])
        assert_array_equal(alone.routes[0], together.routes[row])


def test_padding_does_not_change_costs(solver):
    problems = small_instances(6, 3, seed=4)
    wide = small_instances(6, 5, seed=4)
    for name in ("cells", "windows", "riders", "service_minutes", "max_ride_minutes"):
        getattr(wide, name)[:, :3] = getattr(problems, name)
    wide = dataclasses.replace(wide, num_requests=problems.num_requests, travel=problems.travel)
    assert_array_equal(solver.solve(wide).cost, solver.solve(problems).cost)


def test_an_unservable_request_makes_the_cost_infinite(solver):
    problems = small_instances(3, 4, seed=5, full=True)
    too_many = dataclasses.replace(problems, riders=problems.riders.copy())
    too_many.riders[1, 2] = problems.fleet.capacity + 1
    too_late = dataclasses.replace(problems, windows=problems.windows.copy())
    too_late.windows[1, 2, 1, 1] = too_late.windows[1, 2, 0, 0] - 1.0
    for impossible in (too_many, too_late):
        solutions = solver.solve(impossible)
        assert_array_equal(np.isinf(solutions.cost), [False, True, False])
        assert solutions.unserved[1].any()
        assert violations(impossible, solutions) == []


def test_an_empty_instance_costs_nothing(solver):
    problems = small_instances(2, 3, seed=6)
    problems.num_requests[:] = 0
    solutions = solver.solve(problems)
    assert_array_equal(solutions.cost, [0.0, 0.0])
    assert_array_equal(solutions.vehicles_used, [0, 0])


def test_solutions_do_not_depend_on_threads():
    problems = small_instances(40, 5, seed=7, limited=True)
    one = LNSOracle(LNSSettings(threads=1)).solve(problems)
    two = LNSOracle(LNSSettings(threads=2)).solve(problems)
    assert_array_equal(one.cost, two.cost)
    assert_array_equal(one.routes, two.routes)
    assert_array_equal(one.stop_minutes, two.stop_minutes)
