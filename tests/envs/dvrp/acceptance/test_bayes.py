"""BayesianTypeModel on simulated customers whose true types only the test knows."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from helpers.responses import simulate_responses
from hundredfold.envs.dvrp.acceptance import metrics
from hundredfold.envs.dvrp.acceptance.bayes import BayesianTypeModel
from hundredfold.envs.dvrp.acceptance.model import (
    ResponseBuffer,
    Responses,
    accept_likelihood,
    accept_rates,
    guessed_prior,
    mixture_accept_rates,
    prior_for,
)
from hundredfold.envs.dvrp.demand import population_for
from hundredfold.envs.dvrp.offers import NO_CHANGE, NUM_OFFERS, tolerated_offers
from hundredfold.envs.dvrp.population import (
    BOTH_TYPE,
    EARLY_TYPE,
    FLEXIBLE_SIDES,
    LATE_TYPE,
    NONE_TYPE,
    NUM_TYPES,
    TYPE_SHARES,
)
from hundredfold.envs.dvrp.settings import DvrpSettings

HARD = DvrpSettings(tolerances="types")
STRICT_ACCEPTS = tolerated_offers(np.where(FLEXIBLE_SIDES, 30.0, 0.0))
REAL_OFFERS = np.delete(np.arange(NUM_OFFERS), NO_CHANGE)


def fitted(settings, responses, prior=None):
    model = BayesianTypeModel(population_for(settings).size, prior or prior_for(settings))
    model.refit(responses)
    return model


def type_accuracies(settings, responses, prior=None):
    """(accuracy, Bayes-optimal accuracy) over customers with responses."""
    model = fitted(settings, responses, prior)
    population = population_for(settings)
    truth, customers = population.customers.types, np.unique(responses.customer)
    rates = metrics.true_accept_rates(population, prior_for(settings).accept_given_type, settings.response_noise)
    found = metrics.accuracy(model.type_probabilities(customers), truth[customers])
    best = metrics.bayes_optimal_accuracy(responses, truth, rates)
    print(f"accuracy {found:.3f}, Bayes-optimal {best:.3f} ({len(responses)} responses)")
    return found, best


@pytest.mark.parametrize("kind", range(NUM_TYPES), ids=("late", "early", "none", "both"))
@pytest.mark.parametrize("seed", range(10))
def test_three_informative_responses_identify_a_strict_type(kind, seed):
    possible, offers = np.ones(NUM_TYPES, bool), []
    for offer in np.random.default_rng(seed).permutation(REAL_OFFERS):
        would = STRICT_ACCEPTS[:, offer]
        if would[possible].all() or not would[possible].any():
            continue  # all types still possible respond alike: nothing to learn
        offers.append(offer)
        possible &= would == would[kind]
    assert len(offers) <= 3
    responses = ResponseBuffer()
    customer, purpose = np.full(len(offers), 5), np.full(len(offers), 2)
    trip = 250 + np.arange(len(offers))
    responses.add(customer, trip, purpose, np.array(offers), STRICT_ACCEPTS[kind, offers])
    model = fitted(HARD, responses.rows())
    assert model.type_probabilities(np.array([5]))[0, kind] > 0.99


def test_all_strict_types_are_identified_after_a_few_days():
    found, best = type_accuracies(HARD, simulate_responses(HARD, days=20))
    assert found == best == 1.0


@pytest.mark.parametrize("population_size", [30, 200])
@pytest.mark.parametrize("days", [20, 200, 2500])
def test_accuracy_of_soft_types_is_near_bayes_optimal(population_size, days):
    # One customer of 30 is three points, so the mean over several cities is tested.
    found, best = np.mean(
        [
            type_accuracies(settings, simulate_responses(settings, days))
            for city in range(6)
            for settings in [DvrpSettings(population_size=population_size, city_seed=city)]
        ],
        axis=0,
    )
    assert found >= best - 0.02
    assert best < 1.0 or days >= 200, "few responses cannot identify all types"


def test_accuracy_under_response_noise_is_near_bayes_optimal():
    settings = DvrpSettings(population_size=200, response_noise=0.1)
    found, best = type_accuracies(settings, simulate_responses(settings, days=400))
    assert found >= best - 0.02
    assert 0.8 < best < 1.0


def test_strict_types_are_identified_despite_response_noise():
    settings = DvrpSettings(tolerances="types", response_noise=0.1)
    found, _ = type_accuracies(settings, simulate_responses(settings, days=60))
    assert found == 1.0


def test_types_keep_their_meaning_under_a_guessed_prior():
    settings = DvrpSettings(population_size=200)
    found, best = type_accuracies(settings, simulate_responses(settings, days=2500), guessed_prior(10))
    assert found >= best - 0.02


def test_held_out_log_loss_is_near_that_of_the_true_rule():
    settings = DvrpSettings(population_size=200)
    population = population_for(settings)
    unseen = simulate_responses(settings, days=200, seed=2, split="unseen_trips")
    rule = prior_for(settings)

    def loss(beliefs, rates):
        rates_by_row = mixture_accept_rates(beliefs[unseen.customer], rates, unseen.purpose.astype(np.int64))
        predicted = rates_by_row[np.arange(len(unseen)), unseen.offer]
        return -np.log(np.where(unseen.accepted, predicted, 1 - predicted)).mean()

    best = loss(np.eye(NUM_TYPES)[population.customers.types], rule.accept_given_type)
    uninformed = loss(np.tile(rule.type_shares, (population.size, 1)), rule.accept_given_type)
    responses = simulate_responses(settings, days=2500)
    for prior in (rule, guessed_prior(10)):
        model = fitted(settings, responses, prior)
        assert loss(model.beliefs, model.accept_given_type) < best + 0.02 * (uninformed - best)


def test_prior_rates_match_those_of_synthetic_customers():
    settings = DvrpSettings(population_size=800)
    seen = metrics.true_accept_rates(population_for(settings), prior_for(settings).accept_given_type)
    assert_allclose(seen[:, :-1], prior_for(settings).accept_given_type[:, :-1], atol=0.08)


def test_learned_rates_are_monotone_in_the_shift():
    model = fitted(DvrpSettings(), simulate_responses(DvrpSettings(), days=100), guessed_prior(10))
    grid = model.accept_given_type.reshape(NUM_TYPES, 10, 4, 4)  # 30..0 earlier x 0..30 later
    assert (np.diff(grid, axis=2) >= 0).all()
    assert (np.diff(grid, axis=3) <= 0).all()


def test_customers_without_responses_get_the_type_shares():
    settings = DvrpSettings(population_size=200)
    model = fitted(settings, simulate_responses(settings, days=300))
    stranger = model.type_probabilities(np.array([399]))[0]
    met = model.type_probabilities(np.arange(200)).mean(axis=0)
    assert_allclose(stranger, model.type_shares, rtol=1e-12)
    assert np.abs(stranger - met).max() < 0.5 * np.abs(met - TYPE_SHARES).max()


def test_without_responses_beliefs_equal_the_prior():
    model = BayesianTypeModel(7, prior_for(DvrpSettings()))
    nothing = ResponseBuffer().rows()
    assert not model.ready(nothing)
    assert_allclose(model.type_probabilities(np.arange(7)), np.tile(TYPE_SHARES, (7, 1)))
    model.refit(nothing)
    assert_allclose(model.type_probabilities(np.arange(7)), np.tile(TYPE_SHARES, (7, 1)))


def test_uninformative_responses_leave_beliefs_at_the_prior():
    settings = DvrpSettings(tolerances="unlimited")
    model = fitted(settings, simulate_responses(settings, days=20))
    assert_allclose(model.beliefs, np.tile(TYPE_SHARES, (60, 1)), atol=1e-3)


def test_prior_rates_stay_off_zero_and_one():
    for settings in (HARD, DvrpSettings(), DvrpSettings(tolerances="unlimited")):
        rates = prior_for(settings).accept_given_type
        assert (rates[..., NO_CHANGE] == 1).all()
        assert rates[..., REAL_OFFERS].min() >= 1e-6
        assert rates[..., REAL_OFFERS].max() <= 1 - 1e-6


def test_accept_likelihood_includes_response_noise():
    rates = accept_rates(prior_for(HARD).tolerance_probs, accept_likelihood(0.1))
    assert_allclose(rates[LATE_TYPE, :, 15], 0.9, atol=1e-4)
    assert_allclose(rates[EARLY_TYPE, :, 15], 0.1, atol=1e-4)
    assert_allclose(rates[NONE_TYPE, :, REAL_OFFERS], 0.1, atol=1e-4)
    assert_allclose(rates[BOTH_TYPE, :, REAL_OFFERS], 0.9, atol=1e-4)


def test_the_order_of_responses_does_not_matter():
    rows = simulate_responses(DvrpSettings(), days=20)
    shuffled = np.random.default_rng(0).permutation(len(rows))
    other = Responses(*(array[shuffled] for array in rows.arrays().values()))
    one, two = fitted(DvrpSettings(), rows), fitted(DvrpSettings(), other)
    assert_array_equal(one.beliefs, two.beliefs)


def test_accept_probabilities_average_over_types():
    model = fitted(DvrpSettings(), simulate_responses(DvrpSettings(), days=3))
    customers, purposes = np.array([4, 9]), np.array([0, 7])
    for row, (customer, purpose) in enumerate(zip(customers, purposes, strict=True)):
        expected = model.beliefs[customer] @ model.accept_given_type[:, purpose]
        assert_allclose(model.accept_probabilities(customers, purposes, np.array([-1, -1]))[row], expected)


def test_own_data_get_a_guessed_prior_unless_types_are_strict():
    files = {"trips": "trips.csv", "travel_times": "matrix.csv"}
    assert prior_for(DvrpSettings(**files)).tolerance_weight < 10
    strict = prior_for(DvrpSettings(**files, tolerances="types"))
    assert_allclose(strict.accept_given_type, prior_for(HARD).accept_given_type)
    assert_allclose(strict.type_shares, 0.25)
    recorded = prior_for(DvrpSettings(**files, tolerances="types", recorded_responses="responses.csv"))
    assert recorded.tolerance_weight < 10
