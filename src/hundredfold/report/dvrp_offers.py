"""Sixteen offers as a square of four by four, one square for each group of customers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go
from plotly.subplots import make_subplots

Counts = dict[str, list[list[int]]]
Offers = Sequence[Sequence[int]]  # minutes earlier and later of every offer

# Height of a square and size of what is written in it, by how many stand side by side.
PANEL_PIXELS = {2: 180, 3: 130}
TEXT_PIXELS = {2: 12, 3: 9}
TITLE_PIXELS, AXIS_PIXELS = 24, 48
# Behind squares without a number; faint on light and on dark.
BLANK = "rgba(140, 140, 140, 0.12)"


class Panel(NamedTuple):
    """One group of customers: a number, what is written and what is told for every offer."""

    name: str
    values: Sequence[float | None]
    texts: Sequence[str]
    told: Sequence[str]


def offer_maps(
    title: str, names: Sequence[str], counts: Counts, offers: Offers, columns: int
) -> go.Figure:
    """What share of a group's calls heard each offer; groups that never called are left out."""
    panels = []
    for name, made in zip(names, counts["made"], strict=True):
        if calls := sum(made):
            shares = [100 * count / calls if count else None for count in made]
            texts = [_percent(share) for share in shares]
            told = [f"heard by {count:,} of {calls:,} callers" for count in made]
            panels.append(Panel(name, shares, texts, told))
    meaning = "Percent of the group's calls that heard each offer; blank where nobody did."
    return _maps(title, meaning, panels, offers, columns)


def acceptance_maps(
    title: str, names: Sequence[str], counts: Counts, offers: Offers, columns: int
) -> go.Figure:
    """What share of a group accepted each offer that was made to it."""
    panels = []
    for name, made, accepted in zip(names, counts["made"], counts["accepted"], strict=True):
        if sum(made):
            heard = list(zip(made, accepted, strict=True))
            shares = [100 * yes / count if count else None for count, yes in heard]
            texts = [_percent(share) for share in shares]
            told = [f"accepted by {yes:,} of {count:,} callers" for count, yes in heard]
            panels.append(Panel(name, shares, texts, told))
    meaning = "Percent of those who heard an offer and accepted it; blank where nobody heard it."
    figure = _maps(title, meaning, panels, offers, columns)
    figure.update_coloraxes(cmin=0, cmax=100)
    return figure


def _maps(
    title: str, meaning: str, panels: Sequence[Panel], offers: Offers, columns: int
) -> go.Figure:
    """All panels in the same colours; axes are written where nothing stands below or beside."""
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
        figure.add_trace(_square(panel, offers), **where)
        lowest = place + columns >= len(panels)
        figure.update_xaxes(showticklabels=lowest, showgrid=False, zeroline=False, **where)
        figure.update_yaxes(showticklabels=column == 0, showgrid=False, zeroline=False, **where)
        if lowest:
            figure.update_xaxes(title_text="min later", **where)
        if column == 0:
            figure.update_yaxes(title_text="min earlier", **where)
    for place in range(len(panels), rows * columns):
        hidden = {"row": place // columns + 1, "col": place % columns + 1, "visible": False}
        figure.update_xaxes(**hidden)
        figure.update_yaxes(**hidden)
    figure.update_annotations(font_size=12)
    figure.update_traces(textfont_size=TEXT_PIXELS[columns])
    figure.update_xaxes(ticks="")
    figure.update_yaxes(ticks="")
    figure.update_layout(
        plot_bgcolor=BLANK,
        title={"text": title, "subtitle": {"text": meaning}},
        height=height + AXIS_PIXELS,
        margin={"t": TITLE_PIXELS},
        coloraxis={"colorscale": "Cividis", "showscale": False, "cmin": 0},
    )
    return figure


def _square(panel: Panel, offers: Offers) -> go.Heatmap:
    """The offers of a panel: earlier pickups upwards, later dropoffs to the right."""
    number = {(earlier, later): place for place, (earlier, later) in enumerate(offers)}
    up = sorted({earlier for earlier, _ in offers})
    right = sorted({later for _, later in offers})

    def square(values: Sequence[Any]) -> list[list[Any]]:
        return [[values[number[earlier, later]] for later in right] for earlier in up]

    return go.Heatmap(
        x=[str(later) for later in right],
        y=[str(earlier) for earlier in up],
        z=square([None if value is None else round(value, 2) for value in panel.values]),
        text=square(panel.texts),
        customdata=square(panel.told),
        texttemplate="%{text}",
        hovertemplate="%{y} min earlier, %{x} min later<br>%{customdata}"
        f"<extra>{panel.name}</extra>",
        coloraxis="coloraxis",
        xgap=1,
        ygap=1,
    )


def _percent(share: float | None) -> str:
    """What stands in a square; something rare is not the same as nothing."""
    if share is None:
        return ""
    return f"{share:.0f}" if share == 0 or share >= 0.5 else "&lt;1"
