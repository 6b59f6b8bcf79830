"""Metrics of acceptance models, checked by hand and against slow references."""

from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from helpers.responses import simulate_responses
from hundredfold.envs.dvrp.acceptance import metrics
from hundredfold.envs.dvrp.acceptance.model import ResponseBuffer, prior_for
from hundredfold.envs.dvrp.demand import population_for
from hundredfold.envs.dvrp.settings import DvrpSettings

BELIEFS = np.array([(0.7, 0.1, 0.1, 0.1), (0.2, 0.2, 0.5, 0.1), (0.0, 1.0, 0.0, 0.0)])
TRUTH = np.array([0, 1, 1])


def test_accuracy_and_confusion_count_the_most_likely_type():
    assert metrics.accuracy(BELIEFS, TRUTH) == pytest.approx(2 / 3)
    expected = np.zeros((4, 4), int)
    expected[0, 0] = expected[1, 2] = expected[1, 1] = 1
    assert_array_equal(metrics.confusion(BELIEFS, TRUTH), expected)


def test_log_loss_and_brier_by_hand():
    assert metrics.log_loss(BELIEFS, TRUTH) == pytest.approx(-np.log(0.7 * 0.2) / 3)
    expected = (0.09 + 0.03 + 0.04 + 0.64 + 0.25 + 0.01) / 3
    assert metrics.brier_score(BELIEFS, TRUTH) == pytest.approx(expected)
    assert metrics.log_loss(BELIEFS[[2]], np.array([0])) == pytest.approx(-np.log(1e-6))
    assert metrics.log_loss(np.full((1, 4), 0.25), np.array([3])) == pytest.approx(np.log(4))


def test_calibration_compares_predicted_with_observed_acceptance():
    predicted = np.array([0.05, 0.07, 0.35, 1.0, 0.95])
    found = metrics.calibration(predicted, np.array([False, True, False, True, True]))
    assert_array_equal(found.count, (2, 0, 0, 1, 0, 0, 0, 0, 0, 2))
    assert_allclose(found.predicted[[0, 3, 9]], (0.06, 0.35, 0.975))
    assert_allclose(found.observed[[0, 3, 9]], (0.5, 0.0, 1.0))
    assert np.isnan(found.observed[1])
    assert found.error == pytest.approx((2 * 0.44 + 0.35 + 2 * 0.025) / 5)
    squares = (0.05**2, 0.93**2, 0.35**2, 0.0, 0.05**2)
    assert found.brier_score == pytest.approx(np.mean(squares))


def test_responses_until_confident_agrees_with_a_slow_reference():
    settings = DvrpSettings()
    rows, prior = simulate_responses(settings, days=40), prior_for(settings)
    found = metrics.responses_until_confident(rows, 60, prior.accept_given_type, prior.type_shares)
    expected = np.full(60, np.nan)
    for customer in range(60):
        odds = prior.type_shares.copy()
        for number, at in enumerate(np.flatnonzero(rows.customer == customer), start=1):
            rates = prior.accept_given_type[:, rows.purpose[at], rows.offer[at]]
            odds = odds * (rates if rows.accepted[at] else 1 - rates)
            if odds.max() >= 0.9 * odds.sum():
                expected[customer] = number
                break
    assert_array_equal(found, expected)
    assert np.isnan(found[30:]).all(), "customers without responses"
    assert np.isfinite(found).sum() > 20


def test_two_responses_identify_a_strict_customer():
    settings = DvrpSettings(tolerances="types")
    responses = ResponseBuffer()
    responses.add(np.array([1, 1]), np.array([7, 8]), np.zeros(2, int), np.array([0, 15]), np.array([True, False]))
    prior = prior_for(settings)
    found = metrics.responses_until_confident(responses.rows(), 2, prior.accept_given_type, prior.type_shares)
    assert_array_equal(found, (np.nan, 2.0))


def test_true_rates_are_shares_of_known_trips_with_noise_except_for_offer_12():
    settings = DvrpSettings()
    population = population_for(settings)
    prior_rates = np.full((4, 10, 16), 0.25)
    rates = metrics.true_accept_rates(population, prior_rates)
    trips = [
        trip
        for customer in range(population.customers.num_known)
        if population.customers.types[customer] == 1
        for trip in population.first_trip[customer] + np.arange(population.num_known_trips[customer])
        if population.trips.purpose[trip] == 0
    ]
    expected = (population.accepts[trips].sum(axis=0) + 0.125) / (len(trips) + 0.5)
    assert_allclose(rates[1, 0], expected)
    assert_array_equal(rates[:, 9], 0.25), "no synthetic trip has purpose `other`"
    plain = metrics.true_accept_rates(population)
    assert_allclose(plain[1, 0], population.accepts[trips].mean(axis=0))
    assert (plain[1, 9] > plain[1, :9].min(axis=0) - 1e-9).all(), "the type's mean"
    noisy = metrics.true_accept_rates(population, rates, noise=0.2)
    assert noisy[1, 0, 12] > 0.98
    assert noisy[1, 0, 3] == pytest.approx(0.2, abs=0.02)


def test_a_purpose_without_trips_has_the_mean_rate_of_the_type():
    population = population_for(DvrpSettings())
    known = population.num_known_trips.copy()
    first = int(np.flatnonzero(population.customers.types == 1)[0])
    known[population.customers.types == 1] = 0
    known[first] = 1  # the only known trip of its type
    names = ("size", "customers", "trips", "first_trip", "accepts", "offers")
    few = SimpleNamespace(num_known_trips=known, **{name: getattr(population, name) for name in names})
    trip = population.first_trip[first]
    rates = metrics.true_accept_rates(few)
    assert_allclose(rates[1], np.broadcast_to(population.accepts[trip], (10, 16)))


def test_true_rates_beat_wrong_rates():
    settings = DvrpSettings(population_size=200)
    population, rows = population_for(settings), simulate_responses(settings, days=100)
    types = population.customers.types
    true = metrics.true_accept_rates(population, prior_for(settings).accept_given_type)
    best = metrics.bayes_optimal_accuracy(rows, types, true)
    wrong = metrics.bayes_optimal_accuracy(rows, types, true[[1, 0, 2, 3]])
    assert wrong + 0.3 < best < 1.0
