"""Coordinates of an operator's places: one position per place, and trips whose coordinates contradict it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import numpy as np

from hundredfold.core.batch import FloatArray, IntArray
from hundredfold.core.formatting import printable
from hundredfold.envs.dvrp.city import distances_km
from hundredfold.envs.dvrp.csv_files import CsvTable, Problems
from hundredfold.envs.dvrp.trip_rows import TripRows

# A point further from the usual one of its place contradicts it. The places of a matrix may be areas.
MAX_PLACE_KM: Final = 2.0
MAX_AREA_KM: Final = 10.0
# So does one at the usual point of another place, unless it is as close to that of its own.
SAME_PLACE_KM: Final = 0.2
# Latitude and longitude are exchanged if that takes a point from so far away to its place, as a share of the distance.
EXCHANGED: Final = 0.1
# A place with more positions that contradict it is no place, but a word such as home.
MAX_POSITIONS: Final = 3
# Places further from the middle of the others are mistakes.
MAX_CITY_KM: Final = 1000.0
# Digits of a degree that count when points are compared: about 10 m.
DIGITS: Final = 4


def place_positions(
    labels: Sequence[str], rows: TripRows, table: CsvTable, max_km: float, problems: Problems
) -> FloatArray | None:
    """Position of every place: the mean over its trips.

    Args:
        labels: Names of the places.
        rows: Trips; those whose coordinates contradict the name of the place become problems.
        table: The file of trips.
        max_km: How far from the usual point of its place a point may be.
        problems: Collects what is wrong.

    Returns:
        (places, 2) latitude and longitude, NaN for places without any; None if the trips have none.
    """
    if rows.degrees is None:
        return None
    index = {label: number for number, label in enumerate(labels)}
    cells = np.array([[index.get(label, -1) for label in pair] for pair in rows.places])
    known = (cells >= 0) & ~np.isnan(rows.degrees).any(axis=2)
    for row, side in _contradictions(labels, rows, cells, table, max_km, problems):
        known[row, side] = False
    sums, counts = np.zeros((len(labels), 2)), np.zeros((len(labels), 1))
    np.add.at(sums, cells[known], rows.degrees[known])
    np.add.at(counts, cells[known], 1.0)
    return np.where(counts > 0, sums / np.maximum(counts, 1.0), np.nan)


def check_distances(
    degrees: FloatArray, labels: Sequence[str], rows: TripRows, table: CsvTable, problems: Problems
) -> None:
    """Add a problem for places that are far away from all others."""
    middle = np.median(degrees, axis=0)
    distance = distances_km(middle, degrees)
    far = {labels[number]: number for number in np.flatnonzero(distance > MAX_CITY_KM).tolist()}
    for row, pair in enumerate(rows.places if far else ()):
        for side, label in enumerate(pair):
            if label in far:
                number = far[label]
                problems.add(
                    table.path,
                    f"the place {printable(label)!r} at {_point(degrees[number])} is {distance[number]:,.0f} km from "
                    "the middle of the others; are latitude and longitude exchanged?",
                    row=table.row_numbers[row],
                    column=rows.place_columns[side],
                    kind="far place",
                )


def _contradictions(
    labels: Sequence[str], rows: TripRows, cells: IntArray, table: CsvTable, max_km: float, problems: Problems
) -> list[tuple[int, int]]:
    """Row and side of every point that is not where its place is; each becomes a problem."""
    assert rows.degrees is not None
    usual = _usual_rows(cells, rows.degrees, len(labels))
    points = np.full((len(labels), 2), np.nan)
    for place, at in usual.items():
        points[place] = rows.degrees[at]
    owner = {_key(points[place]): place for place in reversed(usual)}
    distance = np.where(cells >= 0, distances_km(points[cells], rows.degrees), np.nan)
    found = []
    for row, side in np.argwhere(distance > SAME_PLACE_KM).tolist():
        place = int(cells[row, side])
        if owner.get(_key(rows.degrees[row, side]), place) != place or distance[row, side] > max_km:
            found.append((row, side))
    positions: dict[int, set[tuple[float, float]]] = defaultdict(set)
    for row, side in found:
        positions[int(cells[row, side])].add(_key(rows.degrees[row, side]))
    for row, side in found:
        place, point, km = int(cells[row, side]), rows.degrees[row, side], float(distance[row, side])
        if len(positions[place]) > MAX_POSITIONS:
            problems.add(
                table.path,
                f"the place {printable(labels[place])!r} is at {len(positions[place]) + 1} positions; a place has one "
                "position, so give each another name, such as its address.",
                row=table.row_numbers[row],
                column=rows.place_columns[side],
                kind=f"positions {place}",
            )
            continue
        other = owner.get(_key(point), place)
        if distances_km(points[place], point[::-1]) < EXCHANGED * km:
            cause = "latitude and longitude are exchanged"
        elif other != place:
            cause = f"these are the coordinates of {printable(labels[other])!r}"
        else:
            cause = "a place has one position, and another place needs another name"
        problems.add(
            table.path,
            f"the place {printable(labels[place])!r} is at {_point(point)} here, but at {_point(points[place])} in row "
            f"{table.row_numbers[usual[place][0]]}, {km:,.{1 if km < 100.0 else 0}f} km away; {cause}.",
            row=table.row_numbers[row],
            column=rows.place_columns[side],
            kind=f"{side} {place} {_key(point)}",
        )
    return found


def _usual_rows(cells: IntArray, degrees: FloatArray, num_places: int) -> dict[int, tuple[int, int]]:
    """Row and side with the most frequent point of each place; the one nearest to their median if all differ."""
    known = np.argwhere((cells >= 0) & ~np.isnan(degrees).any(axis=2))
    place_of = cells[known[:, 0], known[:, 1]]
    order = np.argsort(place_of, kind="stable")
    usual = {}
    for place, at in enumerate(np.split(known[order], np.searchsorted(place_of[order], np.arange(1, num_places)))):
        if not len(at):
            continue
        points = degrees[at[:, 0], at[:, 1]]
        _, first, counts = np.unique(points.round(DIGITS), axis=0, return_index=True, return_counts=True)
        if counts.max() > 1:
            best = int(first[counts == counts.max()].min())
        else:
            # Rounded, so that the first of two points is the usual one.
            best = int(distances_km(np.median(points, axis=0), points).round(3).argmin())
        usual[place] = (int(at[best, 0]), int(at[best, 1]))
    return usual


def _key(point: FloatArray) -> tuple[float, float]:
    latitude, longitude = point.round(DIGITS).tolist()
    return latitude, longitude


def _point(point: FloatArray) -> str:
    return f"{point[0]:.3f}, {point[1]:.3f}"
