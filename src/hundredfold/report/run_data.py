"""Data of a run for its report: the files of the run folder, read once.

Settings are read as plain tables, so a report can be drawn where the run's env is not installed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from hundredfold.core.errors import CheckpointError
from hundredfold.core.files import Seal, read_sealed_json, sealed_json, write_atomically
from hundredfold.training.checkpoint import best_epoch, load_checkpoint
from hundredfold.training.metrics import read_metrics
from hundredfold.training.run_folder import RunFolder
from hundredfold.training.stop import read_stop

# None where a value was not finite; a key is absent where nothing was measured.
Row = dict[str, float | None]

EVALUATED = "eval/return_mean"
# Phases with a smaller share of the time of a run are not shown: they would be 0.0 %.
MIN_PHASE_SHARE = 0.0005

ReportData = dict[str, Any]

REPORT_DATA = "report_data.json"
# Version of that file; raised when older readers could no longer read it.
FORMAT = 1


@dataclass(frozen=True, slots=True)
class RunRecord:
    """Settings, versions and metrics of a run."""

    name: str
    env: str
    started: datetime
    settings: dict[str, Any]
    versions: dict[str, Any]
    epochs: list[Row]  # one per finished epoch, oldest first
    keys: list[str]  # every metric with a finite value somewhere, in order of appearance
    marked_best: tuple[int, float] | None  # epoch and score of the best checkpoint
    stop_reason: str | None = None  # of the stop rule that ended it

    @property
    def num_epochs(self) -> int:
        """Planned epochs of the run; 0 if its settings have none."""
        length = self.settings.get("length")
        planned = length.get("epochs", 0) if isinstance(length, dict) else 0
        return planned if isinstance(planned, int) else 0

    @property
    def done_epochs(self) -> int:
        return int(self.last("epoch") or 0)

    @property
    def finished(self) -> bool:
        return self.stop_reason is not None or 0 < self.num_epochs <= self.done_epochs

    @property
    def wall_seconds(self) -> float:
        return self.last("wall_seconds") or 0.0

    @property
    def evaluations(self) -> list[Row]:
        """The epochs that ended with an evaluation."""
        return [row for row in self.epochs if row.get(EVALUATED) is not None]

    @property
    def best(self) -> Row | None:
        """The evaluation of the best checkpoint, or the highest one if none is marked."""
        if self.marked_best is None:
            return max(self.evaluations, key=lambda row: row[EVALUATED] or 0.0, default=None)
        epoch, score = self.marked_best
        found = [row for row in self.evaluations if row.get("epoch") == epoch]
        return found[-1] if found else {"epoch": epoch, EVALUATED: score}

    def last(self, key: str) -> float | None:
        """The last finite value of a metric."""
        return next((row[key] for row in reversed(self.epochs) if row.get(key) is not None), None)

    def phases(self) -> dict[str, float]:
        """Seconds spent in each phase of the whole run, longest first, without negligible ones."""
        totals = {
            key.removeprefix("time/"): sum(row.get(key) or 0.0 for row in self.epochs)
            for key in self.keys
            if key.startswith("time/")
        }
        least = MIN_PHASE_SHARE * sum(totals.values())
        return {name: spent for name, spent in sorted(totals.items(), key=lambda item: -item[1]) if spent >= least}


def read_record(folder: RunFolder) -> RunRecord:
    """Read a run folder; raises CheckpointError if it is not one."""
    folder = RunFolder.open(folder.path)
    settings = folder.settings_table()
    env = settings.get("env")
    if not isinstance(env, str):
        raise CheckpointError(f"{folder.settings_file} names no env; it does not belong to a run.")
    name = folder.path.resolve().name
    epochs = list(_clean_rows(read_metrics(folder, _metrics_seal(folder))))
    found = (key for row in epochs for key, value in row.items() if value is not None)
    return RunRecord(
        name=name,
        env=env,
        started=_start_time(name, folder.settings_file),
        settings=settings,
        versions=_read_versions(folder.versions_file),
        epochs=epochs,
        keys=list(dict.fromkeys(found)),
        marked_best=best_epoch(folder),
        stop_reason=None if (stop := read_stop(folder)) is None else stop.reason,
    )


def report_data_file(folder: RunFolder) -> Path:
    return folder.path / REPORT_DATA


def write_report_data(folder: RunFolder, report_data: ReportData | None) -> Path:
    """Write report data into the run folder, replacing older data (None: with nothing); returns the path."""
    path = report_data_file(folder)
    try:
        if report_data is None:
            path.unlink(missing_ok=True)
            return path
        write_atomically(path, sealed_json(report_data, indent=None))
    except OSError as error:
        raise CheckpointError(
            f"cannot write {path}: {error.strerror}. The run itself is safe; free some space, then "
            "run `hundredfold report` again."
        ) from error
    return path


def read_report_data(folder: RunFolder) -> ReportData | None:
    """The report data of a run; None if there are none."""
    path = report_data_file(folder)
    try:
        found = read_sealed_json(path, required=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}.") from error
    except ValueError as error:
        raise CheckpointError(
            f"{path} is damaged ({error}); delete the file and run `hundredfold report` again."
        ) from error
    if found.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} has format {found.get('format')}, this version reads format {FORMAT}; delete the file and "
            "run `hundredfold report` again."
        )
    return found


def _metrics_seal(folder: RunFolder) -> Seal | None:
    """Checksum of the metrics when the last checkpoint was saved; None if there is none to read."""
    try:
        return load_checkpoint(folder, "last", parts=set()).metrics_seal
    except CheckpointError:
        return None


def _clean_rows(rows: Iterable[Any]) -> Iterable[Row]:
    """Rows that have epoch and steps; values that are not finite numbers become None."""
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
    """Versions for display; a damaged file must not stop a report."""
    try:
        return read_sealed_json(path, required=False)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        return {"unknown": f"{path.name} cannot be read: {getattr(error, 'strerror', None) or error}"}


def _start_time(name: str, settings_file: Path) -> datetime:
    """From the run's name, which survives copying; else from the settings file."""
    stamp = re.search(r"-(\d{8}-\d{6})-", name)
    if stamp:
        try:
            return datetime.strptime(stamp[1], "%Y%m%d-%H%M%S")
        except ValueError:
            pass  # a name chosen by the user
    return datetime.fromtimestamp(settings_file.stat().st_mtime)
