"""Action masks, logit bias and hints that follow from beliefs."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from helpers.offers import NO_CHANGE, NUM_OFFERS, OFFER_MINUTES
from hundredfold.core.errors import ShapeError
from hundredfold.envs.dvrp.belief_masks import type_masks
from hundredfold.envs.dvrp.env import Dvrp, DvrpSettings
from hundredfold.envs.dvrp.offers import DEFAULT_OFFERS
from hundredfold.envs.dvrp.population import NUM_TYPES
from hundredfold.envs.dvrp.trip_purposes import PURPOSE_NAMES

NUM_ENVS, SEED = 64, 5
TYPE_MASKS = type_masks(DEFAULT_OFFERS)


def make(envs=NUM_ENVS, **settings):
    return Dvrp(np.arange(envs), DvrpSettings(num_customers=8, lns_iterations=0, **settings))


def random_params(env, *, epsilon=0.0, sample_types=True, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "type_probabilities": rng.dirichlet(np.ones(NUM_TYPES), env.population.size),
        "response_counts": np.arange(env.population.size),
        "accept_given_type": rng.random((NUM_TYPES, len(PURPOSE_NAMES), NUM_OFFERS)),
        "epsilon": np.float32(epsilon),
        "sample_types": np.asarray(sample_types),
    }


def start(env, **options):
    """First batch under random beliefs, the beliefs, and the acceptance probabilities."""
    shared_params = random_params(env, **options)
    env.set_shared_params(shared_params)
    out = env.reset(SEED)
    customers = env.true_state["customer_id"][:, 0]
    purposes = env.population.trips.purpose[env.true_state["trip_id"][:, 0]]
    probabilities = np.stack(
        [
            shared_params["type_probabilities"][customer] @ shared_params["accept_given_type"][:, purpose]
            for customer, purpose in zip(customers, purposes, strict=True)
        ]
    )
    probabilities[:, NO_CHANGE] = 1.0
    return out, shared_params, probabilities


def test_type_masks_allow_shifts_on_flexible_sides_only():
    earlier, later = OFFER_MINUTES.T
    late, early, none, both = TYPE_MASKS
    assert_array_equal(late, earlier == 0)
    assert_array_equal(early, later == 0)
    assert_array_equal(np.flatnonzero(none), [NO_CHANGE])
    assert both.all()


def test_the_threshold_mask_allows_probably_accepted_offers():
    env = make(mask_mode="threshold", mask_threshold=0.4)
    out, _, probabilities = start(env)
    assert_array_equal(out.mask, (probabilities >= 0.4) & env.true_state["allowed"][:, 0])
    assert 0.1 < out.mask.mean() < 0.9


def test_the_sampled_type_mask_uses_the_most_likely_type_in_evaluation():
    evaluated = make(mask_mode="sampled_type")
    out, shared_params, _ = start(evaluated, sample_types=False)
    customers = evaluated.true_state["customer_id"][:, 0]
    likely = shared_params["type_probabilities"][customers].argmax(axis=1)
    assert_array_equal(out.mask, TYPE_MASKS[likely] & evaluated.true_state["allowed"][:, 0])


def test_the_sampled_type_mask_samples_types_by_their_probability():
    env = make(1024, mask_mode="sampled_type")
    shared_params = random_params(env)
    shares = np.array([0.1, 0.2, 0.3, 0.4])
    shared_params["type_probabilities"][:] = shares
    env.set_shared_params(shared_params)
    out = env.reset(SEED)
    matches = (out.mask[:, None] == (TYPE_MASKS & env.true_state["allowed"][:, :1])).all(axis=2)
    assert matches.any(axis=1).all()
    unrestricted = env.true_state["allowed"][:, 0].all(axis=1)
    found = matches[unrestricted].mean(axis=0)
    assert_allclose(found, shares, atol=4 * np.sqrt(0.25 / unrestricted.sum()))


def test_a_soft_mask_forbids_nothing_and_biases_the_logits():
    env = make(mask_mode="soft", mask_strength=0.5)
    out, _, probabilities = start(env)
    assert_array_equal(out.mask, env.true_state["allowed"][:, 0])
    assert_allclose(out.observation["logit_bias"], 0.5 * np.log(np.maximum(probabilities, 1e-3)), rtol=1e-4, atol=1e-5)
    assert env.spec.logit_bias == "logit_bias"
    assert_allclose(out.observation["logit_bias"][:, NO_CHANGE], 0.0)


def test_the_privileged_mask_holds_the_true_responses():
    env = make(mask_mode="privileged")
    out, _, _ = start(env)
    assert_array_equal(out.mask, env.true_state["accepts"][:, 0] & env.true_state["allowed"][:, 0])


def test_without_a_mask_mode_all_feasible_offers_are_allowed():
    env = make()
    out, _, _ = start(env)
    assert_array_equal(out.mask, env.true_state["allowed"][:, 0])


@pytest.mark.parametrize("mode", ["threshold", "sampled_type", "privileged", "soft"])
def test_with_probability_epsilon_the_mask_is_ignored(mode):
    env = make(1024, mask_mode=mode)
    out, _, _ = start(env, epsilon=0.25)
    if mode == "soft":
        ignored = (out.observation["logit_bias"] == 0.0).all(axis=1)
    else:
        strict = make(1024, mask_mode=mode)
        masked, _, _ = start(strict)
        restricted = (masked.mask != strict.true_state["allowed"][:, 0]).any(axis=1)
        ignored = (out.mask == env.true_state["allowed"][:, 0]).all(axis=1)[restricted]
    assert abs(ignored.mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / len(ignored))


def test_offer_12_is_allowed_under_every_mask():
    for mode in ("threshold", "sampled_type", "privileged"):
        env = make(mask_mode=mode)
        pessimistic = random_params(env)
        pessimistic["accept_given_type"] = np.zeros_like(pessimistic["accept_given_type"])
        env.set_shared_params(pessimistic)
        out = env.reset(SEED)
        for _ in range(8):
            assert out.mask[:, NO_CHANGE].all()
            out = env.step(np.full(NUM_ENVS, NO_CHANGE))


def test_the_acceptance_hint_is_the_believed_probability():
    env = make(acceptance_hint=True)
    out, _, probabilities = start(env)
    assert_allclose(out.observation["acceptance_hint"], probabilities, rtol=1e-5)


def test_masks_do_not_depend_on_how_envs_are_sharded():
    whole = make(6, mask_mode="sampled_type")
    parts = [Dvrp(ids, whole.settings) for ids in (np.arange(2), np.arange(2, 5), np.arange(5, 6))]
    for env in (whole, *parts):
        env.set_shared_params(random_params(env, epsilon=0.3))
        env.reset(SEED)
    for _ in range(12):
        assert_array_equal(whole.out.mask, np.concatenate([part.out.mask for part in parts]))
        for env in (whole, *parts):
            env.step(np.full(env.num_envs, NO_CHANGE))


def test_a_snapshot_includes_the_beliefs():
    env = make(mask_mode="threshold", acceptance_hint=True)
    start(env, epsilon=0.2)
    other = make(mask_mode="threshold", acceptance_hint=True)
    other.reset(99)
    other.restore(env.state())
    for each in (env, other):
        each.step(np.full(NUM_ENVS, NO_CHANGE))
    assert_array_equal(env.out.mask, other.out.mask)
    assert_array_equal(env.out.observation["acceptance_hint"], other.out.observation["acceptance_hint"])


def test_beliefs_of_a_wrong_shape_are_rejected_and_change_nothing():
    env = make()
    before = {name: array.copy() for name, array in env.beliefs.state_arrays().items()}
    wrong = random_params(env) | {"accept_given_type": np.ones((NUM_TYPES, 3, NUM_OFFERS))}
    with pytest.raises(ShapeError, match="accept_given_type"):
        env.set_shared_params(wrong)
    for name, array in env.beliefs.state_arrays().items():
        assert_array_equal(array, before[name])


def with_trip_rates(env, *, share=0.5, seed=1, **options):
    """Random beliefs in which a share of all trips is remembered."""
    draws = np.random.default_rng(seed)
    rates = draws.random((len(env.population.trips.purpose), NUM_OFFERS)).astype(np.float16)
    rates[draws.random(len(rates)) >= share] = np.nan
    return {**random_params(env, **options), "trip_accept_rates": rates}


def test_remembered_trips_have_probabilities_of_their_own():
    env = make(mask_mode="threshold", acceptance_hint=True)
    _, _, by_type = start(env)
    shared_params = with_trip_rates(env)
    env.set_shared_params(shared_params)
    out = env.reset(SEED)
    rates = shared_params["trip_accept_rates"][env.true_state["trip_id"][:, 0]].astype(np.float32)
    expected = np.where(np.isnan(rates), by_type, rates)
    expected[:, NO_CHANGE] = 1.0
    assert 0.2 < np.isnan(rates[:, 0]).mean() < 0.8
    assert_allclose(out.observation["acceptance_hint"], expected, rtol=1e-6)
    assert_array_equal(out.mask, (expected >= 0.5) & env.true_state["allowed"][:, 0])


@pytest.mark.parametrize("split", ["known", "unseen_trips", "unseen_customers", "all"])
def test_trips_of_every_split_are_found_and_others_are_unknown(split):
    env = make(4, split=split)
    trips = np.arange(len(env.population.trips.purpose))
    rates = np.tile((trips % 2000 / 2000.0)[:, None], NUM_OFFERS).astype(np.float16)
    env.set_shared_params({"trip_accept_rates": rates})
    _, first, count = env.population.split_customers(split)
    inside = np.zeros(len(trips), bool)
    for begin, number in zip(first, count, strict=True):
        inside[begin : begin + number] = True
    for trip in (trips[inside][0], trips[inside][-1], *trips[~inside][:1], *trips[~inside][-1:]):
        at = np.full(4, trip)
        found = env.beliefs.accept_probabilities(np.zeros(4, int), np.zeros(4, int), at)
        # Without any beliefs every offer is accepted.
        assert_array_equal(found[:, 0], rates[trip, 0] if inside[trip] else 1.0)


def test_remembered_trips_do_not_depend_on_the_batch_and_survive_a_snapshot():
    whole = make(8, mask_mode="threshold", acceptance_hint=True)
    settings, shared_params = whole.settings, with_trip_rates(whole, epsilon=0.3)
    parts = [Dvrp(np.arange(3), settings), Dvrp(np.arange(3, 8), settings)]
    for env in (whole, *parts):
        env.set_shared_params(shared_params)
        env.reset(SEED)
    restored = make(8, mask_mode="threshold", acceptance_hint=True)
    restored.restore(whole.state())
    for _ in range(2 * settings.num_customers):
        actions = whole.out.mask.argmax(axis=1)
        whole.step(actions)
        restored.step(actions)
        parts[0].step(actions[:3])
        parts[1].step(actions[3:])
        assert_array_equal(restored.out.mask, whole.out.mask)
        assert_array_equal(restored.out.observation["acceptance_hint"], whole.out.observation["acceptance_hint"])
        assert_array_equal(np.concatenate([part.out.mask for part in parts]), whole.out.mask)


def test_trip_rates_of_another_population_are_refused():
    env = make(2)
    with pytest.raises(ShapeError, match=r"trip_accept_rates of shape \(7, 16\), expected \(3000, 16\)"):
        env.set_shared_params({"trip_accept_rates": np.zeros((7, NUM_OFFERS))})


def test_sampled_futures_are_booked_in_the_shares_of_the_policy():
    settings = DvrpSettings(num_customers=6, observation="offers", future_samples=2)
    env, untouched = Dvrp(np.arange(4), settings), Dvrp(np.arange(4), settings)
    shares = np.zeros((len(env.population.trips.cells), 16), np.float16)
    shares[:, 3] = 1.0
    env.reset(0), untouched.reset(0)
    env.set_shared_params({"applied_shares": shares})
    known = env.population.split_customers("known")[1]
    trips = np.tile(known[:5], (4, 2, 1))
    assert_array_equal(env.beliefs.shares_of(trips)[..., 3], 1.0)
    assert_array_equal(untouched.beliefs.shares_of(trips)[..., NO_CHANGE], 1.0)
    costs = [each.step(np.full(4, NO_CHANGE)).info["offer_costs"].copy() for each in (env, untouched)]
    assert not np.array_equal(*costs)
    assert "applied_shares" not in Dvrp(np.arange(1), DvrpSettings()).beliefs.state_arrays()
