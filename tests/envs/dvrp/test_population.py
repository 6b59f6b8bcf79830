import numpy as np
import pytest
from numpy.testing import assert_array_equal

from hundredfold.core import rng
from hundredfold.core.errors import SettingsError
from hundredfold.envs.dvrp.demand import population_for
from hundredfold.envs.dvrp.offers import NO_CHANGE
from hundredfold.envs.dvrp.population import (
    FLEXIBLE_SIDES,
    TRIPS_PER_PERSON,
    drawn_tolerances,
    picks,
    servable_trips,
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
def test_every_trip_can_be_served_alone(settings):
    population = population_for(settings)
    trips = population.trips
    assert servable_trips(trips.windows, trips.cells, population.city, settings).all()
    assert (population.max_ride_minutes < np.inf).all() == (settings.service == "operator")


def test_windows_are_half_an_hour_on_a_grid_of_five_minutes():
    windows = population_for(DvrpSettings()).trips.windows
    assert (windows[..., 1] - windows[..., 0] == 30).all()
    assert not (windows % 5).any()
    assert windows.min() >= 6 * 60
    assert windows.max() <= 24 * 60


def test_personalities_have_their_shares():
    prior = population_for(MANY).type_prior
    assert np.abs(prior - (0.25, 0.40, 0.20, 0.15)).max() < 0.04


def test_trips_lead_somewhere_and_habits_are_two_to_four():
    population = population_for(MANY)
    trips = population.trips
    assert (trips.cells[:, 0] != trips.cells[:, 1]).all()
    assert trips.cells.min() > 0, "nobody lives in the depot"
    purposes = trips.purpose.reshape(-1, TRIPS_PER_PERSON)
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


def test_softness_and_purpose_shape_what_people_tolerate():
    population = population_for(MANY)
    types = np.repeat(population.customers.types, TRIPS_PER_PERSON)
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


def test_days_do_not_depend_on_what_people_tolerate():
    soft, hard = population_for(DvrpSettings()), population_for(DvrpSettings(tolerances="types"))
    assert_array_equal(soft.trips.cells, hard.trips.cells)
    assert_array_equal(soft.trips.windows, hard.trips.windows)
    assert (soft.accepts != hard.accepts).any()
    assert population_for(DvrpSettings(tolerances="unlimited")).accepts.all()


def test_splits_share_no_trip_and_the_unseen_are_nobody_known():
    population = population_for(DvrpSettings())

    def trips_of(split):
        _, first, count = population.split_customers(split)
        return {
            trip
            for start, number in zip(first, count, strict=True)
            for trip in range(start, start + number)
        }

    known, unseen, strangers = map(trips_of, ("known", "unseen_trips", "unseen_customers"))
    assert len(known) == 30 * 40
    assert len(unseen) == 30 * 10
    assert len(strangers) == 30 * 50
    assert not known & unseen
    assert not (known | unseen) & strangers
    assert known | unseen | strangers == trips_of("all")


def test_offer_12_is_accepted_and_allowed_by_everybody():
    population = population_for(DvrpSettings(service="operator"))
    assert population.accepts[:, NO_CHANGE].all()
    assert population.allowed[:, NO_CHANGE].all()
    assert not population.allowed.all(), "some offers would break the ride limit"


def test_a_population_follows_from_its_seed_alone():
    one, same = population_for(DvrpSettings()), population_for(DvrpSettings(num_vehicles=4))
    other = population_for(DvrpSettings(city_seed=1))
    assert_array_equal(one.trips.windows, same.trips.windows)
    assert (one.trips.windows != other.trips.windows).any()
    # More people do not change those who were there.
    larger = population_for(DvrpSettings(population_size=50))
    assert_array_equal(larger.trips.cells[:1500], one.trips.cells[:1500])


def test_hard_tolerances_are_all_or_nothing():
    types = np.arange(4)
    hard = drawn_tolerances(types, np.zeros(4, int), rng.spawn(1, types), "types", 0.5)
    assert hard.tolist() == [[0, 30], [30, 0], [0, 0], [30, 30]]


def test_picks_follow_their_weights():
    luck = (np.arange(1000) + 0.5) / 1000
    assert np.bincount(picks(np.array([1.0, 0.0, 3.0]), luck)).tolist() == [250, 0, 750]


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
def test_free_text_finds_its_purpose(text, name):
    assert PURPOSE_NAMES[purpose_of(text)] == name


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_customers": 0},
        {"num_customers": 40, "population_size": 30},
        {"trips": "trips.csv"},
        {"recorded_responses": "answers.csv"},
        {"observation": "nothing"},
        {"softness": 1.5},
        {"response_noise": float("nan")},
        {"day_minutes": 10},
        {"max_ride_minutes": -1.0},
        {"max_ride_factor": float("inf")},
    ],
)
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(SettingsError):
        DvrpSettings(**wrong)


@pytest.mark.parametrize(
    "wrong", [{"service_minutes": 40.0}, {"max_ride_minutes": 12.0}, {"day_minutes": 60}], ids=str
)
def test_settings_under_which_trips_cannot_be_served_are_refused(wrong):
    with pytest.raises(SettingsError, match="cannot be served even alone"):
        population_for(DvrpSettings(**wrong))


@pytest.mark.parametrize("customers", [10, 30, 60, 100])
def test_days_of_many_sizes_have_enough_people(customers):
    settings = DvrpSettings(num_customers=customers)
    callers, _, _ = population_for(settings).split_customers("unseen_customers")
    assert len(callers) >= customers
