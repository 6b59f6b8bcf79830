"""OR-Tools and PyVRP: missing packages are named, constraints hold, settings are checked."""

import sys

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from hundredfold.core.errors import MissingExtraError, SettingsError
from hundredfold.routing.instances import random_instances
from hundredfold.routing.ortools_oracle import OrToolsOracle, OrToolsSettings
from hundredfold.routing.problem import Fleet
from hundredfold.routing.pyvrp_oracle import PyVRPOracle, PyVRPSettings
from hundredfold.routing.verifier import violations

FLEET = Fleet(capacity=3, free_vehicles=1, extra_vehicle_minutes=40.0, max_route_minutes=500.0)


@pytest.mark.parametrize(("package", "oracle"), [("ortools.constraint_solver", OrToolsOracle), ("pyvrp", PyVRPOracle)])
def test_a_missing_package_says_how_to_install_it(monkeypatch, package, oracle):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'hundredfold\[routing\]'"):
        oracle()


def test_or_tools_solutions_pass_the_verifier():
    pytest.importorskip("ortools")
    problems = random_instances(2, 12, seed=1, fleet=FLEET, max_ride_factor=1.2, share_of_pairs=0.3)
    solutions = OrToolsOracle(OrToolsSettings(seconds=600.0, max_solutions=30)).solve(problems)
    assert np.isfinite(solutions.cost).all()
    assert violations(problems, solutions) == []


def test_or_tools_is_reproducible_with_a_solution_limit():
    pytest.importorskip("ortools")
    problems = random_instances(2, 12, seed=2)
    oracle = OrToolsOracle(OrToolsSettings(seconds=600.0, max_solutions=30))
    assert_array_equal(oracle.solve(problems).routes, oracle.solve(problems).routes)


def test_pyvrp_solutions_pass_the_verifier():
    pytest.importorskip("pyvrp")
    problems = random_instances(2, 12, seed=3, fleet=FLEET, share_of_pairs=0.3)
    solutions = PyVRPOracle(PyVRPSettings(seconds=None, max_iterations=300)).solve(problems)
    assert np.isfinite(solutions.cost).all()
    assert violations(problems, solutions) == []


def test_pyvrp_rejects_ride_time_limits():
    pytest.importorskip("pyvrp")
    with pytest.raises(SettingsError, match="no ride-time limit"):
        PyVRPOracle().solve(random_instances(1, 3, max_ride_factor=2.0))


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        (OrToolsSettings, {"seconds": 0.0}),
        (OrToolsSettings, {"max_solutions": 0}),
        (PyVRPSettings, {"seconds": -1.0}),
        (PyVRPSettings, {"max_iterations": 0}),
    ],
)
def test_settings_out_of_bounds_are_rejected(make, wrong):
    with pytest.raises(SettingsError):
        make(**wrong)
