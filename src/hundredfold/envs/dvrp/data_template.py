"""Sample files of an operator's data, with every column explained; they train as they are."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from datetime import date, timedelta
from pathlib import Path
from typing import Final

from hundredfold.core.errors import SettingsError
from hundredfold.envs.dvrp.population import Population, synthetic_population
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.envs.dvrp.trip_columns import COLUMNS, Column
from hundredfold.envs.dvrp.trip_purposes import PURPOSE_NAMES
from hundredfold.envs.dvrp.vehicle_rows import COLUMNS as VEHICLE_COLUMNS
from hundredfold.routing.problem import DROPOFF, PICKUP

TRIPS, TRAVEL_TIMES, VEHICLES, README = "trips.csv", "travel_times.csv", "vehicles.csv", "README.md"
SAMPLE_VEHICLES: Final = (
    ("type", "count", "seats", "wheelchair_places", "shift_start", "shift_end"),
    ("minibus early", "2", "8", "1", "05:00", "15:00"),
    ("minibus late", "2", "8", "1", "13:00", "24:00"),
    ("car", "3", "4", "0", "05:00", "24:00"),
)
FIRST_DAY: Final = date(2026, 3, 2)  # a Monday
KNOWN_CUSTOMERS: Final = 30
TRIPS_PER_CUSTOMER: Final = 8
WORKING_DAYS: Final = 16
# One trip in so many is of two passengers; one customer in so many uses a wheelchair.
PAIR_EVERY, WHEELCHAIR_EVERY = 9, 12
SAMPLE_COLUMNS: Final = (
    "customer",
    "date",
    "from",
    "to",
    "from_lat",
    "from_lon",
    "to_lat",
    "to_lon",
    "pickup_window",
    "dropoff_window",
    "purpose",
    "passengers",
    "wheelchair",
    "age",
    "occupation",
)

Table = list[list[str]]


def write_template(folder: Path) -> list[Path]:
    """Write sample files into a folder; returns their paths.

    Args:
        folder: Created if it does not exist; files that it has already are not overwritten.
    """
    population = synthetic_population(DvrpSettings(service="operator", population_size=KNOWN_CUSTOMERS))
    tables = {
        TRIPS: sample_trips(population),
        TRAVEL_TIMES: sample_travel_times(population),
        VEHICLES: [list(row) for row in SAMPLE_VEHICLES],
    }
    paths = [folder / name for name in (*tables, README)]
    for path in paths:
        if path.exists():
            raise SettingsError(f"{path} exists already; choose an empty folder.")
    folder.mkdir(parents=True, exist_ok=True)
    for path, table in zip(paths, tables.values(), strict=False):
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(table)
    paths[-1].write_text(readme(), encoding="utf-8")
    return paths


def sample_trips(population: Population) -> Table:
    """Some trips of every customer of a synthetic population, as an operator would export them."""
    city, trips, customers = population.city, population.trips, population.customers
    assert city.degrees is not None
    rows: Table = []
    for customer in range(population.size):
        for number in range(TRIPS_PER_CUSTOMER):
            trip = int(population.first_trip[customer]) + number
            places = trips.cells[trip]
            day = (number * (WORKING_DAYS // TRIPS_PER_CUSTOMER) + customer) % WORKING_DAYS
            rows.append(
                [
                    f"C-{customer + 1:03d}",
                    str(FIRST_DAY + timedelta(days=day + 2 * (day // 5))),
                    *(city.names[place] for place in places),
                    *(f"{degree:.4f}" for place in places for degree in city.degrees[place]),
                    *(_window(*trips.windows[trip, side]) for side in (PICKUP, DROPOFF)),
                    PURPOSE_NAMES[trips.purpose[trip]],
                    "2" if (customer + number) % PAIR_EVERY == 0 else "1",
                    "1" if customer % WHEELCHAIR_EVERY == 0 else "",
                    str(customers.ages[customer]),
                    customers.occupations[customer],
                ]
            )
    return [list(SAMPLE_COLUMNS), *sorted(rows, key=lambda row: row[1])]


def sample_travel_times(population: Population) -> Table:
    """The travel times of the population's city, in seconds."""
    names, seconds = population.city.names, population.city.travel_minutes * 60.0
    return [
        ["seconds", *names],
        *([name, *(f"{cell:.0f}" for cell in row)] for name, row in zip(names, seconds, strict=True)),
    ]


def _window(early: float, late: float) -> str:
    return "-".join(f"{int(minutes) // 60:02d}:{int(minutes) % 60:02d}" for minutes in (early, late))


def _column_rows(columns: Mapping[str, Column]) -> list[str]:
    return [f"| {name} | {', '.join(column.aliases)} | {column.meaning} |" for name, column in columns.items()]


def readme() -> str:
    """The explanation of all files and columns, in Markdown."""
    lines = [
        "# Your trips",
        "",
        "Sample files: replace them by your own. Everything but `customer`, places and one time per trip is optional.",
        "In this folder:",
        "",
        "```",
        f"hundredfold data check {TRIPS} {TRAVEL_TIMES} --vehicles {VEHICLES}",
        f"hundredfold train dvrp --trips {TRIPS} --travel-times {TRAVEL_TIMES} --vehicles {VEHICLES}",
        "```",
        "",
        f"## {TRIPS}: one row per trip",
        "",
        "| column | also called | meaning |",
        "|---|---|---|",
        *_column_rows(COLUMNS),
        "",
        f"## {TRAVEL_TIMES}: driving times between all places",
        "",
        "One row and one column per place, in the same order; the times are from row to column. The first cell names",
        "the unit: seconds (also if it is empty) or minutes. Without this file the times are straight lines between",
        "coordinates, made longer by `--detour-factor`, at `--speed-kmh`.",
        "",
        f"## {VEHICLES}: one row per type of vehicle",
        "",
        "| column | also called | meaning |",
        "|---|---|---|",
        *_column_rows(VEHICLE_COLUMNS),
        "",
        "Without this file all vehicles are alike (`--num-vehicles`, `--capacity`) and drive all day.",
        "",
    ]
    return "\n".join(lines)
