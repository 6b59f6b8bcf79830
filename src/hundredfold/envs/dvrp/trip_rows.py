"""Trips of an operator as rows of a CSV file: columns, their other names, and how cells are read.

Only customer, places and one time of each trip are needed. What else is missing is left empty here;
`custom_data` fills it in and says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final

import numpy as np

from hundredfold.core.batch import FloatArray, IntArray
from hundredfold.core.formatting import format_count, printable
from hundredfold.envs.dvrp.csv_files import CsvTable, Problems, finite_number
from hundredfold.envs.dvrp.trip_columns import (
    COLUMNS,
    DROPOFF_WINDOW,
    PICKUP_WINDOW,
    check_columns,
    find_heading,
    note_unknown_columns,
)
from hundredfold.envs.dvrp.trip_purposes import OTHER, normalise_text, purpose_of
from hundredfold.routing.problem import DROPOFF, EARLY, LATE, PICKUP

# Customer types as the files spell them, in the order of `population.TYPE_NAMES`.
TYPE_TEXTS: Final = (
    "flexible for late dropoff, but inflexible for early pickup",
    "flexible for early pickup, but inflexible for late dropoff",
    "inflexible for any schedule changes",
    "flexible for both early pickup and late dropoff",
)
SHORT_TYPE_TEXTS: Final = ("late", "early", "none", "both")
UNKNOWN_TYPE: Final = -1
# Width of the window around a single time, in minutes.
SINGLE_TIME_WINDOW: Final = 30.0
MAX_PASSENGERS: Final = 100


_CLOCK: Final = r"(?:\d{4}-\d{2}-\d{2}[T ])?(\d{1,2})[:.h](\d{2})(?::\d{2})?\s*([ap]\.?m\.?)?"
_TIME: Final = re.compile(_CLOCK, re.ASCII | re.IGNORECASE)
_WINDOW: Final = re.compile(rf"{_CLOCK}\s*(?:-|\u2013|\u2014|to)\s*{_CLOCK}", re.ASCII | re.IGNORECASE)
_GPS: Final = re.compile(r"\[?\(?\s*(-?\d+\.?\d*)\s*,\s*(-?\d+\.?\d*)\s*\)?\]?", re.ASCII)
_DATE_FORMATS: Final = ("%Y-%m-%d", "%d.%m.%Y", "%d.%m.%y", "%Y/%m/%d")
_YES: Final = ("yes", "y", "true", "x", "ja", "j", "oui", "s\u00ed", "si", "s\u00ec", "sim", "tak")
_NO: Final = ("no", "n", "false", "-", "nein", "non", "nee", "n\u00e3o", "nao", "nie")
_YES_NO: Final = {"": 0, **dict.fromkeys(_YES, 1), **dict.fromkeys(_NO, 0)}


@dataclass(slots=True)
class TripRows:
    """Trips in the order of the file."""

    customer: IntArray  # (rows,) from 0
    customer_ids: tuple[str, ...]  # (customers,) as the file names them
    types: IntArray  # (rows,) or UNKNOWN_TYPE
    places: list[tuple[str, str]]  # (rows,) labels of pickup and dropoff
    place_columns: tuple[str, str]  # headings that the labels come from
    degrees: FloatArray | None  # (rows, 2, 2) latitude and longitude, if the file has them
    windows: FloatArray  # (rows, 2, 2), NaN where not given
    purpose: IntArray  # (rows,)
    passengers: IntArray  # (rows,) wheelchair users included
    wheelchairs: IntArray  # (rows,)
    dates: list[date | None]  # (rows,)
    tolerance: FloatArray | None  # (rows, 2), if the file has both columns

    def __len__(self) -> int:
        return len(self.customer)


class _Reader:
    """The columns of one file of trips, cell by cell."""

    def __init__(self, table: CsvTable, problems: Problems) -> None:
        self.table, self.problems = table, problems
        self.headings = {name: find_heading(table, name) for name in COLUMNS}

    def has(self, *names: str) -> bool:
        """Whether the file has all of these columns."""
        return all(self.headings[name] is not None for name in names)

    def heading(self, name: str) -> str:
        """The heading of a column in the file; its documented name if it has none."""
        return self.headings[name] or name

    def texts(self, name: str) -> list[str]:
        """The cells of a column, empty if the file has none."""
        heading = self.headings[name]
        return [""] * len(self.table.rows) if heading is None else self.table.column(heading)

    def add(self, row: int, name: str, text: str, kind: str = "") -> None:
        """Add a problem of the cell in this data row, counted from 0."""
        heading = self.heading(name)
        self.problems.add(
            self.table.path, text, row=self.table.row_numbers[row], column=heading, kind=f"{heading} {kind}"
        )

    def numbers(self, name: str, accepts: Callable[[float], bool], expected: str, empty: float) -> FloatArray:
        """(rows,) numbers of a column; cells that are none become problems and `empty`."""
        values = np.full(len(self.table.rows), empty)
        for row, text in enumerate(self.texts(name)):
            if not text:
                continue
            value = self.table.number(text)
            if value is None or not accepts(value):
                self.add(row, name, f"{printable(text)!r} is not {expected}.", "number")
            else:
                values[row] = value
        return values


def read_trip_rows(table: CsvTable, has_matrix: bool, problems: Problems, notes: list[str]) -> TripRows | None:
    """Parse all trips.

    Args:
        table: The file of trips.
        has_matrix: There are travel times, so that places need names.
        problems: Collects what is wrong.
        notes: Collects what was assumed.

    Returns:
        The trips, with placeholders where cells are wrong; None without trips or a needed column.
    """
    reader = _Reader(table, problems)
    has_columns = check_columns(table, problems)
    if not table.rows:
        problems.add(table.path, "has a header but no trips; add one row per trip.")
        return None
    note_unknown_columns(table, notes)
    customer, customer_ids = _customers(reader)
    degrees = _degrees(reader)
    places, place_columns = _places(reader, None if has_matrix else degrees)
    windows = np.stack([_windows(reader, PICKUP_WINDOW, notes), _windows(reader, DROPOFF_WINDOW, notes)], axis=1)
    _check_windows(reader, windows)
    wheelchairs = _wheelchairs(reader)
    passengers = reader.numbers("passengers", _is_group, f"a number of people from 1 to {MAX_PASSENGERS}", 1.0)
    rows = TripRows(
        customer=customer,
        customer_ids=customer_ids,
        types=_types(reader, customer, customer_ids),
        places=places,
        place_columns=place_columns,
        degrees=degrees,
        windows=windows,
        purpose=np.array([purpose_of(text) if text else OTHER for text in reader.texts("purpose")]),
        passengers=np.maximum(passengers.astype(np.int64), wheelchairs),
        wheelchairs=wheelchairs,
        dates=_dates(reader),
        tolerance=_tolerances(reader),
    )
    # Without a column that is needed the other columns were only read to name their problems as well.
    return rows if has_columns else None


def _is_group(value: float) -> bool:
    return 1 <= value <= MAX_PASSENGERS and value == int(value)


def _customers(reader: _Reader) -> tuple[IntArray, tuple[str, ...]]:
    """(rows,) customers from 0, and their ids: numbers in their order, others as they appear."""
    texts = reader.texts("customer")
    for row, text in enumerate(texts):
        if not text and reader.has("customer"):
            reader.add(row, "customer", "the customer is missing; any text will do.")
    ids = list(dict.fromkeys(texts))
    values = [finite_number(text) for text in ids]
    numbers = [value for value in values if value is not None]
    if len(numbers) == len(ids):
        ids = [text for _, text in sorted(zip(numbers, ids, strict=True))]
    index = {text: number for number, text in enumerate(ids)}
    return np.array([index[text] for text in texts]), tuple(ids)


def _types(reader: _Reader, customer: IntArray, customer_ids: tuple[str, ...]) -> IntArray:
    """(rows,) customer types, one per customer."""
    spellings = (TYPE_TEXTS, SHORT_TYPE_TEXTS)
    type_index = {normalise_text(text): index for texts in spellings for index, text in enumerate(texts)}
    type_of_customer: dict[int, int] = {}
    for row, text in enumerate(reader.texts("flexibility")):
        if not text:
            continue
        kind = type_index.get(normalise_text(text))
        owner = int(customer[row])
        if kind is None:
            reader.add(
                row,
                "flexibility",
                f"{printable(text)!r} is not a customer type; use one of: {', '.join(SHORT_TYPE_TEXTS)}.",
                "type",
            )
        elif type_of_customer.setdefault(owner, kind) != kind:
            reader.add(
                row, "flexibility", f"customer {printable(customer_ids[owner])} has another flexibility above.", "other"
            )
    return np.array([type_of_customer.get(int(owner), UNKNOWN_TYPE) for owner in customer])


def _degrees(reader: _Reader) -> FloatArray | None:
    """(rows, 2, 2) latitude and longitude of both places; None if the file does not have all four."""
    pickup, dropoff = _degrees_of(reader, "from"), _degrees_of(reader, "to")
    return None if pickup is None or dropoff is None else np.stack([pickup, dropoff], axis=1)


def _degrees_of(reader: _Reader, side: str) -> FloatArray | None:
    """(rows, 2) latitude and longitude of one side; NaN in empty cells."""
    names = (f"{side}_lat", f"{side}_lon")
    if reader.has(*names):
        limits: Mapping[str, float] = {names[0]: 90.0, names[1]: 180.0}

        def values(name: str) -> FloatArray:
            limit = limits[name]
            what = "a latitude from -90 to 90" if limit == 90.0 else "a longitude from -180 to 180"
            return reader.numbers(name, lambda value: abs(value) <= limit, f"{what} in degrees", np.nan)

        return np.stack([values(name) for name in names], axis=1)
    if not reader.has(f"{side}_gps"):
        return None
    degrees = np.full((len(reader.table.rows), 2), np.nan)
    for row, text in enumerate(reader.texts(f"{side}_gps")):
        match = _GPS.fullmatch(text)
        point = [float(part) for part in match.groups()] if match else []
        if text and (not point or abs(point[0]) > 90.0 or abs(point[1]) > 180.0):
            reader.add(row, f"{side}_gps", f"{printable(text)!r} is not a position like [37.77, -122.42].", "position")
        elif text:
            degrees[row] = point
    return degrees


def _places(reader: _Reader, degrees: FloatArray | None) -> tuple[list[tuple[str, str]], tuple[str, str]]:
    """Labels of pickup and dropoff, and the headings they come from.

    A place without a name is named after its coordinates, rounded to about 100 m.
    """
    labels: list[list[str]] = []
    headings: list[str] = []
    for number, side in enumerate(("from", "to")):
        texts = reader.texts(side)
        column = side if reader.has(side) else f"{side}_lat" if reader.has(f"{side}_lat") else f"{side}_gps"
        headings.append(reader.heading(column))
        for row, text in enumerate(texts):
            point = None if degrees is None else degrees[row, number]
            if not text and point is not None and not np.isnan(point).any():
                texts[row] = f"{point[0]:.3f}, {point[1]:.3f}"
            elif not text and reader.has(column):
                reader.add(row, column, "the place is missing; give its name or its coordinates.", "missing")
        labels.append(texts)
    return list(zip(*labels, strict=True)), (headings[0], headings[1])


def _windows(reader: _Reader, name: str, notes: list[str]) -> FloatArray:
    """(rows, 2) minutes after midnight; NaN in empty cells."""
    windows = np.full((len(reader.table.rows), 2), np.nan)
    single = 0
    for row, text in enumerate(reader.texts(name)):
        if not text:
            continue
        match = _WINDOW.fullmatch(text) or _TIME.fullmatch(text)
        parts = () if match is None else match.groups()
        times = [_minutes(*parts[k : k + 3]) for k in range(0, len(parts), 3)]
        if not times or None in times:
            reader.add(row, name, f"{printable(text)!r} is not a time window like 08:00-08:30.", "window")
            continue
        start, end = times[0] or 0.0, times[-1] or 0.0
        if len(times) == 1:
            single += 1
            start, end = (
                (start, start + SINGLE_TIME_WINDOW) if name == PICKUP_WINDOW else (end - SINGLE_TIME_WINDOW, end)
            )
        elif end <= start:
            reader.add(
                row,
                name,
                f"the window {printable(text)} ends before it starts; windows across midnight are not supported.",
                "order",
            )
            continue
        windows[row] = max(start, 0.0), end
    if single:
        side = "from it on" if name == PICKUP_WINDOW else "before it"
        notes.append(
            f"{reader.table.path.name}, column {reader.heading(name)}: {format_count(single, 'single time')} read as "
            f"the {SINGLE_TIME_WINDOW:.0f} minutes {side}."
        )
    return windows


def clock_minutes(text: str) -> float | None:
    """Minutes after midnight of a single time such as 06:00; None if it is not one."""
    match = _TIME.fullmatch(text)
    return None if match is None else _minutes(*match.groups())


def _minutes(hours: str, minutes: str, half: str | None) -> float | None:
    hour, minute = int(hours), int(minutes)
    if half:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if half[0] in "pP" else 0)
    return None if hour > 24 or minute > 59 else 60.0 * hour + minute


def _check_windows(reader: _Reader, windows: FloatArray) -> None:
    """Add a problem for trips without a time or with a dropoff before the pickup, whose windows become NaN."""
    for row, window in enumerate(windows):
        if window[DROPOFF, EARLY] < window[PICKUP, EARLY] or window[DROPOFF, LATE] < window[PICKUP, EARLY]:
            reader.add(row, DROPOFF_WINDOW, "the dropoff window begins before the pickup window.", "first")
            window[:] = np.nan
    column = PICKUP_WINDOW if reader.has(PICKUP_WINDOW) else DROPOFF_WINDOW
    for row, (pickup, dropoff) in enumerate(
        zip(reader.texts(PICKUP_WINDOW), reader.texts(DROPOFF_WINDOW), strict=True)
    ):
        if not pickup and not dropoff and reader.has(column):
            reader.add(row, column, "the trip has no time; give a pickup or a dropoff window.", "no time")


def _tolerances(reader: _Reader) -> FloatArray | None:
    names = ("earlier_minutes", "later_minutes")
    if not reader.has(*names):
        return None
    for name in names:
        for row, text in enumerate(reader.texts(name)):
            if not text:
                reader.add(row, name, "'' is not a number of minutes.", "number")
    columns = [reader.numbers(name, lambda value: value >= 0.0, "a number of minutes", 0.0) for name in names]
    return np.stack(columns, axis=1)


def _wheelchairs(reader: _Reader) -> IntArray:
    places = np.zeros(len(reader.table.rows), np.int64)
    for row, text in enumerate(reader.texts("wheelchair")):
        value = _YES_NO.get(text.lower(), reader.table.number(text))
        if value is None or not 0 <= value <= MAX_PASSENGERS or value != int(value):
            expected = f"yes ({', '.join(_YES)}), no ({', '.join(_NO)}) nor a number of wheelchairs"
            reader.add(row, "wheelchair", f"{printable(text)!r} is neither {expected}.", "no")
        else:
            places[row] = int(value)
    return places


def _dates(reader: _Reader) -> list[date | None]:
    texts = reader.texts("date")
    # 03/02/2026 is the third of February if any date of the file is possible only so.
    days_first = any(re.match(r"(1[3-9]|2\d|3[01])/", text) for text in texts)
    formats = (*_DATE_FORMATS, "%d/%m/%Y" if days_first else "%m/%d/%Y")
    parsed = {text: _date(text, formats) for text in set(texts)}
    dates = [parsed[text] for text in texts]
    for row, (text, day) in enumerate(zip(texts, dates, strict=True)):
        if text and day is None:
            reader.add(row, "date", f"{printable(text)!r} is not a date like 2026-03-02.", "date")
    return dates


def _date(text: str, formats: tuple[str, ...]) -> date | None:
    first = text.partition("T")[0].partition(" ")[0]
    for known in formats:
        try:
            return datetime.strptime(first, known).date()
        except ValueError:
            continue
    return None
