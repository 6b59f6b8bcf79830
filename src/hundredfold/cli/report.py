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
from hundredfold.cli.flags import parse_flags
from hundredfold.cli.output import note
from hundredfold.core.errors import SettingsError
from hundredfold.envs.registry import ENVS
from hundredfold.report.run_data import report_data_file
from hundredfold.training.run_folder import RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Write report.html: settings, learning curves, evaluation, time per phase.

    All data come from the run folder. On dvrp and cage2 the trained policy first plays some days or
    episodes, with --days or if the folder has no report data yet.
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Run folder."""
    days: int | None = None
    """Days to simulate with the trained policy and the heuristics (dvrp only); by default 64, or as many
    as take about a minute."""


def run(argv: Sequence[str]) -> int:
    """Print the path of the report."""
    args = parse_flags(Report, argv, "hundredfold report")
    if args.days is not None and args.days < 2:
        raise SettingsError(f"--days must be at least 2, got {args.days}.")
    folder = RunFolder.open(args.run)
    days = args.days or (0 if report_data_file(folder).exists() else REPORT_DAYS)
    entry = ENVS.get(folder.settings().env)
    if days and entry is not None and entry.report_data is not None:
        torch.set_num_threads(1)  # more threads are slower on a busy machine
        note("playing episodes for the report; this may take a moment")
    print(write_run_report(folder, days, seconds=math.inf if args.days else REPORT_SECONDS))
    return 0
