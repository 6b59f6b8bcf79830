"""Figures of merit, checked by hand and by a slow retelling."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from helpers.asking import asked
from hundredfold.envs.dvrp.acceptance import metrics
from hundredfold.envs.dvrp.acceptance.prior import prior_for
from hundredfold.envs.dvrp.acceptance.responses import ResponseBuffer
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
    assert metrics.brier(BELIEFS, TRUTH) == pytest.approx(expected)
    assert metrics.log_loss(BELIEFS[[2]], np.array([0])) == pytest.approx(-np.log(1e-6))
    assert metrics.log_loss(np.full((1, 4), 0.25), np.array([3])) == pytest.approx(np.log(4))


def test_calibration_compares_what_was_said_with_what_happened():
    predicted = np.array([0.05, 0.07, 0.35, 1.0, 0.95])
    found = metrics.calibration(predicted, np.array([False, True, False, True, True]))
    assert_array_equal(found.count, (2, 0, 0, 1, 0, 0, 0, 0, 0, 2))
    assert_allclose(found.predicted[[0, 3, 9]], (0.06, 0.35, 0.975))
    assert_allclose(found.observed[[0, 3, 9]], (0.5, 0.0, 1.0))
    assert np.isnan(found.observed[1])
    assert found.error == pytest.approx((2 * 0.44 + 0.35 + 2 * 0.025) / 5)


def test_masks_are_blamed_only_for_real_offers_that_would_be_taken():
    mask, acceptable = np.ones((2, 16), bool), np.zeros((2, 16), bool)
    acceptable[0, [1, 2, 12]] = acceptable[1, [3, 4]] = True
    mask[0, [1, 12]] = mask[1, 9] = False
    assert metrics.masked_away_share(mask, acceptable) == 0.25
    offers, accepted = np.array([12, 3, 3, 5]), np.array([True, False, True, False])
    assert metrics.refused_share(offers, accepted) == pytest.approx(2 / 3)
    assert np.isnan(metrics.refused_share(offers[:1], accepted[:1]))


def test_answers_until_sure_agrees_with_a_slow_retelling():
    settings = DvrpSettings()
    rows, prior = asked(settings, days=40), prior_for(settings)
    found = metrics.responses_until_confident(rows, 60, prior.accept, prior.shares)
    expected = np.full(60, np.nan)
    for person in range(60):
        odds = prior.shares.copy()
        for number, at in enumerate(np.flatnonzero(rows.person == person), start=1):
            chance = prior.accept[:, rows.purpose[at], rows.offer[at]]
            odds = odds * (chance if rows.accepted[at] else 1 - chance)
            if odds.max() >= 0.9 * odds.sum():
                expected[person] = number
                break
    assert_array_equal(found, expected)
    assert np.isnan(found[30:]).all(), "people who were never asked"
    assert np.isfinite(found).sum() > 20


def test_two_answers_are_enough_to_be_sure_of_a_strict_person():
    settings = DvrpSettings(tolerances="types")
    answers = ResponseBuffer()
    answers.add(np.array([1, 1]), np.zeros(2, int), np.array([0, 15]), np.array([True, False]))
    prior = prior_for(settings)
    found = metrics.responses_until_confident(answers.rows(), 2, prior.accept, prior.shares)
    assert_array_equal(found, (np.nan, 2.0))


def test_true_rates_are_shares_of_known_trips():
    settings = DvrpSettings()
    population = population_for(settings)
    fallback = np.full((4, 10, 16), 0.25)
    rates = metrics.true_accept_rates(population, fallback)
    trips = [
        trip
        for person in range(population.customers.num_known)
        if population.customers.types[person] == 1
        for trip in population.first_trip[person] + np.arange(population.num_known_trips[person])
        if population.trips.purpose[trip] == 0
    ]
    expected = (population.accepts[trips].sum(axis=0) + 0.125) / (len(trips) + 0.5)
    assert_allclose(rates[1, 0], expected)
    assert_array_equal(rates[:, 9], 0.25), "no built-in trip has purpose `other`"
    noisy = metrics.true_accept_rates(population, rates, noise=0.2)
    assert noisy[1, 0, 12] > 0.98
    assert noisy[1, 0, 3] == pytest.approx(0.2, abs=0.02)


def test_knowing_how_types_answer_beats_a_wrong_idea_of_it():
    settings = DvrpSettings(population_size=200)
    population, rows = population_for(settings), asked(settings, days=100)
    types = population.customers.types
    true = metrics.true_accept_rates(population, prior_for(settings).accept)
    best = metrics.bayes_optimal_accuracy(rows, types, true)
    wrong = metrics.bayes_optimal_accuracy(rows, types, true[[1, 0, 2, 3]])
    assert wrong + 0.3 < best < 1.0
