import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

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
from hundredfold.envs.dvrp.offers import NO_CHANGE, TOTAL_MINUTES, shifted_windows
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.routing.verifier import violations

SEED = 7
SMALL = {"num_customers": 8, "num_vehicles": 3, "lns_iterations": 2}


def make(env_ids=range(6), **options):
    return Dvrp(np.array(env_ids, np.int64), DvrpSettings(**{**SMALL, **options}))


def told(env_ids=range(6), steps=20, **options):
    return record_env_trajectory(make(env_ids, **options), SEED, steps)


def play_offers(env, choose, seed=SEED, steps=None):
    """Rewards, infos and episode infos of one day of every env."""
    out = env.reset(seed)
    rewards, infos = [], []
    for _ in range(steps or env.settings.num_customers):
        env.step(choose(out))
        rewards.append(out.reward.copy())
        infos.append({name: array.copy() for name, array in out.info.items()})
    together = {name: np.array([info[name] for info in infos]) for name in infos[0]}
    ended = {name: array.copy() for name, array in out.episode_info.items()}
    return np.array(rewards), together, ended


def always(offer):
    return lambda out: np.full(len(out), offer)


def anything(seed=0):
    draw = np.random.default_rng(seed)

    def choose(out):
        return np.where(out.mask, draw.random(out.mask.shape), -1).argmax(axis=1)

    return choose


# --- rewards


def test_marginal_rewards_sum_to_what_the_day_saved_less_patience():
    rewards, info, ended = play_offers(make(shift_penalty=0.3, tolerances="unlimited"), anything())
    saved = ended["baseline_cost"] - ended["cost"]
    assert_allclose(rewards.sum(axis=0) + 0.3 * info["shift_minutes"].sum(axis=0), saved, atol=1e-6)
    assert np.abs(saved).max() > 0


def test_step_rewards_sum_to_minus_what_the_day_cost_less_patience():
    rewards, info, ended = play_offers(make(reward="step", shift_penalty=0.3), anything())
    patience = 0.3 * info["shift_minutes"].sum(axis=0)
    assert_allclose(rewards.sum(axis=0), -ended["cost"] - patience, atol=1e-6)


def test_percent_rewards_tell_the_improvement_so_far():
    rewards, info, _ = play_offers(make(reward="percent", shift_penalty=0.0), anything())
    expected = 100 * (info["baseline_cost"] - info["cost"]) / info["baseline_cost"]
    assert_allclose(rewards, expected, atol=1e-9)


def test_counterfactual_rewards_compare_with_the_request_as_asked():
    options = {"shift_penalty": 0.0, "tolerances": "unlimited", "num_customers": 12}
    rewards, info, _ = play_offers(make(reward="counterfactual", **options), anything())
    assert_array_equal(rewards[info["offer"] == NO_CHANGE], 0.0)
    # Looking at the other price leaves no trace: the day goes on as under any other reward.
    _, other, _ = play_offers(make(**options), anything())
    assert_array_equal(info["cost"], other["cost"])
    assert (rewards != 0).any()
    refused, answers, _ = play_offers(make(reward="counterfactual", tolerances="types"), always(3))
    assert_array_equal(refused[~answers["accepted"]], 0.0)


@pytest.mark.parametrize("reward", ["marginal", "percent", "counterfactual"])
def test_offering_nothing_pays_nothing_and_improves_by_exactly_nothing(reward):
    options = {"num_customers": 30, "num_vehicles": 5}
    rewards, info, ended = play_offers(make(reward=reward, **options), always(NO_CHANGE))
    assert_array_equal(rewards, 0.0)
    assert_array_equal(info["cost"], info["baseline_cost"])
    assert_array_equal(ended["improvement_pct"], 0.0)
    assert not info["offered"].any()
    assert info["accepted"].all()


def test_the_baseline_is_the_same_day_played_without_offers():
    _, info, _ = play_offers(make(tolerances="unlimited"), anything())
    _, quiet, _ = play_offers(make(), always(NO_CHANGE))
    assert_array_equal(info["customer_id"], quiet["customer_id"])
    assert_array_equal(info["baseline_cost"], quiet["cost"])
    assert (info["cost"] != quiet["cost"]).any()


# --- answers and bookings


def test_answers_follow_the_trip_and_bookings_follow_the_answers():
    env = make()
    out = env.reset(SEED)
    choose = anything()
    for call in range(7):
        day = {name: array.copy() for name, array in env.true_state.items()}
        rows = np.arange(6)
        offers = choose(out)
        env.step(offers)
        expected = day["accepts"][rows, call, offers]
        assert_array_equal(out.info["accepted"], expected)
        held = np.where(expected, offers, NO_CHANGE)
        assert_array_equal(
            env.true_state["booked_windows"][:, call],
            shifted_windows(day["requested_windows"][:, call], held),
        )
        assert_array_equal(out.info["shift_minutes"], TOTAL_MINUTES[held])
        assert_array_equal(out.info["customer_id"], day["customer_id"][:, call])
        assert_array_equal(env.true_state["num_booked"], call + 1)
        assert_array_equal(env.true_state["requested_windows"], day["requested_windows"])


def test_hard_types_answer_by_personality_alone():
    env = make(range(40), tolerances="types")
    out = env.reset(SEED)
    for offer, flexible in ((0, (1, 3)), (15, (0, 3)), (3, (3,)), (NO_CHANGE, (0, 1, 2, 3))):
        types = env.true_state["type"][np.arange(40), env.true_state["num_booked"]].copy()
        env.step(np.full(40, offer))
        assert_array_equal(out.info["accepted"], np.isin(types, flexible))


def test_noise_turns_some_answers_round_and_repeats_exactly():
    _, clean, _ = play_offers(make(range(200), lns_iterations=0), always(8))
    _, noisy, _ = play_offers(make(range(200), lns_iterations=0, response_noise=0.2), always(8))
    _, again, _ = play_offers(make(range(200), lns_iterations=0, response_noise=0.2), always(8))
    turned = (clean["accepted"] != noisy["accepted"]).mean()
    assert turned == pytest.approx(0.2, abs=0.04)
    assert_array_equal(noisy["accepted"], again["accepted"])
    _, quiet, _ = play_offers(make(response_noise=1.0), always(NO_CHANGE))
    assert quiet["accepted"].all()


def test_the_mask_is_what_the_callers_trip_allows():
    env = make(range(40), service="operator")
    out = env.reset(SEED)
    seen = []
    for _ in range(10):
        rows = np.arange(40)
        assert_array_equal(out.mask, env.true_state["allowed"][rows, env.true_state["num_booked"]])
        assert out.mask[:, NO_CHANGE].all()
        seen.append(out.mask.all())
        env.step(np.full(40, NO_CHANGE))
    assert not all(seen)


def test_nobody_calls_twice_in_a_day_and_orders_differ():
    env = make(range(50), num_customers=30, lns_iterations=0, improve_passes=0)
    env.reset(SEED)
    callers = env.true_state["customer_id"]
    assert all(len(set(row)) == 30 for row in callers.tolist())
    assert len({tuple(row) for row in callers.tolist()}) == 50


def test_splits_meet_their_own_people():
    known = make(range(20))
    known.reset(SEED)
    strangers = make(range(20), split="unseen_customers")
    strangers.reset(SEED)
    num_known = known.population.customers.num_known
    assert known.true_state["customer_id"].max() < num_known
    assert strangers.true_state["customer_id"].min() >= num_known


# --- the same story


def test_another_seed_is_another_day_and_the_same_seed_the_same():
    assert_same_trajectory(told(), told())
    other = record_env_trajectory(make(), SEED + 1, 20)
    assert not same_trajectory(other, told())


@pytest.mark.parametrize("env_ids", [[0], [3, 1], range(2, 6)], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {"cost_hint": True},
        {"service": "operator", "service_minutes": 1.0},
        {"reward": "counterfactual", "response_noise": 0.1, "observation": "counts"},
        {"num_vehicles": 1, "capacity": 2, "observation": "requests"},
    ],
    ids=["hint", "operator", "counterfactual", "failing"],
)
def test_an_env_tells_the_same_story_in_any_company(env_ids, options):
    assert_same_trajectory(told(env_ids, **options), told(**options).select_envs(env_ids))


@pytest.mark.parametrize(
    "options", [{"cost_hint": True}, {"num_vehicles": 1, "capacity": 2}], ids=str
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
        assert_same_trajectory(
            continue_trajectory(fresh, 15, first_step=5), rest.select_envs(range(6)[part])
        )


def test_a_snapshot_of_other_settings_is_refused():
    env = make()
    env.reset(SEED)
    with pytest.raises(CheckpointError, match="snapshot"):
        make(num_customers=9).restore(env.state())


# --- days that cannot be served


def test_a_day_that_cannot_be_served_ends_at_once_and_another_begins():
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


def test_with_a_penalty_the_day_goes_on_and_everybody_left_out_costs_200_minutes():
    options = {"num_vehicles": 1, "capacity": 1, "unserved": "penalty"}
    rewards, info, ended = play_offers(make(range(30), **options), always(NO_CHANGE))
    assert not info["failed"].any()
    assert_array_equal(rewards, 0.0)
    assert ended["left_out"].max() > 0
    assert (ended["cost"] > 200 * ended["left_out"]).all()
    assert (np.diff(info["cost"], axis=0) > 150).any()


# --- what is told at the end of a day


def test_the_end_of_a_day_tells_what_came_of_it():
    rewards, info, ended = play_offers(make(range(20)), anything())
    assert len(rewards) == 8
    made, yes = info["offered"], info["offered"] & info["accepted"]
    assert_array_equal(ended["offers_made"], made.sum(axis=0))
    assert_array_equal(ended["offers_accepted"], yes.sum(axis=0))
    assert_array_equal(ended["shift_minutes_total"], info["shift_minutes"].sum(axis=0))
    assert_array_equal(ended["cost"], info["cost"][-1])
    assert_array_equal(ended["baseline_cost"], info["baseline_cost"][-1])
    assert_allclose(
        ended["improvement_pct"],
        100 * (ended["baseline_cost"] - ended["cost"]) / ended["baseline_cost"],
    )
    assert ended["vehicles_used"].min() >= 1
    assert ended["vehicles_used"].max() <= 3
    assert not ended["failed"].any()


@pytest.mark.parametrize("service", ["research", "operator"])
def test_every_plan_keeps_its_promises_and_its_price(service):
    env = make(range(10), num_customers=12, service=service, service_minutes=1.0)
    out = env.reset(SEED)
    choose = anything()
    for _ in range(11):
        env.step(choose(out))
        plans = env.plans.kept.solutions()
        assert violations(env.plans.kept.problems, plans) == []
        assert_array_equal(plans.cost, env.true_state["cost"])
        assert not plans.unserved.any()


@pytest.mark.parametrize("customers", [1, 10, 60, 100])
def test_days_of_any_size_can_be_played(customers):
    env = make(range(2), num_customers=customers, num_vehicles=None, lns_iterations=0)
    _, _, ended = play_offers(env, anything())
    assert_array_equal(env.episodes, 1)
    assert ended["cost"].min() > 0


# --- knowledge


def test_a_acceptance_models_beliefs_show_in_the_view_from_the_next_step_on():
    env = make()
    out = env.reset(SEED)
    people = env.population.size
    assert_allclose(out.observation["request"][:, 20:24], 0.25)
    believed = np.random.default_rng(0).dirichlet(np.ones(4), people)
    env.set_shared_params({"type_probabilities": believed, "response_counts": np.arange(people)})
    env.step(np.full(6, NO_CHANGE))
    callers = env.true_state["customer_id"][:, 1]
    assert_allclose(out.observation["request"][:, 20:24], believed[callers], rtol=1e-6)
    assert_allclose(out.observation["request"][:, 24], np.log1p(callers), rtol=1e-6)
    with pytest.raises(ShapeError, match="person"):
        env.set_shared_params({"type_probabilities": believed[:-1]})


# --- scenarios


def test_scenarios_fix_what_settings_leave_open():
    research, operator = DvrpSettings(), DvrpSettings(service="operator")
    assert (research.patience, research.people, research.ride_factor) == (0.002, 30, None)
    assert (operator.patience, operator.people, operator.ride_factor) == (0.05, 200, 2.0)
    assert DvrpSettings(service="operator", max_ride_minutes=60.0).ride_factor is None
    assert DvrpSettings(service="operator", shift_penalty=0.0).patience == 0.0
    assert DvrpSettings(num_customers=100).people == 100
    assert [DvrpSettings(num_customers=n).fleet_size for n in (10, 30, 60, 100)] == [5, 5, 8, 13]


def test_the_operators_ride_limit_holds_in_every_plan():
    env = make(range(10), service="operator", num_customers=12, num_vehicles=2)
    out = env.reset(SEED)
    choose = anything()
    for _ in range(11):
        env.step(choose(out))
        glance = env.plans.glance()
        booked = np.arange(12) < env.true_state["num_booked"][:, None]
        rides = (glance.stop_minutes[..., 1] - glance.stop_minutes[..., 0])[booked]
        assert (rides <= env.true_state["max_ride_minutes"][booked] + 1e-6).all()
        assert np.isfinite(env.true_state["max_ride_minutes"]).all()
