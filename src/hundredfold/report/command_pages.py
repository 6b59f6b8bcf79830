"""HTML pages of `hundredfold compare` (learning curves, final scores) and `scale` (throughput, lost time)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import cycle
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
from hundredfold.training.compare import AlignedCurves, Comparison, Curve

IMPROVEMENT: Final = "improvement_probability"
SCORE_COLUMNS: Final = (
    "IQM: interquartile mean of the seeds. P(higher): probability of improvement. std: standard deviation of seeds."
)
BAND: Final = 0.18
# Name that `training.compare.num_envs_arms` gives to the control arm.
CONTROL_ARM: Final = re.compile(r"\d+-envs-x\d+")

Row = Mapping[str, Any]


# --- compare


def draw_comparison(env: str, comparison: Comparison, command: str) -> str:
    """The page as HTML.

    Args:
        env: Name of the env.
        comparison: Results of the comparison.
        command: The command that made it.
    """
    unit = "improvement (%)" if env == "dvrp" else "return"
    scores, curves = comparison.scores, comparison.curves
    first, num_seeds = scores[0]["arm"], scores[0]["seeds"]
    splits = {split: [row for row in scores if row["split"] == split] for split in comparison.verdicts}
    columns = len(splits)
    sections = [
        Section(
            "Learning curves",
            "Evaluations during training: mean over seeds; the band spans all seeds. Switch the "
            "axis to compare at equal samples or at equal wall-clock time. A run that a stop rule ended keeps its "
            f"last score.{_control_sentence(comparison.training)}",
            [learning(curves, unit)],
        ),
        Section(
            "Final scores",
            f"The last checkpoint of every run on {format_count(scores[0]['episodes'], 'episode')} that are the same "
            "for all. Filled: mean, with its 95 % bootstrap interval over seeds and episodes. Hollow: interquartile "
            "mean of the seeds.",
            [_interval_figure(rows, "mean", "ci", unit, _split_title(split)) for split, rows in splits.items()],
            columns=columns,
        ),
    ]
    if len(curves) > 1:
        sections += [
            Section(
                f"Compared with {first}",
                "Paired differences by seed and episode, with 95 % bootstrap intervals over both: right of the line "
                f"is better than {first}.",
                [
                    _interval_figure(rows[1:], "difference", "difference", f"difference, {unit}", _split_title(split))
                    for split, rows in splits.items()
                ],
                columns=columns,
            )
        ]
    if IMPROVEMENT in scores[-1]:
        sections += [
            Section(
                "Probability of improvement",
                f"Probability that a run scores higher than one of {first} with another seed, with stratified 95 % "
                "bootstrap intervals; one half is no difference.",
                [
                    _interval_figure(
                        rows[1:], IMPROVEMENT, IMPROVEMENT, "probability of improvement", _split_title(split)
                    )
                    for split, rows in splits.items()
                ],
                columns=columns,
            )
        ]
    level = format_number(comparison.training[0]["level"])
    sections += [
        Section(
            "All scores", SCORE_COLUMNS, [_score_table(rows, _split_title(split)) for split, rows in splits.items()]
        ),
        Section(
            "Training",
            f"Means over seeds. The level {level} is reached by the mean of the evaluated scores.",
            [_arm_table(comparison.training)],
        ),
    ]
    return render_page(
        title=f"{env}: {len(curves)} arms compared",
        heading=f"{env}, {format_count(len(curves), 'arm')} compared",
        facts=[format_count(num_seeds, "seed"), command],
        status=format_count(len(curves) * num_seeds, "run"),
        finished=True,
        progress=1.0,
        cards=[*_verdict_cards(comparison), *_arm_cards(comparison, unit)],
        sections=sections,
        kind="compare",
        source="the runs beside this page; compare.json has all figures",
    )


def _verdict_cards(comparison: Comparison) -> Iterator[Card]:
    if len(comparison.curves) > 1:
        for split, verdict in comparison.verdicts.items():
            result, _, reason = verdict.partition(": ")
            winner, _, overlap = reason.partition(", ")
            value, text = (winner, overlap) if result == "winner" else (result, reason)
            yield Card(_split_title(split) or "result", value, text)


def _control_sentence(training: Sequence[Row]) -> str:
    """What the control arm of a comparison of numbers of envs is; empty without one."""
    for row in training:
        if CONTROL_ARM.fullmatch(row["arm"]):
            same = next(other for other in training if other["samples_per_update"] == row["samples_per_update"])
            return (
                f" {row['arm']} is a control: {row['num_envs']} envs that collect as many samples for each update as "
                f"{same['arm']}, so that the number of envs and the size of updates can be told apart."
            )
    return ""


def _arm_cards(comparison: Comparison, unit: str) -> Iterator[Card]:
    for row, training in zip(comparison.scores, comparison.training, strict=False):
        interval = format_interval(row["ci_low"], row["ci_high"])
        duration = format_duration(training["seconds"])
        yield Card(row["arm"], format_number(row["mean"]), f"{unit}; 95 % interval {interval}; {duration} per run")


def _split_title(split: str) -> str:
    return "" if split == "all" else split.replace("_", " ").capitalize()


def learning(curves: Mapping[str, Sequence[Curve]], unit: str) -> go.Figure:
    """Evaluated scores of every arm, by samples or by time."""
    longest = max(float(curve.seconds[-1]) for arm in curves.values() for curve in arm)
    clock, unit_seconds = axis_time_unit(longest)
    axes = {"steps": "environment steps", "clock": f"wall-clock time ({clock})"}
    figure = go.Figure(layout={"meta": axes, "height": 420, "showlegend": True})
    for colour, (name, arm) in zip(cycle(COLOURS), curves.items(), strict=False):
        aligned = AlignedCurves.of(arm)
        scores = aligned.scores
        places = {"steps": aligned.samples.tolist(), "clock": (aligned.seconds / unit_seconds).tolist()}
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
            y=_rounded(aligned.mean),
            meta=places,
            name=escape(name),
            mode="lines+markers",
            line={"color": colour, "width": 2},
            hovertemplate="%{y:.4~r}",
        )
    figure.update_xaxes(title_text=axes["steps"], rangemode="tozero")
    figure.update_yaxes(title_text=unit)
    return figure


def _interval_figure(rows: Sequence[Row], value: str, interval: str, unit: str, title: str) -> go.Figure:
    """A value with its interval per arm, one below the other.

    Args:
        rows: One row per arm.
        value: Key of the value.
        interval: Keys of its bounds without _low and _high.
        unit: Title of the axis.
        title: Title of the figure.
    """
    names = [escape(row["arm"]) for row in rows]
    figure = go.Figure(layout={"height": 110 + 30 * len(rows), "showlegend": False, "title": {"text": title}})
    colours = dict(zip(names, cycle(COLOURS if value == "mean" else (*COLOURS[1:], COLOURS[0])), strict=False))
    for name, row in zip(names, rows, strict=True):
        low, middle, high = row[f"{interval}_low"], row[value], row[f"{interval}_high"]
        figure.add_scatter(
            x=[middle],
            y=[name],
            mode="markers",
            marker={"color": colours[name], "size": 9},
            error_x={"array": [high - middle], "arrayminus": [middle - low], "color": colours[name]},
            hovertemplate=f"%{{x:.4~r}} ({format_interval(low, high)})<extra></extra>",
        )
        if value == "mean":
            figure.add_scatter(
                x=[row["iqm"]],
                y=[name],
                mode="markers",
                marker={"color": colours[name], "size": 13, "symbol": "circle-open"},
                hovertemplate="interquartile mean %{x:.4~r}<extra></extra>",
            )
    if value != "mean":
        middle = 0.5 if value == IMPROVEMENT else 0.0
        figure.add_vline(x=middle, line={"dash": "dot", "width": 1, "color": COLOURS[-1]})
    if value == IMPROVEMENT:
        figure.update_xaxes(range=[-0.02, 1.02])
    figure.update_xaxes(title_text=unit)
    figure.update_yaxes(range=[len(rows) - 0.5, -0.5], type="category")
    return figure


def _score_table(rows: Sequence[Row], title: str) -> Table:
    """An arm per row; intervals beside their values."""
    shown = {"mean": "ci", "iqm": "iqm", "difference": "difference", IMPROVEMENT: IMPROVEMENT}
    names = ("mean", "IQM", "difference", "P(higher)")
    columns = [column for name in names for column in (name, "95 % interval")]
    return Table(
        title=title,
        columns=["arm", *columns, "std"],
        rows=[
            [
                row["arm"],
                *(
                    cell
                    for value, interval in shown.items()
                    for cell in (
                        row.get(value),
                        format_interval(row.get(f"{interval}_low"), row.get(f"{interval}_high")),
                    )
                ),
                row["std_across_seeds"],
            ]
            for row in rows
        ],
    )


def _arm_table(rows: Sequence[Row]) -> Table:
    """Metrics as rows and arms as columns, which stays narrow on a phone."""
    names = dict.fromkeys(key for row in rows for key in row if key != "arm")
    titled = ((name, metric_label(name)) for name in names)
    return Table(
        columns=["", *(row["arm"] for row in rows)],
        rows=[
            [f"{label} ({unit})" if unit else label, *(row.get(name) for row in rows)] for name, (label, unit) in titled
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
    "How the time is spent that the ideal would use for steps only, in percent. Stepping counts as many seconds as the "
    "steps take in one env alone; what they take longer beside others is shown apart. Where steps are faster than "
    "alone (warm caches, fewer pauses), the throughput may exceed the ideal. All parts are measured: every env records "
    "when its steps begin and end."
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
        Card("of the ideal", format_percent(best["efficiency"]), f"the ideal is {ideal}"),
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
        kind="scale",
        source="the measurements of this command",
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
            y=[float(f"{100 * _share_of_time(row, key):.4g}") for row in backend_rows],
            name=name,
            marker={"color": colour, "line": {"width": 0}},
            hovertemplate="%{y:.1f} %",
        )
    figure.update_xaxes(title_text="envs", type="category", showgrid=False)
    figure.update_yaxes(title_text="share of time (%)", range=[0, 100])
    return figure


def _share_of_time(row: Row, key: str) -> float:
    """A share for the bars, which add up to 1: time gained by steps faster than alone is none."""
    gained = min(0.0, row["lost_to_slowdown"])
    return float(row[key] + gained if key == "efficiency" else max(0.0, row[key]))


def _size_table(rows: Sequence[Row]) -> Table:
    keys = [key for key in TIME_SHARES if any(abs(row[key]) >= MIN_SHARE for row in rows)]
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
