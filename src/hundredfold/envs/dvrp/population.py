"""Customers and their trips: the population, its splits, and the synthetic population.

A population is built once and shared by all envs; each day samples customers and trips from it.
Responses and masks are looked up by trip.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from hundredfold.core import rng
from hundredfold.core.batch import BoolArray, FloatArray, IntArray
from hundredfold.core.errors import SettingsError
from hundredfold.core.formatting import format_count, format_percent
from hundredfold.core.rng import Keys
from hundredfold.envs.dvrp.city import (
    CUSTOMERS_BRANCH,
    HUB_BRANCH,
    POINTS_OF_INTEREST,
    TOLERANCE_BRANCH,
    TRIP_BRANCH,
    City,
    synthetic_city,
)
from hundredfold.envs.dvrp.offers import OfferTable, servable_alone
from hundredfold.envs.dvrp.settings import RIDE_SLACK_MINUTES, DvrpSettings, Split
from hundredfold.envs.dvrp.trip_purposes import ANYWHERE, HOME, PURPOSE_NAMES, PURPOSES, TOLERANCE_FACTORS, Purpose
from hundredfold.routing.problem import DROPOFF, PICKUP, WHEELCHAIR, VehicleType

# Customer types, named after the side on which they are flexible.
LATE_TYPE, EARLY_TYPE, NONE_TYPE, BOTH_TYPE = 0, 1, 2, 3
TYPE_NAMES: Final = ("late", "early", "none", "both")
NUM_TYPES: Final = len(TYPE_NAMES)
# (types, 2): flexible about an earlier pickup, about a later dropoff.
FLEXIBLE_SIDES: Final[BoolArray] = np.array([(False, True), (True, False), (False, False), (True, True)])
TYPE_SHARES: Final = (0.25, 0.40, 0.20, 0.15)

# Tolerances in minutes; they reach as far as offers do, if those are larger than this.
MAX_TOLERANCE: Final = 30.0
FLEXIBLE_MEAN, INFLEXIBLE_MEAN, TOLERANCE_STD = 25.0, 10.0, 4.0
TOLERANCE_GRID: Final = 5.0

# Share of each customer's trips that training may sample.
KNOWN_TRIP_SHARE: Final = 0.8

# The synthetic population.
TRIPS_PER_CUSTOMER: Final = 50
MIN_HABITS, MAX_HABITS = 2, 4
WINDOW_MINUTES: Final = 30.0
GRID_MINUTES: Final = 5.0
MIN_AGE, MAX_AGE, PENSION_AGE = 18, 90, 67
ZIPF_POWER: Final = 2.0  # of homes and destinations in the city `hubs`

# Counters of a customer's RNG stream, and of a trip's.
_TYPE, _HOME, _OFFICE, _SCHOOL, _AGE, _NUM_HABITS, _HABITS = range(7)
_PURPOSE, _ORIGIN, _DESTINATION, _BAND, _SLOT, _LEAVES_OFFICE = range(6)


@dataclass(frozen=True, slots=True, eq=False)
class Trips:
    """All trips of a population, ordered by customer."""

    cells: IntArray  # (trips, 2) pickup, dropoff
    windows: FloatArray  # (trips, 2, 2) pickup, dropoff x early, late; minutes
    purpose: IntArray  # (trips,)
    tolerance: FloatArray  # (trips, 2) minutes by which pickup and dropoff may be shifted
    riders: IntArray | None = None  # (trips,) packed as in a RouteProblems; None: one on a seat each


@dataclass(frozen=True, slots=True, eq=False)
class Customers:
    """All customers of a population: known ones first, then those held out from training."""

    types: IntArray  # (customers,)
    num_known: int
    num_trips: IntArray  # (customers,)
    ages: IntArray  # (customers,), -1 = unknown
    occupations: tuple[str, ...]  # (customers,), "" = unknown
    ids: tuple[str, ...] = ()  # (customers,) as an operator's file names them; empty if synthetic


@dataclass(frozen=True, eq=False)
class Population:
    """Customers, their trips, and lookup tables by trip."""

    city: City
    customers: Customers
    trips: Trips
    offers: OfferTable
    max_ride_minutes: FloatArray  # (trips,), inf = unlimited
    accepts: BoolArray  # (trips, offers) responses without noise
    allowed: BoolArray  # (trips, offers) True = may be offered
    notes: tuple[str, ...] = ()  # what was assumed when an operator's files were read, a sentence each
    vehicle_types: tuple[VehicleType, ...] = ()  # of an operator's file; empty: identical vehicles

    @cached_property
    def riders(self) -> IntArray:
        """(trips,) riders of each trip, packed as in a RouteProblems."""
        given = self.trips.riders
        return np.ones(len(self.trips.purpose), np.int64) if given is None else given

    @property
    def size(self) -> int:
        """Number of customers, unseen ones included."""
        return len(self.customers.types)

    @cached_property
    def first_trip(self) -> IntArray:
        """(customers,) index of each customer's first trip."""
        ends = np.cumsum(self.customers.num_trips)
        return np.asarray(ends - self.customers.num_trips, np.int64)

    @cached_property
    def num_known_trips(self) -> IntArray:
        """(customers,) trips that training may sample; the rest are held out."""
        known = np.rint(KNOWN_TRIP_SHARE * self.customers.num_trips).astype(np.int64)
        return np.asarray(np.clip(known, 1, self.customers.num_trips), np.int64)

    @cached_property
    def type_prior(self) -> FloatArray:
        """(types,) shares of the types among known customers."""
        counts = np.bincount(self.customers.types[: self.customers.num_known], minlength=NUM_TYPES)
        return np.asarray(counts / counts.sum(), np.float64)

    @cached_property
    def accept_rate(self) -> FloatArray:
        """(offers,) share of known customers' trips that accept each offer."""
        known = int(self.customers.num_trips[: self.customers.num_known].sum())
        return np.asarray(self.accepts[:known].mean(axis=0), np.float64)

    def split_customers(self, split: Split) -> tuple[IntArray, IntArray, IntArray]:
        """Customers of a split that have trips in it.

        Returns:
            (customers,) ids, the first trip of each that belongs to the split, and how many do.
        """
        num_known, num_trips = self.customers.num_known, self.customers.num_trips
        ids = np.arange(self.size)
        first, count = self.first_trip, num_trips
        if split == "known":
            ids, count = ids[:num_known], self.num_known_trips
        elif split == "unseen_trips":
            ids = ids[:num_known]
            first, count = first + self.num_known_trips, num_trips - self.num_known_trips
        elif split == "unseen_customers":
            ids = ids[num_known:]
        ids = ids[count[ids] > 0]
        return ids, first[ids], count[ids]


def make_population(
    city: City,
    customers: Customers,
    trips: Trips,
    settings: DvrpSettings,
    accepts: BoolArray | None = None,
    vehicle_types: tuple[VehicleType, ...] = (),
) -> Population:
    """A population with its lookup tables.

    Args:
        city: Travel times and depot.
        customers: Types and attributes.
        trips: Trips, ordered by customer.
        settings: Ride-time limits, service times and the split that must have enough customers.
        accepts: (trips, offers) recorded responses; by default they follow from the tolerances.
        vehicle_types: Types of vehicles; by default all are identical.
    """
    max_ride = ride_limits(trips.cells, city, settings)
    offers = settings.offer_table
    allowed = np.zeros((len(trips.cells), offers.num_offers), bool)
    for kind in vehicle_types or (None,):
        allowed |= offers.allowed(
            trips.windows,
            trips.cells,
            city.travel_minutes,
            city.depot_cell,
            settings.day_minutes,
            settings.service_minutes,
            max_ride,
            None if kind is None else kind.shift,
        ) & (True if kind is None or trips.riders is None else has_places(kind, trips.riders)[:, None])
    population = Population(
        city=city,
        customers=customers,
        trips=trips,
        offers=offers,
        max_ride_minutes=max_ride,
        accepts=offers.tolerated(trips.tolerance) if accepts is None else accepts,
        allowed=offers.with_no_change(allowed),
        vehicle_types=vehicle_types,
    )
    available, _, _ = population.split_customers(settings.split)
    if len(available) < settings.num_customers:
        whose = "" if settings.split == "known" else f" in the split {settings.split}"
        lower = f"set --customers {len(available)} or less, or " if len(available) else ""
        raise SettingsError(
            f"only {format_count(len(available), 'customer')} with trips{whose} for "
            f"{format_count(settings.num_customers, 'request')} a day, at most one per customer; {lower}add customers."
        )
    return population


def ride_limits(cells: IntArray, city: City, settings: DvrpSettings) -> FloatArray:
    """(trips,) ride-time limits in minutes, inf where unlimited."""
    limit = np.full(len(cells), np.inf)
    if settings.max_ride_minutes is not None:
        limit = np.minimum(limit, settings.max_ride_minutes)
    factor = settings.effective_ride_factor
    if factor is not None:
        direct = city.travel_minutes[cells[:, PICKUP], cells[:, DROPOFF]]
        limit = np.minimum(limit, factor * direct + RIDE_SLACK_MINUTES)
    return np.asarray(limit, np.float64)


def has_places(kind: VehicleType, riders: IntArray) -> BoolArray:
    """(trips,) whether a vehicle has the seats and wheelchair places of each trip, as packed riders."""
    fits = (riders % WHEELCHAIR <= kind.seats) & (riders // WHEELCHAIR <= kind.wheelchairs)
    return np.asarray(fits, bool)


def servable_trips(
    windows: FloatArray, cells: IntArray, city: City, settings: DvrpSettings, kind: VehicleType | None = None
) -> BoolArray:
    """(trips,) whether a dedicated vehicle, of a type if one is given, has the time to serve each trip as requested."""
    return servable_alone(
        windows,
        cells,
        city.travel_minutes,
        city.depot_cell,
        settings.day_minutes,
        settings.service_minutes,
        ride_limits(cells, city, settings),
        None if kind is None else kind.shift,
    )


def sample_tolerances(types: IntArray, purpose: IntArray, keys: Keys, settings: DvrpSettings) -> FloatArray:
    """Sampled tolerances of trips.

    Args:
        types: (trips,) types of the customers.
        purpose: (trips,) trip purposes.
        keys: (trips,) RNG keys.
        settings: How tolerances depend on type and purpose, and the largest offer, which limits them.

    Returns:
        (trips, 2) minutes by which the pickup and the dropoff may be shifted.
    """
    flexible = FLEXIBLE_SIDES[types]
    limit = max(MAX_TOLERANCE, settings.offer_table.largest_minutes)
    if settings.tolerances == "unlimited":
        return np.full(flexible.shape, limit)
    if settings.tolerances == "types":
        return np.where(flexible, limit, 0.0)
    base = np.where(flexible, FLEXIBLE_MEAN, INFLEXIBLE_MEAN * settings.effective_softness)
    factor = np.asarray(TOLERANCE_FACTORS)[purpose]
    noise = TOLERANCE_STD * rng.normals(keys[:, None], np.arange(2))
    grid = np.rint((base * factor[:, None] + noise) / TOLERANCE_GRID) * TOLERANCE_GRID
    return np.asarray(np.clip(grid, 0.0, limit), np.float64)


def synthetic_population(settings: DvrpSettings) -> Population:
    """A population of as many unseen as known customers, determined by `city_seed`."""
    city = synthetic_city(settings.city_seed)
    size = 2 * settings.num_known_customers
    root = rng.spawn(rng.seed_key(settings.city_seed), CUSTOMERS_BRANCH)
    keys = rng.spawn(root, np.arange(size))
    habits = _habits(keys, _purpose_weights(settings))
    types = sample_categories(np.array(TYPE_SHARES), rng.uniforms(keys, _TYPE))
    ages = MIN_AGE + rng.integers(keys, _AGE, MAX_AGE - MIN_AGE + 1)
    customers = Customers(
        types=types,
        num_known=settings.num_known_customers,
        num_trips=np.full(size, TRIPS_PER_CUSTOMER),
        ages=ages,
        occupations=tuple(map(_occupation, habits > 0.0, ages)),
    )
    trips = _trips(keys, habits, np.repeat(types, TRIPS_PER_CUSTOMER), city, settings)
    unservable = ~servable_trips(trips.windows, trips.cells, city, settings)
    if unservable.any():
        share = format_percent(float(unservable.mean()), 0)
        raise SettingsError(
            f"{share} of the synthetic trips cannot be served even by a dedicated "
            f"vehicle; lower service_minutes ({settings.service_minutes}), or raise the ride-time "
            f"limit (max_ride_minutes {settings.max_ride_minutes}, max_ride_factor "
            f"{settings.max_ride_factor}) or day_minutes ({settings.day_minutes})."
        )
    return make_population(city, customers, trips, settings)


def sample_categories(weights: FloatArray, uniforms: FloatArray) -> IntArray:
    """Categories sampled by inverse transform; `weights` (..., categories), `uniforms` (...)."""
    cdf = np.cumsum(weights, axis=-1)
    sampled = (uniforms[..., None] * cdf[..., -1:] >= cdf).sum(axis=-1)
    # Rounding may exceed the last entry.
    return np.asarray(np.minimum(sampled, weights.shape[-1] - 1), np.int64)


def cells_with(roles: tuple[str, ...]) -> FloatArray:
    """(cells,) 1 for cells that have one of the roles, else 0; cell 0 is the depot."""
    matches = [float(bool(set(roles) & set(point.roles))) for point in POINTS_OF_INTEREST]
    return np.array([0.0, *matches])


def zipf_weights(candidates: FloatArray, hub: int, city: City) -> FloatArray:
    """(cells,) weights by Zipf's law: the k-th nearest candidate to the hub weighs 1 / k^2.

    Args:
        candidates: (cells,) positive for cells that may be sampled.
        hub: Cell from and to which travel times are measured; their sum is the distance.
        city: Travel times.
    """
    cells = np.flatnonzero(candidates)
    distance = city.travel_minutes[hub, cells] + city.travel_minutes[cells, hub]
    weights = np.zeros(len(candidates))
    weights[cells[np.argsort(distance, kind="stable")]] = np.arange(1.0, len(cells) + 1.0) ** -ZIPF_POWER
    return weights


class _Places:
    """Sampling weights of homes and destinations in the city that the settings name."""

    def __init__(self, city: City, settings: DvrpSettings) -> None:
        self.city = city
        self.has_hubs = settings.city == "hubs"
        self.home_weights = cells_with(("home",))
        if self.has_hubs:
            key = rng.spawn(rng.seed_key(settings.city_seed), HUB_BRANCH)
            hub = int(sample_categories(self.home_weights, rng.uniforms(key, np.arange(1)))[0])
            self.home_weights = zipf_weights(self.home_weights, hub, city)

    def weights(self, candidates: FloatArray) -> FloatArray:
        """(cells,) weights of these destinations, or origins away from home."""
        return zipf_weights(candidates, self.city.depot_cell, self.city) if self.has_hubs else candidates


def _purpose_weights(settings: DvrpSettings) -> FloatArray:
    paratransit = settings.service == "operator"
    return np.array([p.paratransit_weight if paratransit else p.weight for p in PURPOSES])


def _habits(keys: Keys, weights: FloatArray) -> FloatArray:
    """(customers, purposes) weights of each customer's two to four usual purposes, others 0."""
    uniforms = rng.uniforms(keys[:, None], _HABITS + np.arange(len(weights)))
    # Weighted sampling without replacement: the first arrivals of exponential clocks.
    order = np.argsort(-np.log1p(-uniforms) / weights, axis=1, kind="stable")
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


def _trips(customer_keys: Keys, habits: FloatArray, types: IntArray, city: City, settings: DvrpSettings) -> Trips:
    root = rng.spawn(customer_keys, TRIP_BRANCH)[:, None]
    keys = rng.spawn(root, np.arange(TRIPS_PER_CUSTOMER)).ravel()
    customer = np.repeat(np.arange(len(customer_keys)), TRIPS_PER_CUSTOMER)
    purpose = sample_categories(habits[customer], rng.uniforms(keys, _PURPOSE))
    places = _Places(city, settings)
    homes = sample_categories(places.home_weights, rng.uniforms(customer_keys, _HOME))
    usual = {
        "work": sample_categories(places.weights(cells_with(("office",))), rng.uniforms(customer_keys, _OFFICE)),
        "school": sample_categories(places.weights(cells_with(("school",))), rng.uniforms(customer_keys, _SCHOOL)),
    }
    cells = np.zeros((len(keys), 2), np.int64)
    start = np.zeros(len(keys))
    for number, kind in enumerate(PURPOSES):
        rows = np.flatnonzero(purpose == number)
        home, office = homes[customer[rows]], usual["work"][customer[rows]]
        origin = _origins(kind, places, keys[rows], home, office)
        cells[rows, PICKUP] = origin
        if kind.name in usual:
            cells[rows, DROPOFF] = usual[kind.name][customer[rows]]
        elif not kind.destination_roles:
            cells[rows, DROPOFF] = home
        else:
            uniforms = rng.uniforms(keys[rows], _DESTINATION)
            weights = places.weights(cells_with(kind.destination_roles))
            cells[rows, DROPOFF] = _sample_other_cells(weights, origin, uniforms)
        start[rows] = _start_minutes(kind, keys[rows])
    windows = _requested_windows(cells, start, city, settings.day_minutes)
    tolerance_keys = rng.spawn(keys, TOLERANCE_BRANCH)
    tolerance = sample_tolerances(types, purpose, tolerance_keys, settings)
    return Trips(cells=cells, windows=windows, purpose=purpose, tolerance=tolerance)


def _origins(kind: Purpose, places: _Places, keys: Keys, home: IntArray, office: IntArray) -> IntArray:
    if kind.origin == HOME:
        return home
    weights = places.weights(np.array([0.0, *np.ones(len(POINTS_OF_INTEREST))]))
    uniforms = rng.uniforms(keys, _ORIGIN)
    if kind.origin == ANYWHERE:
        return sample_categories(weights, uniforms)
    # Trips home do not start at home.
    anywhere = _sample_other_cells(weights, home, uniforms)
    leaves_office = (rng.uniforms(keys, _LEAVES_OFFICE) < 0.5) & (office != home)
    return np.where(leaves_office, office, anywhere)


def _sample_other_cells(weights: FloatArray, origin: IntArray, uniforms: FloatArray) -> IntArray:
    """Cells sampled by weight, excluding the origin of each trip."""
    table = np.repeat(weights[None, :], len(origin), axis=0)
    table[np.arange(len(origin)), origin] = 0.0
    return sample_categories(table, uniforms)


def _start_minutes(kind: Purpose, keys: Keys) -> FloatArray:
    """Start of the pickup window, on a grid inside one of the purpose's bands of hours."""
    hours = np.array(kind.hours)
    band = hours[sample_categories(hours[:, 2], rng.uniforms(keys, _BAND))]
    slots = (band[:, 1] - band[:, 0]) * 60.0 / GRID_MINUTES
    return 60.0 * band[:, 0] + GRID_MINUTES * rng.integers(keys, _SLOT, slots)


def _requested_windows(cells: IntArray, start: FloatArray, city: City, day_minutes: int) -> FloatArray:
    """(trips, 2, 2) time windows that leave time for the direct ride.

    Trips too late for the vehicle to return by `day_minutes` are moved earlier.
    """
    minutes = city.travel_minutes
    direct = minutes[cells[:, PICKUP], cells[:, DROPOFF]]
    ride = np.maximum(GRID_MINUTES, np.rint(direct / GRID_MINUTES) * GRID_MINUTES)
    back = np.maximum(WINDOW_MINUTES, minutes[cells[:, DROPOFF], city.depot_cell])
    busy = np.maximum(ride, direct) + back
    latest = np.floor((day_minutes - busy) / GRID_MINUTES) * GRID_MINUTES
    pickup = np.minimum(start, latest)
    windows = np.empty((len(cells), 2, 2))
    windows[:, PICKUP] = pickup[:, None] + (0.0, WINDOW_MINUTES)
    windows[:, DROPOFF] = (pickup + ride)[:, None] + (0.0, WINDOW_MINUTES)
    return windows
