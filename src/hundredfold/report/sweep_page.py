"""HTML page of `hundredfold sweep`: history, importance of settings, score against seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go

from hundredfold.core.formatting import format_count, format_duration, format_number
from hundredfold.report.figures import COLOURS
from hundredfold.report.page import render_page
from hundredfold.report.run_sections import Card, Section, Table
from hundredfold.training.search_ranges import describe
from hundredfold.training.sweep import TrialResult, pareto_front

SHOWN_TRIALS: Final = 20
MAX_TICKS: Final = 15


def draw_sweep(
    env: str,
    results: Sequence[TrialResult],
    counts: Mapping[str, int],
    importances: Mapping[str, float],
    *,
    target: float | None,
    command: str,
) -> str:
    """The page as HTML.

    Args:
        env: Name of the env.
        results: Finished trials, best first.
        counts: Number of trials by how they ended.
        importances: Share of each setting in the differences between trials.
        target: Return to be reached, if seconds were minimised.
        command: The command that made the sweep.
    """
    measure = "seconds to the target" if target is not None else "evaluated return"
    best = results[0]
    sections = [
        Section(
            "Trials",
            f"The {measure} of every finished trial (mean over its seeds), and the best so far.",
            [history(results, measure, target is not None)],
        ),
        Section(
            "Return against time",
            "Finished trials on the line are best for their training time (Pareto front): no other finished trial has "
            "both a higher last evaluated return (mean over seeds) and a shorter training (sum over seeds).",
            [return_against_seconds(results)],
        ),
    ]
    if importances:
        sections.append(
            Section(
                "Which settings matter",
                "How much each setting explains of the difference between good trials and all trials (PED-ANOVA); "
                "the shares add up to 1.",
                [importance(importances)],
            )
        )
    sections.append(
        Section("Best trials", "Settings that were searched; all others are the same.", [_table(results, target)])
    )
    return render_page(
        title=f"{env}: settings searched",
        heading=f"{env}, settings searched",
        facts=[command],
        status=f"{format_count(sum(counts.values()), 'trial')}: {_ends(counts)}",
        finished=True,
        progress=1.0,
        cards=[
            Card(*_best(best, target), f"trial {best.number}: {describe(best.params)}"),
            Card("training time", format_duration(sum(one.seconds for one in results)), "of all finished trials"),
        ],
        sections=sections,
        kind="sweep",
        source="the study beside this page; results.json has all figures, trials/ the runs",
    )


def history(results: Sequence[TrialResult], measure: str, is_seconds: bool) -> go.Figure:
    """Scores by trial number, with the best so far."""
    ordered = sorted(results, key=lambda one: one.number)
    numbers, scores = [one.number for one in ordered], np.array([one.score for one in ordered])
    sign = -1.0 if is_seconds else 1.0
    figure = go.Figure(layout={"height": 360, "showlegend": True})
    figure.add_scatter(
        x=numbers,
        y=(sign * scores).tolist(),
        mode="markers",
        name="trial",
        marker={"color": COLOURS[0], "size": 9},
        text=[describe(one.params) for one in ordered],
        hovertemplate="trial %{x}: %{y:.4g}<br>%{text}",
    )
    figure.add_scatter(
        x=numbers,
        y=(sign * np.maximum.accumulate(scores)).tolist(),
        mode="lines",
        line={"color": COLOURS[1], "width": 2, "shape": "hv"},
        name="best so far",
    )
    figure.update_xaxes(title_text="trial", tick0=0, dtick=max(1, round(numbers[-1] / MAX_TICKS)))
    figure.update_yaxes(title_text=measure)
    return figure


def return_against_seconds(results: Sequence[TrialResult]) -> go.Figure:
    """Every trial by training time and return, and the Pareto front."""
    front = pareto_front(results)
    figure = go.Figure(layout={"height": 360, "showlegend": True})
    for name, shown, mode, colour in (
        ("trial", results, "markers", COLOURS[0]),
        ("best for its time", front, "lines+markers", COLOURS[1]),
    ):
        figure.add_scatter(
            x=[one.seconds for one in shown],
            y=[one.mean_return for one in shown],
            mode=mode,
            name=name,
            marker={"color": colour, "size": 9},
            line={"color": colour, "width": 2, "shape": "hv"},
            text=[f"trial {one.number}: {describe(one.params)}" for one in shown],
            hovertemplate="%{x:.1f} s: %{y:.4g}<br>%{text}",
        )
    figure.update_xaxes(title_text="training time of all seeds (seconds)", rangemode="tozero")
    figure.update_yaxes(title_text="evaluated return")
    return figure


def importance(importances: Mapping[str, float]) -> go.Figure:
    """Share of every setting, the largest at the top."""
    names = sorted(importances, key=lambda name: importances[name])
    figure = go.Figure(layout={"height": 120 + 32 * len(names), "showlegend": False})
    figure.add_bar(
        x=[importances[name] for name in names],
        y=[name.replace("_", " ") for name in names],
        orientation="h",
        marker={"color": COLOURS[0]},
        hovertemplate="%{x:.2f}",
    )
    figure.update_xaxes(title_text="share", range=[0, 1])
    return figure


def _best(result: TrialResult, target: float | None) -> tuple[str, str]:
    """What the best trial has reached: name and value."""
    if target is None:
        return "best evaluated return", format_number(result.score)
    return f"shortest time to a return of {format_number(target)}", format_duration(-result.score)


def _ends(counts: Mapping[str, int]) -> str:
    """How trials ended, such as 6 finished, 3 stopped early."""
    words = {"pruned": "stopped early"}
    return ", ".join(f"{number} {words.get(end, end)}" for end, number in counts.items() if number)


def _table(results: Sequence[TrialResult], target: float | None) -> Table:
    names = list(results[0].params)
    sign = 1.0 if target is None else -1.0
    rows: list[list[Any]] = [
        [one.number, sign * one.score, one.seconds, *(one.params[name] for name in names)]
        for one in results[:SHOWN_TRIALS]
    ]
    measure = "return" if target is None else "seconds to target"
    columns = ["trial", measure, "seconds of training", *(name.replace("_", " ") for name in names)]
    return Table(columns=columns, rows=rows, marked=0)
