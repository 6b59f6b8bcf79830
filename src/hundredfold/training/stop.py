"""Stop rules: what ends a training before its length, and the record of why.

A rule is a callable that gets the metrics of every epoch and returns True, or the reason as text,
to stop. Settings make the rules below; `hundredfold.train(stop=...)` takes any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from hundredfold.config.run import RunSettings, StopSettings
from hundredfold.core.files import read_sealed_json, sealed_json, write_atomically
from hundredfold.core.formatting import format_count, format_duration, format_number, parse_duration
from hundredfold.training.checkpoint import saved_epochs
from hundredfold.training.run_folder import RunFolder

__all__ = [
    "Stop",
    "StopAfter",
    "StopAt",
    "StopOnPlateau",
    "StopRule",
    "is_complete",
    "read_stop",
    "stop_rules",
    "write_stop",
]

EVALUATED: Final = "eval/return_mean"
CLOCK: Final = "wall_seconds"

StopRule = Callable[[Mapping[str, Any]], bool | str | None]
"""From the metrics of an epoch to whether, or why, to stop."""


@dataclass(frozen=True, slots=True)
class StopAt:
    """Stop when an evaluation reaches a return."""

    level: float

    def __call__(self, metrics: Mapping[str, Any]) -> str | None:
        score = metrics.get(EVALUATED)
        if score is None or score < self.level:
            return None
        return f"the evaluated return {score:.2f} reached {format_number(self.level)} (--stop-at)"


@dataclass(frozen=True, slots=True)
class StopAfter:
    """Stop when the run has trained this long, earlier processes of a resumed run included."""

    seconds: float

    def __call__(self, metrics: Mapping[str, Any]) -> str | None:
        if metrics[CLOCK] < self.seconds:
            return None
        return f"{format_duration(self.seconds)} have passed (--stop-after)"


@dataclass(slots=True)
class StopOnPlateau:
    """Stop after a number of evaluations in a row without a new best one."""

    num_evaluations: int
    best: float | None = None
    since_best: int = 0

    def __call__(self, metrics: Mapping[str, Any]) -> str | None:
        score = metrics.get(EVALUATED)
        if score is None:
            return None
        if self.best is None or score > self.best:
            self.best, self.since_best = score, 0
            return None
        self.since_best += 1
        if self.since_best < self.num_evaluations:
            return None
        number = format_count(self.since_best, "evaluation")
        return f"{number} without a return above {self.best:.2f} (--stop-on-plateau)"


def stop_rules(settings: StopSettings) -> list[StopRule]:
    """The rules of these settings."""
    rules: list[StopRule] = []
    if settings.stop_at is not None:
        rules.append(StopAt(settings.stop_at))
    if settings.stop_after is not None:
        rules.append(StopAfter(parse_duration(settings.stop_after)))
    if settings.stop_on_plateau:
        rules.append(StopOnPlateau(settings.stop_on_plateau))
    return rules


@dataclass(frozen=True, slots=True)
class Stop:
    """Where and why a rule ended a run."""

    epoch: int
    reason: str
    by_settings: bool  # False: by a function, which no run folder can hold


def write_stop(folder: RunFolder, stop: Stop) -> None:
    """Write `stopped.json`."""
    write_atomically(folder.stop_file, sealed_json(asdict(stop)))


def is_complete(folder: RunFolder, settings: RunSettings) -> bool:
    """Whether the last checkpoint is where the length of the run, or a stop rule of its settings, ended it."""
    epochs = saved_epochs(folder)
    if not epochs:
        return False
    stop = read_stop(folder)
    return epochs[-1] >= settings.length.epochs or (stop is not None and stop.by_settings and stop.epoch == epochs[-1])


def read_stop(folder: RunFolder) -> Stop | None:
    """The stop of a run; None if no rule ended it, or the file was not written to its end."""
    try:
        table = read_sealed_json(folder.stop_file)
        return Stop(int(table["epoch"]), str(table["reason"]), bool(table["by_settings"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
