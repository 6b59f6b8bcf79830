"""The dial-a-ride env: rewards, bookings, reproducibility, failures and episode infos."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from helpers.offers import NO_CHANGE, TOTAL_MINUTES
from helpers.trajectories import (
    EnvBackend,
    assert_same_trajectory,
    continue_trajectory,
    record_env_trajectory,
    record_trajectory,
    same_trajectory,
)
from hundredfold.core.errors import CheckpointError, ShapeError
from hundredfold.envs.dvrp.env import Dvrp
from hundredfold.envs.dvrp.offers import DEFAULT_OFFERS
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.routing.verifier import violations

SEED = 7
SMALL = {"num_customers": 8, "num_vehicles": 3, "lns_iterations": 2}


def make(env_ids=range(6), **options):
    return Dvrp(np.array(env_ids, np.int64), DvrpSettings(**{**SMALL, **options}))


def trajectory(env_ids=range(6), steps=20, **options):
    return record_env_trajectory(make(env_ids, **options), SEED, steps)


def simulate(env, policy, seed=SEED, steps=None):
    """Rewards, infos and episode infos of one day of every env."""
    out = env.reset(seed)
    rewards, infos = [], []
    for _ in range(steps or env.settings.num_customers):
        env.step(policy(out))
        rewards.append(out.reward.copy())
        infos.append({name: array.copy() for name, array in out.info.items()})
    stacked = {name: np.array([info[name] for info in infos]) for name in infos[0]}
    ended = {name: array.copy() for name, array in out.episode_info.items()}
    return np.array(rewards), stacked, ended


def always(offer):
    return lambda out: np.full(len(out), offer)


def random_offers(seed=0):
    rng = np.random.default_rng(seed)

    def policy(out):
        return np.where(out.mask, rng.random(out.mask.shape), -1).argmax(axis=1)

    return policy


# --- rewards


def test_marginal_rewards_sum_to_minutes_saved_less_shift_penalties():
    rewards, info, ended = simulate(make(shift_penalty=0.3, tolerances="unlimited"), random_offers())
    saved = ended["baseline_cost"] - ended["cost"]
    assert_allclose(rewards.sum(axis=0) + 0.3 * info["shift_minutes"].sum(axis=0), saved, atol=1e-6)
    assert np.abs(saved).max() > 0


def test_step_rewards_sum_to_minus_the_cost_less_shift_penalties():
    rewards, info, ended = simulate(make(reward="step", shift_penalty=0.3), random_offers())
    penalties = 0.3 * info["shift_minutes"].sum(axis=0)
    assert_allclose(rewards.sum(axis=0), -ended["cost"] - penalties, atol=1e-6)


def test_percent_rewards_are_the_improvement_so_far():
    rewards, info, _ = simulate(make(reward="percent", shift_penalty=0.0), random_offers())
    expected = 100 * (info["baseline_cost"] - info["cost"]) / info["baseline_cost"]
    assert_allclose(rewards, expected, atol=1e-9)


def test_counterfactual_rewards_compare_with_the_unchanged_request():
    options = {"shift_penalty": 0.0, "tolerances": "unlimited", "num_customers": 12}
    rewards, info, _ = simulate(make(reward="counterfactual", **options), random_offers())
    assert_array_equal(rewards[info["offer"] == NO_CHANGE], 0.0)
    # Computing the other cost does not change the routes.
    _, other, _ = simulate(make(**options), random_offers())
    assert_array_equal(info["cost"], other["cost"])
    assert (rewards != 0).any()
    refused, responses, _ = simulate(make(reward="counterfactual", tolerances="types"), always(3))
    assert_array_equal(refused[~responses["accepted"]], 0.0)


@pytest.mark.parametrize("reward", ["marginal", "percent", "counterfactual"])
def test_without_offers_reward_and_improvement_are_exactly_zero(reward):
    options = {"num_customers": 30, "num_vehicles": 5}
    rewards, info, ended = simulate(make(reward=reward, **options), always(NO_CHANGE))
    assert_array_equal(rewards, 0.0)
    assert_array_equal(info["cost"], info["baseline_cost"])
    assert_array_equal(ended["improvement_pct"], 0.0)
    assert not info["offered"].any()
    assert info["accepted"].all()


def test_the_baseline_is_the_cost_of_the_same_day_without_offers():
    _, info, _ = simulate(make(tolerances="unlimited"), random_offers())
    _, unchanged, _ = simulate(make(), always(NO_CHANGE))
    assert_array_equal(info["customer_id"], unchanged["customer_id"])
    assert_array_equal(info["baseline_cost"], unchanged["cost"])
    assert (info["cost"] != unchanged["cost"]).any()


# --- responses and bookings


def test_responses_follow_the_trip_and_bookings_the_responses():
    env = make()
    out = env.reset(SEED)
    policy = random_offers()
    for number in range(7):
        before = {name: array.copy() for name, array in env.true_state.items()}
        rows = np.arange(6)
        offers = policy(out)
        env.step(offers)
        expected = before["accepts"][rows, number, offers]
        assert_array_equal(out.info["accepted"], expected)
        applied = np.where(expected, offers, NO_CHANGE)
        assert_array_equal(
            env.true_state["booked_windows"][:, number],
            DEFAULT_OFFERS.shifted_windows(before["requested_windows"][:, number], applied),
        )
        assert_array_equal(out.info["shift_minutes"], TOTAL_MINUTES[applied])
        assert_array_equal(out.info["customer_id"], before["customer_id"][:, number])
        assert_array_equal(env.true_state["num_booked"], number + 1)
        assert_array_equal(env.true_state["requested_windows"], before["requested_windows"])


def test_with_strict_tolerances_the_type_alone_decides():
    env = make(range(40), tolerances="types")
    out = env.reset(SEED)
    for offer, flexible in ((0, (1, 3)), (15, (0, 3)), (3, (3,)), (NO_CHANGE, (0, 1, 2, 3))):
        types = env.true_state["type"][np.arange(40), env.true_state["num_booked"]].copy()
        env.step(np.full(40, offer))
        assert_array_equal(out.info["accepted"], np.isin(types, flexible))


def test_response_noise_flips_responses_reproducibly():
    _, clean, _ = simulate(make(range(200), lns_iterations=0), always(8))
    _, noisy, _ = simulate(make(range(200), lns_iterations=0, response_noise=0.2), always(8))
    _, again, _ = simulate(make(range(200), lns_iterations=0, response_noise=0.2), always(8))
    flipped = (clean["accepted"] != noisy["accepted"]).mean()
    assert flipped == pytest.approx(0.2, abs=0.04)
    assert_array_equal(noisy["accepted"], again["accepted"])
    _, unchanged, _ = simulate(make(response_noise=1.0), always(NO_CHANGE))
    assert unchanged["accepted"].all()


def test_the_mask_holds_the_offers_that_the_trip_allows():
    env = make(range(40), service="operator")
    out = env.reset(SEED)
    all_allowed = []
    for _ in range(10):
        rows = np.arange(40)
        assert_array_equal(out.mask, env.true_state["allowed"][rows, env.true_state["num_booked"]])
        assert out.mask[:, NO_CHANGE].all()
        all_allowed.append(out.mask.all())
        env.step(np.full(40, NO_CHANGE))
    assert not all(all_allowed)


def test_no_customer_has_two_requests_in_a_day_and_orders_differ():
    env = make(range(50), num_customers=30, lns_iterations=0, improve_passes=0)
    env.reset(SEED)
    customers = env.true_state["customer_id"]
    assert all(len(set(row)) == 30 for row in customers.tolist())
    assert len({tuple(row) for row in customers.tolist()}) == 50


def test_splits_have_disjoint_customers():
    known = make(range(20))
    known.reset(SEED)
    unseen = make(range(20), split="unseen_customers")
    unseen.reset(SEED)
    num_known = known.population.customers.num_known
    assert known.true_state["customer_id"].max() < num_known
    assert unseen.true_state["customer_id"].min() >= num_known


# --- reproducibility


def test_trajectories_depend_on_the_seed_alone():
    assert_same_trajectory(trajectory(), trajectory())
    other = record_env_trajectory(make(), SEED + 1, 20)
    assert not same_trajectory(other, trajectory())


@pytest.mark.parametrize("env_ids", [[0], [3, 1], range(2, 6)], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {"cost_hint": True},
        {"service": "operator", "service_minutes": 1.0},
        {"reward": "counterfactual", "response_noise": 0.1, "observation": "counts"},
        {"num_vehicles": 1, "capacity": 2, "observation": "requests"},
        {"observation": "offers", "future_samples": 2},
    ],
    ids=["hint", "operator", "counterfactual", "failing", "offers"],
)
def test_an_env_has_the_same_trajectory_in_any_batch(env_ids, options):
    assert_same_trajectory(trajectory(env_ids, **options), trajectory(**options).select_envs(env_ids))


@pytest.mark.parametrize(
    "options",
    [{"cost_hint": True}, {"num_vehicles": 1, "capacity": 2}, {"observation": "offers", "future_samples": 1}],
    ids=str,
)
def test_a_snapshot_in_the_middle_of_a_day_continues_bit_for_bit(options):
    player = EnvBackend(make(**options))
    record_trajectory(player, SEED, 5)
    state = player.env.state()
    assert all(len(array) == 6 for array in state.values())
    rest = continue_trajectory(player, 15, first_step=5)
    for part in (slice(0, 6), slice(2, 4)):
        fresh = EnvBackend(make(range(6)[part], **options))
        fresh.restore({name: array[part] for name, array in state.items()})
        assert_same_trajectory(continue_trajectory(fresh, 15, first_step=5), rest.select_envs(range(6)[part]))


def test_a_snapshot_of_other_settings_is_rejected():
    env = make()
    env.reset(SEED)
    with pytest.raises(CheckpointError, match="snapshot"):
        make(num_customers=9).restore(env.state())


@pytest.mark.parametrize("threads", [2, 3])
def test_offers_and_their_estimated_costs_do_not_depend_on_threads(threads):
    options = {"observation": "offers", "future_samples": 2}
    assert_same_trajectory(trajectory(oracle_threads=threads, **options), trajectory(**options))


def test_estimated_costs_are_relative_to_no_change_and_missing_for_unlikely_offers():
    env = make(observation="offers", future_samples=3)
    out = env.reset(SEED)
    accept = np.ones(env.beliefs.accept_given_type.shape[1:], np.float32)
    accept[..., :8] = 0.01
    env.set_shared_params({"accept_given_type": accept})
    estimated = []
    for _ in range(6):
        allowed = out.mask.copy()
        out = env.step(np.full(len(out), NO_CHANGE))
        costs = out.info["offer_costs"]
        assert_array_equal(np.isfinite(costs), allowed & (np.arange(16) >= 8))
        assert_array_equal(costs[:, NO_CHANGE], 0.0)
        estimated.append(costs[:, 8:].copy())
    # Offers differ, and some save driving.
    assert np.nanmin(estimated) < -0.5


def test_estimates_of_few_futures_scatter_around_those_of_many():
    few, many = (make(observation="offers", future_samples=samples) for samples in (2, 64))
    few.reset(SEED), many.reset(SEED)
    pairs = []
    for _ in range(8):
        costs = [env.step(np.full(6, NO_CHANGE)).info["offer_costs"].copy() for env in (few, many)]
        pairs.append([array[np.isfinite(array)] for array in costs])
    estimates, expected = np.concatenate(pairs, axis=1)
    assert abs((estimates - expected).mean()) < 0.5
    assert np.corrcoef(estimates, expected)[0, 1] > 0.5


# --- unserved customers


def test_a_day_with_an_unserved_customer_terminates_and_the_next_starts():
    env = make(range(30), num_vehicles=1, capacity=1)
    out = env.reset(SEED)
    failures = 0
    for _ in range(24):
        before = env.true_state["num_booked"].copy()
        episodes = env.episodes.copy()
        env.step(np.full(30, NO_CHANGE))
        failed = out.info["failed"]
        failures += failed.sum()
        assert_array_equal(out.reward[failed], -5000)
        assert out.terminated[failed].all()
        assert_array_equal(out.episode_info["improvement_pct"][failed], -100)
        assert_array_equal(out.ended, failed | (before == 7))
        assert_array_equal(env.episodes - episodes, out.ended)
        assert_array_equal(env.true_state["num_booked"], np.where(out.ended, 0, before + 1))
        assert np.isfinite(out.reward).all()
        assert np.isfinite(out.info["cost"]).all()
    assert failures > 10


def test_with_a_penalty_the_day_continues_and_unserved_customers_cost_200_minutes():
    options = {"num_vehicles": 1, "capacity": 1, "unserved": "penalty"}
    rewards, info, ended = simulate(make(range(30), **options), always(NO_CHANGE))
    assert not info["failed"].any()
    assert_array_equal(rewards, 0.0)
    assert ended["num_unserved"].max() > 0
    assert (ended["cost"] > 200 * ended["num_unserved"]).all()
    assert (np.diff(info["cost"], axis=0) > 150).any()


# --- episode infos


def test_episode_infos_summarise_the_day():
    rewards, info, ended = simulate(make(range(20)), random_offers())
    assert len(rewards) == 8
    made, accepted = info["offered"], info["offered"] & info["accepted"]
    assert_array_equal(ended["offers_made"], made.sum(axis=0))
    assert_array_equal(ended["offers_accepted"], accepted.sum(axis=0))
    assert_array_equal(ended["shift_minutes_total"], info["shift_minutes"].sum(axis=0))
    assert_array_equal(ended["cost"], info["cost"][-1])
    assert_array_equal(ended["baseline_cost"], info["baseline_cost"][-1])
    assert_allclose(ended["improvement_pct"], 100 * (ended["baseline_cost"] - ended["cost"]) / ended["baseline_cost"])
    assert ended["vehicles_used"].min() >= 1
    assert ended["vehicles_used"].max() <= 3
    assert not ended["failed"].any()


@pytest.mark.parametrize("service", ["research", "operator"])
def test_routes_are_feasible_and_their_costs_correct(service):
    env = make(range(10), num_customers=12, service=service, service_minutes=1.0)
    out = env.reset(SEED)
    policy = random_offers()
    for _ in range(11):
        env.step(policy(out))
        solutions = env.route_costs.routes.solutions()
        assert violations(env.route_costs.routes.problems, solutions) == []
        assert_array_equal(solutions.cost, env.true_state["cost"])
        assert not solutions.unserved.any()


@pytest.mark.parametrize("customers", [1, 10, 60, 100])
def test_days_can_have_any_number_of_customers(customers):
    env = make(range(2), num_customers=customers, num_vehicles=None, lns_iterations=0)
    _, _, ended = simulate(env, random_offers())
    assert_array_equal(env.episodes, 1)
    assert ended["cost"].min() > 0


# --- beliefs


def test_beliefs_are_observed_from_the_next_step_on():
    env = make()
    out = env.reset(SEED)
    size = env.population.size
    assert_allclose(out.observation["request"][:, 20:24], 0.25)
    believed = np.random.default_rng(0).dirichlet(np.ones(4), size)
    env.set_shared_params({"type_probabilities": believed, "response_counts": np.arange(size)})
    env.step(np.full(6, NO_CHANGE))
    customers = env.true_state["customer_id"][:, 1]
    assert_allclose(out.observation["request"][:, 20:24], believed[customers], rtol=1e-6)
    assert_allclose(out.observation["request"][:, 24], np.log1p(customers), rtol=1e-6)
    with pytest.raises(ShapeError, match="one row per customer"):
        env.set_shared_params({"type_probabilities": believed[:-1]})


# --- service


def test_the_service_selects_defaults():
    research, operator = DvrpSettings(), DvrpSettings(service="operator")
    assert (research.effective_shift_penalty, operator.effective_shift_penalty) == (0.002, 0.05)
    assert (research.num_known_customers, operator.num_known_customers) == (30, 200)
    assert (research.effective_ride_factor, operator.effective_ride_factor) == (None, 2.0)
    limited = DvrpSettings(service="operator", max_ride_minutes=60.0, shift_penalty=0.0)
    assert limited.effective_ride_factor is None
    assert limited.effective_shift_penalty == 0.0
    assert DvrpSettings(num_customers=100).num_known_customers == 100
    assert [DvrpSettings(num_customers=n).fleet_size for n in (10, 30, 60, 100)] == [5, 5, 8, 13]


def test_the_operators_ride_time_limit_holds_in_every_schedule():
    env = make(range(10), service="operator", num_customers=12, num_vehicles=2)
    out = env.reset(SEED)
    policy = random_offers()
    for _ in range(11):
        env.step(policy(out))
        schedule = env.route_costs.schedule_summary()
        booked = np.arange(12) < env.true_state["num_booked"][:, None]
        rides = (schedule.stop_minutes[..., 1] - schedule.stop_minutes[..., 0])[booked]
        assert (rides <= env.true_state["max_ride_minutes"][booked] + 1e-6).all()
        assert np.isfinite(env.true_state["max_ride_minutes"]).all()
