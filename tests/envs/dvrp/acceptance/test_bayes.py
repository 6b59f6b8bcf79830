"""BayesianTypeModel on simulated customers whose true types only the test knows."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from helpers.offers import NO_CHANGE, NUM_OFFERS
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
    strict_accept_rates,
    tolerance_pair_probs,
    tolerance_survival,
)
from hundredfold.envs.dvrp.demand import population_for
from hundredfold.envs.dvrp.offers import DEFAULT_OFFERS
from hundredfold.envs.dvrp.population import (
    BOTH_TYPE,
    EARLY_TYPE,
    FLEXIBLE_SIDES,
    LATE_TYPE,
    NONE_TYPE,
    NUM_TYPES,
    PURPOSE_NAMES,
    TYPE_SHARES,
)
from hundredfold.envs.dvrp.settings import DvrpSettings

HARD = DvrpSettings(tolerances="types")
STRICT_ACCEPTS = DEFAULT_OFFERS.tolerated(np.where(FLEXIBLE_SIDES, 30.0, 0.0))
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


def test_a_guessed_prior_expects_few_large_shifts_and_more_of_flexible_sides():
    probs = guessed_prior(3).tolerance_probs
    assert probs.shape == (2, 2, 3, 4)
    assert_allclose(probs.sum(axis=-1), 1.0)
    tolerated = 1.0 - probs.cumsum(axis=-1)[..., :-1]  # 10, 20 and 30 minutes
    assert_allclose(tolerated[0], np.broadcast_to((0.40, 0.15, 0.05), (2, 3, 3)))
    assert_allclose(tolerated[1], np.broadcast_to((0.85, 0.55, 0.30), (2, 3, 3)))


def test_strict_customers_accept_shifts_of_their_flexible_sides():
    rates = strict_accept_rates(2)
    assert rates.shape == (4, 2, NUM_OFFERS)
    shifts = DEFAULT_OFFERS.minutes != 0  # (offers, sides)
    for kind, flexible in enumerate(FLEXIBLE_SIDES):
        accepted = ~(shifts & ~flexible).any(axis=1)
        assert_allclose(rates[kind], np.broadcast_to(accepted, (2, NUM_OFFERS)), atol=1e-5)
    assert_array_equal(rates[..., NO_CHANGE], 1.0)


@pytest.mark.parametrize("tolerances", ["soft", "types", "unlimited"])
def test_fewer_trips_tolerate_more_and_all_tolerate_nothing(tolerances):
    survival = tolerance_survival(DvrpSettings(tolerances=tolerances))
    assert survival.shape == (2, 2, len(PURPOSE_NAMES), 4)
    assert_array_equal(survival[..., 0], 1.0)
    assert (np.diff(survival, axis=-1) <= 0.0).all()
    assert (survival >= 0.0).all()


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
    rates = accept_rates(prior_for(HARD).tolerance_probs, accept_likelihood(0.1), NO_CHANGE)
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


@pytest.mark.parametrize("has_memory", [True, False])
def test_observing_responses_one_by_one_gives_the_posterior_of_all(has_memory):
    settings = DvrpSettings(response_noise=0.1)
    responses = simulate_responses(settings, 40)
    num_trips = len(population_for(settings).trips.purpose) if has_memory else 0
    model = BayesianTypeModel(60, prior_for(settings), num_trips=num_trips)
    customer = int(responses.customer[0])
    rows = np.flatnonzero(responses.customer == customer)
    assert len(rows) > 10
    for number in range(1, len(rows) + 1):
        model.observe(Responses(**{name: column[rows[:number]] for name, column in responses.arrays().items()}))

    pairs = tolerance_pair_probs(model.tolerance_probs)
    likelihood = np.clip(model.likelihood, 1e-3, 1 - 1e-3)
    scores = np.log(model.prior.type_shares)
    trips = responses.trip[rows] if has_memory else np.arange(len(rows))
    for trip in np.unique(trips):
        of_trip = rows[trips == trip]
        given_tolerances = np.prod(
            [
                likelihood[offer] if accepted else 1 - likelihood[offer]
                for offer, accepted in zip(responses.offer[of_trip], responses.accepted[of_trip], strict=True)
            ],
            axis=0,
        )
        scores += np.log(pairs[:, responses.purpose[of_trip[0]]] @ given_tolerances)
    expected = np.exp(scores - scores.max())
    assert_allclose(model.beliefs[customer], expected / expected.sum(), atol=1e-9)
    others = np.arange(60) != customer
    assert_array_equal(model.beliefs[others], np.tile(model.prior.type_shares, (59, 1)))
    if has_memory:
        rates = model.trip_accept_rates[np.unique(trips)]
        assert np.isfinite(rates).all()
        assert np.isnan(model.trip_accept_rates).any(axis=1).sum() == num_trips - len(rates)
