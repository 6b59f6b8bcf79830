"""Figures of any run: learning curves, small multiples, phase times.

Curves carry both x axes (steps and wall-clock time) in `meta`; the page switches between them and
sets fonts, grid and background.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go

from hundredfold.core.formatting import axis_time_unit
from hundredfold.report.measures import Measure
from hundredfold.report.run_data import EVALUATED, Row, RunRecord

# Palette of Okabe and Ito (2008), safe for colour-blind readers; the blue is a little brighter than
# theirs to be visible on white and on near-black.
BLUE, VERMILION = "#1F83C4", "#D55E00"
COLOURS = (BLUE, VERMILION, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C")

MAX_POINTS = 1_000
MAX_BARS = 120
SMALL_NUMBERS = 0.01  # below, ticks are written as 2e-7; plotly would write 200n, which few expect
SMOOTH_FROM = 60  # points; shorter curves are not smoothed

# D3 format: four significant digits, thousands separated.
HOVER = ",.4~r"


def learning_curves(record: RunRecord) -> go.Figure:
    """Training return and evaluated return with its confidence interval."""
    figure = _curve_figure(record, "return per episode")
    training = _rows_with(record.epochs, "return_mean")
    if 0 < len(training) < SMOOTH_FROM:
        _add_curve(figure, record, training, "return_mean", name="training")
    elif training:
        window = len(training) // 20
        smooth = _trailing_means(training, "return_mean", window)
        _add_curve(figure, record, training, "return_mean", name="training", opacity=0.5, width=1)
        _add_curve(figure, record, smooth, "return_mean", name=f"mean of {window} epochs")
    _add_evaluations(figure, record)
    figure.update_layout(height=400, hovermode="x unified", showlegend=True)
    return figure


def small_multiple(record: RunRecord, measure: Measure) -> go.Figure:
    """One metric over the run; its evaluated values are drawn as points."""
    figure = _curve_figure(record, measure.unit)
    rows = _rows_with(record.epochs, measure.key)
    _add_curve(figure, record, rows, measure.key, name="training", scale=measure.scale)
    names = {f"eval/{measure.key}", f"eval/{measure.key.removeprefix('avg_')}"}
    for key in sorted(names.intersection(record.keys)):
        evaluated = _rows_with(record.epochs, key)
        _add_curve(figure, record, evaluated, key, name="evaluated", colour=VERMILION, scale=measure.scale)
        figure.data[-1].mode = "markers"
    figure.update_layout(
        title={"text": measure.title, "subtitle": {"text": measure.description}}, height=210, showlegend=False
    )
    heights = {height for trace in figure.data for height in trace.y if height is not None}
    if len(heights) == 1:
        figure.update_yaxes(range=_range_around(*heights))
    if max(map(abs, heights), default=1.0) < SMALL_NUMBERS:
        figure.update_yaxes(exponentformat="e")
    return figure


def throughput(record: RunRecord) -> go.Figure:
    """Samples per second of every epoch."""
    figure = _curve_figure(record, "samples per second")
    rows = _rows_with(record.epochs, "samples_per_second")
    _add_curve(figure, record, rows, "samples_per_second", name="epoch")
    figure.update_layout(
        title={
            "text": "Throughput",
            "subtitle": {"text": "Samples of an epoch per second of it, evaluation included."},
        },
        height=280,
        showlegend=False,
    )
    figure.update_yaxes(rangemode="tozero")
    return figure


def phase_shares(record: RunRecord) -> go.Figure:
    """Share of each epoch's time by phase, stacked to 100 %."""
    size = -(-len(record.epochs) // MAX_BARS)
    bars = [record.epochs[at : at + size] for at in range(0, len(record.epochs), size)]
    middles = [((bar[0]["epoch"] or 0) + (bar[-1]["epoch"] or 0)) / 2 for bar in bars]
    widths = [(bar[-1]["epoch"] or 0) - (bar[0]["epoch"] or 0) + 1 for bar in bars]
    phases = list(record.phases())
    seconds = np.array([[_total(bar, f"time/{name}") for bar in bars] for name in phases])
    shares = 100 * seconds / np.maximum(seconds.sum(axis=0), 1e-12)
    figure = go.Figure()
    for index, name in enumerate(phases):
        figure.add_bar(
            x=middles,
            y=_rounded(shares[index]),
            width=widths,
            name=escape(name),  # plotly interprets markup in names
            marker={"color": COLOURS[index % len(COLOURS)], "line": {"width": 0}},
            hovertemplate="%{y:.1f} %",
        )
    each = "" if size == 1 else f" Each bar adds up {size} epochs."
    figure.update_layout(
        title={"text": "Share of time", "subtitle": {"text": f"Per epoch, by phase.{each}"}},
        barmode="stack",
        height=300,
        hovermode="x unified",
        showlegend=True,
    )
    figure.update_xaxes(title_text="epoch", tickformat=",d", showgrid=False)
    figure.update_yaxes(title_text="share of time (%)", range=[0, 100])
    if len(bars) <= 10:
        figure.update_xaxes(tickvals=middles)
    return figure


def thinned(rows: Sequence[Row], limit: int = MAX_POINTS) -> list[Row]:
    """Every k-th row, counted from the last, so that at most `limit` remain."""
    every = stride(len(rows), limit)
    return list(rows[::-every][::-1])


def stride(count: int, limit: int = MAX_POINTS) -> int:
    """The k of `thinned`: 1 if all rows fit."""
    return max(1, -(-count // limit))


def _curve_figure(record: RunRecord, unit: str) -> go.Figure:
    """An empty figure whose x axis can be steps or time."""
    clock, _ = axis_time_unit(record.wall_seconds)
    axes = {"steps": "environment steps", "clock": f"wall-clock time ({clock})"}
    figure = go.Figure(layout={"meta": axes})
    figure.update_xaxes(title_text=axes["steps"], rangemode="tozero", hoverformat=",.6~r")
    figure.update_yaxes(title_text=unit)
    return figure


def _add_curve(
    figure: go.Figure,
    record: RunRecord,
    rows: Sequence[Row],
    key: str,
    *,
    name: str,
    colour: str = BLUE,
    width: float = 2,
    opacity: float = 1,
    scale: float = 1,
) -> None:
    """A line through one metric; with few points they are marked, so even a single one shows."""
    rows = thinned(rows)
    axes = _axes(record, rows)
    figure.add_scatter(
        x=axes["steps"],
        y=[None if value is None else value * scale for value in _rounded(row[key] for row in rows)],
        meta=axes,
        name=name,
        mode="lines+markers" if len(rows) < SMOOTH_FROM else "lines",
        line={"color": colour, "width": width},
        marker={"color": colour, "size": 6 if len(rows) <= 30 else 4},
        opacity=opacity,
        hovertemplate=f"%{{y:{HOVER}}}",
    )


def _add_evaluations(figure: go.Figure, record: RunRecord) -> None:
    """Evaluated return with its interval as a band, or as an error bar for one evaluation."""
    evaluated = thinned(record.evaluations)
    if not evaluated:
        return
    bounded = [row for row in evaluated if None not in (row.get("eval/ci_low"), row.get("eval/ci_high"))]
    if len(bounded) > 1:
        axes = _axes(record, [*bounded, *reversed(bounded)])
        lows, highs = ([row[f"eval/ci_{end}"] for row in bounded] for end in ("low", "high"))
        figure.add_scatter(
            x=axes["steps"],
            y=_rounded([*highs, *reversed(lows)]),
            meta=axes,
            name="95 % interval",
            mode="lines",
            line={"width": 0, "color": VERMILION},
            fill="toself",
            fillcolor="rgba(213, 94, 0, 0.22)",
            hoverinfo="skip",
            legendrank=1001,  # after its curve
        )
    _add_curve(figure, record, evaluated, EVALUATED, name="evaluated", colour=VERMILION)
    trace = figure.data[-1]
    trace.customdata = [_rounded([row.get("eval/ci_low"), row.get("eval/ci_high")]) for row in evaluated]
    trace.hovertemplate = f"%{{y:{HOVER}}} (%{{customdata[0]:{HOVER}}} to %{{customdata[1]:{HOVER}}})"
    if len(evaluated) == 1 and bounded:
        mean, low, high = (bounded[0][key] or 0.0 for key in (EVALUATED, "eval/ci_low", "eval/ci_high"))
        trace.error_y = {"array": [high - mean], "arrayminus": [mean - low], "color": VERMILION}


def _axes(record: RunRecord, rows: Iterable[Row]) -> dict[str, list[Any]]:
    """Positions of the rows on both x axes."""
    _, unit_seconds = axis_time_unit(record.wall_seconds)
    rows = list(rows)
    return {
        "steps": [row["total_steps"] for row in rows],
        "clock": _rounded((row.get("wall_seconds") or 0.0) / unit_seconds for row in rows),
    }


def _rows_with(rows: Sequence[Row], key: str) -> list[Row]:
    """Epochs that have the metric, even if its value is not finite."""
    return [row for row in rows if key in row]


def _trailing_means(rows: Sequence[Row], key: str, window: int) -> list[Row]:
    """The rows with the metric replaced by its trailing mean over `window` rows."""
    known = [row for row in rows if row[key] is not None]
    sums = np.cumsum([0.0, *(row[key] or 0.0 for row in known)])
    ends = np.arange(1, len(known) + 1)
    begins = np.maximum(ends - window, 0)
    means = (sums[ends] - sums[begins]) / (ends - begins)
    return [{**row, key: mean} for row, mean in zip(known, means.tolist(), strict=True)]


def _range_around(value: float) -> list[float]:
    """Axis range around a constant curve; plotly would choose a whole unit."""
    return [value - abs(value) / 2, value + abs(value) / 2] if value else [0.0, 1.0]


def _total(rows: Iterable[Row], key: str) -> float:
    return sum(row.get(key) or 0.0 for row in rows)


def _rounded(values: Iterable[float | None]) -> list[float | None]:
    """Six significant digits: more than a screen can show, and the page stays small."""
    return [None if value is None else float(f"{value:.6g}") for value in values]
