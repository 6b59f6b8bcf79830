"""`hundredfold report RUN`: draw the page of a run again, from its files alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from hundredfold.report.page import write_report
from hundredfold.training.run_folder import RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Write report.html: settings, learning curves, evaluation, where the time went."""

    run: Annotated[Path, tyro.conf.Positional]
    """A run folder."""


def run(arguments: Sequence[str]) -> int:
    """Print where the page lies."""
    asked = tyro.cli(Report, args=list(arguments), prog="hundredfold report")
    print(write_report(RunFolder.open(asked.run)))
    return 0
