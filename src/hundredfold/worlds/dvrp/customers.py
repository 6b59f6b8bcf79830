"""Who may call and with which trips: the population, its splits, and the built-in people.

A population is drawn or loaded once and shared by all envs; a day picks callers and trips from it.
Everything an answer or a mask needs is looked up by trip.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from hundredfold.core import streams
from hundredfold.core.batch import BoolArray, FloatArray, IntArray
from hundredfold.core.errors import SettingsError
from hundredfold.core.streams import Words
from hundredfold.oracles.problem import DROPOFF, PICKUP
from hundredfold.worlds.dvrp.city import City
from hundredfold.worlds.dvrp.offers import allowed_offers, servable_alone, tolerated_offers
from hundredfold.worlds.dvrp.purposes import TOLERANCE_FACTORS
from hundredfold.worlds.dvrp.settings import RIDE_GRACE_MINUTES, DvrpSettings, Split, Tolerances

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
class People:
    """Everybody who may call. Known people come first, then those held back from training."""

    types: IntArray  # (people,)
    num_known: int
    num_trips: IntArray  # (people,)
    ages: IntArray  # (people,), -1 where unknown
    occupations: tuple[str, ...]  # (people,), empty where unknown


@dataclass(frozen=True, eq=False)
class Population:
    """People, their trips, and the tables that every day looks things up in."""

    city: City
    people: People
    trips: Trips
    max_ride_minutes: FloatArray  # (trips,), inf where unlimited
    accepts: BoolArray  # (trips, offers) the honest answers
    allowed: BoolArray  # (trips, offers) True = may be offered

    @property
    def num_people(self) -> int:
        return len(self.people.types)

    @cached_property
    def first_trip(self) -> IntArray:
        """(people,) where each person's trips begin."""
        ends = np.cumsum(self.people.num_trips)
        return np.asarray(ends - self.people.num_trips, np.int64)

    @cached_property
    def num_known_trips(self) -> IntArray:
        """(people,) trips that training may meet; the rest are held back."""
        known = np.rint(KNOWN_SHARE * self.people.num_trips).astype(np.int64)
        return np.asarray(np.clip(known, 1, self.people.num_trips), np.int64)

    @cached_property
    def type_prior(self) -> FloatArray:
        """(types,) shares of the personalities among known people."""
        counts = np.bincount(self.people.types[: self.people.num_known], minlength=NUM_TYPES)
        return np.asarray(counts / counts.sum(), np.float64)

    @cached_property
    def accept_rate(self) -> FloatArray:
        """(offers,) share of known people's trips that would accept each offer."""
        known = int(self.people.num_trips[: self.people.num_known].sum())
        return np.asarray(self.accepts[:known].mean(axis=0), np.float64)

    def callers(self, split: Split) -> tuple[IntArray, IntArray, IntArray]:
        """Who may call in a split: people, the first trip each may ask for, and how many."""
        num_known, num_trips = self.people.num_known, self.people.num_trips
        everybody = np.arange(self.num_people)
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
    people: People,
    trips: Trips,
    settings: DvrpSettings,
    accepts: BoolArray | None = None,
) -> Population:
    """A population with its tables; answers follow the tolerances unless they are given."""
    ride = ride_limits(trips.cells, city, settings)
    population = Population(
        city=city,
        people=people,
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
    callers, _, _ = population.callers(settings.split)
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
    types: IntArray, purpose: IntArray, keys: Words, mode: Tolerances, softness: float
) -> FloatArray:
    """(trips, 2) minutes that each trip tolerates; `types`, `purpose` and `keys` are per trip."""
    flexible = FLEXIBLE_SIDES[types]
    if mode == "unlimited":
        return np.full(flexible.shape, MAX_TOLERANCE)
    if mode == "types":
        return np.where(flexible, MAX_TOLERANCE, 0.0)
    base = np.where(flexible, FLEXIBLE_BASE, INFLEXIBLE_BASE * softness)
    factor = np.asarray(TOLERANCE_FACTORS)[purpose]
    noise = TOLERANCE_SPREAD * streams.normals(keys[:, None], np.arange(2))
    grid = np.rint((base * factor[:, None] + noise) / TOLERANCE_GRID) * TOLERANCE_GRID
    return np.asarray(np.clip(grid, 0.0, MAX_TOLERANCE), np.float64)
