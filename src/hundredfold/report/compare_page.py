"""HTML page of `hundredfold compare`: learning curves, final scores, a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go

from hundredfold.core.batch import FloatArray
from hundredfold.core.formatting import (
    axis_time_unit,
    format_count,
    format_duration,
    format_interval,
    format_number,
    metric_label,
)
from hundredfold.report.figures import COLOURS
from hundredfold.report.page import Card, render_page
from hundredfold.report.run_sections import Section, Table
from hundredfold.training.compare import Curve, mean_scores

SPLITS: Final = ("known", "unseen_trips", "unseen_customers")
BAND: Final = 0.18

Row = Mapping[str, Any]


def draw_comparison(env: str, rows: Sequence[Row], curves: Mapping[str, Sequence[Curve]], command: str) -> str:
    """The page as HTML.

    Args:
        env: Name of the env.
        rows: One row of results per arm.
        curves: Learning curves of each arm, one per seed.
        command: The command that made the comparison.
    """
    best = max(rows, key=lambda row: row["known"])
    num_seeds = len(next(iter(curves.values())))
    sections = [
        Section(
            "Improvement while training",
            "Mean over seeds of the evaluated improvement; the band spans all seeds. Switch the "
            "axis to compare at equal samples or at equal wall-clock time.",
            [learning(curves)],
        ),
        Section(
            "Final improvement",
            "On fixed days scored by one oracle; whiskers are 95 % intervals over seeds and days. "
            "Unseen trips and customers are held out from training.",
            [final_scores(rows)],
        ),
        Section("All numbers", "Levels are reached by the mean over seeds.", [_table(rows)]),
    ]
    interval = format_interval(best["known_low"], best["known_high"])
    cards = [
        Card("best arm", best["arm"], f"{format_number(best['known'])} % (95 % interval {interval})"),
        *(
            Card(row["arm"], f"{format_number(row['known'])} %", f"{format_duration(row['seconds'])} per run")
            for row in rows
        ),
    ]
    return render_page(
        title=f"{env}: {len(rows)} settings compared",
        heading=f"{env}, compared",
        facts=[format_count(num_seeds, "seed"), command],
        status=f"{format_count(len(rows) * num_seeds, 'run')}",
        finished=True,
        progress=1.0,
        cards=cards,
        sections=sections,
    )


def learning(curves: Mapping[str, Sequence[Curve]]) -> go.Figure:
    """Evaluated improvement of every arm, by samples or by time."""
    longest = max(float(curve.seconds[-1]) for arm in curves.values() for curve in arm)
    clock, unit_seconds = axis_time_unit(longest)
    axes = {"steps": "environment steps", "clock": f"wall-clock time ({clock})"}
    figure = go.Figure(layout={"meta": axes, "height": 420, "showlegend": True})
    for colour, (name, arm) in zip(COLOURS, curves.items(), strict=False):
        means = mean_scores(arm)
        scores = np.stack([curve.score[: len(means)] for curve in arm])
        seconds = np.mean([curve.seconds[: len(means)] for curve in arm], axis=0) / unit_seconds
        places = {"steps": arm[0].samples[: len(means)].tolist(), "clock": seconds.tolist()}
        around = {key: [*place, *reversed(place)] for key, place in places.items()}
        figure.add_scatter(
            x=around["steps"],
            y=_rounded(np.concatenate([scores.max(axis=0), scores.min(axis=0)[::-1]])),
            meta=around,
            mode="lines",
            line={"width": 0, "color": colour},
            fill="toself",
            opacity=BAND,
            hoverinfo="skip",
            showlegend=False,
        )
        figure.add_scatter(
            x=places["steps"],
            y=_rounded(means),
            meta=places,
            name=name,
            mode="lines+markers",
            line={"color": colour, "width": 2},
            hovertemplate="%{y:.2f} %",
        )
    figure.update_xaxes(title_text=axes["steps"], rangemode="tozero")
    figure.update_yaxes(title_text="improvement (%)")
    return figure


def final_scores(rows: Sequence[Row]) -> go.Figure:
    """Final improvement by split, one colour per arm."""
    figure = go.Figure(layout={"height": 340, "barmode": "group", "showlegend": True})
    for colour, row in zip(COLOURS, rows, strict=False):
        splits = [split for split in SPLITS if split in row]
        middle = [row[split] for split in splits]
        figure.add_bar(
            x=[split.replace("_", " ") for split in splits],
            y=middle,
            name=row["arm"],
            marker={"color": colour},
            error_y={
                "array": [row[f"{split}_high"] - row[split] for split in splits],
                "arrayminus": [row[split] - row[f"{split}_low"] for split in splits],
            },
            hovertemplate="%{y:.2f} %",
        )
    figure.update_yaxes(title_text="improvement (%)")
    return figure


def _table(rows: Sequence[Row]) -> Table:
    """Metrics as rows and arms as columns, which stays narrow on a phone."""
    names = [name for name in rows[0] if name != "arm"]
    names += [name for row in rows for name in row if name not in (*names, "arm")]
    titled = ((name, metric_label(name)) for name in dict.fromkeys(names))
    return Table(
        columns=["", *(row["arm"] for row in rows)],
        rows=[
            [f"{title} ({unit})" if unit else title, *(row.get(name) for row in rows)] for name, (title, unit) in titled
        ],
    )


def _rounded(values: FloatArray) -> list[float]:
    return [float(f"{value:.5g}") for value in values]
