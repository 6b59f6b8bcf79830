"""Trip memory of the Bayesian model: exact posteriors, coherence with types, calibration."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from helpers.offers import NO_CHANGE, NUM_OFFERS
from helpers.responses import simulate_calls, simulate_responses
from hundredfold.envs.dvrp.acceptance.bayes import MIN_NOISE, BayesianTypeModel, bayesian_type_model
from hundredfold.envs.dvrp.acceptance.metrics import predicted_responses, prediction_scores, response_rates
from hundredfold.envs.dvrp.acceptance.model import (
    ResponseBuffer,
    Responses,
    accept_likelihood,
    guessed_prior,
    prior_for,
    tolerance_pair_probs,
)
from hundredfold.envs.dvrp.demand import population_for
from hundredfold.envs.dvrp.population import NUM_TYPES
from hundredfold.envs.dvrp.settings import DvrpSettings

NUM_PAIRS = 16
# (customer, trip, purpose, offer, accepted): customer 0 has three trips, two of one purpose.
CALLS = [
    (0, 0, 7, 10, True),
    (0, 0, 7, 2, False),
    (0, 0, 7, 10, True),
    (0, 1, 7, 0, True),
    (0, 2, 0, 13, False),
    (1, 5, 4, 3, True),
    (1, 5, 4, 3, False),
    (1, 6, 4, 15, True),
]


def columns(calls):
    responses = ResponseBuffer()
    responses.add(*(np.array(column) for column in zip(*calls, strict=True)))
    return responses.rows()


def remembering(prior, num_customers=3, num_trips=9, forgetting=0.0):
    return BayesianTypeModel(num_customers, prior, num_trips=num_trips, forgetting=forgetting)


def enumerated(model, calls, customer, noise, forgetting=0.0):
    """P(type) and P(accept) by trip of a customer, summing over all tolerances of all its trips."""
    mine = [call for call in calls if call[0] == customer]
    trips = sorted({call[1] for call in mine})
    purpose = {call[1]: call[2] for call in mine}
    pairs = tolerance_pair_probs(model.tolerance_probs)
    likelihood = accept_likelihood(noise)
    assumed = np.clip(likelihood, MIN_NOISE, 1 - MIN_NOISE)
    types, accepts = np.zeros(NUM_TYPES), {trip: np.zeros(NUM_OFFERS) for trip in trips}
    for kind, *tolerances in product(range(NUM_TYPES), *(range(NUM_PAIRS) for _ in trips)):
        of_trip = dict(zip(trips, tolerances, strict=True))
        joint = model.type_shares[kind]
        for trip, pair in of_trip.items():
            joint *= pairs[kind, purpose[trip], pair]
        for number, (_, trip, _, offer, accepted) in enumerate(mine):
            chance = assumed[offer, of_trip[trip]]
            later = sum(call[1] == trip for call in mine[number + 1 :])
            joint *= (chance if accepted else 1 - chance) ** ((1 - forgetting) ** later)
        types[kind] += joint
        for trip, pair in of_trip.items():
            accepts[trip] += joint * likelihood[:, pair]
    return types / types.sum(), {trip: chances / types.sum() for trip, chances in accepts.items()}


@pytest.mark.parametrize("noise", [0.0, 0.15])
@pytest.mark.parametrize("guessed", [False, True])
@pytest.mark.parametrize("forgetting", [0.0, 0.3])
def test_posteriors_equal_brute_force_enumeration(noise, guessed, forgetting):
    prior = guessed_prior(10, noise) if guessed else prior_for(DvrpSettings(response_noise=noise))
    model = remembering(prior, forgetting=forgetting)
    model.refit(columns(CALLS))
    for customer in (0, 1):
        types, accepts = enumerated(model, CALLS, customer, noise, forgetting)
        assert_allclose(model.beliefs[customer], types, rtol=1e-9)
        for trip, expected in accepts.items():
            purpose = next(call[2] for call in CALLS if call[1] == trip)
            found = model.accept_probabilities(np.array([customer]), np.array([purpose]), np.array([trip]))[0]
            assert_allclose(found, expected, atol=2e-6)  # remembered in single precision, off 0 and 1
    assert_allclose(model.beliefs[2], model.type_shares, rtol=1e-12)


def test_responses_to_one_trip_are_not_independent_given_the_type():
    # Five times the same answer to the same trip say hardly more about the type than one.
    prior = prior_for(DvrpSettings())
    calls = [(0, 0, 4, 1, True)] * 5
    beliefs = {}
    five_trips = [(0, trip, 4, 1, True) for trip in range(5)]
    for name, rows in {"once": calls[:1], "same trip": calls, "five trips": five_trips}.items():
        model = remembering(prior)
        model.refit(columns(rows))
        beliefs[name] = model.beliefs[0]
    assert_allclose(beliefs["same trip"], beliefs["once"], atol=0.01)
    assert np.abs(beliefs["five trips"] - beliefs["once"]).max() > 0.1


def test_without_trip_memory_every_response_is_a_trip_of_its_own():
    prior = prior_for(DvrpSettings(response_noise=0.1))
    apart = [(call[0], number, *call[2:]) for number, call in enumerate(CALLS)]
    one, other = remembering(prior), BayesianTypeModel(3, prior)
    one.refit(columns(apart))
    other.refit(columns(CALLS))
    assert_allclose(one.beliefs, other.beliefs, rtol=1e-9)
    assert_allclose(one.tolerance_probs, other.tolerance_probs, rtol=1e-9)


def test_a_trip_without_responses_falls_to_the_customers_types():
    model = remembering(prior_for(DvrpSettings()))
    model.refit(columns(CALLS))
    expected = model.beliefs[0] @ model.accept_given_type[:, 7]
    assert_allclose(model.accept_probabilities(np.array([0]), np.array([7]), np.array([8]))[0], expected)


def test_a_contradiction_does_not_rule_tolerances_out():
    model = remembering(guessed_prior(10))
    model.refit(columns([(0, 0, 3, 9, number % 2 == 0) for number in range(40)]))
    rates = model.accept_probabilities(np.array([0]), np.array([3]), np.array([0]))
    assert np.isfinite(rates).all()
    assert rates[0, NO_CHANGE] == 1.0


def held_out_scores(model, settings, split):
    """Scores over all possible offers of fresh days."""
    population = population_for(settings)
    customer, trip, purpose, _, _ = simulate_calls(settings, 60, seed=9, split=split)
    possible = population.allowed[trip].copy()
    possible[:, NO_CHANGE] = False
    predicted = model.accept_probabilities(customer, purpose, trip)[possible]
    return prediction_scores(
        predicted, response_rates(population.accepts[trip], settings.response_noise, NO_CHANGE)[possible]
    )


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_memory_predicts_known_trips_better_and_unseen_ones_as_well(noise):
    settings = DvrpSettings(response_noise=noise)
    responses = simulate_responses(settings, days=400)
    population, scores = population_for(settings), {}
    for memory in (True, False):
        model = bayesian_type_model(population, prior_for(settings), trip_memory=memory)
        model.refit(responses)
        for split in ("known", "unseen_trips"):
            scores[memory, split] = held_out_scores(model, settings, split)
    floor = noise * (1 - noise)  # the Brier score of the true probabilities
    excess = {key: score.brier_score - floor for key, score in scores.items()}
    assert excess[True, "known"] < 0.5 * excess[False, "known"]
    assert scores[True, "known"].log_loss < scores[False, "known"].log_loss
    assert excess[True, "unseen_trips"] < 1.01 * excess[False, "unseen_trips"]
    for score in scores.values():
        assert abs(score.predicted - score.accepted) < 0.02


def test_the_order_of_responses_and_earlier_refits_do_not_matter():
    settings = DvrpSettings()
    rows = simulate_responses(settings, days=20)
    shuffled = np.random.default_rng(0).permutation(len(rows))
    one = bayesian_type_model(population_for(settings), prior_for(settings))
    two = bayesian_type_model(population_for(settings), prior_for(settings))
    two.refit(simulate_responses(settings, days=5, seed=4))
    one.refit(rows)
    two.refit(Responses(**{name: array[shuffled] for name, array in rows.arrays().items()}))
    for name, array in one.state().items():
        assert_array_equal(two.state()[name], array)


def test_a_restored_model_predicts_bit_for_bit_the_same():
    settings = DvrpSettings()
    responses = simulate_responses(settings, days=30)
    one, two = (bayesian_type_model(population_for(settings), prior_for(settings)) for _ in range(2))
    one.refit(responses)
    two.restore(one.state())
    assert_array_equal(predicted_responses(one, responses), predicted_responses(two, responses))


def test_hidden_types_and_tolerances_are_not_read():
    settings = DvrpSettings()
    population, responses = population_for(settings), simulate_responses(settings, days=10)
    hidden = replace(
        population,
        customers=replace(population.customers, types=np.zeros_like(population.customers.types)),
        trips=replace(population.trips, tolerance=np.zeros_like(population.trips.tolerance)),
        accepts=np.zeros_like(population.accepts),
    )
    one = bayesian_type_model(population, prior_for(settings))
    two = bayesian_type_model(hidden, prior_for(settings))
    one.refit(responses)
    two.refit(responses)
    for name, array in one.state().items():
        assert_array_equal(two.state()[name], array)


@pytest.mark.parametrize("has_memory", [True, False])
def test_forgetting_follows_a_customer_whose_tolerance_has_changed(has_memory):
    prior = prior_for(DvrpSettings(response_noise=0.05))
    calls = [(0, 0, 4, 0, True)] * 12 + [(0, 0, 4, 0, False)] * 4
    expected = {}
    for forgetting in (0.0, 0.3):
        model = BayesianTypeModel(1, prior, num_trips=int(has_memory), forgetting=forgetting)
        model.refit(columns(calls))
        expected[forgetting] = model.accept_probabilities(np.array([0]), np.array([4]), np.array([0]))[0, 0]
        for number in range(1, len(calls) + 1):  # one by one from the prior, under the same curves
            if number == 1:
                model.beliefs[:] = model.type_shares
            model.observe(columns(calls[:number]))
        found = model.accept_probabilities(np.array([0]), np.array([4]), np.array([0]))[0, 0]
        assert_allclose(found, expected[forgetting], atol=1e-5)
    assert expected[0.3] < expected[0.0] - 0.02


def test_what_is_expected_of_a_stranger_depends_on_the_purpose_of_the_trip():
    # Customers 0 to 9 refuse every shift of purpose 0 and accept every one of purpose 4; 10 is a stranger.
    calls = [
        (customer, 2 * customer + (purpose == 4), purpose, 0, purpose == 4)
        for customer in range(10)
        for purpose in (0, 4)
    ]
    model = BayesianTypeModel(11, guessed_prior(10), num_trips=22)
    model.refit(columns(calls * 5))
    stranger = np.full(2, 10)
    refused, accepted = model.accept_probabilities(stranger, np.array([0, 4]), np.array([20, 21]))[:, 0]
    assert accepted > refused + 0.2
