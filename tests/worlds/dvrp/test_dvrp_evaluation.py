import numpy as np
import pytest

from hundredfold.worlds.dvrp.evaluation import SPLITS, evaluate_policy, play_days
from hundredfold.worlds.dvrp.policies import POLICIES, largest_known
from hundredfold.worlds.dvrp.settings import DvrpSettings

SETTINGS = DvrpSettings(num_customers=12, num_vehicles=3, lns_iterations=2)
KEYS = [
    *("policy", "split", "episodes", "mean", "ci_low", "ci_high", "cost", "reference"),
    *("offers_made", "offers_accepted", "shift_minutes", "vehicles", "failed"),
]


def judge(policy, **options):
    given = {"days": 24, "splits": ("known",), **options}
    return evaluate_policy(policy, given.pop("settings", SETTINGS), **given)


def test_nothing_offered_improves_by_exactly_nothing_on_every_split():
    rows = judge("none", splits=SPLITS)
    assert [row["split"] for row in rows] == list(SPLITS)
    for row in rows:
        assert list(row) == KEYS
        assert (row["mean"], row["ci_low"], row["ci_high"]) == (0, 0, 0)
        assert row["cost"] == row["reference"] > 0
        assert row["offers_made"] == row["offers_accepted"] == row["shift_minutes"] == 0
        assert (row["episodes"], row["failed"]) == (24, 0)
        assert 1 <= row["vehicles"] <= 3


def test_all_rules_are_judged_on_the_same_days():
    rows = [judge(name, days=12)[0] for name in POLICIES]
    assert len({row["reference"] for row in rows}) == 1
    mean = {row["policy"]: row["mean"] for row in rows}
    assert mean["fully_flexible"] > mean["hindsight"] > mean["none"]
    assert mean["hindsight"] > mean["random"]
    for row in rows:
        assert row["ci_low"] <= row["mean"] <= row["ci_high"]


def test_the_same_days_come_back_and_batches_do_not_matter():
    once = judge("random")
    assert judge("random") == once
    assert judge("largest_known", num_envs=7) == judge("largest_known")
    assert judge("random", seed=1) != once


def test_any_function_from_a_batch_to_offers_can_be_judged():
    (row,) = judge(largest_known, name="mine")
    (same,) = judge("largest_known")
    assert row == {**same, "policy": "mine"}
    assert row["offers_made"] == row["offers_accepted"] > 0


def test_failed_days_count_as_minus_a_hundred_and_are_told():
    settings = DvrpSettings(num_customers=8, num_vehicles=1, seats=1, lns_iterations=2)
    (row,) = judge("none", settings=settings)
    assert row["failed"] > 0
    assert row["mean"] <= -100 * row["failed"] / 24
    assert np.isfinite(row["cost"])


def test_progress_is_told():
    heard = []
    judge("none", splits=("known", "unseen_trips"), num_envs=10, tick=heard.append)
    assert heard == [10, 20, 24, 34, 44, 48]


def test_a_days_bookings_are_what_was_accepted():
    played, _ = play_days("random", SETTINGS, 10, seed=1)
    moved = (played.booked_windows != played.asked_windows).any(axis=(2, 3))
    assert (moved <= played.accepted).all()
    assert moved.any()
    assert (~played.accepted).any()


@pytest.mark.slow
def test_knowing_everybody_beats_guessing_clearly():
    (known,) = evaluate_policy("largest_known", days=256, splits=("known",))
    (guessed,) = evaluate_policy("random", days=256, splits=("known",))
    assert known["ci_low"] > guessed["ci_high"]
