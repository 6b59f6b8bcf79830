"""Instances for benchmarks and tests: random days in a city, and readers of benchmark files."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from hundredfold.core.batch import FloatArray, IntArray
from hundredfold.core.errors import HundredfoldError
from hundredfold.routing.problem import Fleet, RouteProblems, TravelTable

WINDOW_MINUTES: Final = 30.0
NUM_HOMES: Final = 25

# Periods of the day: share of trips, first and last hour in which they start.
_PERIODS: Final = np.array([[0.08, 6, 7], [0.18, 7, 9], [0.20, 9, 12], [0.22, 12, 16], [0.24, 16, 19], [0.08, 19, 22]])
_HOMEWARD_SHARE: Final = 0.22


def random_city(seed: int, num_places: int = 60) -> TravelTable:
    """Travel-time matrix of a random town; cell 0 is the depot, then homes, then destinations.

    A drive takes 4 minutes plus 1.3 times the straight line at 22 km/h, with uniform noise of 10 %
    per direction, in whole seconds; shortest paths make it satisfy the triangle inequality.

    Args:
        seed: of the random generator.
        num_places: cells besides the depot.

    """
    rng = np.random.default_rng([seed, 1])
    suburbs = rng.uniform([-4.5, -5.0], [4.5, 5.0], (num_places, 2))
    centre = rng.normal([2.2, 2.6], [1.5, 1.5], (num_places, 2))
    downtown = rng.random((num_places, 1)) < 0.4
    km = np.clip(np.where(downtown, centre, suburbs), -5.0, 5.0)
    km = np.vstack([[1.4, 0.9], km])
    straight_km = np.linalg.norm(km[:, None] - km[None], axis=2)
    minutes = (4.0 + 60.0 * 1.3 * straight_km / 22.0) * rng.uniform(0.9, 1.1, straight_km.shape)
    seconds = np.round(60.0 * minutes)
    np.fill_diagonal(seconds, 0.0)
    for via in range(len(seconds)):
        seconds = np.minimum(seconds, seconds[:, via : via + 1] + seconds[via : via + 1])
    return TravelTable(seconds / 60.0)


def random_instances(
    num_instances: int,
    num_requests: int = 30,
    seed: int = 0,
    *,
    fleet: Fleet | None = None,
    travel: TravelTable | None = None,
    max_ride_factor: float = np.inf,
    detour_factor: float = 0.0,
    share_of_pairs: float = 0.0,
) -> RouteProblems:
    """Random dial-a-ride instances in one city: half-hour windows, homes to destinations and back.

    Args:
        num_instances: rows of the batch, each one day.
        num_requests: requests of each day.
        seed: of the random generator.
        fleet: vehicles and depot.
        travel: travel-time matrix instead of `random_city(seed)`; more than NUM_HOMES + 1 cells.
        max_ride_factor: ride-time limit as a multiple of the direct travel time, plus 15 minutes.
        detour_factor: dropoff windows close later by this share of the direct travel time, at least
            by 10 minutes.
        share_of_pairs: share of requests with two riders.

    """
    travel = random_city(seed) if travel is None else travel
    rng = np.random.default_rng([seed, 2])
    shape = (num_instances, num_requests)
    homes = rng.integers(1, NUM_HOMES + 1, shape)
    places = rng.integers(NUM_HOMES + 1, travel.num_cells, shape)
    homeward = rng.random(shape) < _HOMEWARD_SHARE
    cells: IntArray = np.stack([np.where(homeward, places, homes), np.where(homeward, homes, places)], axis=2)
    direct = travel.minutes[cells[..., 0], cells[..., 1]]
    windows = _half_hour_windows(rng, direct)
    if detour_factor > 0.0:
        windows[:, :, 1, 1] += np.maximum(10.0, detour_factor * direct)
    return RouteProblems.from_arrays(
        travel,
        fleet or Fleet(),
        cells,
        windows,
        riders=1 + (rng.random(shape) < share_of_pairs),
        max_ride_minutes=direct * max_ride_factor + 15.0,
    )


def loose_instances(num_instances: int, num_requests: int = 30, seed: int = 0) -> RouteProblems:
    """Harder instances: wider windows to share rides, four seats, and some requests for two."""
    fleet = Fleet(capacity=4)
    return random_instances(num_instances, num_requests, seed, fleet=fleet, detour_factor=0.5, share_of_pairs=0.15)


def _half_hour_windows(rng: np.random.Generator, direct: FloatArray) -> FloatArray:
    share, opens, closes = _PERIODS.T
    period = rng.choice(len(_PERIODS), direct.shape, p=share)
    starts = opens[period] + rng.random(direct.shape) * (closes - opens)[period]
    pickup = 5.0 * np.floor(12.0 * starts)
    dropoff = pickup + np.maximum(5.0, 5.0 * np.round(direct / 5.0))
    early = np.stack([pickup, dropoff], axis=2)
    return np.stack([early, early + WINDOW_MINUTES], axis=3)


class InstanceError(HundredfoldError):
    """A benchmark file that cannot be read; the message names file and line."""


@dataclass(frozen=True, slots=True)
class BenchmarkInstance:
    """One instance of the literature, with its best known cost if there is one."""

    name: str
    problem: RouteProblems
    reference_cost: float | None


def read_instances(folder: Path) -> list[BenchmarkInstance]:
    """Read every `.txt` file of a folder in Li and Lim's or Cordeau's format, sorted by name.

    Best known costs come from its `references.csv` (columns instance, reference), if it has one.
    """
    references = _read_references(folder / "references.csv")
    paths = sorted(folder.glob("*.txt"))
    if not paths:
        raise InstanceError(f"{folder} holds no .txt files; point to a folder of instances.")
    return [BenchmarkInstance(path.stem, read_instance(path), references.get(path.stem)) for path in paths]


def read_instance(path: Path) -> RouteProblems:
    """Read one file as a batch of one instance; the first line tells the format.

    Li and Lim (2001): pickup and delivery with time windows. Cordeau and Laporte (2003) and Cordeau
    (2006): dial-a-ride with ride-time and duration limits.
    """
    rows = _read_numbers(path)
    if len(rows[0]) == 3:
        return _li_lim(path, rows)
    if len(rows[0]) == 5:
        return _cordeau(path, rows)
    raise InstanceError(
        f"{path.name} line 1 has {len(rows[0])} numbers; Li & Lim's files start with 3 "
        "(vehicles, capacity, speed), Cordeau's with 5 (vehicles, stops, longest route, "
        "capacity, longest ride)."
    )


def _li_lim(path: Path, rows: list[list[float]]) -> RouteProblems:
    """Columns: id, x, y, demand, earliest, latest, service, pickup, delivery; pairs by id."""
    nodes = _nodes(path, rows, columns=9)
    delivery = nodes[:, 8].astype(np.int64)
    pickups = np.flatnonzero(delivery)
    if not ((delivery > 0) | (nodes[:, 7] > 0))[1:].all() or delivery.max() >= len(nodes):
        raise InstanceError(f"{path.name} has a node that is neither pickup nor delivery.")
    vehicles, capacity, _speed = rows[0]
    fleet = Fleet(
        num_vehicles=int(vehicles),
        capacity=int(capacity),
        depot_window=(float(nodes[0, 4]), float(nodes[0, 5])),
        free_vehicles=int(vehicles),
    )
    pairs: IntArray = np.stack([pickups, delivery[pickups]], axis=1)
    return _problem(nodes[:, 1:3], fleet, pairs, nodes[:, 4:6], nodes[:, 3], nodes[:, 6], np.inf)


def _cordeau(path: Path, rows: list[list[float]]) -> RouteProblems:
    """Columns: id, x, y, service, load, earliest, latest; a second depot may stand at the end."""
    nodes = _nodes(path, rows, columns=7)
    vehicles, num_stops, max_route, capacity, max_ride = rows[0]
    half = int(num_stops) // 2
    if len(nodes) not in (2 * half + 1, 2 * half + 2):
        raise InstanceError(f"{path.name} announces {int(num_stops)} stops and has {len(nodes)} node lines.")
    fleet = Fleet(
        num_vehicles=int(vehicles),
        capacity=int(capacity),
        depot_window=(float(nodes[0, 5]), float(nodes[-1, 6] if len(nodes) % 2 == 0 else nodes[0, 6])),
        max_route_minutes=float(max_route),
        free_vehicles=int(vehicles),
    )
    first = np.arange(1, half + 1)
    pairs: IntArray = np.stack([first, first + half], axis=1)
    return _problem(nodes[:, 1:3], fleet, pairs, nodes[:, 5:7], nodes[:, 4], nodes[:, 3], float(max_ride))


def _problem(
    places: FloatArray,
    fleet: Fleet,
    pairs: IntArray,
    windows: FloatArray,
    demand: FloatArray,
    service: FloatArray,
    max_ride: float,
) -> RouteProblems:
    """A batch of one instance whose cells are the file's nodes; a unit of distance is a minute."""
    travel = TravelTable(np.linalg.norm(places[:, None] - places[None], axis=2))
    return RouteProblems.from_arrays(
        travel,
        fleet,
        pairs[None],
        windows[pairs][None],
        riders=demand[pairs[:, 0]].astype(np.int64)[None],
        service_minutes=service[pairs][None],
        max_ride_minutes=max_ride,
    )


def _read_numbers(path: Path) -> list[list[float]]:
    rows = []
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
        if line.strip():
            try:
                rows.append([float(word) for word in line.split()])
            except ValueError:
                raise InstanceError(
                    f"{path.name} line {number} has something that is not a number: {line[:60]!r}."
                ) from None
    if len(rows) < 2:
        raise InstanceError(f"{path.name} has {len(rows)} lines; an instance needs more.")
    return rows


def _nodes(path: Path, rows: list[list[float]], columns: int) -> FloatArray:
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != columns:
            raise InstanceError(f"{path.name} line {number} has {len(row)} columns where its format has {columns}.")
    return np.array(rows[1:])


def _read_references(path: Path) -> dict[str, float]:
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    try:
        return {row["instance"]: float(row["reference"]) for row in rows}
    except (KeyError, TypeError, ValueError):
        raise InstanceError(f"{path} must have the columns instance,reference with a number in the second.") from None
