"""Rules that learn whom to ask."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from helpers.believers import Sure, prior_believer, taught_believer
from hundredfold.core.errors import SettingsError
from hundredfold.envs.dvrp.belief_warmup import WarmUpSettings
from hundredfold.envs.dvrp.env import Dvrp
from hundredfold.envs.dvrp.evaluation import PolicyOptions, evaluate_policy, simulate_days
from hundredfold.envs.dvrp.offers import NO_CHANGE, TOTAL_MINUTES
from hundredfold.envs.dvrp.policies import BELIEF_POLICIES, make_policy
from hundredfold.envs.dvrp.settings import DvrpSettings

SETTINGS = DvrpSettings(num_customers=6, num_vehicles=3, lns_iterations=0, cost_hint=True)
STRICT = DvrpSettings(num_customers=12, num_vehicles=3, lns_iterations=0, tolerances="types")


@pytest.fixture
def env():
    env = Dvrp(np.arange(40), SETTINGS)
    env.reset(5)
    return env


def rule(name, env, rates, **options):
    beliefs = Sure(env.population, rates)
    return make_policy(name, env.population, env.settings, 1, beliefs=beliefs, **options)


def rates_of(**chances):
    """(types, offers): these chances for everybody, `offer_3=0.6`; all others never accepted."""
    rates = np.zeros((4, 16))
    rates[:, NO_CHANGE] = 1.0
    for name, chance in chances.items():
        rates[:, int(name.removeprefix("offer_"))] = chance
    return rates


def test_the_largest_believed_offer_is_at_least_as_likely_as_not(env):
    rates = rates_of(offer_3=0.49, offer_7=0.5, offer_8=1.0)
    assert_array_equal(rule("belief_largest", env, rates)(env.out), 7)
    assert_array_equal(rule("belief_largest", env, rates_of())(env.out), NO_CHANGE)


def test_with_a_price_an_offer_must_pay_for_itself_at_once(env):
    hint = env.out.observation["cost_hint"]
    hint[:] = 0.0
    hint[:, 7], hint[:, 8] = -5.0, -2.0  # 50 minutes moved and 10
    rates = rates_of(offer_3=1.0, offer_7=1.0, offer_8=1.0)

    def at(price):
        offers = rule("belief_largest", env, rates, shift_penalty=price)(env.out)
        return np.unique(offers).tolist()

    assert at(0.0) == [3]
    assert at(0.05) == [7]
    assert at(0.15) == [8]
    assert at(0.3) == [NO_CHANGE]


def test_greed_weighs_gain_less_price_by_the_believed_chance(env):
    hint = env.out.observation["cost_hint"]
    hint[:] = 0.0
    hint[:, 3], hint[:, 8] = -10.0, -6.0
    rates = rates_of(offer_3=0.5, offer_8=0.7)
    for price, expected in ((0.0, 3), (0.05, 8), (0.6, NO_CHANGE)):
        policy = rule("belief_greedy", env, rates, shift_penalty=price)
        assert_array_equal(policy(env.out), expected)


def test_thompson_asks_as_a_drawn_type_would_accept():
    env = Dvrp(np.arange(3000), DvrpSettings(num_customers=2, lns_iterations=0))
    out = env.reset(0)
    beliefs = Sure(env.population, np.zeros((4, 16)))
    beliefs.rates[[0, 1, 2, 3], [15, 0, NO_CHANGE, 3]] = 1.0
    beliefs.type_probabilities = lambda people: np.tile((0.5, 0.3, 0.2, 0.0), (len(people), 1))
    policy = make_policy("thompson", env.population, env.settings, 1, beliefs=beliefs)
    offers = policy(out)
    shares = np.bincount(offers, minlength=16) / 3000
    assert shares[15] == pytest.approx(0.5, abs=0.03)
    assert shares[0] == pytest.approx(0.3, abs=0.03)
    assert shares[NO_CHANGE] == pytest.approx(0.2, abs=0.03)
    assert_array_equal(policy(out), offers)


@pytest.mark.parametrize("name", BELIEF_POLICIES)
def test_rules_that_believe_want_somebody_to_believe(name, env):
    with pytest.raises(SettingsError, match="pass beliefs"):
        make_policy(name, env.population, env.settings)


def test_rules_without_prices_refuse_one(env):
    with pytest.raises(SettingsError, match="thompson takes no shift_penalty"):
        rule("thompson", env, rates_of(), shift_penalty=0.1)


@pytest.mark.parametrize("name", ["belief_largest", "thompson"])
def test_with_strict_types_believing_becomes_knowing(name):
    beliefs, _ = taught_believer(name, STRICT, days=120)
    known, _ = simulate_days("privileged_largest", STRICT, 12, 3)
    believed, _ = simulate_days(name, STRICT, 12, 3, options=PolicyOptions(beliefs=beliefs))
    assert_array_equal(believed.offers, known.offers)
    assert (TOTAL_MINUTES[known.offers] > 0).any()


def test_learning_repeats_and_is_not_about_the_days_that_count():
    once, answers = taught_believer("belief_largest", SETTINGS)
    again, _ = taught_believer("belief_largest", SETTINGS)
    assert_array_equal(once.beliefs, again.beliefs)
    assert len(answers) > 0
    other, _ = taught_believer("belief_largest", SETTINGS, seed=2)
    assert (other.beliefs != once.beliefs).any()


def test_unseen_customers_stay_strangers():
    beliefs, _ = taught_believer("thompson", SETTINGS, days=100)
    population = Dvrp(np.arange(1), SETTINGS).population
    known = population.customers.num_known
    strangers = beliefs.type_probabilities(np.arange(known, population.size))
    assert_array_equal(strangers, np.broadcast_to(beliefs.type_shares, strangers.shape))
    met = beliefs.type_probabilities(np.arange(known))
    assert (met.max(axis=1) > 0.9).mean() > 0.5


def test_learning_beats_not_having_learned():
    settings = DvrpSettings(num_customers=12, num_vehicles=3, lns_iterations=0)
    learned, _ = taught_believer("belief_largest", settings, days=60)
    accepted = {}
    for name, beliefs in (("taught", learned), ("untaught", prior_believer(settings))):
        (row,) = evaluate_policy(
            "belief_largest",
            settings,
            days=40,
            splits=("known",),
            options=PolicyOptions(beliefs=beliefs),
        )
        accepted[name] = row["offers_accepted"] / max(row["offers_made"], 1)
    assert accepted["taught"] > accepted["untaught"]


@pytest.mark.parametrize("wrong", [{"warm_up_days": -1}, {"refit_days": 0}, {"explore": 1.5}])
def test_impossible_learning_is_refused(wrong):
    with pytest.raises(SettingsError, match="learning needs"):
        WarmUpSettings(**wrong)
