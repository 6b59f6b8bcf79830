"""The exact acceptance model against people whose types are known to the test alone."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from helpers.asking import asked
from hundredfold.envs.dvrp.acceptance import metrics
from hundredfold.envs.dvrp.acceptance.bayes import BayesianTypeModel, mixed
from hundredfold.envs.dvrp.acceptance.prior import (
    accept_rates,
    answer_chances,
    guessed_prior,
    prior_for,
)
from hundredfold.envs.dvrp.acceptance.responses import ResponseBuffer, Responses
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


def fitted(settings, answers, prior=None):
    model = BayesianTypeModel(population_for(settings).size, prior or prior_for(settings))
    model.refit(answers)
    return model


def judged(settings, answers, prior=None):
    """(accuracy, Bayes-optimal accuracy) of the people who answered."""
    model = fitted(settings, answers, prior)
    population = population_for(settings)
    truth, heard = population.customers.types, np.unique(answers.person)
    rates = metrics.true_accept_rates(
        population, prior_for(settings).accept, settings.response_noise
    )
    found = metrics.accuracy(model.type_probabilities(heard), truth[heard])
    best = metrics.bayes_optimal_accuracy(answers, truth, rates)
    print(f"accuracy {found:.3f}, Bayes-optimal {best:.3f} ({len(answers)} answers)")
    return found, best


@pytest.mark.parametrize("kind", range(NUM_TYPES), ids=("late", "early", "none", "both"))
@pytest.mark.parametrize("seed", range(10))
def test_three_informative_answers_settle_a_strict_type(kind, seed):
    possible, offers = np.ones(NUM_TYPES, bool), []
    for offer in np.random.default_rng(seed).permutation(REAL_OFFERS):
        would = STRICT_ACCEPTS[:, offer]
        if would[possible].all() or not would[possible].any():
            continue  # everybody still possible answers alike: nothing to learn
        offers.append(offer)
        possible &= would == would[kind]
    assert len(offers) <= 3
    answers = ResponseBuffer()
    person, purpose = np.full(len(offers), 5), np.full(len(offers), 2)
    answers.add(person, purpose, np.array(offers), STRICT_ACCEPTS[kind, offers])
    model = fitted(HARD, answers.rows())
    assert model.type_probabilities(np.array([5]))[0, kind] > 0.99


def test_strict_types_are_all_found_after_a_few_days():
    found, best = judged(HARD, asked(HARD, days=20))
    assert found == best == 1.0


@pytest.mark.parametrize("travellers", [30, 200])
@pytest.mark.parametrize("days", [20, 200, 2500])
def test_soft_types_are_found_as_well_as_the_answers_allow(travellers, days):
    # One person of 30 is three points, so several cities speak together.
    found, best = np.mean(
        [
            judged(settings, asked(settings, days))
            for city in range(6)
            for settings in [DvrpSettings(population_size=travellers, city_seed=city)]
        ],
        axis=0,
    )
    assert found >= best - 0.02
    assert best < 1.0 or days >= 200, "with few answers nobody can know all types"


def test_noisy_answers_are_taken_with_salt():
    settings = DvrpSettings(population_size=200, response_noise=0.1)
    found, best = judged(settings, asked(settings, days=400))
    assert found >= best - 0.02
    assert 0.8 < best < 1.0


def test_noise_does_not_turn_strict_types_upside_down():
    settings = DvrpSettings(tolerances="types", response_noise=0.1)
    found, _ = judged(settings, asked(settings, days=60))
    assert found == 1.0


def test_types_keep_their_meaning_where_the_rule_is_unknown():
    settings = DvrpSettings(population_size=200)
    found, best = judged(settings, asked(settings, days=2500), guessed_prior(10))
    assert found >= best - 0.02


def test_held_out_answers_are_predicted_almost_as_by_the_rule_itself():
    settings = DvrpSettings(population_size=200)
    population = population_for(settings)
    unseen = asked(settings, days=200, seed=2, split="unseen_trips")
    rule = prior_for(settings)

    def loss(beliefs, rates):
        chance = mixed(beliefs[unseen.person], rates, unseen.purpose.astype(np.int64))
        told = chance[np.arange(len(unseen)), unseen.offer]
        return -np.log(np.where(unseen.accepted, told, 1 - told)).mean()

    best = loss(np.eye(NUM_TYPES)[population.customers.types], rule.accept)
    nobody = loss(np.tile(rule.shares, (population.size, 1)), rule.accept)
    answers = asked(settings, days=2500)
    for prior in (rule, guessed_prior(10)):
        model = fitted(settings, answers, prior)
        assert loss(model.beliefs, model.accept_given_type) < best + 0.02 * (nobody - best)


def test_the_rule_foresees_what_the_built_in_people_tolerate():
    settings = DvrpSettings(population_size=800)
    seen = metrics.true_accept_rates(population_for(settings), prior_for(settings).accept)
    assert_allclose(seen[:, :-1], prior_for(settings).accept[:, :-1], atol=0.08)


def test_acceptance_never_grows_with_what_is_asked():
    model = fitted(DvrpSettings(), asked(DvrpSettings(), days=100), guessed_prior(10))
    grid = model.accept_given_type.reshape(NUM_TYPES, 10, 4, 4)  # 30..0 earlier x 0..30 later
    assert (np.diff(grid, axis=2) >= 0).all()
    assert (np.diff(grid, axis=3) <= 0).all()


def test_strangers_are_like_the_people_met_so_far():
    settings = DvrpSettings(population_size=200)
    model = fitted(settings, asked(settings, days=300))
    stranger = model.type_probabilities(np.array([399]))[0]
    met = model.type_probabilities(np.arange(200)).mean(axis=0)
    assert_array_equal(stranger, model.shares)
    assert np.abs(stranger - met).max() < 0.5 * np.abs(met - TYPE_SHARES).max()


def test_without_answers_the_prior_stands():
    model = BayesianTypeModel(7, prior_for(DvrpSettings()))
    nothing = ResponseBuffer().rows()
    assert not model.ready(nothing)
    assert_allclose(model.type_probabilities(np.arange(7)), np.tile(TYPE_SHARES, (7, 1)))
    model.refit(nothing)
    assert_allclose(model.type_probabilities(np.arange(7)), np.tile(TYPE_SHARES, (7, 1)))


def test_where_everybody_accepts_everything_nobody_is_told_apart():
    settings = DvrpSettings(tolerances="unlimited")
    model = fitted(settings, asked(settings, days=20))
    assert_allclose(model.beliefs, np.tile(TYPE_SHARES, (60, 1)), atol=1e-3)


def test_chances_stay_off_zero_and_one():
    for settings in (HARD, DvrpSettings(), DvrpSettings(tolerances="unlimited")):
        rates = prior_for(settings).accept
        assert (rates[..., NO_CHANGE] == 1).all()
        assert rates[..., REAL_OFFERS].min() >= 1e-6
        assert rates[..., REAL_OFFERS].max() <= 1 - 1e-6


def test_a_strict_rule_with_noise_is_wrong_as_often_as_the_noise():
    rates = accept_rates(prior_for(HARD).levels, answer_chances(0.1))
    assert_allclose(rates[LATE_TYPE, :, 15], 0.9, atol=1e-4)
    assert_allclose(rates[EARLY_TYPE, :, 15], 0.1, atol=1e-4)
    assert_allclose(rates[NONE_TYPE, :, REAL_OFFERS], 0.1, atol=1e-4)
    assert_allclose(rates[BOTH_TYPE, :, REAL_OFFERS], 0.9, atol=1e-4)


def test_the_order_of_answers_does_not_matter():
    rows = asked(DvrpSettings(), days=20)
    shuffled = np.random.default_rng(0).permutation(len(rows))
    other = Responses(*(array[shuffled] for array in rows.arrays().values()))
    one, two = fitted(DvrpSettings(), rows), fitted(DvrpSettings(), other)
    assert_array_equal(one.beliefs, two.beliefs)


def test_accept_probabilities_mix_the_types():
    model = fitted(DvrpSettings(), asked(DvrpSettings(), days=3))
    people, purposes = np.array([4, 9]), np.array([0, 7])
    for row, (person, purpose) in enumerate(zip(people, purposes, strict=True)):
        expected = model.beliefs[person] @ model.accept_given_type[:, purpose]
        assert_allclose(model.accept_probabilities(people, purposes)[row], expected)


def test_your_own_files_get_a_guess_unless_types_are_strict():
    files = {"trips": "trips.csv", "travel_times": "matrix.csv"}
    assert prior_for(DvrpSettings(**files)).answers_worth < 10
    strict = prior_for(DvrpSettings(**files, tolerances="types"))
    assert_allclose(strict.accept, prior_for(HARD).accept)
    assert_allclose(strict.shares, 0.25)
    recorded = prior_for(
        DvrpSettings(**files, tolerances="types", recorded_responses="answers.csv")
    )
    assert recorded.answers_worth < 10
