"""Cities: named cells, the driving minutes between them, and a depot.

The built-in one is a rough San Francisco whose travel times follow the distance on the map, with
seeded differences between the two directions. A user's own comes from `load.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from hundredfold.core import streams
from hundredfold.core.batch import FloatArray, IntArray
from hundredfold.oracles.problem import TravelTable
from hundredfold.worlds.dvrp.places import DEPOT, PLACES

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
def built_in_city(city_seed: int) -> City:
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
    key = streams.spawn(streams.seed_key(city_seed), TRAVEL_BRANCH)
    luck = streams.uniforms(key, np.arange(cells * cells)).reshape(cells, cells)
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
    distance = (minutes + minutes.T) / 2.0
    centred = distance**2
    centred = centred - centred.mean(axis=0) - centred.mean(axis=1)[:, None] + centred.mean()
    values, vectors = np.linalg.eigh(-centred / 2.0)
    points = np.zeros((len(minutes), 2))
    for axis in range(min(2, len(minutes))):
        vector = vectors[:, -1 - axis] * np.sqrt(max(values[-1 - axis], 0.0))
        # An eigenvector has no sign of its own; the cell farthest out goes to the positive side.
        points[:, axis] = vector * np.sign(vector[np.abs(vector).argmax()] or 1.0)
    return scaled_positions(points)


def most_central_cell(minutes: FloatArray) -> int:
    """The cell from and to which driving takes least in sum; ties go to the lowest."""
    return int((minutes.sum(axis=0) + minutes.sum(axis=1)).argmin())
