"""Evaluation on paired days."""

from dataclasses import replace

import numpy as np
import pytest

from helpers.acceptance_models import prior_model
from helpers.exact_days import cheapest_of_all_offers
from helpers.offers import NO_CHANGE
from hundredfold.envs.dvrp import heuristics
from hundredfold.envs.dvrp.belief_warmup import WARM_UP_BRANCH
from hundredfold.envs.dvrp.env import Dvrp
from hundredfold.envs.dvrp.evaluation import (
    EVALUATION_SEED,
    SPLITS,
    UPPER_BOUND,
    DayScorer,
    SimulatedDays,
    evaluate_policy,
    evaluation_env_seed,
    simulate_days,
)
from hundredfold.envs.dvrp.lookahead import LookaheadSettings
from hundredfold.envs.dvrp.offers import DEFAULT_OFFERS
from hundredfold.envs.dvrp.policies import POLICIES, PolicyOptions
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.envs.dvrp.trip_purposes import PURPOSE_NAMES
from hundredfold.routing.exact_oracle import ExactOracle

SETTINGS = DvrpSettings(num_customers=12, num_vehicles=3, lns_iterations=2)
KEYS = [
    *("policy", "split", "episodes", "mean", "ci_low", "ci_high", "cost", "baseline_cost"),
    *("offers_made", "offers_accepted", "shift_minutes", "vehicles", "failed"),
]


def evaluate(policy, **options):
    given = {"num_days": 24, "splits": ("known",), **options}
    return evaluate_policy(policy, given.pop("settings", SETTINGS), **given)


def test_without_offers_the_improvement_is_exactly_zero_on_every_split():
    rows = evaluate("none", splits=SPLITS)
    assert [row["split"] for row in rows] == list(SPLITS)
    for row in rows:
        assert list(row) == KEYS
        assert (row["mean"], row["ci_low"], row["ci_high"]) == (0, 0, 0)
        assert row["cost"] == row["baseline_cost"] > 0
        assert row["offers_made"] == row["offers_accepted"] == row["shift_minutes"] == 0
        assert (row["episodes"], row["failed"]) == (24, 0)
        assert 1 <= row["vehicles"] <= 3


def test_all_policies_are_evaluated_on_the_same_days():
    options = PolicyOptions(beliefs=prior_model(SETTINGS), lookahead=LookaheadSettings(samples=1))
    rows = [evaluate(name, num_days=12, options=options)[0] for name in POLICIES]
    assert len({row["baseline_cost"] for row in rows}) == 1
    mean = {row["policy"]: row["mean"] for row in rows}
    assert mean["fully_flexible"] > mean["hindsight"] > mean["none"]
    assert mean["hindsight"] > mean["random"]
    for row in rows:
        assert row["ci_low"] <= row["mean"] <= row["ci_high"]


def test_evaluation_is_reproducible_in_any_batch_size():
    once = evaluate("random")
    assert evaluate("random") == once
    assert evaluate("privileged_largest", num_envs=7) == evaluate("privileged_largest")
    assert evaluate("random", seed=1) != once


def test_any_function_from_a_batch_to_offers_can_be_evaluated():
    (row,) = evaluate(heuristics.privileged_largest(DEFAULT_OFFERS), name="mine")
    (same,) = evaluate("privileged_largest")
    assert row == {**same, "policy": "mine"}
    assert row["offers_made"] == row["offers_accepted"] > 0


def test_failed_days_count_as_minus_100_percent_and_are_reported():
    settings = DvrpSettings(num_customers=8, num_vehicles=1, capacity=1, lns_iterations=2)
    (row,) = evaluate("none", settings=settings)
    assert row["failed"] > 0
    assert row["mean"] <= -100 * row["failed"] / 24
    assert np.isfinite(row["cost"])


def test_progress_counts_days_over_all_splits():
    progress = []
    evaluate("none", splits=("known", "unseen_trips"), num_envs=10, on_progress=progress.append)
    assert progress == [10, 20, 24, 34, 44, 48]


def test_only_accepted_offers_shift_bookings():
    days, _ = simulate_days("random", SETTINGS, 10, seed=1)
    shifted = (days.booked_windows != days.requested_windows).any(axis=(2, 3))
    assert (shifted <= days.accepted).all()
    assert shifted.any()
    assert (~days.accepted).any()


def test_evaluation_days_differ_from_training_and_warm_up_days_of_the_same_seed():
    days, _ = simulate_days("none", SETTINGS, 20, EVALUATION_SEED)
    for seed in (EVALUATION_SEED, evaluation_env_seed(EVALUATION_SEED, WARM_UP_BRANCH)):
        env = Dvrp(np.arange(20), SETTINGS)
        env.reset(seed)
        assert (env.true_state["trip_id"] != days.trip_id).any(axis=1).all()


def test_simulated_days_name_customers_and_trips():
    days, population = simulate_days("none", SETTINGS, 6, 1)
    assert (days.cells == population.trips.cells[days.trip_id]).all()
    first = population.first_trip[days.customer_id]
    assert (first <= days.trip_id).all()
    assert (days.trip_id < first + population.customers.num_trips[days.customer_id]).all()


def test_a_trained_policy_is_evaluated_under_its_shared_params():
    """A mask from beliefs: no offer acceptable, or all."""
    masked = DvrpSettings(num_customers=12, num_vehicles=3, lns_iterations=2, mask_mode="threshold")

    def offers_under(probability):
        shared_params = {"accept_given_type": np.full((4, len(PURPOSE_NAMES), 16), probability, np.float32)}
        return simulate_days(heuristics.always_largest(DEFAULT_OFFERS), masked, 6, 1, shared_params=shared_params)[
            0
        ].offers

    assert (offers_under(0.1) == NO_CHANGE).all()
    assert (offers_under(0.9) != NO_CHANGE).all()
    # Policies by name are not masked.
    assert (simulate_days("always_largest", masked, 6, 1)[0].offers != NO_CHANGE).all()


def test_evaluation_does_not_explore():
    masked = DvrpSettings(num_customers=12, num_vehicles=3, lns_iterations=2, mask_mode="threshold")
    shape = (4, len(PURPOSE_NAMES), 16)
    shared_params = {"accept_given_type": np.zeros(shape, np.float32), "epsilon": np.array(1.0)}
    days, _ = simulate_days(heuristics.always_largest(DEFAULT_OFFERS), masked, 6, 1, shared_params=shared_params)
    assert (days.offers == NO_CHANGE).all()


@pytest.mark.slow
def test_privileged_largest_is_clearly_better_than_random():
    (privileged,) = evaluate_policy("privileged_largest", num_days=256, splits=("known",))
    (random,) = evaluate_policy("random", num_days=256, splits=("known",))
    assert privileged["ci_low"] > random["ci_high"]


@pytest.mark.parametrize("service", ["research", "operator"])
def test_no_offers_save_more_than_the_upper_bound_by_brute_force(service):
    pytest.importorskip("ortools")
    settings = DvrpSettings(num_customers=3, num_vehicles=2, city="hubs", service=service)
    days, population = simulate_days("none", settings, 24, 4)
    env = Dvrp(np.arange(24), settings)
    state = env.reset(evaluation_env_seed(4)).true_state
    assert (state["trip_id"] == days.trip_id).all()
    scorer = DayScorer(ExactOracle())
    baseline = scorer.baseline_cost(days, population, settings)
    best = 100.0 * (baseline - cheapest_of_all_offers(state, env)) / baseline
    bounds = np.array([scorer.upper_bound(one_day(days, day), population, settings)["mean"] for day in range(24)])
    assert (bounds >= best - 1e-9).all()
    assert (bounds < 60.0).all()
    assert (best > 1.0).any()
    if service == "research":
        # Without ride-time limits little is relaxed.
        assert (np.abs(bounds - best) < 0.1).mean() > 0.8


def test_the_upper_bound_holds_for_policies_and_for_noisy_responses():
    pytest.importorskip("ortools")
    (bound,) = evaluate(UPPER_BOUND)
    assert list(bound) == KEYS[:8]
    for name in ("hindsight", "privileged_largest"):
        (row,) = evaluate(name)
        assert row["baseline_cost"] == bound["baseline_cost"]
        assert row["mean"] <= bound["mean"]
        assert row["cost"] >= bound["cost"]
    (noisy,) = evaluate(UPPER_BOUND, settings=replace(SETTINGS, response_noise=0.1))
    (flexible,) = evaluate("fully_flexible")
    assert noisy["mean"] >= flexible["mean"] > bound["mean"]


def one_day(days, day):
    return replace(
        days, **{name: getattr(days, name)[day : day + 1] for name in SimulatedDays.__slots__ if name != "offer_table"}
    )
