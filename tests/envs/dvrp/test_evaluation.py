import numpy as np
import pytest

from helpers.believers import prior_believer
from hundredfold.envs.dvrp.belief_warmup import LEARNING_BRANCH
from hundredfold.envs.dvrp.env import Dvrp
from hundredfold.envs.dvrp.evaluation import (
    EVALUATION_SEED,
    SPLITS,
    PolicyOptions,
    evaluate_policy,
    evaluation_env_seed,
    simulate_days,
)
from hundredfold.envs.dvrp.lookahead import LookaheadSettings
from hundredfold.envs.dvrp.offers import NO_CHANGE
from hundredfold.envs.dvrp.policies import POLICIES, always_largest, privileged_largest
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.envs.dvrp.trip_purposes import PURPOSE_NAMES

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
    options = PolicyOptions(
        beliefs=prior_believer(SETTINGS), lookahead=LookaheadSettings(samples=1)
    )
    rows = [judge(name, days=12, options=options)[0] for name in POLICIES]
    assert len({row["reference"] for row in rows}) == 1
    mean = {row["policy"]: row["mean"] for row in rows}
    assert mean["fully_flexible"] > mean["hindsight"] > mean["none"]
    assert mean["hindsight"] > mean["random"]
    for row in rows:
        assert row["ci_low"] <= row["mean"] <= row["ci_high"]


def test_the_same_days_come_back_and_batches_do_not_matter():
    once = judge("random")
    assert judge("random") == once
    assert judge("privileged_largest", num_envs=7) == judge("privileged_largest")
    assert judge("random", seed=1) != once


def test_any_function_from_a_batch_to_offers_can_be_judged():
    (row,) = judge(privileged_largest, name="mine")
    (same,) = judge("privileged_largest")
    assert row == {**same, "policy": "mine"}
    assert row["offers_made"] == row["offers_accepted"] > 0


def test_failed_days_count_as_minus_a_hundred_and_are_told():
    settings = DvrpSettings(num_customers=8, num_vehicles=1, capacity=1, lns_iterations=2)
    (row,) = judge("none", settings=settings)
    assert row["failed"] > 0
    assert row["mean"] <= -100 * row["failed"] / 24
    assert np.isfinite(row["cost"])


def test_progress_is_told():
    heard = []
    judge("none", splits=("known", "unseen_trips"), num_envs=10, on_progress=heard.append)
    assert heard == [10, 20, 24, 34, 44, 48]


def test_a_days_bookings_are_what_was_accepted():
    played, _ = simulate_days("random", SETTINGS, 10, seed=1)
    moved = (played.booked_windows != played.requested_windows).any(axis=(2, 3))
    assert (moved <= played.accepted).all()
    assert moved.any()
    assert (~played.accepted).any()


def test_the_days_are_those_of_no_training_with_the_same_seed():
    played, _ = simulate_days("none", SETTINGS, 20, EVALUATION_SEED)
    for seed in (EVALUATION_SEED, evaluation_env_seed(EVALUATION_SEED, LEARNING_BRANCH)):
        env = Dvrp(np.arange(20), SETTINGS)
        env.reset(seed)
        assert (env.true_state["trip_id"] != played.trip_id).any(axis=1).all()


def test_played_days_say_who_called_with_which_trip():
    played, population = simulate_days("none", SETTINGS, 6, 1)
    assert (played.cells == population.trips.cells[played.trip_id]).all()
    first = population.first_trip[played.customer_id]
    assert (first <= played.trip_id).all()
    assert (played.trip_id < first + population.customers.num_trips[played.customer_id]).all()


def test_a_run_is_judged_under_what_its_acceptance_model_told():
    """A mask that follows beliefs: nobody flexible, everybody flexible."""
    masked = DvrpSettings(num_customers=12, num_vehicles=3, lns_iterations=2, mask_mode="threshold")

    def offers_when(chance):
        shared_params = {
            "accept_given_type": np.full((4, len(PURPOSE_NAMES), 16), chance, np.float32)
        }
        return simulate_days(always_largest, masked, 6, 1, shared_params=shared_params)[0].offers

    assert (offers_when(0.1) == NO_CHANGE).all()
    assert (offers_when(0.9) != NO_CHANGE).all()
    # The rules decide for themselves whom to ask.
    assert (simulate_days("always_largest", masked, 6, 1)[0].offers != NO_CHANGE).all()


def test_judging_explores_nothing():
    masked = DvrpSettings(num_customers=12, num_vehicles=3, lns_iterations=2, mask_mode="threshold")
    shape = (4, len(PURPOSE_NAMES), 16)
    shared_params = {"accept_given_type": np.zeros(shape, np.float32), "epsilon": np.array(1.0)}
    played, _ = simulate_days(always_largest, masked, 6, 1, shared_params=shared_params)
    assert (played.offers == NO_CHANGE).all()


@pytest.mark.slow
def test_knowing_everybody_beats_guessing_clearly():
    (known,) = evaluate_policy("privileged_largest", days=256, splits=("known",))
    (guessed,) = evaluate_policy("random", days=256, splits=("known",))
    assert known["ci_low"] > guessed["ci_high"]
