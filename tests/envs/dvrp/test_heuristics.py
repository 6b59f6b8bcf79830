"""Belief policies and the warm-up of their acceptance model."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from helpers.acceptance_models import KnownTypes, prior_model, warmed_up_model
from helpers.offers import NO_CHANGE, TOTAL_MINUTES
from hundredfold.core.errors import SettingsError
from hundredfold.envs.dvrp.acceptance.model import accept_likelihood
from hundredfold.envs.dvrp.belief_warmup import WarmUpSettings
from hundredfold.envs.dvrp.env import Dvrp
from hundredfold.envs.dvrp.evaluation import evaluate_policy, simulate_days
from hundredfold.envs.dvrp.heuristics import largest_tolerated
from hundredfold.envs.dvrp.offers import DEFAULT_OFFERS
from hundredfold.envs.dvrp.policies import BELIEF_POLICIES, PolicyOptions, make_policy
from hundredfold.envs.dvrp.settings import DvrpSettings

SETTINGS = DvrpSettings(num_customers=6, num_vehicles=3, lns_iterations=0, cost_hint=True)
STRICT = DvrpSettings(num_customers=12, num_vehicles=3, lns_iterations=0, tolerances="types")


@pytest.fixture
def env():
    env = Dvrp(np.arange(40), SETTINGS)
    env.reset(5)
    return env


def belief_policy(name, env, rates, shift_penalty=None):
    options = PolicyOptions(beliefs=KnownTypes(env.population, rates), shift_penalty=shift_penalty)
    return make_policy(name, env.population, env.settings, 1, options)


def rates_of(**rates_by_offer):
    """(types, offers): the same rates for every type, `offer_3=0.6`; 0 for all other offers."""
    rates = np.zeros((4, 16))
    rates[:, NO_CHANGE] = 1.0
    for name, rate in rates_by_offer.items():
        rates[:, int(name.removeprefix("offer_"))] = rate
    return rates


def test_belief_largest_makes_the_largest_offer_with_probability_at_least_one_half(env):
    rates = rates_of(offer_3=0.49, offer_7=0.5, offer_8=1.0)
    assert_array_equal(belief_policy("belief_largest", env, rates)(env.out), 7)
    assert_array_equal(belief_policy("belief_largest", env, rates_of())(env.out), NO_CHANGE)


def test_belief_largest_with_a_shift_penalty_needs_an_immediate_saving(env):
    hint = env.out.observation["cost_hint"]
    hint[:] = 0.0
    hint[:, 7], hint[:, 8] = -5.0, -2.0  # shifts of 50 and 10 minutes
    rates = rates_of(offer_3=1.0, offer_7=1.0, offer_8=1.0)

    def offers_at(penalty):
        offers = belief_policy("belief_largest", env, rates, penalty)(env.out)
        return np.unique(offers).tolist()

    assert offers_at(0.0) == [3]
    assert offers_at(0.05) == [7]
    assert offers_at(0.15) == [8]
    assert offers_at(0.3) == [NO_CHANGE]


def test_belief_greedy_weighs_saving_less_penalty_by_acceptance_probability(env):
    hint = env.out.observation["cost_hint"]
    hint[:] = 0.0
    hint[:, 3], hint[:, 8] = -10.0, -6.0
    rates = rates_of(offer_3=0.5, offer_8=0.7)
    for penalty, expected in ((0.0, 3), (0.05, 8), (0.6, NO_CHANGE)):
        policy = belief_policy("belief_greedy", env, rates, penalty)
        assert_array_equal(policy(env.out), expected)


def test_thompson_makes_the_largest_offer_of_sampled_tolerances():
    env = Dvrp(np.arange(3000), DvrpSettings(num_customers=2, lns_iterations=0))
    out = env.reset(0)
    tolerances = np.array([(0.0, 30.0), (30.0, 0.0), (0.0, 0.0)])
    rates = np.array([0.5, 0.3, 0.2]) @ DEFAULT_OFFERS.tolerated(tolerances)
    options = PolicyOptions(beliefs=KnownTypes(env.population, np.tile(rates, (4, 1))))
    policy = make_policy("thompson", env.population, env.settings, 1, options)
    offers = policy(out)
    shares = np.bincount(offers, minlength=16) / 3000
    assert shares[15] == pytest.approx(0.5, abs=0.03)
    assert shares[0] == pytest.approx(0.3, abs=0.03)
    assert shares[NO_CHANGE] == pytest.approx(0.2, abs=0.03)
    assert_array_equal(policy(out), offers)


@pytest.mark.parametrize("name", BELIEF_POLICIES)
def test_belief_policies_without_beliefs_are_rejected(name, env):
    with pytest.raises(SettingsError, match="need an acceptance model: pass beliefs"):
        make_policy(name, env.population, env.settings)


def test_a_shift_penalty_for_a_policy_without_one_is_rejected(env):
    with pytest.raises(SettingsError, match="thompson takes no shift_penalty"):
        belief_policy("thompson", env, rates_of(), shift_penalty=0.1)


@pytest.mark.parametrize("name", ["belief_largest", "thompson"])
def test_with_strict_types_belief_policies_become_as_good_as_privileged_ones(name):
    model, _ = warmed_up_model(name, STRICT, days=120)
    privileged, _ = simulate_days("privileged_largest", STRICT, 12, 3)
    believed, _ = simulate_days(name, STRICT, 12, 3, options=PolicyOptions(beliefs=model))
    assert_array_equal(believed.offers, privileged.offers)
    assert (TOTAL_MINUTES[privileged.offers] > 0).any()


def test_warm_up_is_reproducible_and_depends_on_its_seed():
    once, responses = warmed_up_model("belief_largest", SETTINGS)
    again, _ = warmed_up_model("belief_largest", SETTINGS)
    assert_array_equal(once.beliefs, again.beliefs)
    assert len(responses) > 0
    other, _ = warmed_up_model("belief_largest", SETTINGS, seed=2)
    assert (other.beliefs != once.beliefs).any()


def test_the_largest_tolerated_offer_has_the_probability_of_its_tolerances():
    pairs = np.random.default_rng(0).dirichlet(np.ones(16), 5)  # of 0 to 30 earlier x 0 to 30 later
    accepts = pairs @ accept_likelihood(0.0).T
    # Offers list 30 to 0 minutes earlier, tolerances 0 to 30.
    assert_allclose(
        largest_tolerated(accepts.reshape(-1, 4, 4)), pairs.reshape(-1, 4, 4)[:, ::-1].reshape(-1, 16), atol=1e-12
    )


def test_thompson_sampling_makes_varied_offers_until_a_trip_is_known():
    settings = DvrpSettings(num_customers=12, num_vehicles=3, lns_iterations=0)
    model = prior_model(settings)
    env = Dvrp(np.arange(40), settings)
    out = env.reset(3)
    trips = env.true_state["trip_id"][:, 0]
    unknown = make_policy("thompson", env.population, settings, 1, PolicyOptions(beliefs=model))(out)
    assert len(np.unique(unknown)) > 5
    model.trip_accept_rates[trips] = env.population.accepts[trips]
    known = make_policy("thompson", env.population, settings, 1, PolicyOptions(beliefs=model))(out)
    assert_array_equal(known, make_policy("privileged_largest", env.population, settings)(out))


def test_unseen_customers_are_predicted_by_the_population_average():
    model, _ = warmed_up_model("thompson", SETTINGS, days=100)
    population = Dvrp(np.arange(1), SETTINGS).population
    known = population.customers.num_known
    unseen = model.type_probabilities(np.arange(known, population.size))
    assert np.abs(unseen - model.type_shares).max() < 0.25
    met = model.type_probabilities(np.arange(known))
    assert (met.max(axis=1) > 0.9).mean() > 0.5


def test_warm_up_raises_the_acceptance_rate():
    settings = DvrpSettings(num_customers=12, num_vehicles=3, lns_iterations=0)
    warm, _ = warmed_up_model("belief_largest", settings, days=60)
    acceptance_rate = {}
    for name, model in (("warm", warm), ("cold", prior_model(settings))):
        (row,) = evaluate_policy(
            "belief_largest", settings, num_days=40, splits=("known",), options=PolicyOptions(beliefs=model)
        )
        acceptance_rate[name] = row["offers_accepted"] / max(row["offers_made"], 1)
    assert acceptance_rate["warm"] > acceptance_rate["cold"]


@pytest.mark.parametrize("wrong", [{"warm_up_days": -1}, {"refit_days": 0}, {"epsilon": 1.5}])
def test_warm_up_settings_out_of_bounds_are_rejected(wrong):
    with pytest.raises(SettingsError, match=f"{next(iter(wrong))} must be"):
        WarmUpSettings(**wrong)
