"""`hundredfold report RUN`: draw the page of a run again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from hundredfold.api import REPORT_DAYS, write_run_report
from hundredfold.cli.output import note
from hundredfold.core.errors import SettingsError
from hundredfold.report.dvrp_sections import report_data_file
from hundredfold.training.run_folder import RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Write report.html: settings, learning curves, evaluation, where the time went.

    Everything comes from the run folder. On dvrp the policy plays some days first, if it has not
    done so yet or --days asks for it.
    """

    run: Annotated[Path, tyro.conf.Positional]
    """A run folder."""
    days: int | None = None
    """Days that the policy and the rules beside it play for the page, on envs that show them."""


def run(arguments: Sequence[str]) -> int:
    """Print where the page lies."""
    args = tyro.cli(Report, args=list(arguments), prog="hundredfold report")
    if args.days is not None and args.days < 2:
        raise SettingsError(f"days must be at least 2, got {args.days}.")
    folder = RunFolder.open(args.run)
    days = args.days or (0 if report_data_file(folder).exists() else REPORT_DAYS)
    if days:
        note("playing and drawing; this may take a moment")
    print(write_run_report(folder, days))
    return 0
