"""Checks of an operator's data beyond single cells: what a day of it looks like, and whether the fleet can serve it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from hundredfold.core import rng
from hundredfold.core.errors import SettingsError
from hundredfold.core.formatting import format_clock, format_count
from hundredfold.envs.dvrp.csv_files import DataError, Problem, Problems
from hundredfold.envs.dvrp.custom_data import CustomData, collect_data, population_of
from hundredfold.envs.dvrp.demand import DemandSampler
from hundredfold.envs.dvrp.population import Population
from hundredfold.envs.dvrp.route_costs import day_problems, fleet_for
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.routing.lns_oracle import LNSOracle, LNSSettings
from hundredfold.routing.problem import VehicleType

# Days that are sampled to find out whether the fleet can serve them, and their seed.
FLEET_DAYS: Final = 16
FLEET_SEED: Final = 4711
# By how much the fleet grows from try to try, to find one that suffices.
FLEET_GROWTH: Final = 1.2


@dataclass(frozen=True, slots=True)
class DataSummary:
    """What an operator's data contains: figures by name, and what was assumed or looks odd."""

    figures: dict[str, str]  # empty if the files have problems
    notes: tuple[str, ...]
    problems: tuple[Problem, ...]  # of the files
    fit_problem: str  # why the files do not fit the settings, such as a fleet that is too small; empty if they do


def check_data(settings: DvrpSettings) -> DataSummary:
    """Read all files, and solve some days of them without offers.

    Days are solved also if single trips have problems: those are left out, so that a fleet that is
    too small is named at once.

    Args:
        settings: Files, requests per day and fleet.
    """
    problems = Problems()
    data = collect_data(settings, problems)
    if data is None or not problems.are_of_rows_of(data.table.path):
        return DataSummary({}, (), tuple(problems.found), "")
    if set(data.table.row_numbers) <= problems.rows_of(data.table.path):
        return DataSummary({}, (), tuple(problems.found), "")
    try:
        population = population_of(data, settings)
    except DataError as error:
        return DataSummary({}, (), (*problems.found, *error.problems), "")
    except SettingsError as error:
        return DataSummary({}, (), tuple(problems.found), _without_wrong_rows(str(error), problems))
    fleet = _without_wrong_rows(fleet_problem(population, settings), problems)
    if len(problems):
        return DataSummary({}, (), tuple(problems.found), fleet)
    notes, dates = list(data.notes), Counter(day for day in data.rows.dates if day is not None)
    if dates:
        per_day = sum(dates.values()) / len(dates)
        if not 0.5 * settings.num_customers <= per_day <= 2.0 * settings.num_customers:
            notes.append(
                f"The file has {per_day:.0f} trips per day, but {settings.num_customers} requests are simulated: "
                f"consider --customers {round(per_day)}."
            )
    return DataSummary(_figures(data, population, settings), tuple(notes), (), fleet)


def _without_wrong_rows(text: str, problems: Problems) -> str:
    return f"{text} (The rows above were left out here.)" if text and len(problems) else text


def _figures(data: CustomData, population: Population, settings: DvrpSettings) -> dict[str, str]:
    rows, minutes = data.rows, data.places.minutes
    drives = minutes[data.cells[:, 0], data.cells[:, 1]]
    held_out = population.size - population.customers.num_known
    dates = Counter(day for day in rows.dates if day is not None)
    figures = {
        "trips": f"{len(rows):,}" + ("" if data.included.all() else f", {int(data.included.sum()):,} within the hours"),
        "customers": f"{population.size:,}, {held_out:,} of them held out from training",
        "places": f"{len(data.places.names):,}",
        "depot": data.city.names[data.city.depot_cell],
        "direct ride": f"median {np.median(drives):.0f} min, longest {drives.max():.0f} min",
        "pickups": f"{format_clock(rows.windows[:, 0, 0].min())} to {format_clock(rows.windows[:, 0, 1].max())}",
    }
    if dates:
        figures["days"] = (
            f"{len(dates):,} from {min(dates)} to {max(dates)}, {sum(dates.values()) / len(dates):.1f} trips each "
            f"({min(dates.values())} to {max(dates.values())})"
        )
    fleet = fleet_for(population, settings)
    figures["simulated day"] = f"{settings.num_customers} requests, {format_count(fleet.num_vehicles, 'vehicle')}"
    if fleet.types:
        figures["vehicles"] = "; ".join(_describe(kind) for kind in fleet.types)
    return figures


def _describe(kind: VehicleType) -> str:
    wheelchairs = f" and {format_count(kind.wheelchairs, 'wheelchair place')}" if kind.wheelchairs else ""
    shift = f"{format_clock(kind.shift[0])} to {format_clock(kind.shift[1])}"
    name = f"{kind.count} {kind.name}" if kind.name else format_count(kind.count, "vehicle")
    return f"{name} with {format_count(kind.seats, 'seat')}{wheelchairs}, {shift}"


def fleet_problem(population: Population, settings: DvrpSettings) -> str:
    """What is wrong with the size of the fleet; empty if it serves all sampled days without offers."""
    unserved = unserved_days(population, settings)
    if not unserved:
        return ""
    fleet = fleet_for(population, settings)
    found = (
        f"{format_count(fleet.num_vehicles, 'vehicle')} cannot serve all {settings.num_customers} requests on "
        f"{unserved} of {FLEET_DAYS} sampled days"
    )
    if fleet.types:
        return f"{found}; add vehicles to {settings.vehicles}, make shifts longer, or lower --customers."
    number = fleet.num_vehicles
    while number < settings.num_customers:
        number = min(settings.num_customers, max(number + 1, int(number * FLEET_GROWTH)))
        if not unserved_days(population, replace(settings, num_vehicles=number)):
            return f"{found}; {format_count(number, 'vehicle')} can (--num-vehicles {number}), or lower --customers."
    return f"{found}, and not even one vehicle per request can; lower --customers."


def unserved_days(population: Population, settings: DvrpSettings) -> int:
    """Sampled days on which the fleet cannot serve all requests, though no offer is made."""
    keys = rng.spawn(rng.seed_key(FLEET_SEED), np.arange(FLEET_DAYS))
    _, trip = DemandSampler(population, settings.split, settings.num_customers).sample(keys)
    problems = day_problems(
        population.trips.cells[trip],
        population.trips.windows[trip],
        population.max_ride_minutes[trip],
        population,
        settings,
        population.riders[trip],
    )
    solutions = LNSOracle(LNSSettings(threads=settings.oracle_threads)).solve(problems)
    return int(solutions.unserved.any(axis=1).sum())


def problem_row(problem: Problem) -> dict[str, object]:
    """A problem as a row of JSON."""
    rows = [row for row, _ in problem.cells if row is not None]
    return {
        "kind": "problem",
        "file": str(problem.path),
        "rows": rows,
        "column": problem.cells[0][1],
        "text": problem.text,
    }
