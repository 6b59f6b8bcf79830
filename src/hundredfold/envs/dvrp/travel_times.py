"""Places of an operator and the travel times between them: from a matrix, or from straight lines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from hundredfold.core.batch import FloatArray
from hundredfold.core.errors import suggest
from hundredfold.core.formatting import format_duration, printable
from hundredfold.envs.dvrp.city import great_circle_km
from hundredfold.envs.dvrp.csv_files import CsvTable, Problems, heading_key, read_table
from hundredfold.envs.dvrp.place_positions import MAX_AREA_KM, MAX_PLACE_KM, check_distances, place_positions
from hundredfold.envs.dvrp.trip_columns import COORDINATES, find_heading
from hundredfold.envs.dvrp.trip_rows import TripRows

# Units that the first cell of the matrix may name, in minutes.
UNITS: Final = {"seconds": 1.0 / 60.0, "s": 1.0 / 60.0, "sec": 1.0 / 60.0, "minutes": 1.0, "min": 1.0}
# Units of distances and times that the first cell must not name.
OTHER_UNITS: Final = {
    "hours",
    "hour",
    "h",
    "km",
    "kilometres",
    "kilometers",
    "m",
    "metres",
    "meters",
    "miles",
    "mi",
    "ms",
}
# First headings of a list with a row per pair of places.
LIST_HEADINGS: Final = {("from", "to"), ("origin", "destination"), ("start", "end")}
MAX_DRIVE_MINUTES: Final = 1440.0
# Unknown places that get a problem each, and places that a message lists.
MAX_UNKNOWN_PLACES, SHOWN_PLACES = 5, 8
# A city whose median drive is shorter has its travel times in another unit.
MIN_MEDIAN_MINUTES: Final = 1.0
# Faster than any road vehicle between two places, in km per hour of straight line.
MAX_SPEED_KMH: Final = 200.0
# The file names the unit of its own; without a unit these are seconds.
DEFAULT_UNIT: Final = "seconds"


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Places and the travel times between them."""

    names: tuple[str, ...]
    minutes: FloatArray  # (places, places)
    degrees: FloatArray | None  # (places, 2) latitude and longitude, NaN where unknown

    @property
    def index(self) -> dict[str, int]:
        """Number of each place, by name."""
        return {name: number for number, name in enumerate(self.names)}


def read_travel_times(path: str | Path, problems: Problems) -> tuple[tuple[str, ...], FloatArray] | None:
    """Read a square, labelled matrix of travel times.

    They are seconds, unless the first cell of the file says minutes.

    Args:
        path: The file.
        problems: Collects what is wrong.

    Returns:
        The labels and (places, places) minutes, with 0 where a cell is wrong; None without a matrix.
    """
    table = read_table(path, "travel times", problems)
    if table is None:
        return None
    labels = table.header[1:]
    before = len(problems)
    if tuple(heading_key(cell) for cell in table.header[:2]) in LIST_HEADINGS:
        problems.add(table.path, "is a list of pairs; expected a table with one row and one column per place.")
        return None
    if len(table.rows) != len(labels):
        problems.add(
            table.path,
            f"is not square: {len(table.rows)} rows and {len(labels)} columns of travel times; both need one per "
            "place.",
        )
    if not labels:
        problems.add(table.path, "has no places; it needs one row and one column per place.")
    if "" in labels:
        problems.add(table.path, "has a column without a label in row 1; every place needs one.")
    if heading_key(table.header[0]) in OTHER_UNITS:
        problems.add(
            table.path,
            f"has {printable(table.header[0])} in its first cell; expected driving times in seconds or minutes.",
        )
    if len(problems) > before:
        return None
    unit = UNITS.get(heading_key(table.header[0]))
    minutes = _cells(table, labels, UNITS[DEFAULT_UNIT] if unit is None else unit, problems)
    if len(problems) == before:
        _check_plausible(table, minutes, unit is None, problems)
    return tuple(labels), minutes


def _cells(table: CsvTable, labels: list[str], unit_minutes: float, problems: Problems) -> FloatArray:
    minutes = np.zeros((len(labels), len(labels)))
    for number, (label, row) in enumerate(zip(labels, table.rows, strict=True)):
        row_number = table.row_numbers[number]
        if row[0] != label:
            problems.add(
                table.path,
                f"the row is labelled {printable(row[0])!r}, but that column {printable(label)!r}; rows and columns "
                "need the same labels in the same order.",
                row=row_number,
                column=table.header[0] or "1",
                kind="label",
            )
        for column, text in enumerate(row[1:]):
            value = table.number(text)
            kind = _problem_of(value, column == number, unit_minutes)
            if kind:
                text = kind.format(text=printable(text), drive=format_duration(60.0 * (value or 0.0) * unit_minutes))
                problems.add(table.path, text, row=row_number, column=labels[column], kind=kind)
            else:
                minutes[number, column] = (value or 0.0) * unit_minutes
    return minutes


def _problem_of(value: float | None, is_diagonal: bool, unit_minutes: float) -> str:
    """What is wrong with a travel time, as a template; empty if nothing is."""
    if value is None or value < 0.0:
        return "'{text}' is not a travel time; expected seconds >= 0."
    if value * unit_minutes > MAX_DRIVE_MINUTES:
        return "a drive of {drive} ({text}); expected less than a day."
    if is_diagonal and value != 0.0:
        return "the travel time from a place to itself must be 0, got {text}."
    return ""


def _check_plausible(table: CsvTable, minutes: FloatArray, unit_is_default: bool, problems: Problems) -> None:
    others = minutes[~np.eye(len(minutes), dtype=bool)]
    if len(others) and not others.any():
        problems.add(
            table.path, "has no travel time above 0, so every route costs nothing; expected seconds between places."
        )
    elif len(others) and unit_is_default and np.median(others) < MIN_MEDIAN_MINUTES:
        problems.add(
            table.path,
            f"has a median drive of {60.0 * np.median(others):.0f} seconds, so its times seem to be minutes. Write "
            "minutes into its first cell; or seconds, if they are.",
        )


def given_places(
    labels: tuple[str, ...], minutes: FloatArray, rows: TripRows, table: CsvTable, matrix: Path, problems: Problems
) -> Places:
    """The places of a matrix, with the coordinates that trips give them.

    Args:
        labels: Labels of the matrix.
        minutes: (places, places).
        rows: Trips; places that the matrix lacks become problems.
        table: The file of trips.
        matrix: The file of travel times.
        problems: Collects what is wrong.
    """
    unknown = list(dict.fromkeys(label for pair in rows.places for label in pair if label and label not in labels))
    listed = "its places are " + ", ".join(printable(label) for label in labels[:SHOWN_PLACES]) + "."
    for row, pair in enumerate(rows.places):
        for label, column in zip(pair, rows.place_columns, strict=True):
            if label not in unknown:
                continue
            if len(unknown) > MAX_UNKNOWN_PLACES:
                shown = ", ".join(printable(name) for name in unknown[:SHOWN_PLACES])
                text, kind = f"{len(unknown)} places are not in {matrix}: {shown}, ...; {listed}", "unknown places"
            else:
                text = f"the place {printable(label)!r} is not in {matrix}; {suggest(label, labels, listed)}"
                kind = f"unknown place {label}"
            problems.add(table.path, text, row=table.row_numbers[row], column=column, kind=kind)
    places = Places(labels, minutes, place_positions(labels, rows, table, MAX_AREA_KM, problems))
    if places.degrees is not None and not len(problems):
        _check_speed(places, matrix, problems)
    return places


def straight_line_places(
    rows: TripRows, table: CsvTable, speed_kmh: float, detour_factor: float, problems: Problems
) -> Places:
    """Places of the trips, with travel times from straight lines.

    Args:
        rows: Trips with coordinates.
        table: The file of trips.
        speed_kmh: Mean speed on the road.
        detour_factor: Length of the road relative to the straight line.
        problems: Collects what is wrong.
    """
    labels = tuple(dict.fromkeys(label for pair in rows.places for label in pair if label))
    degrees = place_positions(labels, rows, table, MAX_PLACE_KM, problems)
    if degrees is None or np.isnan(degrees).any():
        missing = labels if degrees is None else [labels[number] for number in np.flatnonzero(np.isnan(degrees[:, 0]))]
        # Coordinates that are wrong are named already.
        wrong = problems.rows_of(table.path, [find_heading(table, name) for name in COORDINATES])
        named = {label for row, pair in enumerate(rows.places) if table.row_numbers[row] in wrong for label in pair}
        if missing := [label for label in missing if label not in named]:
            shown = ", ".join(printable(label) for label in missing[:5])
            problems.add(
                table.path,
                f"has no coordinates for {len(missing):,} of its {len(labels):,} places ({shown}), and there is no "
                f"file of travel times. {'Add' if degrees is None else 'Fill'} the columns from_lat, from_lon, to_lat "
                "and to_lon, or give travel times.",
            )
        return Places(labels, np.zeros((len(labels), len(labels))), None)
    check_distances(degrees, labels, rows, table, problems)
    minutes = 60.0 * detour_factor * great_circle_km(degrees) / speed_kmh
    np.fill_diagonal(minutes, 0.0)
    if len(labels) > 1 and not minutes.any():
        problems.add(table.path, "has the same coordinates for all places, so every route costs nothing.")
    return Places(labels, minutes, degrees)


def _check_speed(places: Places, matrix: Path, problems: Problems) -> None:
    """Add a problem if vehicles of the matrix would be faster than any on the road."""
    assert places.degrees is not None
    km = great_circle_km(places.degrees)
    known = (km > 1.0) & (places.minutes > 0.0)
    if not known.any():
        return
    speed = float(np.median(km[known] / places.minutes[known]) * 60.0)
    if speed > MAX_SPEED_KMH:
        problems.add(
            matrix,
            f"has a median speed of {speed:,.0f} km/h between the coordinates of its places; are its times minutes "
            "(write minutes into its first cell) or the coordinates wrong?",
        )
