"""Figures of the acceptance model: confusion, accuracy by number of responses, calibration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from hundredfold.report.dvrp_figures import BLANK
from hundredfold.report.figures import BLUE, COLOURS, VERMILION

HEIGHT = 340
GREY = COLOURS[-1]


def confusion_map(types: Sequence[str], confusion: Sequence[Sequence[int]]) -> go.Figure:
    """True personality by the one believed most likely, in percent of the true one."""
    people = [sum(row) for row in confusion]
    shares = [
        [round(100 * count / total, 1) if count else None for count in row]
        for row, total in zip(confusion, people, strict=True)
    ]
    figure = go.Figure(
        go.Heatmap(
            x=list(types),
            y=[f"{name} ({total}) " for name, total in zip(types, people, strict=True)],
            z=shares,
            text=[[str(count) if count else "" for count in row] for row in confusion],
            texttemplate="%{text}",
            zmin=0,
            zmax=100,
            showscale=False,
            xgap=1,
            ygap=1,
            hovertemplate="truly %{y}believed %{x}: %{text} (%{z:.0f} %)<extra></extra>",
        )
    )
    figure.update_layout(
        title={
            "text": "Personalities told apart",
            "subtitle": {
                "text": "Customers by their true personality (rows) and the one believed most "
                "likely (columns); all of them on the diagonal would be perfect."
            },
        },
        height=HEIGHT,
        plot_bgcolor=BLANK,
    )
    figure.update_xaxes(title_text="believed", showgrid=False)
    figure.update_yaxes(title_text="true (customers)", autorange="reversed", showgrid=False)
    return figure


def accuracy_curve(by_responses: dict[str, Any]) -> go.Figure:
    """How often the most likely personality is right after so many answers."""
    figure = go.Figure()
    looks = {
        "learned": ("rates learned", BLUE, "solid"),
        "true": ("true rates", GREY, "dash"),
    }
    for model, shares in by_responses["accuracy"].items():
        name, colour, dash = looks[model]
        figure.add_scatter(
            x=by_responses["responses"],
            y=[round(100 * share, 1) for share in shares],
            name=name,
            mode="lines",
            line={"color": colour, "width": 2, "dash": dash},
            hovertemplate="%{y:.1f} %",
        )
    figure.update_layout(
        title={
            "text": "How soon a personality is known",
            "subtitle": {
                "text": "Percent of customers whose most likely personality is the true one after "
                "so many answers to random offers; the true rates show what is possible at best "
                f"({by_responses['sequences']:,} trials from nothing)."
            },
        },
        height=HEIGHT,
        hovermode="x unified",
        showlegend=True,
    )
    figure.update_xaxes(title_text="answers per customer", rangemode="tozero")
    figure.update_yaxes(title_text="% told right", range=[0, 102])
    return figure


def calibration_curve(calibration: dict[str, Any]) -> go.Figure:
    """Believed chances of acceptance against what really happened."""
    figure = go.Figure()
    scores: list[str] = []
    figure.add_scatter(
        x=[0, 100],
        y=[0, 100],
        name="exact",
        mode="lines",
        line={"color": GREY, "dash": "dash", "width": 1},
        hoverinfo="skip",
    )
    for key, name, colour in (
        ("possible", "all offers", BLUE),
        ("made", "offers made", VERMILION),
    ):
        found = calibration[key]
        if not found["count"]:
            continue
        scores.append(f"{found['brier_score']:.3f} for {name}")
        most = max(found["count"])
        figure.add_scatter(
            x=[round(100 * share, 1) for share in found["believed"]],
            y=[round(100 * share, 1) for share in found["accepted"]],
            customdata=found["count"],
            name=name,
            mode="lines+markers",
            line={"color": colour, "width": 1.5},
            marker={
                "color": colour,
                "size": [round(6 + 10 * (count / most) ** 0.5, 1) for count in found["count"]],
            },
            hovertemplate="believed %{x:.0f} %, accepted %{y:.0f} % of %{customdata:,}"
            "<extra></extra>",
        )
    figure.update_layout(
        title={
            "text": "Is belief in a yes justified?",
            "subtitle": {
                "text": "Offers by the believed chance of acceptance, against how many are "
                "accepted, in percent; on the dashed line beliefs are exact, larger dots are more "
                f"offers. Brier score {', '.join(scores)}."
            },
        },
        height=HEIGHT,
        showlegend=True,
        hovermode="closest",
    )
    figure.update_xaxes(title_text="believed chance of a yes (%)", range=[-3, 103])
    figure.update_yaxes(title_text="accepted (%)", range=[-3, 103])
    return figure
