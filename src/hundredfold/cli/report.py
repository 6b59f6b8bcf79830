"""`hundredfold report RUN`: write the HTML report of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro

from hundredfold.api import REPORT_DAYS, REPORT_SECONDS, write_run_report
from hundredfold.cli.output import note
from hundredfold.core.errors import SettingsError
from hundredfold.report.dvrp_sections import report_data_file
from hundredfold.training.run_folder import RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Write report.html: settings, learning curves, evaluation, time per phase.

    All data come from the run folder. On dvrp the trained policy is first simulated for some days,
    with --days or if the folder has no report data yet.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder."""
    days: int | None = None
    """Days to simulate with the trained policy and the heuristics (dvrp only); by default 64, or as many
    as take about a minute."""


def run(argv: Sequence[str]) -> int:
    """Print the path of the report."""
    args = tyro.cli(Report, args=list(argv), prog="hundredfold report")
    if args.days is not None and args.days < 2:
        raise SettingsError(f"--days must be at least 2, got {args.days}.")
    folder = RunFolder.open(args.run)
    days = args.days or (0 if report_data_file(folder).exists() else REPORT_DAYS)
    if days:
        torch.set_num_threads(1)  # more threads are slower on a busy machine
        note("simulating days for the report; this may take a moment")
    print(write_run_report(folder, days, seconds=math.inf if args.days else REPORT_SECONDS))
    return 0
