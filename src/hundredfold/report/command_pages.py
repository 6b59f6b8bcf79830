"""HTML pages of `hundredfold compare` (learning curves, final scores) and `scale` (throughput, lost time)."""

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
    format_large_number,
    format_number,
    format_percent,
    metric_label,
)
from hundredfold.report.figures import COLOURS
from hundredfold.report.page import render_page
from hundredfold.report.run_sections import Card, Section, Table
from hundredfold.training.compare import Curve, mean_scores

SPLITS: Final = ("known", "unseen_trips", "unseen_customers")
BAND: Final = 0.18

Row = Mapping[str, Any]


# --- compare


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
        Section("All numbers", "Levels are reached by the mean over seeds.", [_arm_table(rows)]),
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


def _arm_table(rows: Sequence[Row]) -> Table:
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


# --- scale

# Fractions of time in a row, and their names on the page.
TIME_SHARES: Final = {
    "efficiency": "stepping",
    "lost_to_slowdown": "steps slower than alone",
    "lost_to_serial": "one env after another",
    "lost_to_barrier": "waiting for the slowest env",
    "lost_to_transfer": "data transfer",
    "lost_to_policy": "policy",
    "lost_to_learner": "learner",
}
# Shares below this are not drawn.
MIN_SHARE: Final = 0.0005
EXPLANATION: Final = (
    "Fractions of the time of the ideal number of envs (or cores); stepping counts at the speed of "
    "one env alone. All of them are measured: every env records when its steps begin and end."
)


def draw_scaling(rows: Sequence[Row], ideal: str, advice: str, command: str, machine: Mapping[str, Any]) -> str:
    """The page as HTML.

    Args:
        rows: One row of results per backend and number of envs.
        ideal: What the ideal is, for a sentence.
        advice: Sentences on what to change.
        command: The command that made the measurement.
        machine: The machine it was made on.
    """
    best = max(rows, key=lambda row: row["steps_per_second"])
    env, backends = rows[0]["env"], list(dict.fromkeys(row["backend"] for row in rows))
    sections = [
        Section(
            "Throughput", f"Steps per second of all envs together. The ideal is {ideal}. {advice}", [throughput(rows)]
        ),
        Section(
            "Where the time goes",
            EXPLANATION,
            [shares(rows, backend) for backend in backends],
            columns=min(3, len(backends)),
        ),
        Section("All figures", "Times are for one step of one env.", [_size_table(rows)]),
    ]
    cards = [
        Card(
            "most steps per second",
            format_large_number(round(best["steps_per_second"])),
            f"{best['backend']}, {format_count(best['num_envs'], 'env')}",
        ),
        Card("of the ideal", format_percent(best["efficiency"]), ideal),
        Card("a step of one env alone", format_duration(best["step_seconds_alone"]), "without a backend"),
    ]
    return render_page(
        title=f"{env}: scaling",
        heading=f"{env}, from {rows[0]['num_envs']} to {format_count(rows[-1]['num_envs'], 'env')}",
        facts=[f"{machine['processor']}, {machine['cores']} cores", command],
        status=format_count(len(rows), "measurement"),
        finished=True,
        progress=1.0,
        cards=cards,
        sections=sections,
    )


def throughput(rows: Sequence[Row]) -> go.Figure:
    """Steps per second and the ideal against the number of envs, on logarithmic axes."""
    figure = go.Figure(layout={"height": 420, "showlegend": True})
    sizes = list(dict.fromkeys(row["num_envs"] for row in rows))
    ideals = {row["num_envs"]: row["ideal_steps_per_second"] for row in rows}
    figure.add_scatter(
        x=sizes,
        y=[ideals[size] for size in sizes],
        name="ideal",
        mode="lines",
        line={"color": COLOURS[-1], "width": 2, "dash": "dot"},
        hovertemplate="%{y:,.4~r}",
    )
    for colour, backend in zip(COLOURS, dict.fromkeys(row["backend"] for row in rows), strict=False):
        backend_rows = [row for row in rows if row["backend"] == backend]
        figure.add_scatter(
            x=[row["num_envs"] for row in backend_rows],
            y=[row["steps_per_second"] for row in backend_rows],
            name=backend,
            mode="lines+markers",
            line={"color": colour, "width": 2},
            customdata=[format_percent(row["efficiency"]) for row in backend_rows],
            hovertemplate="%{y:,.4~r} (%{customdata} of the ideal)",
        )
    figure.update_xaxes(title_text="envs", type="log", tickvals=sizes)
    figure.update_yaxes(title_text="steps per second", type="log", dtick="D2")
    return figure


def shares(rows: Sequence[Row], backend: str) -> go.Figure:
    """Fractions of time of one backend, stacked to 100 %, one bar per number of envs."""
    figure = go.Figure(layout={"height": 380, "barmode": "stack", "showlegend": True, "title": {"text": backend}})
    backend_rows = [row for row in rows if row["backend"] == backend]
    for colour, (key, name) in zip(COLOURS, TIME_SHARES.items(), strict=True):
        if all(row[key] < MIN_SHARE for row in backend_rows):
            continue
        figure.add_bar(
            x=[str(row["num_envs"]) for row in backend_rows],
            y=[float(f"{100 * row[key]:.4g}") for row in backend_rows],
            name=name,
            marker={"color": colour, "line": {"width": 0}},
            hovertemplate="%{y:.1f} %",
        )
    figure.update_xaxes(title_text="envs", type="category", showgrid=False)
    figure.update_yaxes(title_text="share of time (%)", range=[0, 100])
    return figure


def _size_table(rows: Sequence[Row]) -> Table:
    keys = [key for key in TIME_SHARES if any(row[key] >= MIN_SHARE for row in rows)]
    return Table(
        columns=["envs", "backend", "steps per second", *(TIME_SHARES[key] for key in keys), "step"],
        rows=[
            [
                row["num_envs"],
                row["backend"],
                round(row["steps_per_second"], 1),
                *(format_percent(row[key]) for key in keys),
                format_duration(row["step_seconds"]),
            ]
            for row in rows
        ],
    )
