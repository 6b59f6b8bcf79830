"""Columns of the file of trips: their headings, other headings that are understood, and which are missing."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from hundredfold.core.errors import suggest
from hundredfold.core.formatting import printable
from hundredfold.envs.dvrp.csv_files import CsvTable, Problems, heading_key

PICKUP_WINDOW, DROPOFF_WINDOW = "pickup_window", "dropoff_window"


class Column(NamedTuple):
    """A column of the file of trips."""

    aliases: tuple[str, ...]  # other headings that are understood
    meaning: str
    required: bool = False


_FROM, _TO = ("from", "origin", "pickup"), ("to", "destination", "dropoff")
_LATITUDE, _LONGITUDE = ("lat", "latitude"), ("lon", "lng", "longitude")


def _coordinate_aliases(sides: tuple[str, ...], names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{side}_{name}" for side in sides for name in names)[1:]


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
    PICKUP_WINDOW: Column(
        ("departure_time_window", "pickup_time", "departure_time", "requested_pickup", "requested_pickup_time"),
        "When the customer wants to be picked up: 08:00-08:30. A single time, 08:00, is read as the half hour from "
        "then on. Empty: it follows from the dropoff and the direct ride.",
    ),
    DROPOFF_WINDOW: Column(
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


# A number, time or date, which is no heading.
_NUMBERS: Final = re.compile(r"[-+]?\d[\d.,:/ -]*", re.ASCII)
COORDINATES: Final = ("from_lat", "from_lon", "to_lat", "to_lon", "from_gps", "to_gps")


def find_heading(table: CsvTable, name: str) -> str | None:
    """The heading of a column as the file writes it; None if the file lacks the column."""
    return table.find((name, *COLUMNS[name].aliases))


def check_columns(table: CsvTable, problems: Problems) -> bool:
    """Add a problem for every column that is missing and needed; True if there is none."""
    missing = {name: _accepted(name) for name, column in COLUMNS.items() if column.required and not _has(table, name)}
    for side in ("from", "to"):
        if not (_has(table, side) or _has(table, f"{side}_lat", f"{side}_lon") or _has(table, f"{side}_gps")):
            missing[side] = f"{_accepted(side)} nor the columns {side}_lat and {side}_lon"
    if not (_has(table, PICKUP_WINDOW) or _has(table, DROPOFF_WINDOW)):
        missing[PICKUP_WINDOW] = f"{_accepted(PICKUP_WINDOW)} nor {_accepted(DROPOFF_WINDOW)}"
    present = [printable(heading) for heading in table.header if heading]
    shown = ", ".join(present[:12])
    if missing and sum(_NUMBERS.fullmatch(heading) is not None for heading in present) > 1:
        problems.add(
            table.path, f"has no headings, its first row is {shown}; put a row that names the columns above it."
        )
        return False
    listed = f"its columns are {shown}."
    for name, accepted in missing.items():
        hint = suggest(name, present[:50], listed)
        problems.add(table.path, f"has no column {accepted}; {hint}")
        if hint == listed:
            listed = "its columns are named above."
    return not missing


def _has(table: CsvTable, *names: str) -> bool:
    return all(find_heading(table, name) is not None for name in names)


def _accepted(name: str) -> str:
    """A column with every heading that is understood."""
    return f"{name} (also called {', '.join(COLUMNS[name].aliases)})"


def note_unknown_columns(table: CsvTable, notes: list[str]) -> None:
    """Note the columns that are not used."""
    known = {key for name, column in COLUMNS.items() for key in (name, *column.aliases)}
    unknown = [heading for heading in table.header if heading and heading_key(heading) not in known]
    if unknown:
        shown = ", ".join(printable(heading) for heading in unknown[:8])
        notes.append(f"{table.path.name}: columns that are not used: {shown}{', ...' if len(unknown) > 8 else ''}.")
