"""What a run folder says about its run: the files read once, in a form that is easy to draw.

Settings are read as plain tables, so a page can be drawn where the run's env is not installed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from hundredfold.config.toml import read_toml
from hundredfold.core.errors import CheckpointError
from hundredfold.training.checkpoint import best_epoch
from hundredfold.training.metrics import read_metrics
from hundredfold.training.run_folder import RunFolder

# A number, None where training met one that is not finite; a key is absent if nothing was measured.
Row = dict[str, float | None]

EVALUATED = "eval/return_mean"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as its files tell it."""

    name: str
    env: str
    started: datetime
    settings: dict[str, Any]
    versions: dict[str, Any]
    epochs: list[Row]  # one per finished epoch, oldest first
    keys: list[str]  # every metric that has a number somewhere, in order of appearance
    marked_best: tuple[int, float] | None  # epoch and score of the best checkpoint

    @property
    def num_epochs(self) -> int:
        """Epochs the run was to have; 0 when its settings do not say."""
        length = self.settings.get("length")
        planned = length.get("epochs", 0) if isinstance(length, dict) else 0
        return planned if isinstance(planned, int) else 0

    @property
    def done_epochs(self) -> int:
        return int(self.last("epoch") or 0)

    @property
    def finished(self) -> bool:
        return 0 < self.num_epochs <= self.done_epochs

    @property
    def wall_seconds(self) -> float:
        return self.last("wall_seconds") or 0.0

    @property
    def evaluations(self) -> list[Row]:
        """The epochs that ended with an evaluation."""
        return [row for row in self.epochs if row.get(EVALUATED) is not None]

    @property
    def best(self) -> Row | None:
        """The evaluation of the best checkpoint, or the highest one if none was marked."""
        if self.marked_best is None:
            return max(self.evaluations, key=lambda row: row[EVALUATED] or 0.0, default=None)
        epoch, score = self.marked_best
        found = [row for row in self.evaluations if row.get("epoch") == epoch]
        return found[-1] if found else {"epoch": epoch, EVALUATED: score}

    def last(self, key: str) -> float | None:
        """The latest number of a metric."""
        return next((row[key] for row in reversed(self.epochs) if row.get(key) is not None), None)

    def phases(self) -> dict[str, float]:
        """Seconds spent in each phase of the whole run, longest first."""
        totals = {
            key.removeprefix("time/"): sum(row.get(key) or 0.0 for row in self.epochs)
            for key in self.keys
            if key.startswith("time/")
        }
        return dict(sorted(totals.items(), key=lambda item: -item[1]))


def read_record(folder: RunFolder) -> RunRecord:
    """Read the run folder; refuses a folder that is not one."""
    folder = RunFolder.open(folder.path)
    settings = read_toml(folder.settings_file)
    env = settings.get("env")
    if not isinstance(env, str):
        raise CheckpointError(f"{folder.settings_file} names no env; it is not of a run.")
    name = folder.path.resolve().name
    epochs = list(_numbers(read_metrics(folder)))
    found = (key for row in epochs for key, value in row.items() if value is not None)
    return RunRecord(
        name=name,
        env=env,
        started=_start_time(name, folder.settings_file),
        settings=settings,
        versions=_read_versions(folder.path / "versions.json"),
        epochs=epochs,
        keys=list(dict.fromkeys(found)),
        marked_best=best_epoch(folder),
    )


def _numbers(rows: Iterable[Any]) -> Iterable[Row]:
    """Rows with a place on the axis; whatever is not a finite number becomes None."""
    for row in rows:
        if not isinstance(row, dict):
            continue
        clean: Row = {
            key: value if isinstance(value, int | float) and math.isfinite(value) else None
            for key, value in row.items()
        }
        if clean.get("epoch") is not None and clean.get("total_steps") is not None:
            yield clean


def _read_versions(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}.") from error
    return found if isinstance(found, dict) else {}


def _start_time(name: str, settings_file: Path) -> datetime:
    """From the run's name, which survives copying; else from its oldest file."""
    stamp = re.search(r"-(\d{8}-\d{6})-", name)
    if stamp:
        try:
            return datetime.strptime(stamp[1], "%Y%m%d-%H%M%S")
        except ValueError:
            pass  # a run that was named by hand
    return datetime.fromtimestamp(settings_file.stat().st_mtime)
