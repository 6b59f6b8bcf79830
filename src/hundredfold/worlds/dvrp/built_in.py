"""The built-in people: homes, personalities, habits and fifty trips each, drawn from a seed."""

from __future__ import annotations

from typing import Final

import numpy as np

from hundredfold.core import streams
from hundredfold.core.batch import FloatArray, IntArray
from hundredfold.core.errors import SettingsError
from hundredfold.core.streams import Words
from hundredfold.oracles.problem import DROPOFF, PICKUP
from hundredfold.worlds.dvrp.city import (
    PEOPLE_BRANCH,
    TOLERANCE_BRANCH,
    TRIP_BRANCH,
    City,
    built_in_city,
)
from hundredfold.worlds.dvrp.customers import (
    TYPE_SHARES,
    People,
    Population,
    Trips,
    drawn_tolerances,
    finished_population,
    servable_trips,
)
from hundredfold.worlds.dvrp.places import PLACES
from hundredfold.worlds.dvrp.purposes import (
    ANYWHERE,
    HOME,
    PURPOSE_NAMES,
    PURPOSES,
    Purpose,
)
from hundredfold.worlds.dvrp.settings import DvrpSettings

TRIPS_PER_PERSON: Final = 50
MIN_HABITS, MAX_HABITS = 2, 4
WINDOW_MINUTES: Final = 30.0
GRID_MINUTES: Final = 5.0
YOUNGEST, OLDEST, PENSION_AGE = 18, 90, 67

# Draws of a person's stream, and of a trip's.
_TYPE, _HOME, _OFFICE, _SCHOOL, _AGE, _NUM_HABITS, _HABITS = range(7)
_PURPOSE, _ORIGIN, _DESTINATION, _BAND, _SLOT, _LEAVES_OFFICE = range(6)


def built_in_population(settings: DvrpSettings) -> Population:
    """As many unseen people as known ones; who they are depends on the city seed alone."""
    city = built_in_city(settings.city_seed)
    num_people = 2 * settings.people
    root = streams.spawn(streams.seed_key(settings.city_seed), PEOPLE_BRANCH)
    keys = streams.spawn(root, np.arange(num_people))
    habits = _habits(keys, _purpose_weights(settings))
    types = picks(np.array(TYPE_SHARES), streams.uniforms(keys, _TYPE))
    ages = YOUNGEST + streams.integers(keys, _AGE, OLDEST - YOUNGEST + 1)
    people = People(
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
    return finished_population(city, people, trips, settings)


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
    paratransit = settings.scenario == "operator"
    return np.array([p.paratransit_weight if paratransit else p.weight for p in PURPOSES])


def _habits(keys: Words, weights: FloatArray) -> FloatArray:
    """(people, purposes) weights of each person's two to four usual purposes, 0 for the others."""
    luck = streams.uniforms(keys[:, None], _HABITS + np.arange(len(weights)))
    # Drawing without replacement by weight is taking the first arrivals of exponential clocks.
    order = np.argsort(-np.log1p(-luck) / weights, axis=1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(len(weights))[None, :], axis=1)
    number = MIN_HABITS + streams.integers(keys, _NUM_HABITS, MAX_HABITS - MIN_HABITS + 1)
    return np.where(rank < number[:, None], weights, 0.0)


def _occupation(has_habit: FloatArray, age: int) -> str:
    if has_habit[PURPOSE_NAMES.index("work")]:
        return "employed"
    if has_habit[PURPOSE_NAMES.index("school")]:
        return "student"
    return "retired" if age >= PENSION_AGE else "at home"


def _trips(
    person_keys: Words, habits: FloatArray, types: IntArray, city: City, settings: DvrpSettings
) -> Trips:
    root = streams.spawn(person_keys, TRIP_BRANCH)[:, None]
    keys = streams.spawn(root, np.arange(TRIPS_PER_PERSON)).ravel()
    person = np.repeat(np.arange(len(person_keys)), TRIPS_PER_PERSON)
    purpose = picks(habits[person], streams.uniforms(keys, _PURPOSE))
    homes = picks(cells_with(("home",)), streams.uniforms(person_keys, _HOME))
    usual = {
        "work": picks(cells_with(("office",)), streams.uniforms(person_keys, _OFFICE)),
        "school": picks(cells_with(("school",)), streams.uniforms(person_keys, _SCHOOL)),
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
            luck = streams.uniforms(keys[rows], _DESTINATION)
            cells[rows, DROPOFF] = _elsewhere(cells_with(kind.destination_roles), origin, luck)
        start[rows] = _starts(kind, keys[rows])
    windows = asked_windows(cells, start, city, settings.day_minutes)
    tolerance_keys = streams.spawn(keys, TOLERANCE_BRANCH)
    tolerance = drawn_tolerances(
        types, purpose, tolerance_keys, settings.tolerances, settings.softness
    )
    return Trips(cells=cells, windows=windows, purpose=purpose, tolerance=tolerance)


def _origins(kind: Purpose, keys: Words, home: IntArray, office: IntArray) -> IntArray:
    if kind.origin == HOME:
        return home
    places = np.ones(len(PLACES) + 1)
    places[0] = 0.0
    # People on their way home are not at home; anybody else may start anywhere.
    luck = streams.uniforms(keys, _ORIGIN)
    if kind.origin == ANYWHERE:
        return picks(places, luck)
    anywhere = _elsewhere(places, home, luck)
    leaves_office = (streams.uniforms(keys, _LEAVES_OFFICE) < 0.5) & (office != home)
    return np.where(leaves_office, office, anywhere)


def _elsewhere(weights: FloatArray, origin: IntArray, luck: FloatArray) -> IntArray:
    """A cell of these weights that is not the origin."""
    table = np.repeat(weights[None, :], len(origin), axis=0)
    table[np.arange(len(origin)), origin] = 0.0
    return picks(table, luck)


def _starts(kind: Purpose, keys: Words) -> FloatArray:
    """Start of the pickup window, on the grid inside one of the purpose's bands of hours."""
    hours = np.array(kind.hours)
    band = hours[picks(hours[:, 2], streams.uniforms(keys, _BAND))]
    slots = (band[:, 1] - band[:, 0]) * 60.0 / GRID_MINUTES
    return 60.0 * band[:, 0] + GRID_MINUTES * streams.integers(keys, _SLOT, slots)


def asked_windows(cells: IntArray, start: FloatArray, city: City, day_minutes: int) -> FloatArray:
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
