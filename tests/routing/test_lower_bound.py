"""Lower bounds on the cost of instances."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from helpers.small_instances import small_instances
from hundredfold.core.errors import SettingsError
from hundredfold.routing.exact_oracle import ExactOracle
from hundredfold.routing.instances import random_instances
from hundredfold.routing.lns_oracle import LNSOracle
from hundredfold.routing.lower_bound import LowerBoundSettings, lower_bounds
from hundredfold.routing.problem import Fleet, RouteProblems, TravelTable

pytest.importorskip("ortools")

LINE = TravelTable(np.abs(np.subtract.outer([0.0, 10.0, 20.0, 30.0], [0.0, 10.0, 20.0, 30.0])))


@pytest.mark.parametrize("crowded", [False, True], ids=["fleet", "one vehicle"])
@pytest.mark.parametrize("metric", [True, False], ids=["metric", "shortcuts"])
@pytest.mark.parametrize("limited", [False, True], ids=["unlimited", "ride limits"])
def test_no_exact_solution_is_cheaper_than_the_bound(limited, metric, crowded):
    problems = small_instances(60, 5, seed=3, limited=limited, metric=metric, crowded=crowded)
    bounds, exact = lower_bounds(problems), ExactOracle().solve(problems)
    feasible = np.isfinite(exact.cost)
    assert feasible.any()
    assert (bounds[feasible] <= exact.driving_minutes[feasible]).all()
    if metric and not limited and not crowded:
        gap = 1.0 - bounds[feasible].sum() / exact.driving_minutes[feasible].sum()
        assert gap < 0.02


def test_the_bound_is_the_optimum_where_the_relaxation_is_integral():
    together = [[[0, 100], [0, 100]], [[0, 100], [0, 100]]]
    apart = [[[0, 30], [0, 60]], [[500, 530], [500, 560]]]
    problems = RouteProblems.from_arrays(LINE, Fleet(), [((1, 3), (2, 3))] * 2, [together, apart])
    assert_array_equal(lower_bounds(problems), [60.0, 80.0])
    alone = RouteProblems.from_arrays(LINE, Fleet(capacity=1), [((1, 3), (2, 3))], [together])
    assert lower_bounds(alone)[0] == 80.0


def test_the_bound_is_close_to_good_solutions_of_whole_days_and_independent_of_threads():
    problems = random_instances(4, 20, seed=1)
    bounds, cost = lower_bounds(problems), LNSOracle().solve(problems).cost
    assert (bounds <= cost).all()
    assert 1.0 - bounds.sum() / cost.sum() < 0.05
    assert_array_equal(bounds, lower_bounds(problems, LowerBoundSettings(threads=2)))
    assert_array_equal(bounds[2:3], lower_bounds(problems.rows(slice(2, 3))))


def test_a_bound_after_few_rounds_or_labels_is_lower_and_still_holds():
    problems = random_instances(3, 20, seed=2)
    bounds = lower_bounds(problems)
    early = lower_bounds(problems, LowerBoundSettings(max_rounds=12))
    assert (early <= bounds).all()
    assert (early < bounds).any()
    assert_array_equal(lower_bounds(problems, LowerBoundSettings(max_labels=1)), 0.0)


def test_too_many_requests_are_rejected_and_none_cost_nothing():
    with pytest.raises(SettingsError, match="up to 62 requests and got one of 70"):
        lower_bounds(random_instances(1, 70, seed=1))
    empty = RouteProblems.from_arrays(LINE, Fleet(), np.zeros((1, 0, 2)), np.zeros((1, 0, 2, 2)))
    assert lower_bounds(empty)[0] == 0.0


def test_the_bound_contains_the_cost_of_every_vehicle():
    problems = small_instances(30, 5, seed=3, limited=False, metric=True, crowded=False)
    problems = replace(problems, fleet=replace(problems.fleet, free_vehicles=0, extra_vehicle_minutes=25.0))
    bounds, exact = lower_bounds(problems), ExactOracle().solve(problems)
    feasible = np.isfinite(exact.cost)
    assert (bounds[feasible] <= exact.cost[feasible]).all()
    assert bounds[feasible].sum() > 0.97 * exact.cost[feasible].sum()
