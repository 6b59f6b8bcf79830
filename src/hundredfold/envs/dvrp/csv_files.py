"""CSV files of trips and travel times; errors name file, row and column.

Rows are counted as in a spreadsheet: the header is row 1.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from hundredfold.core.batch import FloatArray, IntArray
from hundredfold.core.errors import SettingsError, suggest
from hundredfold.core.formatting import printable
from hundredfold.envs.dvrp.trip_purposes import normalise_text, purpose_of
from hundredfold.routing.problem import DROPOFF, PICKUP

FIRST_ROW: Final = 2

# Customer types as the files spell them, in the order of `population.TYPE_NAMES`.
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

# Not all that float() accepts: `1_0` and other scripts' digits are more likely mistakes than numbers.
_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_WINDOW: Final = re.compile(r"(\d{1,2}):(\d{2})\s*-\s*(\d{1,2}):(\d{2})", re.ASCII)
_GPS: Final = re.compile(r"\[?\(?\s*(-?\d+\.?\d*)\s*,\s*(-?\d+\.?\d*)\s*\)?\]?", re.ASCII)


@dataclass(frozen=True, slots=True)
class CsvTable:
    """Header and cells of a CSV file, as stripped text."""

    path: Path
    header: list[str]
    rows: list[list[str]]

    def column(self, name: str) -> list[str]:
        """All cells of a column."""
        index = self.header.index(name)
        return [row[index] for row in self.rows]

    def has_column(self, name: str) -> bool:
        return name in self.header

    def require_columns(self, names: Sequence[str]) -> None:
        """Raise a SettingsError if a column is missing."""
        for name in names:
            if name not in self.header:
                found = [printable(column) for column in self.header if column]
                raise SettingsError(f"{self.path} has no column {name}; {suggest(name, found[:20])}")

    def error(self, row: int, column: str, problem: str) -> SettingsError:
        """An error about one cell; `row` counts data rows from 0."""
        return SettingsError(f"{self.path}, row {row + FIRST_ROW}, column {printable(column)}: {problem}")


@dataclass(slots=True)
class TripRows:
    """Trips in the order of the file."""

    customer: IntArray  # (rows,) from 0
    types: IntArray  # (rows,)
    cells: IntArray  # (rows, 2)
    windows: FloatArray  # (rows, 2, 2)
    purpose: IntArray  # (rows,)
    tolerance: FloatArray | None  # (rows, 2), if the file has both columns
    degrees: FloatArray | None  # (rows, 2, 2) latitude and longitude, if the file has both columns


def read_table(path: str | Path, content: str) -> CsvTable:
    """Read a CSV file whose rows are all as wide as its header.

    Args:
        path: The file.
        content: What it should contain, for error messages.
    """
    file_path = Path(path)
    try:
        with file_path.open(newline="", encoding="utf-8-sig") as file:
            lines = [[cell.strip() for cell in row] for row in csv.reader(file) if row]
    except OSError as error:
        raise SettingsError(f"cannot read {content} from {file_path}: {error.strerror}.") from None
    except (UnicodeDecodeError, csv.Error):
        raise SettingsError(
            f"{file_path} is not a CSV file in UTF-8; save {content} as comma-separated text."
        ) from None
    if not lines:
        raise SettingsError(f"{file_path} is empty; expected {content} under a header row.")
    table = CsvTable(file_path, lines[0], lines[1:])
    twice = [name for name, count in Counter(table.header).items() if name and count > 1]
    if twice:
        raise SettingsError(
            f"{file_path} has more than one column {printable(twice[0])}; every column needs a heading of its own."
        )
    for number, row in enumerate(table.rows):
        if len(row) != len(table.header):
            raise SettingsError(
                f"{file_path}, row {number + FIRST_ROW} has {len(row)} columns, but the header has {len(table.header)}."
            )
    return table


def finite_number(text: str) -> float | None:
    """The number in a cell; None if it is not a finite number in plain digits."""
    if not _NUMBER.fullmatch(text):
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def read_trip_rows(table: CsvTable, cell_index: Mapping[str, int]) -> TripRows:
    """Parse and check all trips.

    Args:
        table: The file of trips.
        cell_index: Index of each cell label.
    """
    table.require_columns(COLUMNS)
    if not table.rows:
        raise SettingsError(f"{table.path} has a header but no trips; add one row per trip.")
    customer = _customers(table)
    windows = np.stack([_windows(table, column) for column in WINDOW_COLUMNS], axis=1)
    for number, window in enumerate(windows):
        if window[DROPOFF, 0] < window[PICKUP, 0]:
            raise table.error(number, WINDOW_COLUMNS[DROPOFF], "the dropoff window begins before the pickup window.")
    tolerance = degrees = None
    if all(map(table.has_column, TOLERANCE_COLUMNS)):
        tolerance = np.stack([_tolerances(table, name) for name in TOLERANCE_COLUMNS], axis=1)
    if all(map(table.has_column, GPS_COLUMNS)):
        degrees = np.stack([_degrees(table, name) for name in GPS_COLUMNS], axis=1)
    return TripRows(
        customer=customer,
        types=_types(table, customer),
        cells=np.stack([_cells(table, name, cell_index) for name in CELL_COLUMNS], axis=1),
        windows=windows,
        purpose=np.array([purpose_of(text) for text in table.column("trip_purpose")]),
        tolerance=tolerance,
        degrees=degrees,
    )


def _customers(table: CsvTable) -> IntArray:
    """(rows,) customers from 0; the file numbers them from 1 without gaps."""
    customers = np.zeros(len(table.rows), np.int64)
    for number, text in enumerate(table.column("traveler_id")):
        value = finite_number(text)
        if value is None or value < 1 or value != int(value) or value > len(customers):
            raise table.error(
                number, "traveler_id", f"{printable(text)!r} is not a customer number; number customers 1, 2, 3, ..."
            )
        customers[number] = int(value) - 1
    missing = np.setdiff1d(np.arange(customers.max() + 1), customers)
    if len(missing):
        raise SettingsError(
            f"{table.path}, column traveler_id: customer {missing[0] + 1} has no trip, but the "
            f"numbers go up to {customers.max() + 1}; number customers without gaps."
        )
    return customers


def _types(table: CsvTable, customer: IntArray) -> IntArray:
    """(rows,) customer types, one per customer."""
    type_index = {normalise_text(text): index for index, text in enumerate(TYPE_TEXTS)}
    types: list[int] = []
    type_of_customer: dict[int, int] = {}
    for number, text in enumerate(table.column("flexibility")):
        kind = type_index.get(normalise_text(text))
        if kind is None:
            raise table.error(
                number,
                "flexibility",
                f"{printable(text)!r} is not a customer type; use one of: {'; '.join(TYPE_TEXTS)}.",
            )
        owner = int(customer[number])
        if type_of_customer.setdefault(owner, kind) != kind:
            raise table.error(number, "flexibility", f"customer {owner + 1} has another flexibility above.")
        types.append(kind)
    return np.array(types)


def _cells(table: CsvTable, column: str, cell_index: Mapping[str, int]) -> IntArray:
    labels = table.column(column)
    for number, label in enumerate(labels):
        if label not in cell_index:
            raise table.error(number, column, f"the cell {printable(label)!r} is not in the travel times.")
    return np.array([cell_index[label] for label in labels])


def _windows(table: CsvTable, column: str) -> FloatArray:
    """(rows, 2) minutes after midnight."""
    texts = table.column(column)
    return np.array([_window(table, number, column, text) for number, text in enumerate(texts)])


def _window(table: CsvTable, row: int, column: str, text: str) -> tuple[float, float]:
    match = _WINDOW.fullmatch(text)
    times = [int(part) for part in match.groups()] if match else []
    if not times or max(times[0], times[2]) > 24 or max(times[1], times[3]) > 59:
        raise table.error(row, column, f"{printable(text)!r} is not a time window like 08:00-08:30.")
    start, end = 60.0 * times[0] + times[1], 60.0 * times[2] + times[3]
    if end <= start:
        raise table.error(
            row, column, f"the window {text} ends before it starts; windows across midnight are not supported."
        )
    return start, end


def _tolerances(table: CsvTable, column: str) -> FloatArray:
    tolerances = np.zeros(len(table.rows))
    for number, text in enumerate(table.column(column)):
        value = finite_number(text)
        if value is None or value < 0.0:
            raise table.error(number, column, f"{printable(text)!r} is not a number of minutes.")
        tolerances[number] = value
    return tolerances


def _degrees(table: CsvTable, column: str) -> FloatArray:
    """(rows, 2) latitude and longitude."""
    degrees = np.zeros((len(table.rows), 2))
    for number, text in enumerate(table.column(column)):
        match = _GPS.fullmatch(text)
        if match is None:
            raise table.error(number, column, f"{printable(text)!r} is not a position like [37.77, -122.42].")
        degrees[number] = [float(part) for part in match.groups()]
    return degrees


def read_travel_times(path: str | Path) -> tuple[tuple[str, ...], FloatArray]:
    """Read a square, labelled matrix of travel times in seconds.

    Returns:
        The cell labels and (cells, cells) travel times in minutes.
    """
    table = read_table(path, "travel times")
    labels = table.header[1:]
    if len(table.rows) != len(labels):
        raise SettingsError(
            f"{table.path} is not square: {len(table.rows)} rows and {len(labels)} columns of "
            "travel times; both need one per cell."
        )
    if not labels:
        raise SettingsError(f"{table.path} has no cells; it needs one row and column per cell.")
    if "" in labels:
        raise SettingsError(f"{table.path}, row 1 has a column without a label; every cell needs one.")
    seconds = np.zeros((len(labels), len(labels)))
    for number, (label, row) in enumerate(zip(labels, table.rows, strict=True)):
        if row[0] != label:
            raise table.error(
                number,
                table.header[0] or "1",
                f"the row is labelled {printable(row[0])!r}, but that column "
                f"{printable(label)!r}; rows and columns need the same labels in the same order.",
            )
        for column, text in enumerate(row[1:]):
            seconds[number, column] = _seconds(table, number, column, text)
    if len(labels) > 1 and not seconds.any():
        raise SettingsError(
            f"all travel times in {table.path} are 0, so every route costs nothing; expected seconds between cells."
        )
    return tuple(labels), seconds / 60.0


def _seconds(table: CsvTable, row: int, column: int, text: str) -> float:
    value = finite_number(text)
    label = table.header[1 + column]
    if value is None or not 0.0 <= value < 1e7:
        raise table.error(row, label, f"{printable(text)!r} is not a travel time; expected seconds >= 0.")
    if row == column and value != 0.0:
        raise table.error(row, label, f"the travel time from a cell to itself must be 0, got {printable(text)}.")
    return value
