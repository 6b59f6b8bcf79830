"""Cities: cells, travel times between them, and a depot.

The synthetic city is San Francisco: 60 points of interest with rounded coordinates, and travel
times from great-circle distances with seeded differences between the two directions. Cities of
your own are read by `custom_data`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from hundredfold.core import rng
from hundredfold.core.batch import FloatArray, IntArray
from hundredfold.routing.problem import TravelTable, classical_mds


class PointOfInterest(NamedTuple):
    """A named location; its roles are the trip purposes that lead there (`home`, `office`, ...)."""

    name: str
    latitude: float
    longitude: float
    roles: tuple[str, ...]


DEPOT: Final = PointOfInterest("Depot", 37.7735, -122.4183, ())

POINTS_OF_INTEREST: Final[tuple[PointOfInterest, ...]] = (
    PointOfInterest("Outer Sunset", 37.7553, -122.4940, ("home",)),
    PointOfInterest("Inner Sunset", 37.7601, -122.4683, ("home", "dining")),
    PointOfInterest("Outer Richmond", 37.7775, -122.4950, ("home",)),
    PointOfInterest("Inner Richmond", 37.7805, -122.4660, ("home", "dining")),
    PointOfInterest("Marina", 37.8030, -122.4370, ("home", "dining")),
    PointOfInterest("Pacific Heights", 37.7925, -122.4350, ("home",)),
    PointOfInterest("Noe Valley", 37.7502, -122.4337, ("home",)),
    PointOfInterest("Castro", 37.7609, -122.4350, ("home", "dining")),
    PointOfInterest("Mission District", 37.7599, -122.4148, ("home", "dining")),
    PointOfInterest("Bernal Heights", 37.7389, -122.4152, ("home",)),
    PointOfInterest("Glen Park", 37.7340, -122.4330, ("home",)),
    PointOfInterest("Excelsior", 37.7244, -122.4272, ("home",)),
    PointOfInterest("Visitacion Valley", 37.7147, -122.4083, ("home",)),
    PointOfInterest("Bayview", 37.7299, -122.3885, ("home",)),
    PointOfInterest("Potrero Hill", 37.7583, -122.3996, ("home",)),
    PointOfInterest("Dogpatch", 37.7606, -122.3885, ("home",)),
    PointOfInterest("Haight-Ashbury", 37.7692, -122.4481, ("home",)),
    PointOfInterest("Western Addition", 37.7807, -122.4324, ("home",)),
    PointOfInterest("Nob Hill", 37.7930, -122.4161, ("home",)),
    PointOfInterest("Russian Hill", 37.8011, -122.4194, ("home",)),
    PointOfInterest("North Beach", 37.8061, -122.4103, ("home", "dining")),
    PointOfInterest("Parkside", 37.7413, -122.4890, ("home",)),
    PointOfInterest("West Portal", 37.7405, -122.4656, ("home", "errand")),
    PointOfInterest("Ingleside", 37.7230, -122.4530, ("home",)),
    PointOfInterest("Treasure Island", 37.8235, -122.3706, ("home",)),
    PointOfInterest("Financial District", 37.7946, -122.3999, ("office",)),
    PointOfInterest("SoMa", 37.7785, -122.4056, ("office", "dining")),
    PointOfInterest("Mission Bay", 37.7706, -122.3910, ("office",)),
    PointOfInterest("Oracle Park", 37.7786, -122.3893, ("recreation",)),
    PointOfInterest("SF Zoo", 37.7331, -122.5030, ("recreation",)),
    PointOfInterest("Civic Center", 37.7793, -122.4193, ("office", "errand")),
    PointOfInterest("Embarcadero Center", 37.7952, -122.3972, ("office",)),
    PointOfInterest("Transbay", 37.7897, -122.3962, ("office",)),
    PointOfInterest("Presidio Main Post", 37.8010, -122.4580, ("office", "recreation")),
    PointOfInterest("Third Street Works", 37.7480, -122.3880, ("office",)),
    PointOfInterest("SF State University", 37.7241, -122.4799, ("school",)),
    PointOfInterest("City College", 37.7257, -122.4511, ("school",)),
    PointOfInterest("University of SF", 37.7766, -122.4507, ("school",)),
    PointOfInterest("Lowell High", 37.7306, -122.4836, ("school",)),
    PointOfInterest("UCSF Parnassus", 37.7631, -122.4586, ("school", "medical")),
    PointOfInterest("Union Square", 37.7880, -122.4075, ("shopping",)),
    PointOfInterest("Stonestown", 37.7285, -122.4770, ("shopping",)),
    PointOfInterest("Market and 5th", 37.7841, -122.4065, ("shopping",)),
    PointOfInterest("Japantown", 37.7850, -122.4300, ("shopping", "dining")),
    PointOfInterest("Chinatown", 37.7941, -122.4078, ("shopping", "dining")),
    PointOfInterest("Ferry Building", 37.7955, -122.3937, ("shopping", "dining")),
    PointOfInterest("Clement Street", 37.7826, -122.4645, ("shopping",)),
    PointOfInterest("UCSF Mission Bay", 37.7665, -122.3905, ("medical",)),
    PointOfInterest("SF General", 37.7557, -122.4046, ("medical",)),
    PointOfInterest("CPMC Van Ness", 37.7860, -122.4215, ("medical",)),
    PointOfInterest("Kaiser Geary", 37.7825, -122.4427, ("medical",)),
    PointOfInterest("VA Medical Center", 37.7821, -122.5046, ("medical",)),
    PointOfInterest("Laguna Honda", 37.7484, -122.4572, ("medical",)),
    PointOfInterest("Golden Gate Park", 37.7715, -122.4687, ("recreation",)),
    PointOfInterest("Lands End", 37.7879, -122.5055, ("recreation",)),
    PointOfInterest("Ocean Beach", 37.7594, -122.5107, ("recreation",)),
    PointOfInterest("Twin Peaks", 37.7544, -122.4477, ("recreation",)),
    PointOfInterest("Dolores Park", 37.7596, -122.4269, ("recreation", "social")),
    PointOfInterest("Fisherman's Wharf", 37.8080, -122.4177, ("recreation",)),
    PointOfInterest("Exploratorium", 37.8014, -122.3976, ("recreation",)),
)


# Children of the city seed's RNG stream.
TRAVEL_BRANCH, CUSTOMERS_BRANCH, TRIP_BRANCH, TOLERANCE_BRANCH, HUB_BRANCH, TYPE_BRANCH = range(6)

EARTH_RADIUS_KM: Final = 6371.0
ROAD_DETOUR_FACTOR: Final = 1.3
SPEED_KM_PER_HOUR: Final = 22.0
FIXED_MINUTES: Final = 4.0  # per drive, whatever its length
MAX_ASYMMETRY: Final = 0.1  # relative
# Long drives use motorways: minutes beyond this count half. The function is concave, so the
# triangle inequality still holds.
MOTORWAY_AFTER_MINUTES: Final = 30.0


@dataclass(frozen=True, slots=True, eq=False)
class City:
    """Locations and travel times; shared by all envs."""

    names: tuple[str, ...]
    positions: FloatArray  # (cells, 2) in the unit square
    travel: TravelTable
    depot_cell: int
    degrees: FloatArray | None = None  # (cells, 2) latitude and longitude, NaN where unknown

    @property
    def num_cells(self) -> int:
        return len(self.names)

    @property
    def travel_minutes(self) -> FloatArray:
        """(cells, cells) travel times from row to column."""
        return self.travel.minutes


@lru_cache(maxsize=8)
def synthetic_city(city_seed: int) -> City:
    """The points of interest of San Francisco, with the depot as cell 0."""
    points = (DEPOT, *POINTS_OF_INTEREST)
    degrees = np.array([(point.latitude, point.longitude) for point in points])
    return City(
        names=tuple(point.name for point in points),
        positions=scaled_positions(degrees),
        travel=TravelTable(travel_seconds(degrees, city_seed) / 60.0),
        depot_cell=0,
        degrees=degrees,
    )


def travel_seconds(degrees: FloatArray, city_seed: int) -> IntArray:
    """Synthetic travel times that satisfy the triangle inequality.

    Args:
        degrees: (cells, 2) latitudes and longitudes.
        city_seed: Seed of the differences between the two directions.

    Returns:
        (cells, cells) whole seconds.
    """
    cells = len(degrees)
    key = rng.spawn(rng.seed_key(city_seed), TRAVEL_BRANCH)
    uniforms = rng.uniforms(key, np.arange(cells * cells)).reshape(cells, cells)
    driving = 60.0 * ROAD_DETOUR_FACTOR * great_circle_km(degrees) / SPEED_KM_PER_HOUR
    factor = 1.0 + MAX_ASYMMETRY * (2.0 * uniforms - 1.0)
    minutes = (FIXED_MINUTES + driving) * factor
    minutes -= np.maximum(minutes - MOTORWAY_AFTER_MINUTES, 0.0) / 2.0
    seconds = np.rint(60.0 * minutes).astype(np.int64)
    np.fill_diagonal(seconds, 0)
    # Floyd-Warshall: no detour is shorter than the direct way.
    for via in range(cells):
        np.minimum(seconds, seconds[:, via : via + 1] + seconds[via : via + 1, :], out=seconds)
    return seconds


def great_circle_km(degrees: FloatArray) -> FloatArray:
    """(cells, cells) great-circle distances in km."""
    return distances_km(degrees[:, None], degrees)


def distances_km(starts: FloatArray, ends: FloatArray) -> FloatArray:
    """(...) great-circle distances in km between (..., 2) points in degrees, by the haversine formula."""
    (start_lat, start_lon), (end_lat, end_lon) = (np.moveaxis(np.radians(points), -1, 0) for points in (starts, ends))
    north = np.sin((start_lat - end_lat) / 2.0) ** 2
    east = np.sin((start_lon - end_lon) / 2.0) ** 2
    chord = north + np.cos(start_lat) * np.cos(end_lat) * east
    return np.asarray(2.0 * EARTH_RADIUS_KM * np.arcsin(np.sqrt(chord)), np.float64)


def scaled_positions(points: FloatArray) -> FloatArray:
    """(cells, 2) points scaled into the unit square, each axis separately."""
    low, high = points.min(axis=0), points.max(axis=0)
    return np.asarray((points - low) / np.where(high > low, high - low, 1.0), np.float64)


def positions_from_travel(minutes: FloatArray) -> FloatArray:
    """(cells, 2) positions for cells without coordinates, from their travel times."""
    return scaled_positions(classical_mds(minutes))


def most_central_cell(minutes: FloatArray) -> int:
    """The cell with the smallest sum of travel times to and from all cells; the first of ties."""
    return int((minutes.sum(axis=0) + minutes.sum(axis=1)).argmin())
