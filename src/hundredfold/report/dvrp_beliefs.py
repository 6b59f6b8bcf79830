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
    """Confusion matrix of true and most likely type, in percent of the true type."""
    customers = [sum(row) for row in confusion]
    shares = [
        [round(100 * count / total, 1) if count else None for count in row]
        for row, total in zip(confusion, customers, strict=True)
    ]
    figure = go.Figure(
        go.Heatmap(
            x=list(types),
            y=[f"{name} ({total}) " for name, total in zip(types, customers, strict=True)],
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
            "text": "Confusion matrix",
            "subtitle": {
                "text": "Customers by their true type (rows) and the one believed most likely "
                "(columns); all of them on the diagonal would be perfect."
            },
        },
        height=HEIGHT,
        plot_bgcolor=BLANK,
    )
    figure.update_xaxes(title_text="believed", showgrid=False)
    figure.update_yaxes(title_text="true (customers)", autorange="reversed", showgrid=False)
    return figure


def accuracy_curve(by_responses: dict[str, Any]) -> go.Figure:
    """Type accuracy by number of responses."""
    figure = go.Figure()
    styles = {"learned": ("learned rates", BLUE, "solid"), "true": ("true rates", GREY, "dash")}
    for model, shares in by_responses["accuracy"].items():
        name, colour, dash = styles[model]
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
            "text": "Accuracy by number of responses",
            "subtitle": {
                "text": "Percent of customers whose most likely type is the true one after so "
                "many responses to random offers, starting from the prior; the true rates are the "
                f"upper bound ({by_responses['sequences']:,} sequences)."
            },
        },
        height=HEIGHT,
        hovermode="x unified",
        showlegend=True,
    )
    figure.update_xaxes(title_text="responses per customer", rangemode="tozero")
    figure.update_yaxes(title_text="type accuracy (%)", range=[0, 102])
    return figure


def calibration_curve(calibration: dict[str, Any]) -> go.Figure:
    """Reliability diagram of the believed acceptance probabilities."""
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
    for key, name, colour in (("possible", "all offers", BLUE), ("made", "offers made", VERMILION)):
        found = calibration[key]
        if not found["count"]:
            continue
        scores.append(f"{found['brier_score']:.3f} for {name}")
        largest = max(found["count"])
        figure.add_scatter(
            x=[round(100 * share, 1) for share in found["believed"]],
            y=[round(100 * share, 1) for share in found["accepted"]],
            customdata=found["count"],
            name=name,
            mode="lines+markers",
            line={"color": colour, "width": 1.5},
            marker={"color": colour, "size": [round(6 + 10 * (count / largest) ** 0.5, 1) for count in found["count"]]},
            hovertemplate="believed %{x:.0f} %, accepted %{y:.0f} % of %{customdata:,}<extra></extra>",
        )
    figure.update_layout(
        title={
            "text": "Calibration",
            "subtitle": {
                "text": "Offers by their believed probability of acceptance, against the share "
                "accepted, in percent; on the dashed line beliefs are exact, larger dots are more "
                f"offers. Brier score {', '.join(scores)}."
            },
        },
        height=HEIGHT,
        showlegend=True,
        hovermode="closest",
    )
    figure.update_xaxes(title_text="believed probability (%)", range=[-3, 103])
    figure.update_yaxes(title_text="accepted (%)", range=[-3, 103])
    return figure
