"""Vehicles of an operator as rows of a CSV file: one row per type of vehicle."""

from __future__ import annotations

from typing import Final

from hundredfold.core.formatting import printable
from hundredfold.envs.dvrp.csv_files import CsvTable, Problems, read_table
from hundredfold.envs.dvrp.trip_columns import Column
from hundredfold.envs.dvrp.trip_rows import clock_minutes
from hundredfold.routing.problem import VehicleType

MAX_COUNT: Final = 10_000
COLUMNS: Final[dict[str, Column]] = {
    "type": Column(("vehicle", "vehicle_type", "name"), "Name of the type, any text."),
    "count": Column(("number", "vehicles"), "How many vehicles of this type there are. Empty: 1."),
    "seats": Column(("capacity",), "Passengers on seats.", required=True),
    "wheelchair_places": Column(("wheelchairs", "wheelchair"), "Places for wheelchairs, besides the seats. Empty: 0."),
    "shift_start": Column(("start", "from"), "When a vehicle may leave the depot: 06:00. Empty: 00:00."),
    "shift_end": Column(("end", "to", "until"), "When it must be back. Empty: the end of the day."),
}


def read_vehicle_types(path: str, day_minutes: int, problems: Problems) -> tuple[VehicleType, ...]:
    """Read and check the types of vehicles.

    Args:
        path: The file.
        day_minutes: End of the day, where a shift has no end.
        problems: Collects what is wrong.
    """
    table = read_table(path, "vehicles", problems)
    if table is None:
        return ()
    headings = {name: table.find((name, *column.aliases)) for name, column in COLUMNS.items()}
    if headings["seats"] is None:
        present = ", ".join(printable(heading) for heading in table.header[:12])
        problems.add(table.path, f"has no column seats; its columns are {present}.")
        return ()
    if not table.rows:
        problems.add(table.path, "has a header but no vehicles; add one row per type.")
    before = len(problems)
    types = [_vehicle_type(table, row, headings, day_minutes, problems) for row in range(len(table.rows))]
    return tuple(types) if len(problems) == before else ()


def _vehicle_type(
    table: CsvTable, row: int, headings: dict[str, str | None], day_minutes: int, problems: Problems
) -> VehicleType:
    def text(name: str) -> str:
        heading = headings[name]
        return "" if heading is None else table.rows[row][table.header.index(heading)]

    wrong = set()

    def add(name: str, problem: str) -> None:
        wrong.add(name)
        problems.add(table.path, problem, row=table.row_numbers[row], column=headings[name] or name)

    def whole(name: str, low: int, default: int | None) -> int:
        value = float(default) if not text(name) and default is not None else table.number(text(name))
        if value is None or value != int(value) or not low <= value <= MAX_COUNT:
            add(name, f"{printable(text(name))!r} is not a whole number from {low} to {MAX_COUNT:,}.")
            return low
        return int(value)

    def time(name: str, default: float) -> float:
        minutes = clock_minutes(text(name)) if text(name) else default
        if minutes is None:
            add(name, f"{printable(text(name))!r} is not a time like 06:00.")
        return default if minutes is None else minutes

    count, seats = whole("count", 1, 1), whole("seats", 0, None)
    wheelchairs = whole("wheelchair_places", 0, 0)
    start, end = time("shift_start", 0.0), min(time("shift_end", float(day_minutes)), float(day_minutes))
    if seats + wheelchairs == 0 and not wrong & {"seats", "wheelchair_places"}:
        add("seats", "the vehicle has neither seats nor wheelchair places.")
    if end <= start:
        add("shift_end", "the shift ends before it starts; shifts across midnight are not supported.")
        start, end = 0.0, float(day_minutes)
    return VehicleType(count=count, seats=seats, wheelchairs=wheelchairs, shift=(start, end), name=text("type"))
