"""OR-Tools and PyVRP: missing packages are named, limits are kept, settings are checked."""

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

PRICED = Fleet(capacity=3, free_vehicles=1, extra_vehicle_minutes=40.0, max_route_minutes=500.0)


@pytest.mark.parametrize(
    ("package", "oracle"), [("ortools.constraint_solver", OrToolsOracle), ("pyvrp", PyVRPOracle)]
)
def test_a_missing_package_says_how_to_install_it(monkeypatch, package, oracle):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'hundredfold\[routing\]'"):
        oracle()


def test_or_tools_keeps_every_rule_on_whole_days():
    pytest.importorskip("ortools")
    days = random_instances(2, 12, seed=1, fleet=PRICED, max_ride_factor=1.2, share_of_pairs=0.3)
    plans = OrToolsOracle(OrToolsSettings(seconds=0.3)).solve(days)
    assert np.isfinite(plans.cost).all()
    assert violations(days, plans) == []


def test_or_tools_repeats_itself_when_solutions_are_counted():
    pytest.importorskip("ortools")
    days = random_instances(2, 12, seed=2)
    oracle = OrToolsOracle(OrToolsSettings(seconds=60.0, max_solutions=30))
    assert_array_equal(oracle.solve(days).routes, oracle.solve(days).routes)


def test_pyvrp_keeps_every_rule_it_knows_on_whole_days():
    pytest.importorskip("pyvrp")
    days = random_instances(2, 12, seed=3, fleet=PRICED, share_of_pairs=0.3)
    plans = PyVRPOracle(PyVRPSettings(seconds=None, max_iterations=300)).solve(days)
    assert np.isfinite(plans.cost).all()
    assert violations(days, plans) == []


def test_pyvrp_refuses_limits_on_ride_time():
    pytest.importorskip("pyvrp")
    with pytest.raises(SettingsError, match="no limit on ride time"):
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
def test_settings_that_cannot_be_are_refused(make, wrong):
    with pytest.raises(SettingsError):
        make(**wrong)
