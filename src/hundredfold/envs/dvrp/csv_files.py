"""CSV files as tables whose complaints name file, row and column.

Rows are counted as a spreadsheet counts them: the header is row 1.

The user's trips as they stand in the file, checked cell by cell.

The user's matrix of travel times: square, labelled, in seconds.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from hundredfold.core.batch import FloatArray, IntArray
from hundredfold.core.errors import SettingsError, suggest
from hundredfold.core.formatting import printable
from hundredfold.envs.dvrp.trip_purposes import normalised, purpose_of
from hundredfold.routing.problem import DROPOFF, PICKUP

FIRST_ROW: Final = 2


@dataclass(frozen=True, slots=True)
class CsvTable:
    """A file's header and cells, all as stripped text."""

    path: Path
    header: list[str]
    rows: list[list[str]]

    def column(self, name: str) -> list[str]:
        """All cells of a column."""
        place = self.header.index(name)
        return [row[place] for row in self.rows]

    def has(self, name: str) -> bool:
        return name in self.header

    def require(self, names: Sequence[str]) -> None:
        """Refuse a table that lacks one of these columns."""
        for name in names:
            if name not in self.header:
                found = [word for word in self.header if word]
                raise SettingsError(
                    f"{self.path} has no column {name}; {suggest(name, map(printable, found[:20]))}"
                )

    def error(self, number: int, column: str, complaint: str) -> SettingsError:
        """A complaint about one cell; `number` counts data rows from 0."""
        return SettingsError(
            f"{self.path}, row {number + FIRST_ROW}, column {printable(column)}: {complaint}"
        )


def read_table(path: str | Path, what: str) -> CsvTable:
    """The table in a file, every row as wide as the header; `what` says what it should hold."""
    place = Path(path)
    try:
        with place.open(newline="", encoding="utf-8-sig") as file:
            lines = [[cell.strip() for cell in row] for row in csv.reader(file) if row]
    except OSError as error:
        raise SettingsError(f"cannot read {what} from {place}: {error.strerror}.") from None
    except (UnicodeDecodeError, csv.Error):
        raise SettingsError(
            f"{place} is not a CSV file in UTF-8; save {what} as comma-separated text."
        ) from None
    if not lines:
        raise SettingsError(f"{place} is empty; it should hold {what} under a line of headings.")
    table = CsvTable(place, lines[0], lines[1:])
    for number, row in enumerate(table.rows):
        if len(row) != len(table.header):
            raise SettingsError(
                f"{place}, row {number + FIRST_ROW} has {len(row)} columns while its headings "
                f"name {len(table.header)}."
            )
    return table


def finite_number(text: str) -> float | None:
    """The number a cell holds; None for anything else, NaN and infinity included."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


TYPE_TEXTS: Final = (
    "flexible for late dropoff, but inflexible for early pickup",
    "flexible for early pickup, but inflexible for late dropoff",
    "inflexible for any schedule changes",
    "flexible for both early pickup and late dropoff",
)
COLUMNS: Final = (
    "traveler_id",
    "flexibility",
    "trip_purpose",
    "departure_location",
    "arrival_location",
    "departure_time_window",
    "arrival_time_window",
    "origin_h3",
    "destination_h3",
)
WINDOW_COLUMNS: Final = ("departure_time_window", "arrival_time_window")
CELL_COLUMNS: Final = ("origin_h3", "destination_h3")
GPS_COLUMNS: Final = ("origin_gps", "destination_gps")
TOLERANCE_COLUMNS: Final = ("flexibility_pickup_earlier", "flexibility_dropoff_later")

_WINDOW: Final = re.compile(r"(\d{1,2}):(\d{2})\s*-\s*(\d{1,2}):(\d{2})")
_GPS: Final = re.compile(r"\[?\(?\s*(-?\d+\.?\d*)\s*,\s*(-?\d+\.?\d*)\s*\)?\]?")


@dataclass(slots=True)
class TripRows:
    """The trips in the order of the file."""

    traveller: IntArray  # (rows,) from 0
    types: IntArray  # (rows,)
    cells: IntArray  # (rows, 2)
    windows: FloatArray  # (rows, 2, 2)
    purpose: IntArray  # (rows,)
    tolerance: FloatArray | None  # (rows, 2), where the file has both columns
    degrees: FloatArray | None  # (rows, 2, 2) latitude and longitude, where the file has them


def read_trip_rows(table: CsvTable, cell_of: Mapping[str, int]) -> TripRows:
    """All rows; the first cell that cannot be used is refused by name."""
    table.require(COLUMNS)
    if not table.rows:
        raise SettingsError(f"{table.path} has headings and no trips; add one row per trip.")
    traveller = _travellers(table)
    windows = np.stack([_windows(table, column) for column in WINDOW_COLUMNS], axis=1)
    for number, window in enumerate(windows):
        if window[DROPOFF, 0] < window[PICKUP, 0]:
            raise table.error(
                number,
                WINDOW_COLUMNS[DROPOFF],
                "the dropoff window begins before the pickup window.",
            )
    tolerance = degrees = None
    if all(map(table.has, TOLERANCE_COLUMNS)):
        tolerance = np.stack([_tolerances(table, name) for name in TOLERANCE_COLUMNS], axis=1)
    if all(map(table.has, GPS_COLUMNS)):
        degrees = np.stack([_degrees(table, name) for name in GPS_COLUMNS], axis=1)
    return TripRows(
        traveller=traveller,
        types=_types(table, traveller),
        cells=np.stack([_cells(table, name, cell_of) for name in CELL_COLUMNS], axis=1),
        windows=windows,
        purpose=np.array([purpose_of(text) for text in table.column("trip_purpose")]),
        tolerance=tolerance,
        degrees=degrees,
    )


def _travellers(table: CsvTable) -> IntArray:
    """(rows,) travellers from 0; the file counts them from 1 without gaps."""
    found = np.zeros(len(table.rows), np.int64)
    for number, text in enumerate(table.column("traveler_id")):
        value = finite_number(text)
        if value is None or value < 1 or value != int(value) or value > len(found):
            raise table.error(
                number,
                "traveler_id",
                f"{printable(text)!r} is not a traveller's number; count travellers 1, 2, 3, ...",
            )
        found[number] = int(value) - 1
    missing = np.setdiff1d(np.arange(found.max() + 1), found)
    if len(missing):
        raise SettingsError(
            f"{table.path}, column traveler_id: traveller {missing[0] + 1} has no trip while "
            f"numbers go up to {found.max() + 1}; count travellers without gaps."
        )
    return found


def _types(table: CsvTable, traveller: IntArray) -> IntArray:
    """(rows,) personalities; a traveller keeps one."""
    type_of = {normalised(text): number for number, text in enumerate(TYPE_TEXTS)}
    found: list[int] = []
    type_of_person: dict[int, int] = {}
    for number, text in enumerate(table.column("flexibility")):
        kind = type_of.get(normalised(text))
        if kind is None:
            known = "; ".join(TYPE_TEXTS)
            raise table.error(
                number, "flexibility", f"{printable(text)!r} is none of the four kinds: {known}."
            )
        person = int(traveller[number])
        if type_of_person.setdefault(person, kind) != kind:
            raise table.error(
                number, "flexibility", f"traveller {person + 1} had another flexibility above."
            )
        found.append(kind)
    return np.array(found)


def _cells(table: CsvTable, column: str, cell_of: Mapping[str, int]) -> IntArray:
    labels = table.column(column)
    for number, label in enumerate(labels):
        if label not in cell_of:
            raise table.error(
                number, column, f"the cell {printable(label)!r} is not in the travel times."
            )
    return np.array([cell_of[label] for label in labels])


def _windows(table: CsvTable, column: str) -> FloatArray:
    """(rows, 2) minutes after midnight."""
    texts = table.column(column)
    return np.array([_window(table, number, column, text) for number, text in enumerate(texts)])


def _window(table: CsvTable, number: int, column: str, text: str) -> tuple[float, float]:
    match = _WINDOW.fullmatch(text)
    hours = [int(part) for part in match.groups()] if match else []
    if not hours or max(hours[0], hours[2]) > 24 or max(hours[1], hours[3]) > 59:
        raise table.error(number, column, f"{printable(text)!r} is not a window like 08:00-08:30.")
    start, end = 60.0 * hours[0] + hours[1], 60.0 * hours[2] + hours[3]
    if end <= start:
        raise table.error(
            number,
            column,
            f"the window {text} ends before it has begun; windows across midnight are not "
            "supported.",
        )
    return start, end


def _tolerances(table: CsvTable, column: str) -> FloatArray:
    found = np.zeros(len(table.rows))
    for number, text in enumerate(table.column(column)):
        value = finite_number(text)
        if value is None or value < 0.0:
            raise table.error(number, column, f"{printable(text)!r} is not a number of minutes.")
        found[number] = value
    return found


def _degrees(table: CsvTable, column: str) -> FloatArray:
    """(rows, 2) latitude and longitude."""
    found = np.zeros((len(table.rows), 2))
    for number, text in enumerate(table.column(column)):
        match = _GPS.fullmatch(text)
        if match is None:
            raise table.error(number, column, f"{printable(text)!r} is not like [37.77, -122.42].")
        found[number] = [float(part) for part in match.groups()]
    return found


def read_travel_times(path: str | Path) -> tuple[tuple[str, ...], FloatArray]:
    """Labels of the cells and (cells, cells) driving minutes; the file holds seconds."""
    table = read_table(path, "travel times")
    labels = table.header[1:]
    if len(table.rows) != len(labels):
        raise SettingsError(
            f"{table.path} is not square: {len(table.rows)} rows and {len(labels)} columns of "
            "travel times; both need one per cell."
        )
    if not labels:
        raise SettingsError(f"{table.path} has no cells; it needs one row and column per cell.")
    if len(set(labels)) < len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        raise SettingsError(
            f"{table.path} has two columns {printable(twice)}; name each cell once."
        )
    seconds = np.zeros((len(labels), len(labels)))
    for number, (label, row) in enumerate(zip(labels, table.rows, strict=True)):
        if row[0] != label:
            raise table.error(
                number,
                table.header[0] or "1",
                f"the row is called {printable(row[0])!r} while that column is called "
                f"{printable(label)!r}; rows and columns need the same labels in the same order.",
            )
        for place, text in enumerate(row[1:]):
            seconds[number, place] = _seconds(table, number, place, text)
    return tuple(labels), seconds / 60.0


def _seconds(table: CsvTable, number: int, place: int, text: str) -> float:
    value = finite_number(text)
    column = table.header[1 + place]
    if value is None or not 0.0 <= value < 1e7:
        raise table.error(
            number, column, f"{printable(text)!r} is not a travel time; give seconds from 0 up."
        )
    if number == place and value != 0.0:
        raise table.error(
            number, column, f"driving from a cell to itself takes 0 seconds, not {printable(text)}."
        )
    return value
