"""Trade-off between minutes saved and minutes of shift."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from helpers.acceptance_models import prior_model
from hundredfold.envs.dvrp.analysis import TradeOffPoint, compare_at_equal_shift, saved_minutes_at
from hundredfold.envs.dvrp.evaluation import DayScorer, DayScores, simulate_days
from hundredfold.envs.dvrp.lookahead import LookaheadSettings
from hundredfold.envs.dvrp.policies import SHIFT_PENALTY_POLICIES, PolicyOptions
from hundredfold.envs.dvrp.settings import DvrpSettings

SETTINGS = DvrpSettings(num_customers=10, num_vehicles=3, lns_iterations=1)


def point(policy, saved, shift, penalty=None):
    """Four days with about this saving and this shift; without offers each costs 200 minutes."""
    noise = np.array([-1.0, 0.0, 0.0, 1.0]) * (shift > 0)
    saved = np.full(4, saved) + noise
    scores = DayScores(
        improvement_pct=saved / 2.0,
        cost=200.0 - saved,
        baseline_cost=np.full(4, 200.0),
        offers_made=np.full(4, 3),
        offers_accepted=np.full(4, 2),
        shift_minutes=np.full(4, float(shift)),
        vehicles=np.full(4, 2),
        failed=np.zeros(4, bool),
    )
    return TradeOffPoint(policy, penalty, scores)


CURVE = [point("curve", 12, 100, 0.0), point("curve", 8, 40, 0.1), point("curve", 0, 0, 9.0)]


@pytest.mark.parametrize(("shift", "saved"), [(0, 0), (20, 4), (40, 8), (70, 10), (100, 12), (500, 12)])
def test_savings_are_interpolated_between_the_points_of_a_curve(shift, saved):
    assert saved_minutes_at(CURVE, shift).mean() == pytest.approx(saved)


def test_every_curve_starts_at_the_origin():
    assert saved_minutes_at(CURVE[:1], 50.0).mean() == pytest.approx(6.0)


def test_policies_are_compared_by_paired_days_at_equal_shift():
    row = compare_at_equal_shift(point("mine", 13, 70), CURVE)
    assert (row["policy"], row["baseline"], row["shift_minutes"]) == ("mine", "curve", 70.0)
    # Both vary alike over the days, so the paired difference is constant.
    assert_allclose([row["mean"], row["ci_low"], row["ci_high"]], 3.0)
    assert row["saved_minutes"] == 13.0


def test_beyond_a_curve_its_last_point_is_used():
    row = compare_at_equal_shift(point("mine", 13, 400), CURVE)
    assert (row["mean"], row["baseline_shift_minutes"]) == (pytest.approx(1.0), 100.0)


def test_rows_have_minutes_and_percent():
    row = CURVE[1].row()
    assert row["saved_minutes"] == 8.0
    assert row["mean"] == 4.0
    assert row["ci_low"] <= 4.0 <= row["ci_high"]
    assert (row["shift_minutes"], row["shift_penalty"]) == (40.0, 0.1)


@pytest.mark.parametrize("name", SHIFT_PENALTY_POLICIES)
def test_a_huge_shift_penalty_stops_all_offers(name):
    scorer, beliefs = DayScorer(), prior_model(SETTINGS)

    def scores_at(penalty):
        options = PolicyOptions(
            beliefs=beliefs, shift_penalty=penalty, lookahead=LookaheadSettings(samples=2, lns_iterations=1)
        )
        days, population = simulate_days(name, SETTINGS, 12, 3, options=options)
        return scorer.scores(days, population, SETTINGS)

    free, penalised, silent = scores_at(0.0), scores_at(0.3), scores_at(1e6)
    assert_array_equal(silent.saved_minutes, 0.0)
    assert_array_equal(silent.shift_minutes, 0.0)
    assert free.shift_minutes.mean() >= penalised.shift_minutes.mean() >= 0.0
    assert free.shift_minutes.mean() > 0.0
    assert_array_equal(free.baseline_cost, silent.baseline_cost)
