"""`hundredfold data`: sample files of an operator's trips, and a check of one's own."""

from __future__ import annotations

import shlex
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated

import tyro

from hundredfold.cli.flags import parse_flags
from hundredfold.cli.output import Row, print_rows
from hundredfold.cli.train import num_customers_flag
from hundredfold.core.errors import SettingsError, suggest
from hundredfold.envs.dvrp.data_check import DataSummary, check_data, problem_row
from hundredfold.envs.dvrp.data_template import write_template
from hundredfold.envs.dvrp.settings import DvrpSettings, Service

HELP = """usage: hundredfold data template DIR
         write sample files, with every column explained
       hundredfold data check TRIPS [--travel-times TRAVEL_TIMES]
         [--vehicles VEHICLES]
         name all problems of your files at once, and what will be assumed

Train on your files with: hundredfold train dvrp --trips TRIPS
         [--travel-times TRAVEL_TIMES] [--vehicles VEHICLES]"""

PROBLEMS_FOUND = 1
DEFAULTS = DvrpSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """Write sample files of trips and travel times, and a README that explains every column."""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """Folder to write to; existing files are not overwritten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Check your files: all problems at once, with file, row and column, and what was assumed.

    Some days are also routed without offers, to see whether the fleet is large enough. Exit code 1
    if there is a problem.
    """

    trips: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TRIPS")]
    """CSV file of trips."""
    travel_times_file: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[TRAVEL_TIMES]")] = None
    """The same as --travel-times."""
    travel_times: str | None = None
    """CSV file of travel times; by default straight lines between coordinates."""
    vehicles: str | None = None
    """CSV file of vehicle types; replaces num_vehicles and capacity."""
    recorded_responses: str | None = None
    """CSV file of recorded responses."""
    num_customers: int = DEFAULTS.num_customers
    """Requests per simulated day (--customers)."""
    num_vehicles: int | None = None
    """Vehicles; by default 5, or one per 8 customers if that is more."""
    capacity: int = DEFAULTS.capacity
    """Seats of one vehicle."""
    depot: str | None = None
    """Place of the depot; by default the most central place."""
    speed_kmh: float = DEFAULTS.speed_kmh
    """Speed on the road in km/h, without travel times."""
    detour_factor: float = DEFAULTS.detour_factor
    """Length of the road relative to the straight line, without travel times."""
    service: Service = DEFAULTS.service
    """As for train dvrp: operator has a ride-time limit."""
    json: bool = False
    """Print one JSON object and nothing else."""

    def settings(self) -> DvrpSettings:
        """The env settings of these flags."""
        return DvrpSettings(
            trips=self.trips,
            travel_times=self.travel_times,
            vehicles=self.vehicles,
            recorded_responses=self.recorded_responses,
            num_customers=self.num_customers,
            num_vehicles=self.num_vehicles,
            capacity=self.capacity,
            depot=self.depot,
            speed_kmh=self.speed_kmh,
            detour_factor=self.detour_factor,
            service=self.service,
        )

    def train_flags(self) -> str:
        """The flags of `train dvrp` for the same data and settings."""
        given = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name != "json" and getattr(self, field.name) != field.default
        }
        names = {"num_customers": "customers"}
        flags = ((f"--{names.get(name, name).replace('_', '-')}", str(value)) for name, value in given.items())
        return shlex.join(part for flag in flags for part in flag)


def run(argv: Sequence[str]) -> int:
    """Write a template, or check files; 1 if they have a problem."""
    command, *arguments = argv or ("",)
    if command in ("", "-h", "--help"):
        print(HELP)
        return 0
    if command == "template":
        folder = parse_flags(Template, arguments, "hundredfold data template").folder
        for path in write_template(folder):
            print(path)
        return 0
    if command == "check":
        args = parse_flags(Check, num_customers_flag(arguments), "hundredfold data check")
        if args.travel_times_file is not None:
            if args.travel_times not in (None, args.travel_times_file):
                raise SettingsError(
                    f"travel times were given twice: {args.travel_times_file} and --travel-times {args.travel_times}; "
                    "give one of them."
                )
            args = replace(args, travel_times=args.travel_times_file, travel_times_file=None)
        return _check(args, ["data", *argv])
    raise SettingsError(f"there is no command data {command!r}; {suggest(command, ('template', 'check'))}")


def _check(args: Check, command: Sequence[str]) -> int:
    summary = check_data(args.settings())
    rows: list[Row] = [problem_row(problem) for problem in summary.problems]
    problems = [str(problem) for problem in summary.problems]
    if summary.fit_problem:
        rows.append({"kind": "problem", "text": summary.fit_problem})
        problems.append(summary.fit_problem)
    rows += [{"kind": "figure", "name": name, "text": text} for name, text in summary.figures.items()]
    rows += [{"kind": "note", "text": text} for text in summary.notes]
    if args.json:
        print_rows(rows, command=command, as_json=True)
    else:
        _print(args, summary, problems)
    return PROBLEMS_FOUND if problems else 0


def _print(args: Check, summary: DataSummary, problems: Sequence[str]) -> None:
    for name, text in summary.figures.items():
        _print_wrapped(f"{name:15}{text}", " " * 15)
    for text in summary.notes:
        _print_wrapped(f"note: {text}", "  ")
    if len(problems) > 1:
        print(f"{len(problems)} problems:")
    for text in problems:
        _print_wrapped(f"problem: {text}", "  ")
    if not problems:
        _print_wrapped(f"No problems. Train with: hundredfold train dvrp {args.train_flags()}", "  ")


def _print_wrapped(text: str, indent: str) -> None:
    width = shutil.get_terminal_size().columns
    lines = textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    print("\n".join(lines))
