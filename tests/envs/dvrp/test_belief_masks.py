"""What an acceptance model says bears on masks, leanings and views."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from hundredfold.core.errors import ShapeError
from hundredfold.envs.dvrp.belief_masks import TYPE_MASKS
from hundredfold.envs.dvrp.env import Dvrp, DvrpSettings
from hundredfold.envs.dvrp.offers import NO_CHANGE, NUM_OFFERS, OFFER_MINUTES
from hundredfold.envs.dvrp.population import NUM_TYPES
from hundredfold.envs.dvrp.trip_purposes import PURPOSE_NAMES

NUM_ENVS, SEED = 64, 5


def make(envs=NUM_ENVS, **settings):
    return Dvrp(np.arange(envs), DvrpSettings(num_customers=8, lns_iterations=0, **settings))


def told(env, *, epsilon=0.0, sample_types=True, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "type_probabilities": rng.dirichlet(np.ones(NUM_TYPES), env.population.size),
        "response_counts": np.arange(env.population.size),
        "accept_given_type": rng.random((NUM_TYPES, len(PURPOSE_NAMES), NUM_OFFERS)),
        "epsilon": np.float32(epsilon),
        "sample_types": np.asarray(sample_types),
    }


def start(env, **how):
    shared_params = told(env, **how)
    env.set_shared_params(shared_params)
    out = env.reset(SEED)
    callers = env.true_state["customer_id"][:, 0]
    purposes = env.population.trips.purpose[env.true_state["trip_id"][:, 0]]
    chances = np.stack(
        [
            shared_params["type_probabilities"][person]
            @ shared_params["accept_given_type"][:, purpose]
            for person, purpose in zip(callers, purposes, strict=True)
        ]
    )
    chances[:, NO_CHANGE] = 1.0
    return out, shared_params, chances


def test_each_type_taken_at_its_word_accepts_what_the_table_says():
    earlier, later = OFFER_MINUTES.T
    late, early, none, both = TYPE_MASKS
    assert_array_equal(late, earlier == 0)
    assert_array_equal(early, later == 0)
    assert_array_equal(np.flatnonzero(none), [NO_CHANGE])
    assert both.all()


def test_the_threshold_mask_allows_what_is_probably_accepted():
    env = make(mask_mode="threshold", mask_threshold=0.4)
    out, _, chances = start(env)
    assert_array_equal(out.mask, (chances >= 0.4) & env.true_state["allowed"][:, 0])
    assert 0.1 < out.mask.mean() < 0.9


def test_a_sampled_type_decides_the_mask_and_the_most_likely_one_when_judged():
    evaluated = make(mask_mode="sampled_type")
    out, shared_params, _ = start(evaluated, sample_types=False)
    callers = evaluated.true_state["customer_id"][:, 0]
    likely = shared_params["type_probabilities"][callers].argmax(axis=1)
    assert_array_equal(out.mask, TYPE_MASKS[likely] & evaluated.true_state["allowed"][:, 0])

    drawing = make(1024, mask_mode="sampled_type")
    shared_params = told(drawing)
    shares = np.array([0.1, 0.2, 0.3, 0.4])
    shared_params["type_probabilities"][:] = shares
    drawing.set_shared_params(shared_params)
    out = drawing.reset(SEED)
    fits = (out.mask[:, None] == (TYPE_MASKS & drawing.true_state["allowed"][:, :1])).all(axis=2)
    assert fits.any(axis=1).all()
    whole_day = drawing.true_state["allowed"][:, 0].all(axis=1)
    found = fits[whole_day].mean(axis=0)
    assert_allclose(found, shares, atol=4 * np.sqrt(0.25 / whole_day.sum()))


def test_a_soft_mask_forbids_nothing_and_leans_against_refusals():
    env = make(mask_mode="soft", mask_strength=0.5)
    out, _, chances = start(env)
    assert_array_equal(out.mask, env.true_state["allowed"][:, 0])
    assert_allclose(
        out.observation["leaning"], 0.5 * np.log(np.maximum(chances, 1e-3)), rtol=1e-4, atol=1e-5
    )
    assert env.spec.logit_bias == "leaning"
    assert_allclose(out.observation["leaning"][:, NO_CHANGE], 0.0)


def test_the_known_mask_is_the_truth():
    env = make(mask_mode="privileged")
    out, _, _ = start(env)
    assert_array_equal(out.mask, env.true_state["accepts"][:, 0] & env.true_state["allowed"][:, 0])


def test_without_a_mask_the_day_alone_decides():
    env = make()
    out, _, _ = start(env)
    assert_array_equal(out.mask, env.true_state["allowed"][:, 0])


@pytest.mark.parametrize("mode", ["threshold", "sampled_type", "privileged", "soft"])
def test_epsilon_lets_some_envs_ignore_their_mask(mode):
    env = make(1024, mask_mode=mode)
    out, _, _ = start(env, epsilon=0.25)
    if mode == "soft":
        free = (out.observation["leaning"] == 0.0).all(axis=1)
    else:
        strict = make(1024, mask_mode=mode)
        masked, _, _ = start(strict)
        narrowed = (masked.mask != strict.true_state["allowed"][:, 0]).any(axis=1)
        free = (out.mask == env.true_state["allowed"][:, 0]).all(axis=1)[narrowed]
    assert abs(free.mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / len(free))


def test_offer_12_is_open_under_every_mask_whatever_is_believed():
    for mode in ("threshold", "sampled_type", "privileged"):
        env = make(mask_mode=mode)
        hopeless = told(env)
        hopeless["accept_given_type"] = np.zeros_like(hopeless["accept_given_type"])
        env.set_shared_params(hopeless)
        out = env.reset(SEED)
        for _ in range(8):
            assert out.mask[:, NO_CHANGE].all()
            out = env.step(np.full(NUM_ENVS, NO_CHANGE))


def test_the_accept_hint_shows_the_believed_chances():
    env = make(acceptance_hint=True)
    out, _, chances = start(env)
    assert_allclose(out.observation["acceptance_hint"], chances, rtol=1e-5)


def test_masks_do_not_depend_on_how_envs_are_sliced():
    whole = make(6, mask_mode="sampled_type")
    parts = [Dvrp(ids, whole.settings) for ids in (np.arange(2), np.arange(2, 5), np.arange(5, 6))]
    for env in (whole, *parts):
        env.set_shared_params(told(env, epsilon=0.3))
        env.reset(SEED)
    for _ in range(12):
        assert_array_equal(whole.out.mask, np.concatenate([part.out.mask for part in parts]))
        for env in (whole, *parts):
            env.step(np.full(env.num_envs, NO_CHANGE))


def test_a_snapshot_keeps_what_was_told():
    env = make(mask_mode="threshold", acceptance_hint=True)
    start(env, epsilon=0.2)
    other = make(mask_mode="threshold", acceptance_hint=True)
    other.reset(99)
    other.restore(env.state())
    for each in (env, other):
        each.step(np.full(NUM_ENVS, NO_CHANGE))
    assert_array_equal(env.out.mask, other.out.mask)
    assert_array_equal(
        env.out.observation["acceptance_hint"], other.out.observation["acceptance_hint"]
    )


def test_knowledge_of_a_wrong_shape_is_refused_and_changes_nothing():
    env = make()
    before = {name: array.copy() for name, array in env.beliefs.arrays().items()}
    wrong = told(env) | {"accept_given_type": np.ones((NUM_TYPES, 3, NUM_OFFERS))}
    with pytest.raises(ShapeError, match="accept_given_type"):
        env.set_shared_params(wrong)
    for name, array in env.beliefs.arrays().items():
        assert_array_equal(array, before[name])
