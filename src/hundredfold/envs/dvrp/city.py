"""Cities: named cells, the driving minutes between them, and a depot.

The built-in one is a rough San Francisco whose travel times follow the distance on the map, with
seeded differences between the two directions. A user's own comes from `load.py`.

The places of the built-in city: general knowledge of San Francisco, coordinates rounded.

A place may have several roles: people live at a `home`, work at an `office`, and so on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from hundredfold.core import rng
from hundredfold.core.batch import FloatArray, IntArray
from hundredfold.routing.problem import TravelTable, classical_mds


class Place(NamedTuple):
    """A named spot on the map and what people do there."""

    name: str
    latitude: float
    longitude: float
    roles: tuple[str, ...]


DEPOT: Final = Place("Depot", 37.7735, -122.4183, ())

PLACES: Final[tuple[Place, ...]] = (
    Place("Outer Sunset", 37.7553, -122.4940, ("home",)),
    Place("Inner Sunset", 37.7601, -122.4683, ("home", "dining")),
    Place("Outer Richmond", 37.7775, -122.4950, ("home",)),
    Place("Inner Richmond", 37.7805, -122.4660, ("home", "dining")),
    Place("Marina", 37.8030, -122.4370, ("home", "dining")),
    Place("Pacific Heights", 37.7925, -122.4350, ("home",)),
    Place("Noe Valley", 37.7502, -122.4337, ("home",)),
    Place("Castro", 37.7609, -122.4350, ("home", "dining")),
    Place("Mission District", 37.7599, -122.4148, ("home", "dining")),
    Place("Bernal Heights", 37.7389, -122.4152, ("home",)),
    Place("Glen Park", 37.7340, -122.4330, ("home",)),
    Place("Excelsior", 37.7244, -122.4272, ("home",)),
    Place("Visitacion Valley", 37.7147, -122.4083, ("home",)),
    Place("Bayview", 37.7299, -122.3885, ("home",)),
    Place("Potrero Hill", 37.7583, -122.3996, ("home",)),
    Place("Dogpatch", 37.7606, -122.3885, ("home",)),
    Place("Haight-Ashbury", 37.7692, -122.4481, ("home",)),
    Place("Western Addition", 37.7807, -122.4324, ("home",)),
    Place("Nob Hill", 37.7930, -122.4161, ("home",)),
    Place("Russian Hill", 37.8011, -122.4194, ("home",)),
    Place("North Beach", 37.8061, -122.4103, ("home", "dining")),
    Place("Parkside", 37.7413, -122.4890, ("home",)),
    Place("West Portal", 37.7405, -122.4656, ("home", "errand")),
    Place("Ingleside", 37.7230, -122.4530, ("home",)),
    Place("Treasure Island", 37.8235, -122.3706, ("home",)),
    Place("Financial District", 37.7946, -122.3999, ("office",)),
    Place("SoMa", 37.7785, -122.4056, ("office", "dining")),
    Place("Mission Bay", 37.7706, -122.3910, ("office",)),
    Place("Oracle Park", 37.7786, -122.3893, ("recreation",)),
    Place("SF Zoo", 37.7331, -122.5030, ("recreation",)),
    Place("Civic Center", 37.7793, -122.4193, ("office", "errand")),
    Place("Embarcadero Center", 37.7952, -122.3972, ("office",)),
    Place("Transbay", 37.7897, -122.3962, ("office",)),
    Place("Presidio Main Post", 37.8010, -122.4580, ("office", "recreation")),
    Place("Third Street Works", 37.7480, -122.3880, ("office",)),
    Place("SF State University", 37.7241, -122.4799, ("school",)),
    Place("City College", 37.7257, -122.4511, ("school",)),
    Place("University of SF", 37.7766, -122.4507, ("school",)),
    Place("Lowell High", 37.7306, -122.4836, ("school",)),
    Place("UCSF Parnassus", 37.7631, -122.4586, ("school", "medical")),
    Place("Union Square", 37.7880, -122.4075, ("shopping",)),
    Place("Stonestown", 37.7285, -122.4770, ("shopping",)),
    Place("Market and 5th", 37.7841, -122.4065, ("shopping",)),
    Place("Japantown", 37.7850, -122.4300, ("shopping", "dining")),
    Place("Chinatown", 37.7941, -122.4078, ("shopping", "dining")),
    Place("Ferry Building", 37.7955, -122.3937, ("shopping", "dining")),
    Place("Clement Street", 37.7826, -122.4645, ("shopping",)),
    Place("UCSF Mission Bay", 37.7665, -122.3905, ("medical",)),
    Place("SF General", 37.7557, -122.4046, ("medical",)),
    Place("CPMC Van Ness", 37.7860, -122.4215, ("medical",)),
    Place("Kaiser Geary", 37.7825, -122.4427, ("medical",)),
    Place("VA Medical Center", 37.7821, -122.5046, ("medical",)),
    Place("Laguna Honda", 37.7484, -122.4572, ("medical",)),
    Place("Golden Gate Park", 37.7715, -122.4687, ("recreation",)),
    Place("Lands End", 37.7879, -122.5055, ("recreation",)),
    Place("Ocean Beach", 37.7594, -122.5107, ("recreation",)),
    Place("Twin Peaks", 37.7544, -122.4477, ("recreation",)),
    Place("Dolores Park", 37.7596, -122.4269, ("recreation", "social")),
    Place("Fisherman's Wharf", 37.8080, -122.4177, ("recreation",)),
    Place("Exploratorium", 37.8014, -122.3976, ("recreation",)),
)


# Every branch of a city's randomness hangs under its own child of the city seed.
TRAVEL_BRANCH, PEOPLE_BRANCH, TRIP_BRANCH, TOLERANCE_BRANCH = 0, 1, 2, 3

EARTH_KM: Final = 6371.0
ROADS_PER_CROW: Final = 1.3
KM_PER_HOUR: Final = 22.0
STOP_MINUTES: Final = 4.0
DIRECTION_SPREAD: Final = 0.1
# Long ways lead over motorways: what a drive takes beyond this many minutes counts half. Being
# concave, that leaves the triangle inequality alone.
MOTORWAY_AFTER: Final = 30.0


@dataclass(frozen=True, slots=True, eq=False)
class City:
    """Where things are. Shared by all envs."""

    names: tuple[str, ...]
    positions: FloatArray  # (cells, 2), both axes within 0..1; north and east grow
    travel: TravelTable
    depot_cell: int

    @property
    def num_cells(self) -> int:
        return len(self.names)

    @property
    def travel_minutes(self) -> FloatArray:
        """(cells, cells) driving minutes from row to column."""
        return self.travel.minutes


@lru_cache(maxsize=8)
def synthetic_city(city_seed: int) -> City:
    """The places of `places.py` with the depot as cell 0; the same seed gives the same city."""
    spots = (DEPOT, *PLACES)
    degrees = np.array([(spot.latitude, spot.longitude) for spot in spots])
    return City(
        names=tuple(spot.name for spot in spots),
        positions=scaled_positions(degrees),
        travel=TravelTable(travel_seconds(degrees, city_seed) / 60.0),
        depot_cell=0,
    )


def travel_seconds(degrees: FloatArray, city_seed: int) -> IntArray:
    """(cells, cells) whole seconds; no detour is shorter than the direct way."""
    cells = len(degrees)
    key = rng.spawn(rng.seed_key(city_seed), TRAVEL_BRANCH)
    luck = rng.uniforms(key, np.arange(cells * cells)).reshape(cells, cells)
    driving = 60.0 * ROADS_PER_CROW * great_circle_km(degrees) / KM_PER_HOUR
    factor = 1.0 + DIRECTION_SPREAD * (2.0 * luck - 1.0)
    minutes = (STOP_MINUTES + driving) * factor
    minutes -= np.maximum(minutes - MOTORWAY_AFTER, 0.0) / 2.0
    seconds = np.rint(60.0 * minutes).astype(np.int64)
    np.fill_diagonal(seconds, 0)
    for via in range(cells):
        np.minimum(seconds, seconds[:, via : via + 1] + seconds[via : via + 1, :], out=seconds)
    return seconds


def great_circle_km(degrees: FloatArray) -> FloatArray:
    """(cells, cells) kilometres between all pairs of (latitude, longitude); haversine formula."""
    latitude, longitude = np.radians(degrees).T
    north = np.sin((latitude[:, None] - latitude) / 2.0) ** 2
    east = np.sin((longitude[:, None] - longitude) / 2.0) ** 2
    chord = north + np.cos(latitude[:, None]) * np.cos(latitude) * east
    return np.asarray(2.0 * EARTH_KM * np.arcsin(np.sqrt(chord)), np.float64)


def scaled_positions(points: FloatArray) -> FloatArray:
    """(cells, 2) points moved and stretched into the unit square, each axis by itself."""
    low, high = points.min(axis=0), points.max(axis=0)
    return np.asarray((points - low) / np.where(high > low, high - low, 1.0), np.float64)


def positions_from_travel(minutes: FloatArray) -> FloatArray:
    """A map for cells without coordinates: classical scaling of travel times to two dimensions."""
    return scaled_positions(classical_mds(minutes))


def most_central_cell(minutes: FloatArray) -> int:
    """The cell from and to which driving takes least in sum; ties go to the lowest."""
    return int((minutes.sum(axis=0) + minutes.sum(axis=1)).argmin())
