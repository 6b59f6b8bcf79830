"""Heuristics and privileged baselines by name."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from helpers.acceptance_models import prior_model
from helpers.exact_days import cheapest_of_all_offers, exact_costs
from helpers.offers import NO_CHANGE, OFFER_MINUTES, TOTAL_MINUTES
from hundredfold.core.errors import SettingsError
from hundredfold.envs.dvrp.env import Dvrp
from hundredfold.envs.dvrp.heuristics import GreedyExpected, RandomOffers
from hundredfold.envs.dvrp.hindsight import Hindsight, smallest_offers
from hundredfold.envs.dvrp.offers import DEFAULT_OFFERS
from hundredfold.envs.dvrp.policies import BELIEF_POLICIES, POLICIES, PolicyOptions, make_policy
from hundredfold.envs.dvrp.settings import DvrpSettings

SETTINGS = DvrpSettings(num_customers=6, num_vehicles=3, lns_iterations=0, cost_hint=True)


@pytest.fixture
def env():
    env = Dvrp(np.arange(20), SETTINGS)
    env.reset(5)
    for _ in range(3):
        env.step(np.full(20, NO_CHANGE))
    return env


def policy_for(name, env):
    beliefs = prior_model(env.settings) if name in BELIEF_POLICIES else None
    options = PolicyOptions(beliefs=beliefs)
    return make_policy(name, env.population, env.settings, seed=1, options=options)


def true_responses(env):
    """(envs, offers) whether the current customer accepts each offer."""
    return env.true_state["accepts"][np.arange(20), env.true_state["num_booked"]]


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_makes_allowed_offers_only(name, env):
    policy = policy_for(name, env)
    for _ in range(7):
        offers = policy(env.out)
        assert offers.shape == (20,)
        assert env.out.mask[np.arange(20), offers].all()
        env.step(offers)


@pytest.mark.parametrize("name", ["privileged_greedy", "privileged_largest", "hindsight"])
def test_offers_of_privileged_policies_are_always_accepted(name, env):
    policy = policy_for(name, env)
    for _ in range(9):
        env.step(policy(env.out))
        assert env.out.info["accepted"].all()


def test_privileged_largest_makes_the_largest_accepted_offer(env):
    offers = policy_for("privileged_largest", env)(env.out)
    largest_accepted = np.where(true_responses(env), TOTAL_MINUTES, 0).max(axis=1)
    assert_array_equal(TOTAL_MINUTES[offers], largest_accepted)


def test_none_makes_no_offer_and_always_largest_the_largest(env):
    assert_array_equal(policy_for("none", env)(env.out), NO_CHANGE)
    assert_array_equal(policy_for("always_largest", env)(env.out), 3)


def test_random_offers_are_uniform_over_allowed_offers_and_reproducible():
    env = Dvrp(np.arange(4000), DvrpSettings(num_customers=2, lns_iterations=0))
    out = env.reset(0)
    out.mask[:, 5:] = False
    offers = RandomOffers(3)(out)
    assert_array_equal(offers, RandomOffers(3)(out))
    counts = np.bincount(offers, minlength=16)
    assert not counts[5:].any()
    assert np.abs(counts[:5] - 800).max() < 120


def test_ties_go_to_the_offer_with_the_smallest_shift():
    allowed = np.ones((1, 16), bool)
    assert DEFAULT_OFFERS.cheapest(np.zeros((1, 16)), allowed) == NO_CHANGE
    cost = np.zeros((1, 16))
    cost[0, [3, 8, 7]] = -2.0
    assert DEFAULT_OFFERS.cheapest(cost, allowed) == 8
    allowed[0, 8] = False
    assert DEFAULT_OFFERS.cheapest(cost, allowed) == 7
    assert DEFAULT_OFFERS.largest(allowed) == 3


def test_greedy_policies_weigh_the_cost_hint_by_acceptance(env):
    hint = env.out.observation["cost_hint"]
    hint[:] = 0.0
    hint[:, 3], hint[:, 8] = -10.0, -6.0
    assert_array_equal(policy_for("greedy_optimistic", env)(env.out), 3)
    rate = np.full(16, 0.5)
    rate[3] = 0.1
    assert_array_equal(GreedyExpected(DEFAULT_OFFERS, rate)(env.out), 8)
    assert_array_equal(GreedyExpected(DEFAULT_OFFERS, rate, shift_penalty=0.7)(env.out), NO_CHANGE)
    accepts = true_responses(env)
    expected = np.where(accepts[:, 3], 3, np.where(accepts[:, 8], 8, NO_CHANGE))
    assert_array_equal(policy_for("privileged_greedy", env)(env.out), expected)


def test_greedy_policies_without_a_cost_hint_are_rejected():
    env = Dvrp(np.arange(2), DvrpSettings(num_customers=2))
    with pytest.raises(SettingsError, match="set cost_hint=True"):
        policy_for("greedy_optimistic", env)(env.reset(0))


def test_an_unknown_policy_gets_a_suggestion(env):
    with pytest.raises(SettingsError, match="did you mean greedy_optimistic"):
        policy_for("greedy_optimstic", env)


def test_hindsight_finds_the_best_of_all_offers_on_small_days():
    settings = DvrpSettings(num_customers=3, num_vehicles=2, city="hubs")
    env = Dvrp(np.arange(30), settings)
    state = env.reset(7).true_state
    offers = Hindsight(env.population, settings).best_offers(state)
    booked = exact_costs(state, offers, env)
    best, unchanged = cheapest_of_all_offers(state, env), exact_costs(state, np.full((30, 3), NO_CHANGE), env)
    assert_allclose(booked, best, atol=1e-9)
    assert (best < unchanged).sum() > 5
    shift = TOTAL_MINUTES[offers].sum(axis=1)
    assert (shift[best == unchanged] == 0).any()


def test_hindsight_makes_the_smallest_offer_that_contains_the_schedule():
    windows = np.array([[600.0, 630.0], [620.0, 650.0]])
    everything, nothing = np.ones(16, bool), np.arange(16) == NO_CHANGE
    assert smallest_offers(DEFAULT_OFFERS, windows, np.array([610.0, 640.0]), everything) == NO_CHANGE
    assert OFFER_MINUTES[smallest_offers(DEFAULT_OFFERS, windows, np.array([588.0, 650.0]), everything)].tolist() == [
        20.0,
        0.0,
    ]
    assert OFFER_MINUTES[smallest_offers(DEFAULT_OFFERS, windows, np.array([630.0, 651.0]), everything)].tolist() == [
        0.0,
        10.0,
    ]
    assert smallest_offers(DEFAULT_OFFERS, windows, np.array([588.0, 650.0]), nothing) == NO_CHANGE
    assert smallest_offers(DEFAULT_OFFERS, windows, np.array([np.nan, np.nan]), everything) == NO_CHANGE
