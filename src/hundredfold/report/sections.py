"""What a page is made of, and where a world adds to it.

A section holds ordinary plotly figures and tables. A figure's title and subtitle become a heading
and a sentence above it, so that they wrap on a phone; `layout.height` is kept; colours, fonts and
background come from the page unless a trace names its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

import plotly.graph_objects as go

from hundredfold.training.run_folder import RunFolder

Cell = str | float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of text and numbers; numbers are written for people and stand on the right."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    marked: int | None = None  # the row to point out


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page: a title, a sentence that says how to read it, and what it shows."""

    title: str
    explanation: str
    contents: Sequence[go.Figure | Table] = ()
    columns: int = 1  # 1, 2 or 3 side by side where there is room
    folded: bool = False  # opened by a click


# World name -> "module:function". The function takes the run folder and returns a list of sections;
# it is imported when a page of that world is drawn.
WORLD_FIGURES: dict[str, str] = {"dvrp": "hundredfold.report.dvrp_sections:dvrp_sections"}


def world_sections(world: str, folder: RunFolder) -> list[Section]:
    """The world's own sections; none for most worlds."""
    if world not in WORLD_FIGURES:
        return []
    module, _, function = WORLD_FIGURES[world].partition(":")
    try:
        sections: list[Section] = getattr(import_module(module), function)(folder)
    except Exception as error:  # the rest of the page is worth having, whatever went wrong here
        said = f"{type(error).__name__}: {error}"
        warnings.warn(f"the figures of {world} could not be drawn ({said})", stacklevel=2)
        return [Section(f"Figures of {world}", f"They could not be drawn: {said}")]
    return sections
