"""The synthetic population, its splits, and the settings that define it."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from helpers.offers import NO_CHANGE
from hundredfold.core import rng
from hundredfold.core.errors import SettingsError
from hundredfold.envs.dvrp.acceptance.model import tolerance_survival
from hundredfold.envs.dvrp.analysis import effective_number
from hundredfold.envs.dvrp.city import synthetic_city
from hundredfold.envs.dvrp.demand import population_for
from hundredfold.envs.dvrp.population import (
    FLEXIBLE_SIDES,
    TRIPS_PER_CUSTOMER,
    cells_with,
    sample_categories,
    sample_tolerances,
    servable_trips,
    zipf_weights,
)
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.envs.dvrp.trip_purposes import PURPOSE_NAMES, PURPOSES, purpose_of

MANY = DvrpSettings(population_size=1000)


@pytest.mark.parametrize(
    "settings",
    [
        DvrpSettings(),
        DvrpSettings(service="operator"),
        DvrpSettings(day_minutes=1080),
        DvrpSettings(service="operator", service_minutes=2.0),
    ],
    ids=["research", "operator", "short day", "service"],
)
def test_every_trip_can_be_served_by_a_dedicated_vehicle(settings):
    population = population_for(settings)
    trips = population.trips
    assert servable_trips(trips.windows, trips.cells, population.city, settings).all()
    assert (population.max_ride_minutes < np.inf).all() == (settings.service == "operator")


def test_windows_are_30_minutes_long_on_a_grid_of_5_minutes():
    windows = population_for(DvrpSettings()).trips.windows
    assert (windows[..., 1] - windows[..., 0] == 30).all()
    assert not (windows % 5).any()
    assert windows.min() >= 6 * 60
    assert windows.max() <= 24 * 60


def test_customer_types_have_their_shares():
    prior = population_for(MANY).type_prior
    assert np.abs(prior - (0.25, 0.40, 0.20, 0.15)).max() < 0.04


def test_trips_change_cells_and_customers_have_two_to_four_habits():
    population = population_for(MANY)
    trips = population.trips
    assert (trips.cells[:, 0] != trips.cells[:, 1]).all()
    assert trips.cells.min() > 0, "no trip starts or ends at the depot"
    purposes = trips.purpose.reshape(-1, TRIPS_PER_CUSTOMER)
    habits = np.array([len(set(row)) for row in purposes.tolist()])
    assert habits.min() >= 1
    assert habits.max() == 4


def test_purposes_have_about_their_weights_and_paratransit_is_mostly_medical():
    research = np.bincount(population_for(MANY).trips.purpose, minlength=len(PURPOSES))
    shares = research / research.sum()
    # Habits are few, so rare purposes are a little rarer than their weight.
    assert np.abs(shares - [purpose.weight for purpose in PURPOSES]).max() < 0.12
    operator = population_for(DvrpSettings(service="operator")).trips.purpose
    assert np.bincount(operator).argmax() == PURPOSE_NAMES.index("medical")


def test_tolerances_depend_on_softness_and_purpose():
    population = population_for(MANY)
    types = np.repeat(population.customers.types, TRIPS_PER_CUSTOMER)
    tolerance, purpose = population.trips.tolerance, population.trips.purpose
    assert not (tolerance % 5).any()
    assert tolerance.min() == 0
    assert tolerance.max() == 30
    flexible = FLEXIBLE_SIDES[types]
    shopping = purpose == PURPOSE_NAMES.index("shopping")
    work = purpose == PURPOSE_NAMES.index("work")
    assert tolerance[flexible & shopping[:, None]].mean() == pytest.approx(25, abs=1)
    assert tolerance[flexible & work[:, None]].mean() == pytest.approx(7.5, abs=0.5)
    assert tolerance[~flexible & shopping[:, None]].mean() == pytest.approx(5, abs=0.7)
    stiff = population_for(DvrpSettings(population_size=1000, softness=0.0)).trips.tolerance
    assert stiff[~flexible].mean() < 2


def test_trips_do_not_depend_on_tolerances():
    soft, hard = population_for(DvrpSettings()), population_for(DvrpSettings(tolerances="types"))
    assert_array_equal(soft.trips.cells, hard.trips.cells)
    assert_array_equal(soft.trips.windows, hard.trips.windows)
    assert (soft.accepts != hard.accepts).any()
    assert population_for(DvrpSettings(tolerances="unlimited")).accepts.all()


def test_splits_are_disjoint():
    population = population_for(DvrpSettings())

    def trips_of(split):
        _, first, count = population.split_customers(split)
        return {trip for start, number in zip(first, count, strict=True) for trip in range(start, start + number)}

    known, unseen_trips, unseen_customers = map(trips_of, ("known", "unseen_trips", "unseen_customers"))
    assert len(known) == 30 * 40
    assert len(unseen_trips) == 30 * 10
    assert len(unseen_customers) == 30 * 50
    assert not known & unseen_trips
    assert not (known | unseen_trips) & unseen_customers
    assert known | unseen_trips | unseen_customers == trips_of("all")


def test_offer_12_is_always_accepted_and_allowed():
    population = population_for(DvrpSettings(service="operator"))
    assert population.accepts[:, NO_CHANGE].all()
    assert population.allowed[:, NO_CHANGE].all()
    assert not population.allowed.all(), "some offers exceed the ride-time limit"


def test_the_population_depends_on_the_city_seed_alone():
    one, same = population_for(DvrpSettings()), population_for(DvrpSettings(num_vehicles=4))
    other = population_for(DvrpSettings(city_seed=1))
    assert_array_equal(one.trips.windows, same.trips.windows)
    assert (one.trips.windows != other.trips.windows).any()
    # A larger population extends the smaller one.
    larger = population_for(DvrpSettings(population_size=50))
    assert_array_equal(larger.trips.cells[:1500], one.trips.cells[:1500])


def test_strict_tolerances_are_0_or_30_minutes():
    types = np.arange(4)
    strict = sample_tolerances(types, np.zeros(4, int), rng.spawn(1, types), DvrpSettings(tolerances="types"))
    assert strict.tolist() == [[0, 30], [30, 0], [0, 0], [30, 30]]


def test_sampled_categories_follow_their_weights():
    uniforms = (np.arange(1000) + 0.5) / 1000
    assert np.bincount(sample_categories(np.array([1.0, 0.0, 3.0]), uniforms)).tolist() == [250, 0, 750]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Work", "work"),
        ("return_home", "return home"),
        ("grocery shopping", "shopping"),
        ("Hiking trip", "recreation"),
        ("morning workout", "recreation"),
        ("doctor's appointment", "medical"),
        ("xyzzy", "other"),
    ],
)
def test_free_text_is_mapped_to_a_purpose(text, name):
    assert PURPOSE_NAMES[purpose_of(text)] == name


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_customers": 0},
        {"num_customers": 40, "population_size": 30},
        {"travel_times": "matrix.csv"},
        {"vehicles": "vehicles.csv"},
        {"trips": "trips.csv", "vehicles": "vehicles.csv", "num_vehicles": 3},
        {"trips": "trips.csv", "vehicles": "vehicles.csv", "oracle": "neural"},
        {"speed_kmh": float("inf")},
        {"detour_factor": 0.5},
        {"recorded_responses": "responses.csv"},
        {"observation": "nothing"},
        {"softness": 1.5},
        {"city": "nowhere"},
        {"city": "hubs", "trips": "trips.csv", "travel_times": "matrix.csv"},
        {"response_noise": float("nan")},
        {"day_minutes": 10},
        {"max_ride_minutes": -1.0},
        {"max_ride_factor": float("inf")},
    ],
)
def test_invalid_settings_are_rejected(wrong):
    with pytest.raises(SettingsError):
        DvrpSettings(**wrong)


def test_an_infinite_ride_time_removes_the_limit_of_the_operator():
    settings = DvrpSettings(service="operator", max_ride_minutes=float("inf"))
    assert np.isinf(population_for(settings).max_ride_minutes).all()


@pytest.mark.parametrize("wrong", [{"service_minutes": 40.0}, {"max_ride_minutes": 12.0}, {"day_minutes": 60}], ids=str)
def test_settings_with_unservable_trips_are_rejected(wrong):
    with pytest.raises(SettingsError, match="cannot be served even by a dedicated"):
        population_for(DvrpSettings(**wrong))


@pytest.mark.parametrize("customers", [10, 30, 60, 100])
def test_the_population_is_large_enough_for_any_number_of_customers(customers):
    settings = DvrpSettings(num_customers=customers)
    available, _, _ = population_for(settings).split_customers("unseen_customers")
    assert len(available) >= customers


def test_zipf_weights_fall_with_the_distance_from_the_hub():
    city = synthetic_city(0)
    homes = cells_with(("home",))
    hub = int(np.flatnonzero(homes)[3])
    weights = zipf_weights(homes, hub, city)
    assert_array_equal(weights > 0, homes > 0)
    cells = np.flatnonzero(weights)
    assert_array_equal(np.sort(weights[cells])[::-1], 1.0 / np.arange(1, len(cells) + 1) ** 2)
    assert weights[hub] == 1.0
    distance = city.travel_minutes[hub] + city.travel_minutes[:, hub]
    nearest_first = cells[np.argsort(-weights[cells])]
    assert (np.diff(distance[nearest_first]) >= 0).all()


def test_hubs_depend_on_the_city_seed_and_concentrate_the_same_customers():
    settings = [DvrpSettings(city="hubs", city_seed=seed) for seed in range(6)]
    populations = [population_for(each) for each in settings]
    again = population_for(replace(settings[1], lns_iterations=0))
    assert_array_equal(again.trips.cells, populations[1].trips.cells)
    assert_array_equal(again.trips.tolerance, populations[1].trips.tolerance)
    most_frequent = [np.bincount(population.trips.cells[:, 0]).argmax() for population in populations]
    assert len(set(most_frequent)) > 3
    for population, each in zip(populations, settings, strict=True):
        even = population_for(replace(each, city="spread"))
        assert_array_equal(population.customers.types, even.customers.types)
        assert_array_equal(population.trips.purpose, even.trips.purpose)
        assert (population.trips.cells[:, 0] != population.trips.cells[:, 1]).all()
        assert effective_number(population.trips.cells[:, 0]) < 6 < 15 < effective_number(even.trips.cells[:, 0])
        assert population.trips.tolerance.mean() > even.trips.tolerance.mean()


def test_softness_has_a_default_by_city_and_the_acceptance_model_knows_it():
    assert DvrpSettings().effective_softness == 0.5
    assert DvrpSettings(city="hubs").effective_softness == 1.0
    assert DvrpSettings(city="hubs", softness=0.0).effective_softness == 0.0
    hubs = DvrpSettings(city="hubs", population_size=1000)
    trips = population_for(hubs).trips
    flexible = FLEXIBLE_SIDES[np.repeat(population_for(hubs).customers.types, TRIPS_PER_CUSTOMER)]
    shopping = trips.purpose == PURPOSE_NAMES.index("shopping")
    observed = (trips.tolerance[~flexible & shopping[:, None]] >= 10).mean()
    expected = tolerance_survival(hubs)[0, 0, PURPOSE_NAMES.index("shopping"), 1]
    assert observed == pytest.approx(expected, abs=0.02)


def test_the_default_city_stays_as_it_was():
    trips = population_for(DvrpSettings()).trips
    assert trips.cells.sum(axis=0).tolist() == [49541, 97248]
    assert trips.tolerance.sum(axis=0).tolist() == [32215.0, 34510.0]
