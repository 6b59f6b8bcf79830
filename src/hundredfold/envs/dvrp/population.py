"""Who may call and with which trips: the population, its splits, and the built-in people.

A population is drawn or loaded once and shared by all envs; a day picks callers and trips from it.
Everything an answer or a mask needs is looked up by trip.

The built-in people: homes, personalities, habits and fifty trips each, drawn from a seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from hundredfold.core import rng
from hundredfold.core.batch import BoolArray, FloatArray, IntArray
from hundredfold.core.errors import SettingsError
from hundredfold.core.rng import Keys
from hundredfold.envs.dvrp.city import (
    PEOPLE_BRANCH,
    PLACES,
    TOLERANCE_BRANCH,
    TRIP_BRANCH,
    City,
    synthetic_city,
)
from hundredfold.envs.dvrp.offers import allowed_offers, servable_alone, tolerated_offers
from hundredfold.envs.dvrp.settings import RIDE_GRACE_MINUTES, DvrpSettings, Split, Tolerances
from hundredfold.envs.dvrp.trip_purposes import (
    ANYWHERE,
    HOME,
    PURPOSE_NAMES,
    PURPOSES,
    TOLERANCE_FACTORS,
    Purpose,
)
from hundredfold.routing.problem import DROPOFF, PICKUP

LATE_TYPE, EARLY_TYPE, NONE_TYPE, BOTH_TYPE = 0, 1, 2, 3
TYPE_NAMES: Final = ("late", "early", "none", "both")
NUM_TYPES: Final = len(TYPE_NAMES)
# (types, 2): whether a personality bends for an earlier pickup, for a later dropoff.
FLEXIBLE_SIDES: Final[BoolArray] = np.array(
    [(False, True), (True, False), (False, False), (True, True)]
)
TYPE_SHARES: Final = (0.25, 0.40, 0.20, 0.15)

MAX_TOLERANCE: Final = 30.0
FLEXIBLE_BASE, INFLEXIBLE_BASE, TOLERANCE_SPREAD = 25.0, 10.0, 4.0
TOLERANCE_GRID: Final = 5.0

# Of everybody's trips, this share may be met in training.
KNOWN_SHARE: Final = 0.8


@dataclass(frozen=True, slots=True, eq=False)
class Trips:
    """All trips of a population, those of one person side by side."""

    cells: IntArray  # (trips, 2) pickup, dropoff
    windows: FloatArray  # (trips, 2, 2) pickup, dropoff x early, late; minutes
    purpose: IntArray  # (trips,)
    tolerance: FloatArray  # (trips, 2) minutes earlier, later


@dataclass(frozen=True, slots=True, eq=False)
class Customers:
    """Everybody who may call. Known people come first, then those held back from training."""

    types: IntArray  # (people,)
    num_known: int
    num_trips: IntArray  # (people,)
    ages: IntArray  # (people,), -1 where unknown
    occupations: tuple[str, ...]  # (people,), empty where unknown


@dataclass(frozen=True, eq=False)
class Population:
    """Customers, their trips, and the tables that every day looks things up in."""

    city: City
    customers: Customers
    trips: Trips
    max_ride_minutes: FloatArray  # (trips,), inf where unlimited
    accepts: BoolArray  # (trips, offers) the honest answers
    allowed: BoolArray  # (trips, offers) True = may be offered

    @property
    def size(self) -> int:
        return len(self.customers.types)

    @cached_property
    def first_trip(self) -> IntArray:
        """(people,) where each person's trips begin."""
        ends = np.cumsum(self.customers.num_trips)
        return np.asarray(ends - self.customers.num_trips, np.int64)

    @cached_property
    def num_known_trips(self) -> IntArray:
        """(people,) trips that training may meet; the rest are held back."""
        known = np.rint(KNOWN_SHARE * self.customers.num_trips).astype(np.int64)
        return np.asarray(np.clip(known, 1, self.customers.num_trips), np.int64)

    @cached_property
    def type_prior(self) -> FloatArray:
        """(types,) shares of the personalities among known people."""
        counts = np.bincount(self.customers.types[: self.customers.num_known], minlength=NUM_TYPES)
        return np.asarray(counts / counts.sum(), np.float64)

    @cached_property
    def accept_rate(self) -> FloatArray:
        """(offers,) share of known people's trips that would accept each offer."""
        known = int(self.customers.num_trips[: self.customers.num_known].sum())
        return np.asarray(self.accepts[:known].mean(axis=0), np.float64)

    def split_customers(self, split: Split) -> tuple[IntArray, IntArray, IntArray]:
        """Who may call in a split: people, the first trip each may ask for, and how many."""
        num_known, num_trips = self.customers.num_known, self.customers.num_trips
        everybody = np.arange(self.size)
        first, count = self.first_trip, num_trips
        if split == "known":
            chosen, count = everybody[:num_known], self.num_known_trips
        elif split == "unseen_trips":
            chosen = everybody[:num_known]
            first, count = first + self.num_known_trips, num_trips - self.num_known_trips
        elif split == "unseen_customers":
            chosen = everybody[num_known:]
        else:
            chosen = everybody
        chosen = chosen[count[chosen] > 0]
        return chosen, first[chosen], count[chosen]


def finished_population(
    city: City,
    customers: Customers,
    trips: Trips,
    settings: DvrpSettings,
    accepts: BoolArray | None = None,
) -> Population:
    """A population with its tables; answers follow the tolerances unless they are given."""
    ride = ride_limits(trips.cells, city, settings)
    population = Population(
        city=city,
        customers=customers,
        trips=trips,
        max_ride_minutes=ride,
        accepts=tolerated_offers(trips.tolerance) if accepts is None else accepts,
        allowed=allowed_offers(
            trips.windows,
            trips.cells,
            city.travel_minutes,
            city.depot_cell,
            settings.day_minutes,
            settings.service_minutes,
            ride,
        ),
    )
    callers, _, _ = population.split_customers(settings.split)
    if len(callers) < settings.num_customers:
        raise SettingsError(
            f"the split {settings.split} has {len(callers)} people with trips while "
            f"num_customers is {settings.num_customers}; lower num_customers or bring more people."
        )
    return population


def ride_limits(cells: IntArray, city: City, settings: DvrpSettings) -> FloatArray:
    """(trips,) the longest ride each trip may take; inf without limits."""
    limit = np.full(len(cells), np.inf)
    if settings.max_ride_minutes is not None:
        limit = np.minimum(limit, settings.max_ride_minutes)
    if settings.ride_factor is not None:
        direct = city.travel_minutes[cells[:, PICKUP], cells[:, DROPOFF]]
        limit = np.minimum(limit, settings.ride_factor * direct + RIDE_GRACE_MINUTES)
    return np.asarray(limit, np.float64)


def servable_trips(
    windows: FloatArray, cells: IntArray, city: City, settings: DvrpSettings
) -> BoolArray:
    """(trips,) whether each trip, as asked, could be served by a vehicle of its own."""
    return servable_alone(
        windows,
        cells,
        city.travel_minutes,
        city.depot_cell,
        settings.day_minutes,
        settings.service_minutes,
        ride_limits(cells, city, settings),
    )


def drawn_tolerances(
    types: IntArray, purpose: IntArray, keys: Keys, mode: Tolerances, softness: float
) -> FloatArray:
    """(trips, 2) minutes that each trip tolerates; `types`, `purpose` and `keys` are per trip."""
    flexible = FLEXIBLE_SIDES[types]
    if mode == "unlimited":
        return np.full(flexible.shape, MAX_TOLERANCE)
    if mode == "types":
        return np.where(flexible, MAX_TOLERANCE, 0.0)
    base = np.where(flexible, FLEXIBLE_BASE, INFLEXIBLE_BASE * softness)
    factor = np.asarray(TOLERANCE_FACTORS)[purpose]
    noise = TOLERANCE_SPREAD * rng.normals(keys[:, None], np.arange(2))
    grid = np.rint((base * factor[:, None] + noise) / TOLERANCE_GRID) * TOLERANCE_GRID
    return np.asarray(np.clip(grid, 0.0, MAX_TOLERANCE), np.float64)


TRIPS_PER_PERSON: Final = 50
MIN_HABITS, MAX_HABITS = 2, 4
WINDOW_MINUTES: Final = 30.0
GRID_MINUTES: Final = 5.0
YOUNGEST, OLDEST, PENSION_AGE = 18, 90, 67

# Draws of a person's stream, and of a trip's.
_TYPE, _HOME, _OFFICE, _SCHOOL, _AGE, _NUM_HABITS, _HABITS = range(7)
_PURPOSE, _ORIGIN, _DESTINATION, _BAND, _SLOT, _LEAVES_OFFICE = range(6)


def synthetic_population(settings: DvrpSettings) -> Population:
    """As many unseen people as known ones; who they are depends on the city seed alone."""
    city = synthetic_city(settings.city_seed)
    num_people = 2 * settings.people
    root = rng.spawn(rng.seed_key(settings.city_seed), PEOPLE_BRANCH)
    keys = rng.spawn(root, np.arange(num_people))
    habits = _habits(keys, _purpose_weights(settings))
    types = picks(np.array(TYPE_SHARES), rng.uniforms(keys, _TYPE))
    ages = YOUNGEST + rng.integers(keys, _AGE, OLDEST - YOUNGEST + 1)
    customers = Customers(
        types=types,
        num_known=settings.people,
        num_trips=np.full(num_people, TRIPS_PER_PERSON),
        ages=ages,
        occupations=tuple(map(_occupation, habits > 0.0, ages)),
    )
    trips = _trips(keys, habits, np.repeat(types, TRIPS_PER_PERSON), city, settings)
    hopeless = ~servable_trips(trips.windows, trips.cells, city, settings)
    if hopeless.any():
        raise SettingsError(
            f"{hopeless.mean():.0%} of the built-in trips cannot be served even alone; lower "
            f"service_minutes ({settings.service_minutes}), or raise the ride limit "
            f"(max_ride_minutes {settings.max_ride_minutes}, max_ride_factor "
            f"{settings.max_ride_factor}) or day_minutes ({settings.day_minutes})."
        )
    return finished_population(city, customers, trips, settings)


def picks(weights: FloatArray, luck: FloatArray) -> IntArray:
    """The choice that each number in [0, 1) falls on; `weights` (..., choices), `luck` (...)."""
    ends = np.cumsum(weights, axis=-1)
    chosen = (luck[..., None] * ends[..., -1:] >= ends).sum(axis=-1)
    # Rounding may carry a number past the last end.
    return np.asarray(np.minimum(chosen, weights.shape[-1] - 1), np.int64)


def cells_with(roles: tuple[str, ...]) -> FloatArray:
    """(cells,) 1 for cells that have one of the roles, else 0; cell 0 is the depot."""
    return np.array([0.0] + [float(bool(set(roles) & set(place.roles))) for place in PLACES])


def _purpose_weights(settings: DvrpSettings) -> FloatArray:
    paratransit = settings.service == "operator"
    return np.array([p.paratransit_weight if paratransit else p.weight for p in PURPOSES])


def _habits(keys: Keys, weights: FloatArray) -> FloatArray:
    """(people, purposes) weights of each person's two to four usual purposes, 0 for the others."""
    luck = rng.uniforms(keys[:, None], _HABITS + np.arange(len(weights)))
    # Drawing without replacement by weight is taking the first arrivals of exponential clocks.
    order = np.argsort(-np.log1p(-luck) / weights, axis=1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(len(weights))[None, :], axis=1)
    number = MIN_HABITS + rng.integers(keys, _NUM_HABITS, MAX_HABITS - MIN_HABITS + 1)
    return np.where(rank < number[:, None], weights, 0.0)


def _occupation(has_habit: FloatArray, age: int) -> str:
    if has_habit[PURPOSE_NAMES.index("work")]:
        return "employed"
    if has_habit[PURPOSE_NAMES.index("school")]:
        return "student"
    return "retired" if age >= PENSION_AGE else "at home"


def _trips(
    person_keys: Keys, habits: FloatArray, types: IntArray, city: City, settings: DvrpSettings
) -> Trips:
    root = rng.spawn(person_keys, TRIP_BRANCH)[:, None]
    keys = rng.spawn(root, np.arange(TRIPS_PER_PERSON)).ravel()
    person = np.repeat(np.arange(len(person_keys)), TRIPS_PER_PERSON)
    purpose = picks(habits[person], rng.uniforms(keys, _PURPOSE))
    homes = picks(cells_with(("home",)), rng.uniforms(person_keys, _HOME))
    usual = {
        "work": picks(cells_with(("office",)), rng.uniforms(person_keys, _OFFICE)),
        "school": picks(cells_with(("school",)), rng.uniforms(person_keys, _SCHOOL)),
    }
    cells = np.zeros((len(keys), 2), np.int64)
    start = np.zeros(len(keys))
    for number, kind in enumerate(PURPOSES):
        rows = np.flatnonzero(purpose == number)
        home, office = homes[person[rows]], usual["work"][person[rows]]
        origin = _origins(kind, keys[rows], home, office)
        cells[rows, PICKUP] = origin
        if kind.name in usual:
            cells[rows, DROPOFF] = usual[kind.name][person[rows]]
        elif not kind.destination_roles:
            cells[rows, DROPOFF] = home
        else:
            luck = rng.uniforms(keys[rows], _DESTINATION)
            cells[rows, DROPOFF] = _elsewhere(cells_with(kind.destination_roles), origin, luck)
        start[rows] = _starts(kind, keys[rows])
    windows = windows_around(cells, start, city, settings.day_minutes)
    tolerance_keys = rng.spawn(keys, TOLERANCE_BRANCH)
    tolerance = drawn_tolerances(
        types, purpose, tolerance_keys, settings.tolerances, settings.softness
    )
    return Trips(cells=cells, windows=windows, purpose=purpose, tolerance=tolerance)


def _origins(kind: Purpose, keys: Keys, home: IntArray, office: IntArray) -> IntArray:
    if kind.origin == HOME:
        return home
    places = np.ones(len(PLACES) + 1)
    places[0] = 0.0
    # Customers on their way home are not at home; anybody else may start anywhere.
    luck = rng.uniforms(keys, _ORIGIN)
    if kind.origin == ANYWHERE:
        return picks(places, luck)
    anywhere = _elsewhere(places, home, luck)
    leaves_office = (rng.uniforms(keys, _LEAVES_OFFICE) < 0.5) & (office != home)
    return np.where(leaves_office, office, anywhere)


def _elsewhere(weights: FloatArray, origin: IntArray, luck: FloatArray) -> IntArray:
    """A cell of these weights that is not the origin."""
    table = np.repeat(weights[None, :], len(origin), axis=0)
    table[np.arange(len(origin)), origin] = 0.0
    return picks(table, luck)


def _starts(kind: Purpose, keys: Keys) -> FloatArray:
    """Start of the pickup window, on the grid inside one of the purpose's bands of hours."""
    hours = np.array(kind.hours)
    band = hours[picks(hours[:, 2], rng.uniforms(keys, _BAND))]
    slots = (band[:, 1] - band[:, 0]) * 60.0 / GRID_MINUTES
    return 60.0 * band[:, 0] + GRID_MINUTES * rng.integers(keys, _SLOT, slots)


def windows_around(cells: IntArray, start: FloatArray, city: City, day_minutes: int) -> FloatArray:
    """(trips, 2, 2) windows that leave time for the direct ride.

    A shorter day moves late trips forward, so that a vehicle is back at the depot in time.
    """
    minutes = city.travel_minutes
    direct = minutes[cells[:, PICKUP], cells[:, DROPOFF]]
    ahead = np.maximum(GRID_MINUTES, np.rint(direct / GRID_MINUTES) * GRID_MINUTES)
    back = np.maximum(WINDOW_MINUTES, minutes[cells[:, DROPOFF], city.depot_cell])
    busy = np.maximum(ahead, direct) + back
    latest = np.floor((day_minutes - busy) / GRID_MINUTES) * GRID_MINUTES
    pickup = np.minimum(start, latest)
    windows = np.empty((len(cells), 2, 2))
    windows[:, PICKUP] = pickup[:, None] + (0.0, WINDOW_MINUTES)
    windows[:, DROPOFF] = (pickup + ahead)[:, None] + (0.0, WINDOW_MINUTES)
    return windows
