"""Sections of a report: what they consist of, those of any run, and where an env adds its own.

A section holds plotly figures and tables. A figure's title and subtitle become HTML above it, so
that they wrap on a phone; `layout.height` is kept; colours, fonts and background come from the page
unless a trace sets its own.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias

import plotly.graph_objects as go

from hundredfold.core.formatting import format_duration, format_interval, format_number, format_percent
from hundredfold.report.figures import learning_curves, phase_shares, small_multiple, stride, thinned, throughput
from hundredfold.report.measures import DIAGNOSTICS, PHASES, Measure, diagnostics, measure_of
from hundredfold.report.replay import Replay
from hundredfold.report.run_data import EVALUATED, RunRecord
from hundredfold.rollout.episode_stats import mean_name
from hundredfold.training.run_folder import RunFolder

MAX_TABLE_ROWS = 200
# Videos that a page contains, and the largest of them in bytes.
MAX_VIDEOS = 4
MAX_VIDEO_BYTES = 3_000_000

# Shown elsewhere on the page, or x axes.
OTHER_KEYS = {"epoch", "total_steps", "total_episodes", "wall_seconds", "samples_per_second"}

Cell = str | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of text and numbers; numbers are formatted and aligned to the right."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    marked: int | None = None  # index of the highlighted row


class VideoFile(NamedTuple):
    """A video that the page contains."""

    title: str
    mp4: bytes


Content: TypeAlias = go.Figure | Table | VideoFile | Replay


class Card(NamedTuple):
    """A headline number."""

    name: str
    value: str
    note: str
    wide: bool = False  # as wide as the page
    details: Sequence[str] = ()  # a line each, below the note


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page: title, explanation, figures and tables."""

    title: str
    explanation: str
    contents: Sequence[Content] = ()
    columns: int = 1  # 1, 2 or 3, on a screen that is wide enough
    folded: bool = False  # collapsed until clicked
    card: Card | None = None  # at the top of the page


# Env name -> "module:function", imported on use. The function takes the run folder and returns a
# list of sections.
ENV_FIGURES: dict[str, str] = {
    "cage2": "hundredfold.report.cage2_sections:cage2_sections",
    "dvrp": "hundredfold.report.dvrp_sections:dvrp_sections",
}
# Episode infos that are codes or settings of an env: their averages say nothing.
CODES: dict[str, tuple[str, ...]] = {"cage2": ("red", "horizon")}


def env_sections(env: str, folder: RunFolder) -> list[Section]:
    """Sections specific to an env; none for most envs."""
    if env not in ENV_FIGURES:
        return []
    module, _, function = ENV_FIGURES[env].partition(":")
    try:
        sections: list[Section] = getattr(import_module(module), function)(folder)
    except Exception as error:  # the rest of the page is still useful
        message = f"{type(error).__name__}: {error}"
        warnings.warn(f"the figures of {env} could not be drawn ({message})", stacklevel=2)
        return [Section(f"Figures of {env}", f"They could not be drawn: {message}")]
    return sections


def video_sections(folder: RunFolder) -> list[Section]:
    """The videos of a run: the first one and the last ones, as far as they are small enough for a page."""
    found = sorted(folder.videos.glob("*.mp4"))
    small = [path for path in found if path.stat().st_size <= MAX_VIDEO_BYTES]
    shown = small if len(small) <= MAX_VIDEOS else [small[0], *small[len(small) - MAX_VIDEOS + 1 :]]
    if not found:
        return []
    text = "Episodes of the policy after some epochs (deterministic actions), and those of `hundredfold watch`."
    if len(shown) < len(found):
        text += f" {len(found) - len(shown)} more are in the folder videos."
    files = [VideoFile(re.sub(r"^epoch0*", "epoch ", path.stem), path.read_bytes()) for path in shown]
    return [Section("Videos", text, files, columns=3)]


def run_sections(record: RunRecord) -> list[Section]:
    """The sections of any run that have something to show, in order; learning comes first."""
    sections = (
        _learning(record),
        _evaluations(record),
        _episodes(record),
        _diagnostics(record),
        _other_metrics(record),
        _times(record),
        _settings(record),
        _versions(record),
    )
    return [section for section in sections if section is not None]


def _learning(record: RunRecord) -> Section:
    if not record.epochs:
        return Section("Learning", "No epoch has been finished yet, so there is nothing to draw.")
    if "return_mean" not in record.keys and not record.evaluations:
        return Section("Learning", "No episode has ended yet, so there is no return to draw.")
    evaluated = "evaluated return with its 95 % interval" if record.evaluations else "the policy was never evaluated"
    explanation = (
        "The return of an episode is the sum of its rewards. Training: mean of the episodes that ended in an epoch, in "
        f"which the policy also tries other actions; {evaluated}."
    )
    if not record.finished:
        explanation += " The run has not reached its end; --resume continues it."
    every = stride(len(record.epochs))
    if every > 1:
        explanation += f" Curves show one epoch in {every}."
    return Section("Learning", explanation, [learning_curves(record)])


def _evaluations(record: RunRecord) -> Section | None:
    if not record.evaluations:
        return None
    best = record.best
    rows = thinned(record.evaluations, MAX_TABLE_ROWS)
    if best is not None and best not in rows and best in record.evaluations:
        rows = sorted([*rows, best], key=lambda row: row["epoch"] or 0)
    omitted = len(record.evaluations) - len(rows)
    shown = {EVALUATED, "eval/ci_low", "eval/ci_high"}
    shown |= {f"eval/{mean_name(name)}" for name in CODES.get(record.env, ())}
    others = {
        key: measure_of(key.removeprefix("eval/"))
        for key in record.keys
        if key.startswith("eval/") and key not in shown
    }
    lines: list[list[Cell]] = [
        [
            row["epoch"],
            row["total_steps"],
            format_duration(row.get("wall_seconds")),
            row[EVALUATED],
            format_interval(row.get("eval/ci_low"), row.get("eval/ci_high")),
            *(_scaled(row.get(key), measure) for key, measure in others.items()),
        ]
        for row in rows
    ]
    columns = ["epoch", "steps", "wall-clock", "return", "95 % interval"]
    return Section(
        "Evaluations",
        "Every evaluation plays the same episodes, and always takes the action that the policy prefers."
        + (f" {format_number(omitted)} rows are left out for length." if omitted else ""),
        [
            Table(
                columns=[*columns, *map(_column_name, others.values())],
                rows=lines,
                marked=rows.index(best) if best in rows else None,
            )
        ],
    )


def _episodes(record: RunRecord) -> Section | None:
    codes = {mean_name(name) for name in CODES.get(record.env, ())}
    keys = [key for key in record.keys if key.startswith("avg_") and key not in codes]
    if not keys:
        return None
    return Section(
        "Episodes",
        "Averages over the episodes that ended in an epoch (lines) and over evaluations (points).",
        [small_multiple(record, measure_of(key)) for key in keys],
        columns=3,
    )


def _diagnostics(record: RunRecord) -> Section | None:
    present = [measure for measure in diagnostics(record.settings) if measure.key in record.keys]
    if not present:
        return None
    return Section(
        "Learner diagnostics",
        "Metrics of the learner, averaged over each update.",
        [small_multiple(record, measure) for measure in present],
        columns=3,
    )


def _other_metrics(record: RunRecord) -> Section | None:
    """All other metrics: drawn if they change, listed if they are constant."""
    known = OTHER_KEYS | {"return_mean"} | {measure.key for measure in DIAGNOSTICS}
    keys = [key for key in record.keys if key not in known and not key.startswith(("avg_", "eval/", "time/"))]
    if not keys:
        return None
    constant = {key: record.last(key) for key in keys if _is_constant(record, key)}
    figures = [small_multiple(record, measure_of(key)) for key in keys if key not in constant]
    listed = ", ".join(f"{key} {format_number(value)}" for key, value in constant.items())
    return Section(
        "Other metrics",
        "All other metrics of the run." + (f" Constant, so not drawn: {listed}." if constant else ""),
        figures,
        columns=3,
    )


def _times(record: RunRecord) -> Section | None:
    phases = record.phases()
    contents: list[go.Figure | Table] = []
    if phases:
        total = sum(phases.values())
        rows = [
            [
                name,
                PHASES.get(name, ""),
                format_duration(spent),
                format_percent(spent / total if total else None),
                format_duration(spent / len(record.epochs)),
            ]
            for name, spent in {**phases, "all": total}.items()
        ]
        columns = ["phase", "what", "total", "share", "per epoch"]
        contents += [phase_shares(record), Table(columns=columns, rows=rows, title="Totals")]
    if "samples_per_second" in record.keys:
        contents.append(throughput(record))
    if not contents:
        return None
    return Section("Where the time went", "Wall-clock time of each phase.", contents, columns=2)


def _settings(record: RunRecord) -> Section:
    return Section(
        "Settings",
        "All settings of the run, as in settings.toml.",
        [
            Table(columns=["setting", "value"], rows=rows, title=name)
            for name, rows in _groups("", record.settings)
            if rows
        ],
        columns=3,
        folded=True,
    )


def _versions(record: RunRecord) -> Section:
    rows = [[name, str(version)] for name, version in record.versions.items()]
    return Section(
        "Versions",
        "Software versions of the run." if rows else "The run folder has no versions.json.",
        [Table(columns=["package", "version"], rows=rows)] if rows else [],
        folded=bool(rows),
    )


def _groups(name: str, table: dict[str, Any]) -> Iterator[tuple[str, list[list[Cell]]]]:
    """Values of a settings table first, then those of each nested table."""
    inner = {key: value for key, value in table.items() if isinstance(value, dict)}
    yield (name or "run", [[key, _setting_text(value)] for key, value in table.items() if key not in inner])
    for key, value in inner.items():
        yield from _groups(f"{name}.{key}" if name else key, value)


def _setting_text(value: Any) -> str:
    """A setting as in its file, without brackets and quotes."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ", ".join(_setting_text(part) for part in value)
    return str(value)


def _column_name(measure: Measure) -> str:
    name, unit = measure.title.lower(), measure.unit
    return f"{name} ({unit})" if unit != "value" and unit not in name else name


def _scaled(value: float | None, measure: Measure) -> float | None:
    return None if value is None else value * measure.scale


def _is_constant(record: RunRecord, key: str) -> bool:
    values = {row[key] for row in record.epochs if key in row}
    return len(values) == 1
