"""HTML page of `hundredfold scale`: throughput, efficiency and lost time by number of envs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import plotly.graph_objects as go

from hundredfold.core.formatting import format_count, format_duration, format_large_number, format_percent
from hundredfold.report.figures import COLOURS
from hundredfold.report.page import Card, render_page
from hundredfold.report.run_sections import Section, Table

Row = Mapping[str, Any]

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
    """The page as HTML."""
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
        Section("All figures", "Times are for one step of one env.", [_table(rows)]),
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


def _table(rows: Sequence[Row]) -> Table:
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
