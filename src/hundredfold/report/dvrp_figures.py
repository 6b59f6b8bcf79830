"""Figures of dvrp: savings with intervals, shift trade-off, heat maps of offers, acceptance model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from hundredfold.report.figures import BLUE, COLOURS, VERMILION

Row = dict[str, Any]
Counts = dict[str, list[list[int]]]
Offers = Sequence[Sequence[int]]  # minutes earlier and later of every offer

GREY = COLOURS[-1]
UPPER_BOUND = "hindsight"

# Height of a heat map and size of its text, by the number of columns.
PANEL_PIXELS = {2: 180, 3: 130}
TEXT_PIXELS = {2: 12, 3: 9}
# With more columns the cells are too small for text.
MAX_TEXT_COLUMNS = 7
TITLE_PIXELS, MAP_AXIS_PIXELS = 24, 48
# Background of cells without data; faint on light and on dark.
BLANK = "rgba(140, 140, 140, 0.12)"

BELIEF_HEIGHT = 340
BAR_PIXELS, BAR_AXIS_PIXELS = 34, 60
PAIR_HEIGHT, TRADE_OFF_HEIGHT = 360, 420
# Size of the trade-off's plot on a phone and of a label in it, in pixels, to place labels.
PHONE_WIDTH, PHONE_HEIGHT = 250, 330
LETTER_WIDTH, LETTER_HEIGHT, GAP = 6.5, 14, 7
# Where labels may be, best first; those of a curve that rises to the right stay off its line.
CURVE_SIDES = ("bottom right", "top left")
CORNERS = ("top right", "top left", "bottom right", "bottom left")
SIDES = ("middle right", "middle left", "top center", "bottom center", *CORNERS)


class Panel(NamedTuple):
    """Heat map of one group of customers, with one entry per offer."""

    name: str
    values: Sequence[float | None]
    texts: Sequence[str]
    hover_texts: Sequence[str]


def offer_maps(title: str, names: Sequence[str], counts: Counts, offers: Offers, columns: int) -> go.Figure:
    """Share of each group's calls that got each offer; groups without calls are left out."""
    panels = []
    for name, made in zip(names, counts["made"], strict=True):
        if calls := sum(made):
            shares = [100 * count / calls if count else None for count in made]
            texts = [_percent(share) for share in shares]
            hover_texts = [f"made in {count:,} of {calls:,} calls" for count in made]
            panels.append(Panel(name, shares, texts, hover_texts))
    subtitle = "Percent of the group's calls that got each offer; blank where none did."
    return _maps(title, subtitle, panels, offers, columns)


def acceptance_maps(title: str, names: Sequence[str], counts: Counts, offers: Offers, columns: int) -> go.Figure:
    """Share of each group's offers that were accepted."""
    panels = []
    for name, made, accepted in zip(names, counts["made"], counts["accepted"], strict=True):
        if sum(made):
            pairs = list(zip(made, accepted, strict=True))
            shares = [100 * yes / count if count else None for count, yes in pairs]
            texts = [_percent(share) for share in shares]
            hover_texts = [f"accepted {yes:,} of {count:,} times" for count, yes in pairs]
            panels.append(Panel(name, shares, texts, hover_texts))
    subtitle = "Percent of the offers made that were accepted; blank where none was made."
    figure = _maps(title, subtitle, panels, offers, columns)
    figure.update_coloraxes(cmin=0, cmax=100)
    return figure


def _maps(title: str, subtitle: str, panels: Sequence[Panel], offers: Offers, columns: int) -> go.Figure:
    """Panels on one colour scale; axes are labelled on the left and at the bottom only."""
    rows = max(1, -(-len(panels) // columns))
    height = PANEL_PIXELS[columns] * rows
    figure = make_subplots(
        rows=rows,
        cols=columns,
        subplot_titles=[panel.name for panel in panels],
        horizontal_spacing=0.03,
        vertical_spacing=TITLE_PIXELS / height if rows > 1 else 0.0,
    )
    for place, panel in enumerate(panels):
        row, column = divmod(place, columns)
        where = {"row": row + 1, "col": column + 1}
        figure.add_trace(_heatmap(panel, offers), **where)
        is_lowest = place + columns >= len(panels)
        figure.update_xaxes(showticklabels=is_lowest, showgrid=False, zeroline=False, **where)
        figure.update_yaxes(showticklabels=column == 0, showgrid=False, zeroline=False, **where)
        if is_lowest:
            figure.update_xaxes(title_text="min later", **where)
        if column == 0:
            figure.update_yaxes(title_text="min earlier", **where)
    for place in range(len(panels), rows * columns):
        hidden = {"row": place // columns + 1, "col": place % columns + 1, "visible": False}
        figure.update_xaxes(**hidden)
        figure.update_yaxes(**hidden)
    figure.update_annotations(font_size=12)
    figure.update_traces(textfont_size=TEXT_PIXELS[columns])
    figure.update_xaxes(ticks="", type="category")
    figure.update_yaxes(ticks="", type="category")
    figure.update_layout(
        plot_bgcolor=BLANK,
        title={"text": title, "subtitle": {"text": subtitle}},
        height=height + MAP_AXIS_PIXELS,
        margin={"t": TITLE_PIXELS},
        coloraxis={"colorscale": "Cividis", "showscale": False, "cmin": 0},
    )
    return figure


def _heatmap(panel: Panel, offers: Offers) -> go.Heatmap:
    """Heat map of a panel: earlier pickups upwards, later dropoffs to the right."""
    offer_index = {(earlier, later): place for place, (earlier, later) in enumerate(offers)}
    up = sorted({earlier for earlier, _ in offers})
    right = sorted({later for _, later in offers})

    places = [[offer_index.get((earlier, later)) for later in right] for earlier in up]

    def grid(values: Sequence[Any], absent: Any = "") -> list[list[Any]]:
        return [[absent if place is None else values[place] for place in row] for row in places]

    return go.Heatmap(
        x=[str(later) for later in right],
        y=[str(earlier) for earlier in up],
        z=grid([None if value is None else round(value, 2) for value in panel.values], absent=None),
        text=grid(panel.texts if len(right) <= MAX_TEXT_COLUMNS else [""] * len(offers)),
        customdata=grid(panel.hover_texts),
        texttemplate="%{text}",
        hovertemplate=f"%{{y}} min earlier, %{{x}} min later<br>%{{customdata}}<extra>{panel.name}</extra>",
        coloraxis="coloraxis",
        xgap=1,
        ygap=1,
    )


def _percent(share: float | None) -> str:
    """Text of a cell; a rare offer is written <1, not 0."""
    if share is None:
        return ""
    return f"{share:.0f}" if share == 0 or share >= 0.5 else "&lt;1"


def policy_bars(rows: Sequence[Row]) -> go.Figure:
    """Improvement of every policy, best on top; the first row is this run, hindsight a line."""
    this_run = rows[0]["policy"]
    bars = sorted((row for row in rows if row["policy"] != UPPER_BOUND), key=lambda row: row["mean"])
    figure = _bars(bars, [row["policy"] for row in bars], [BLUE if row["policy"] == this_run else GREY for row in bars])
    subtitle = "Driving minutes saved, in percent; the whiskers are 95 % intervals."
    for row in rows:
        if row["policy"] == UPPER_BOUND:
            figure.add_vline(x=row["mean"], line={"color": VERMILION, "dash": "dash", "width": 2})
            subtitle += (
                f" The dashed line is hindsight ({row['mean']:.1f} %), which knows all requests "
                "and responses in advance."
            )
    figure.update_layout(title={"text": "Savings", "subtitle": {"text": subtitle}}, height=PAIR_HEIGHT)
    return figure


def split_bars(rows: Sequence[Row]) -> go.Figure:
    """Improvement of one policy on each split, the known one on top."""
    names = {
        "known": "known customers and trips",
        "unseen_trips": "known customers, new trips",
        "unseen_customers": "new customers",
    }
    bars = list(reversed(rows))
    return _bars(bars, [names.get(row["split"]) or str(row["split"]) for row in bars], [BLUE] * 3)


def trade_off(rows: Sequence[Row], curve: Sequence[Row] = ()) -> go.Figure:
    """Driving minutes saved against minutes moved, one dot per policy.

    Args:
        rows: One row per policy; the first is this run.
        curve: Rows of this run at several shift penalties; drawn if there are two or more.
    """
    this_run, names = rows[0]["policy"], [row["policy"] for row in rows]
    curve = sorted(curve, key=lambda row: float(row["shift_penalty"])) if len(curve) > 1 else []
    points = len(curve)
    shift, saved = _shift_and_saved([*curve, *rows])
    x_range, y_range = _padded_range(shift), _padded_range(saved)
    dots = [
        (
            PHONE_WIDTH * (x - x_range[0]) / (x_range[1] - x_range[0]),
            PHONE_HEIGHT * (y - y_range[0]) / (y_range[1] - y_range[0]),
        )
        for x, y in zip(shift, saved, strict=True)
    ]
    penalties = [f"{row['shift_penalty']:g}" for row in curve]
    # One dot of the curve is this run as it was trained, which has a label of its own.
    labels = ["" if dot == dots[points] else penalty for dot, penalty in zip(dots[:points], penalties, strict=True)]
    # Names of policies first: a number of the curve that has no room is left out, as it is shown on touch.
    order = [*dots[points:], *dots[:points]]
    placed = _label_sides(order, [*names, *labels], [SIDES] * len(names) + [CURVE_SIDES] * points)
    sides = [side for side, _ in placed]
    labels = [label if fits else "" for label, (_, fits) in zip(labels, placed[len(names) :], strict=True)]
    figure = go.Figure()
    if curve:
        figure.add_scatter(
            x=shift[:points],
            y=saved[:points],
            text=labels,
            customdata=penalties,
            name=f"{this_run}, by shift penalty",
            mode="lines+markers+text",
            textposition=sides[len(names) :],
            textfont={"color": BLUE},
            line={"color": BLUE, "width": 2},
            marker={"color": BLUE, "size": 6},
            hovertemplate="shift penalty %{customdata}<br>%{y:.1f} min saved, %{x:.0f} min moved<extra></extra>",
            cliponaxis=False,
        )
    colours = {this_run: BLUE, UPPER_BOUND: VERMILION}
    figure.add_scatter(
        x=shift[points:],
        y=saved[points:],
        text=names,
        mode="markers+text",
        textposition=sides[: len(names)],
        marker={
            "opacity": 1,
            "size": [13 if name == this_run else 9 for name in names],
            "color": [colours.get(name, GREY) for name in names],
        },
        hovertemplate="%{text}<br>%{y:.1f} min saved, %{x:.0f} min moved<extra></extra>",
        cliponaxis=False,
        showlegend=False,
    )
    figure.update_layout(height=TRADE_OFF_HEIGHT, showlegend=bool(curve), hovermode="closest")
    figure.update_xaxes(title_text="minutes moved per day, all customers together", range=x_range)
    figure.update_yaxes(title_text="driving minutes saved per day", range=y_range)
    return figure


def _shift_and_saved(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    """Minutes of shift and driving minutes saved, both per day."""
    shift = [round(row["shift_minutes"], 1) for row in rows]
    saved = [row["saved_minutes"] if "saved_minutes" in row else row["baseline_cost"] - row["cost"] for row in rows]
    return shift, [round(minutes, 1) for minutes in saved]


def _bars(rows: Sequence[Row], names: Sequence[str], colours: Sequence[str]) -> go.Figure:
    """Horizontal bars with intervals, the last on top."""
    figure = go.Figure(
        go.Bar(
            x=[round(row["mean"], 3) for row in rows],
            y=list(names),
            orientation="h",
            marker={"color": list(colours), "opacity": 0.6},
            error_x={
                "type": "data",
                "array": [round(row["ci_high"] - row["mean"], 3) for row in rows],
                "arrayminus": [round(row["mean"] - row["ci_low"], 3) for row in rows],
                "color": GREY,
                "thickness": 2,
                "width": 5,
            },
            customdata=[[round(row["ci_low"], 2), round(row["ci_high"], 2)] for row in rows],
            hovertemplate="%{y}: %{x:.2f} % (%{customdata[0]} to %{customdata[1]})<extra></extra>",
        )
    )
    figure.update_layout(height=BAR_PIXELS * len(rows) + BAR_AXIS_PIXELS, bargap=0.35, showlegend=False)
    figure.update_xaxes(title_text="% of driving minutes saved")
    figure.update_yaxes(showgrid=False, ticksuffix=" ")
    return figure


def _padded_range(values: Sequence[float]) -> list[float]:
    """An axis range with space for labels around the outermost dots."""
    low, high = min(*values, 0.0), max(*values, 0.0)
    padding = 0.12 * ((high - low) or 1.0)
    return [low - padding, high + padding]


class _Box(NamedTuple):
    left: float
    bottom: float
    right: float
    top: float

    def overlap(self, other: _Box) -> float:
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.top, other.top) - max(self.bottom, other.bottom)
        return max(width, 0.0) * max(height, 0.0)


def _label_sides(
    dots: Sequence[tuple[float, float]], names: Sequence[str], allowed: Sequence[Sequence[str]]
) -> list[tuple[str, bool]]:
    """Greedy label placement: each label on the allowed side with the least overlap, in phone pixels.

    Returns:
        The side of each label, and whether it is free of overlaps there.
    """
    taken = [_Box(x - GAP, y - GAP, x + GAP, y + GAP) for x, y in dots]
    frame = _Box(0.0, 0.0, PHONE_WIDTH, PHONE_HEIGHT)
    chosen: list[tuple[str, bool]] = []
    for (x, y), name, sides in zip(dots, names, allowed, strict=True):
        width = LETTER_WIDTH * len(name)
        boxes = {side: _label_box(x, y, width, side) for side in sides}
        overlap = {
            side: sum(box.overlap(other) for other in taken) + width * LETTER_HEIGHT - box.overlap(frame)
            for side, box in boxes.items()
        }
        best = min(overlap, key=lambda side: overlap[side])
        chosen.append((best, overlap[best] < 1.0))
        taken.append(boxes[best])
    return chosen


def _label_box(x: float, y: float, width: float, side: str) -> _Box:
    """The box of a label beside its dot, by plotly's `textposition`."""
    vertical, horizontal = side.split()
    left = {"right": x + GAP, "left": x - GAP - width, "center": x - width / 2}[horizontal]
    bottom = {"middle": y - LETTER_HEIGHT / 2, "top": y + GAP, "bottom": y - GAP - LETTER_HEIGHT}[vertical]
    return _Box(left, bottom, left + width, bottom + LETTER_HEIGHT)


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
            "text": "Believed and true types",
            "subtitle": {
                "text": "Customers by their true type (rows) and the one believed most likely "
                "(columns); all of them on the diagonal would be perfect."
            },
        },
        height=BELIEF_HEIGHT,
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
                "many responses to random offers, with the acceptance rates learned and with the true "
                f"ones ({by_responses['sequences']:,} sequences)."
            },
        },
        height=BELIEF_HEIGHT,
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
            "text": "Believed and observed acceptance",
            "subtitle": {
                "text": "Offers by their believed probability of acceptance, against the share "
                "accepted, in percent; on the dashed line beliefs are exact, larger dots are more "
                f"offers. Brier score (0 is perfect) {', '.join(scores)}."
            },
        },
        height=BELIEF_HEIGHT,
        showlegend=True,
        hovermode="closest",
    )
    figure.update_xaxes(title_text="believed probability (%)", range=[-3, 103])
    figure.update_yaxes(title_text="accepted (%)", range=[-3, 103])
    return figure


def calibration_by_day(epochs: Sequence[Row], days_per_step: float) -> go.Figure:
    """Predicted and observed acceptance of every epoch's offers, over simulated days.

    Args:
        epochs: Metrics of the epochs that made offers.
        days_per_step: Days in one step of one env.
    """
    figure = go.Figure()
    days = [round(row["total_steps"] * days_per_step, 1) for row in epochs]
    for name, colour in (("predicted", BLUE), ("accepted", VERMILION)):
        percent = [round(100 * row[f"acceptance/{name}_rate"], 2) for row in epochs]
        line = {"color": colour, "width": 2}
        figure.add_scatter(x=days, y=percent, name=name, mode="lines", line=line, hovertemplate="%{y:.1f} %")
    subtitle = (
        "Offers of training: percent accepted, and as predicted before the responses were learned from. "
        f"Brier score (0 is perfect) {epochs[-1]['acceptance/offer_brier_score']:.3f} in the last epoch."
    )
    title = {"text": "Believed and observed acceptance by day", "subtitle": {"text": subtitle}}
    figure.update_layout(title=title, height=BELIEF_HEIGHT, hovermode="x unified", showlegend=True)
    figure.update_xaxes(title_text="days of all envs", rangemode="tozero")
    figure.update_yaxes(title_text="offers accepted (%)", range=[0, 102])
    return figure


def calibration_groups(rows: Sequence[Row]) -> go.Figure:
    """Predicted and observed acceptance of all possible offers, by group of requests."""
    figure = go.Figure()
    for name, colour, symbol in (("predicted", BLUE, "circle-open"), ("accepted", VERMILION, "circle")):
        figure.add_scatter(
            x=[round(row[f"{name}_pct"], 1) for row in rows],
            y=[f"{row['by']}: {row['group']} " for row in rows],
            customdata=[[row["offers"], round(row["offer_brier_score"], 4)] for row in rows],
            name=name,
            mode="markers",
            marker={"color": colour, "symbol": symbol, "size": 8, "line": {"width": 2}},
            hovertemplate="%{y}%{x:.1f} % of %{customdata[0]:,} offers, Brier score %{customdata[1]}",
        )
    subtitle = (
        "All possible offers, in percent: accepted, and predicted; where both dots meet, the belief is right. "
        "Neighbourhoods, where customers live, are squares of a 3 x 3 grid over the map: row 1 is the lowest, column 1 "
        "the leftmost."
    )
    title = {"text": "Believed and observed acceptance by group", "subtitle": {"text": subtitle}}
    figure.update_layout(title=title, height=120 + 18 * len(rows), showlegend=True, hovermode="closest")
    figure.update_xaxes(title_text="offers accepted (%)", range=[-3, 103])
    figure.update_yaxes(autorange="reversed")
    return figure
