"""Trips of an operator as rows of a CSV file: columns, their other names, and how cells are read.

Only customer, places and one time of each trip are needed. What else is missing is left empty here;
`custom_data` fills it in and says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final, NamedTuple

import numpy as np

from hundredfold.core.batch import FloatArray, IntArray
from hundredfold.core.errors import suggest
from hundredfold.core.formatting import printable
from hundredfold.envs.dvrp.csv_files import CsvTable, Problems, finite_number, heading_key
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


class Column(NamedTuple):
    """A column of the file of trips."""

    aliases: tuple[str, ...]  # other headings that are understood
    meaning: str
    required: bool = False


_FROM, _TO = ("from", "origin", "pickup"), ("to", "destination", "dropoff")
_LATITUDE, _LONGITUDE = ("lat", "latitude"), ("lon", "lng", "longitude")


def _coordinate_aliases(sides: tuple[str, ...], names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{side}_{name}" for side in sides for name in names)[1:]


_PICKUP, _DROPOFF = "pickup_window", "dropoff_window"
COLUMNS: Final[dict[str, Column]] = {
    "customer": Column(
        ("traveler_id", "traveller_id", "customer_id", "client_id", "client", "rider_id", "passenger_id", "user_id"),
        "Who travels: any text, the same in all trips of one customer.",
        required=True,
    ),
    "from": Column(
        ("origin_h3", "origin", "pickup_place", "pickup_location", "pickup_address", "departure_location"),
        "Place of the pickup: a name, an address or a cell. As in the travel times, if there are any.",
    ),
    "to": Column(
        ("destination_h3", "destination", "dropoff_place", "dropoff_location", "dropoff_address", "arrival_location"),
        "Place of the dropoff.",
    ),
    "from_lat": Column(
        _coordinate_aliases(_FROM, _LATITUDE), "Latitude of the pickup in degrees. Needed without travel times."
    ),
    "from_lon": Column(_coordinate_aliases(_FROM, _LONGITUDE), "Longitude of the pickup in degrees."),
    "to_lat": Column(_coordinate_aliases(_TO, _LATITUDE), "Latitude of the dropoff in degrees."),
    "to_lon": Column(_coordinate_aliases(_TO, _LONGITUDE), "Longitude of the dropoff in degrees."),
    "from_gps": Column(
        ("origin_gps", "pickup_gps"), "Latitude and longitude of the pickup in one cell: [48.14, 11.58]."
    ),
    "to_gps": Column(("destination_gps", "dropoff_gps"), "Latitude and longitude of the dropoff in one cell."),
    _PICKUP: Column(
        ("departure_time_window", "pickup_time", "departure_time", "requested_pickup", "requested_pickup_time"),
        "When the customer wants to be picked up: 08:00-08:30. A single time, 08:00, is read as the half hour from "
        "then on. Empty: it follows from the dropoff and the direct ride.",
    ),
    _DROPOFF: Column(
        ("arrival_time_window", "dropoff_time", "arrival_time", "appointment", "appointment_time"),
        "When the customer wants to arrive: 08:20-08:50. A single time is read as the half hour before it. Empty: it "
        "follows from the pickup and the direct ride.",
    ),
    "date": Column(
        ("trip_date", "service_date", "day"),
        "Day of the trip: 2026-03-02, 02.03.2026 or 03/02/2026. Only counted, to say how many trips a day has.",
    ),
    "purpose": Column(
        ("trip_purpose",),
        "What the trip is for: work, return home, school, medical, shopping, errand, dining, recreation or social; "
        "other words are understood where they contain one of these, and count as other where not.",
    ),
    "passengers": Column(
        ("riders", "party_size", "persons"), "People who travel together, wheelchair users included. Empty: 1."
    ),
    "wheelchair": Column(
        ("wheelchairs", "wheelchair_users"), "How many of them need a wheelchair place, or yes or no. Empty: none."
    ),
    "flexibility": Column(
        (),
        "Only to simulate customers whom you know: late, early, none or both, that is, whether they accept a later "
        "dropoff or an earlier pickup. Empty: sampled. What your customers accept is what the agent learns.",
    ),
    "earlier_minutes": Column(
        ("flexibility_pickup_earlier",), "Only to simulate: how much earlier the pickup may be, in minutes."
    ),
    "later_minutes": Column(
        ("flexibility_dropoff_later",), "Only to simulate: how much later the dropoff may be, in minutes."
    ),
    "age": Column((), "Age of the customer in years. Helps to predict what new customers accept."),
    "occupation": Column((), "Occupation of the customer, any text."),
}

_CLOCK: Final = r"(?:\d{4}-\d{2}-\d{2}[T ])?(\d{1,2})[:.h](\d{2})(?::\d{2})?\s*([ap]\.?m\.?)?"
_TIME: Final = re.compile(_CLOCK, re.ASCII | re.IGNORECASE)
_WINDOW: Final = re.compile(rf"{_CLOCK}\s*(?:-|\u2013|\u2014|to)\s*{_CLOCK}", re.ASCII | re.IGNORECASE)
_GPS: Final = re.compile(r"\[?\(?\s*(-?\d+\.?\d*)\s*,\s*(-?\d+\.?\d*)\s*\)?\]?", re.ASCII)
_DATE_FORMATS: Final = ("%Y-%m-%d", "%d.%m.%Y", "%d.%m.%y", "%Y/%m/%d")
_YES_NO: Final = {"": 0, "yes": 1, "y": 1, "true": 1, "x": 1, "no": 0, "n": 0, "false": 0}


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
        self.headings = {name: table.find((name, *column.aliases)) for name, column in COLUMNS.items()}

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
        The trips, with placeholders where cells are wrong; None if there are none.
    """
    reader = _Reader(table, problems)
    has_columns = _check_columns(reader)
    if not table.rows:
        problems.add(table.path, "has a header but no trips; add one row per trip.")
    if not table.rows or not has_columns:
        return None
    _note_unknown_columns(table, notes)
    customer, customer_ids = _customers(reader)
    degrees = _degrees(reader)
    places, place_columns = _places(reader, None if has_matrix else degrees)
    windows = np.stack([_windows(reader, _PICKUP, notes), _windows(reader, _DROPOFF, notes)], axis=1)
    _check_windows(reader, windows)
    wheelchairs = _wheelchairs(reader)
    passengers = reader.numbers("passengers", _is_group, f"a number of people from 1 to {MAX_PASSENGERS}", 1.0)
    return TripRows(
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


def _is_group(value: float) -> bool:
    return 1 <= value <= MAX_PASSENGERS and value == int(value)


def _check_columns(reader: _Reader) -> bool:
    """Add a problem for every column that is missing and needed; True if there is none."""
    required = [name for name, column in COLUMNS.items() if column.required]
    missing = {name: COLUMNS[name].aliases for name in required if not reader.has(name)}
    for side in ("from", "to"):
        if not (reader.has(side) or reader.has(f"{side}_lat", f"{side}_lon") or reader.has(f"{side}_gps")):
            missing[side] = COLUMNS[side].aliases
    if not (reader.has(_PICKUP) or reader.has(_DROPOFF)):
        missing[_PICKUP] = COLUMNS[_PICKUP].aliases
    present = [printable(heading) for heading in reader.table.header if heading]
    for name, aliases in missing.items():
        hint = suggest(name, present[:50], f"its columns are {', '.join(present[:12])}.")
        known = ", ".join(aliases[:4])
        reader.problems.add(reader.table.path, f"has no column {name} (also called {known}); {hint}")
    return not missing


def _note_unknown_columns(table: CsvTable, notes: list[str]) -> None:
    known = {key for name, column in COLUMNS.items() for key in (name, *column.aliases)}
    unknown = [heading for heading in table.header if heading and heading_key(heading) not in known]
    if unknown:
        shown = ", ".join(printable(heading) for heading in unknown[:8])
        notes.append(f"{table.path.name}: columns that are not used: {shown}{', ...' if len(unknown) > 8 else ''}.")


def _customers(reader: _Reader) -> tuple[IntArray, tuple[str, ...]]:
    """(rows,) customers from 0, and their ids: numbers in their order, others as they appear."""
    texts = reader.texts("customer")
    for row, text in enumerate(texts):
        if not text:
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
            elif not text:
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
            start, end = (start, start + SINGLE_TIME_WINDOW) if name == _PICKUP else (end - SINGLE_TIME_WINDOW, end)
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
        side = "from it on" if name == _PICKUP else "before it"
        notes.append(
            f"{reader.table.path.name}, column {reader.heading(name)}: {single:,} single times were read as the "
            f"{SINGLE_TIME_WINDOW:.0f} minutes {side}."
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
            reader.add(row, _DROPOFF, "the dropoff window begins before the pickup window.", "first")
            window[:] = np.nan
    column = _PICKUP if reader.has(_PICKUP) else _DROPOFF
    for row, (pickup, dropoff) in enumerate(zip(reader.texts(_PICKUP), reader.texts(_DROPOFF), strict=True)):
        if not pickup and not dropoff:
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
            reader.add(row, "wheelchair", f"{printable(text)!r} is neither yes, no nor a number of wheelchairs.", "no")
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
