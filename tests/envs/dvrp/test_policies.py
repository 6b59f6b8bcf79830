import numpy as np
import pytest
from numpy.testing import assert_array_equal

from helpers.believers import prior_believer
from hundredfold.core.errors import SettingsError
from hundredfold.envs.dvrp.env import Dvrp
from hundredfold.envs.dvrp.heuristics import cheapest, largest
from hundredfold.envs.dvrp.hindsight import Hindsight
from hundredfold.envs.dvrp.offers import NO_CHANGE, TOTAL_MINUTES
from hundredfold.envs.dvrp.policies import (
    BELIEF_POLICIES,
    POLICIES,
    GreedyExpected,
    RandomOffers,
    make_policy,
)
from hundredfold.envs.dvrp.settings import DvrpSettings

SETTINGS = DvrpSettings(num_customers=6, num_vehicles=3, lns_iterations=0, cost_hint=True)


@pytest.fixture
def env():
    env = Dvrp(np.arange(20), SETTINGS)
    env.reset(5)
    for _ in range(3):
        env.step(np.full(20, NO_CHANGE))
    return env


def rule(name, env):
    beliefs = prior_believer(env.settings) if name in BELIEF_POLICIES else None
    return make_policy(name, env.population, env.settings, seed=1, beliefs=beliefs)


@pytest.mark.parametrize("name", POLICIES)
def test_every_rule_makes_allowed_offers_only(name, env):
    policy = rule(name, env)
    for _ in range(7):
        offers = policy(env.out)
        assert offers.shape == (20,)
        assert env.out.mask[np.arange(20), offers].all()
        env.step(offers)


@pytest.mark.parametrize("name", ["privileged_greedy", "privileged_largest", "hindsight"])
def test_rules_that_know_are_never_refused(name, env):
    policy = rule(name, env)
    for _ in range(9):
        env.step(policy(env.out))
        assert env.out.info["accepted"].all()


def test_the_largest_known_offer_is_the_largest_accepted_one(env):
    offers = rule("privileged_largest", env)(env.out)
    accepts = env.true_state["accepts"][np.arange(20), env.true_state["num_booked"]]
    assert_array_equal(TOTAL_MINUTES[offers], np.where(accepts, TOTAL_MINUTES, 0).max(axis=1))


def test_none_offers_nothing_and_always_max_the_most(env):
    assert_array_equal(rule("none", env)(env.out), NO_CHANGE)
    assert_array_equal(rule("always_largest", env)(env.out), 3)


def test_random_offers_are_uniform_over_what_is_allowed_and_repeat():
    env = Dvrp(np.arange(4000), DvrpSettings(num_customers=2, lns_iterations=0))
    out = env.reset(0)
    out.mask[:, 5:] = False
    offers = RandomOffers(3)(out)
    assert_array_equal(offers, RandomOffers(3)(out))
    counts = np.bincount(offers, minlength=16)
    assert not counts[5:].any()
    assert np.abs(counts[:5] - 800).max() < 120


def test_ties_go_to_the_offer_that_asks_least():
    everything = np.ones((1, 16), bool)
    assert cheapest(np.zeros((1, 16)), everything) == NO_CHANGE
    price = np.zeros((1, 16))
    price[0, [3, 8, 7]] = -2.0
    assert cheapest(price, everything) == 8
    everything[0, 8] = False
    assert cheapest(price, everything) == 7
    assert largest(everything) == 3


def test_greedy_looks_ahead_by_the_hint_and_weighs_it_by_acceptance(env):
    hint = env.out.observation["cost_hint"]
    hint[:] = 0.0
    hint[:, 3], hint[:, 8] = -10.0, -6.0
    assert_array_equal(rule("greedy_optimistic", env)(env.out), 3)
    rate = np.full(16, 0.5)
    rate[3] = 0.1
    assert_array_equal(GreedyExpected(rate)(env.out), 8)
    assert_array_equal(GreedyExpected(rate, price=0.7)(env.out), NO_CHANGE)
    accepts = env.true_state["accepts"][np.arange(20), env.true_state["num_booked"]]
    accepts_3, accepts_8 = accepts[:, 3], accepts[:, 8]
    expected = np.where(accepts_3, 3, np.where(accepts_8, 8, NO_CHANGE))
    assert_array_equal(rule("privileged_greedy", env)(env.out), expected)


def test_greedy_without_a_hint_is_told_what_is_missing():
    env = Dvrp(np.arange(2), DvrpSettings(num_customers=2))
    with pytest.raises(SettingsError, match="cost_hint"):
        rule("greedy_optimistic", env)(env.reset(0))


def test_an_unknown_rule_gets_a_hint(env):
    with pytest.raises(SettingsError, match="did you mean greedy_optimistic"):
        rule("greedy_optimstic", env)


def test_hindsight_finds_days_at_least_as_cheap_as_its_start(env):
    env.reset(5)
    hindsight = Hindsight(env.population, env.settings)
    offers = hindsight.best_offers(env.true_state)
    acceptable = env.true_state["accepts"] & env.true_state["allowed"]
    assert np.take_along_axis(acceptable, offers[:, :, None], axis=2).all()
    start = np.where(acceptable, TOTAL_MINUTES, -1.0).argmax(axis=2)
    found = hindsight._prices(env.true_state, offers)
    assert (found <= hindsight._prices(env.true_state, start)).all()
    assert (found < hindsight._prices(env.true_state, start)).any()
