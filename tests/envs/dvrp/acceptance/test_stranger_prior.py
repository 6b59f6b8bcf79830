"""Prior of customers without responses: learned where a relation exists, the shares where none does."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from hundredfold.core import rng
from hundredfold.envs.dvrp.acceptance.bayes import bayesian_type_model
from hundredfold.envs.dvrp.acceptance.metrics import log_loss
from hundredfold.envs.dvrp.acceptance.model import ResponseBuffer, prior_for
from hundredfold.envs.dvrp.acceptance.stranger_prior import (
    StrangerPrior,
    customer_attributes,
    customer_groups,
    group_scales,
    home_cells,
)
from hundredfold.envs.dvrp.demand import DemandSampler, population_for
from hundredfold.envs.dvrp.offers import DEFAULT_OFFERS
from hundredfold.envs.dvrp.population import NUM_TYPES, TYPE_SHARES, sample_tolerances
from hundredfold.envs.dvrp.settings import DvrpSettings

SIZE = 120
OCCUPATIONS = ("at home", "employed", "retired", "student")


def population_with_types(settings, related):
    """The synthetic population with types drawn anew: mostly by occupation, or by the shares alone."""
    population = population_for(settings)
    draws = np.random.default_rng(settings.city_seed)
    usual = np.array([OCCUPATIONS.index(occupation) for occupation in population.customers.occupations])
    types = draws.choice(NUM_TYPES, len(usual), p=TYPE_SHARES)
    if related:
        types = np.where(draws.random(len(usual)) < 0.6, usual, types)
    of_trip = np.repeat(types, population.customers.num_trips)
    keys = rng.spawn(rng.seed_key(settings.city_seed), np.arange(len(of_trip)))
    tolerance = sample_tolerances(of_trip, population.trips.purpose, keys, DvrpSettings())
    return replace(
        population,
        customers=replace(population.customers, types=types),
        trips=replace(population.trips, tolerance=tolerance),
        accepts=DEFAULT_OFFERS.tolerated(tolerance),
    )


def responses_of(population, days=150):
    keys = rng.stream_keys(1, np.arange(days), 0)
    customer, trip = (part.ravel() for part in DemandSampler(population, "known", 30).sample(keys))
    uniforms = np.random.default_rng(3).random((len(trip), 16))
    offer = np.where(population.allowed[trip], uniforms, -1.0).argmax(axis=1)
    responses = ResponseBuffer()
    responses.add(customer, trip, population.trips.purpose[trip], offer, population.accepts[trip, offer])
    return responses.rows()


def stranger_losses(related, city):
    """Log loss of the types of customers never met, with and without the stranger prior."""
    settings = DvrpSettings(population_size=SIZE, city_seed=city)
    population = population_with_types(settings, related)
    responses, strangers = responses_of(population), np.arange(SIZE, 2 * SIZE)
    losses = []
    for stranger_prior in (True, False):
        model = bayesian_type_model(population, prior_for(settings), stranger_prior=stranger_prior)
        model.refit(responses)
        losses.append(log_loss(model.type_probabilities(strangers), population.customers.types[strangers]))
    return losses


def test_strangers_are_known_by_their_occupation_where_it_matters():
    learned, shares = np.mean([stranger_losses(True, city) for city in range(3)], axis=0)
    assert learned < shares - 0.2


def test_where_attributes_tell_nothing_strangers_keep_the_shares():
    learned, shares = np.mean([stranger_losses(False, city) for city in range(3)], axis=0)
    assert learned < shares + 0.01


@pytest.mark.parametrize("stranger_prior", [True, False])
def test_without_responses_beliefs_equal_the_prior(stranger_prior):
    settings = DvrpSettings()
    model = bayesian_type_model(population_for(settings), prior_for(settings), stranger_prior=stranger_prior)
    model.refit(ResponseBuffer().rows())
    assert_allclose(model.type_probabilities(np.arange(60)), np.tile(TYPE_SHARES, (60, 1)))
    assert np.isnan(model.trip_accept_rates).all()


def test_scales_follow_the_evidence_for_a_relation():
    expected = np.full((2, NUM_TYPES), 10.0)
    assert_allclose(group_scales(expected, expected), 1.0, atol=1e-12)
    strong = np.array([(37.0, 1.0, 1.0, 1.0), (1.0, 1.0, 1.0, 37.0)])
    weak = 1.0 + 0.02 * (strong - 10.0) + 9.0
    scales = group_scales(strong, expected)
    assert 2.5 < scales[0, 0] < 3.7
    assert scales[0, 3] < 0.5
    assert np.abs(group_scales(weak, expected) - 1.0).max() < 0.02


def test_a_group_without_customers_is_expected_to_be_average():
    counts = np.array([(30.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.0)])
    expected = np.array([(7.5, 7.5, 7.5, 7.5), (0.0, 0.0, 0.0, 0.0)])
    assert_allclose(group_scales(counts, expected)[1], 1.0)


def test_correlated_attributes_are_not_counted_twice():
    group = np.repeat([0, 1], 50)
    beliefs = np.where(group[:, None] == 0, (0.7, 0.1, 0.1, 0.1), (0.1, 0.1, 0.1, 0.7))
    shares, everybody = beliefs.mean(axis=0), np.ones(100, bool)
    once, twice = StrangerPrior([group], 100), StrangerPrior([group, group.copy()], 100)
    for _ in range(10):
        once.fit(shares, beliefs, everybody)
        twice.fit(shares, beliefs, everybody)
    assert_allclose(twice.probabilities(shares), once.probabilities(shares), atol=0.03)


def test_attributes_are_what_a_booking_shows():
    population = population_for(DvrpSettings())
    attributes = customer_attributes(population)
    assert set(attributes) == {"age", "occupation", "neighbourhood"}
    assert all(len(names) == population.size for names in attributes.values())
    assert set(attributes["age"]) <= {"0 to 24", "25 to 44", "45 to 64", "65 and over"}
    # Every synthetic customer has a trip that starts or ends at home.
    roles = np.array(["home" in name for name in _roles()])
    assert roles[home_cells(population)].all()


def test_attributes_that_tell_nobody_apart_are_left_out():
    population = population_for(DvrpSettings())
    unknown = replace(population.customers, ages=np.full(population.size, -1), occupations=("",) * population.size)
    groups = customer_groups(replace(population, customers=unknown))
    assert len(groups) == 1
    assert_array_equal(groups[0], customer_groups(population)[2])


def _roles():
    from hundredfold.envs.dvrp.city import POINTS_OF_INTEREST

    return [("depot",), *(point.roles for point in POINTS_OF_INTEREST)]
