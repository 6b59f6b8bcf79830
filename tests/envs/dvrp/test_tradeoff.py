"""Minutes saved against minutes moved."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from helpers.believers import prior_believer
from hundredfold.envs.dvrp.analysis import TradeOffPoint, compare_at_equal_shift, interpolated_at
from hundredfold.envs.dvrp.evaluation import DayScorer, DayScores, PolicyOptions, simulate_days
from hundredfold.envs.dvrp.lookahead import LookaheadSettings
from hundredfold.envs.dvrp.policies import SHIFT_PENALTY_POLICIES
from hundredfold.envs.dvrp.settings import DvrpSettings

SETTINGS = DvrpSettings(num_customers=10, num_vehicles=3, lns_iterations=1)


def point(policy, saved, moved, price=None):
    """Four days that save and move about this much; each day costs 200 minutes as asked."""
    wiggle = np.array([-1.0, 0.0, 0.0, 1.0]) * (moved > 0)
    saved = np.full(4, saved) + wiggle
    scores = DayScores(
        improvement_pct=saved / 2.0,
        cost=200.0 - saved,
        reference=np.full(4, 200.0),
        offers_made=np.full(4, 3),
        offers_accepted=np.full(4, 2),
        shift_minutes=np.full(4, float(moved)),
        vehicles=np.full(4, 2),
        failed=np.zeros(4, bool),
    )
    return TradeOffPoint(policy, price, scores)


CURVE = [point("curve", 12, 100, 0.0), point("curve", 8, 40, 0.1), point("curve", 0, 0, 9.0)]


@pytest.mark.parametrize(
    ("moved", "saved"), [(0, 0), (20, 4), (40, 8), (70, 10), (100, 12), (500, 12)]
)
def test_between_two_points_lies_whoever_is_now_one_and_now_the_other(moved, saved):
    assert interpolated_at(CURVE, moved).mean() == pytest.approx(saved)


def test_a_curve_begins_with_silence_whether_it_was_played_or_not():
    assert interpolated_at(CURVE[:1], 50.0).mean() == pytest.approx(6.0)


def test_policies_are_compared_day_by_day_where_they_move_as_much():
    row = compare_at_equal_shift(point("mine", 13, 70), CURVE)
    assert (row["policy"], row["against"], row["shift_minutes"]) == ("mine", "curve", 70.0)
    # The same days are good and bad for both, so the difference is certain.
    assert_allclose([row["mean"], row["ci_low"], row["ci_high"]], 3.0)
    assert row["saved_minutes"] == 13.0


def test_beyond_a_curve_its_last_point_stands():
    row = compare_at_equal_shift(point("mine", 13, 400), CURVE)
    assert (row["mean"], row["against_shift_minutes"]) == (pytest.approx(1.0), 100.0)


def test_rows_tell_minutes_and_percent():
    row = CURVE[1].row()
    assert row["saved_minutes"] == 8.0
    assert row["mean"] == 4.0
    assert row["ci_low"] <= 4.0 <= row["ci_high"]
    assert (row["shift_minutes"], row["shift_penalty"]) == (40.0, 0.1)


@pytest.mark.parametrize("rule", SHIFT_PENALTY_POLICIES)
def test_every_priced_rule_falls_silent_as_minutes_get_dear(rule):
    closing, beliefs = DayScorer(), prior_believer(SETTINGS)

    def at(price):
        options = PolicyOptions(
            beliefs=beliefs,
            shift_penalty=price,
            lookahead=LookaheadSettings(samples=2, search_rounds=1),
        )
        played, population = simulate_days(rule, SETTINGS, 12, 3, options=options)
        return closing.scores(played, population, SETTINGS)

    free, dear, silent = at(0.0), at(0.3), at(1e6)
    assert_array_equal(silent.saved_minutes, 0.0)
    assert_array_equal(silent.shift_minutes, 0.0)
    assert free.shift_minutes.mean() >= dear.shift_minutes.mean() >= 0.0
    assert free.shift_minutes.mean() > 0.0
    assert_array_equal(free.reference, silent.reference)
