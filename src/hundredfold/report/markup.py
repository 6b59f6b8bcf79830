"""Sections as HTML. Whatever comes from a run passes through `text` or `chart_data`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import plotly.graph_objects as go

from hundredfold.report.figures import COLOURS
from hundredfold.report.sections import Cell, Section, Table
from hundredfold.report.words import MINUS, MISSING, number

DEFAULT_HEIGHT = 360  # pixels


def text(value: object) -> str:
    """Anything, safe inside an element or a quoted attribute; 95 % stays on one line."""
    return escape(str(value), quote=True).replace(" %", "&nbsp;%")


def section(part: Section, place: int) -> str:
    """One section; its place on the page gives it an address."""
    head = f"<h2>{text(part.title)}</h2>"
    if part.explanation:
        head += f'\n<p class="explanation">{text(part.explanation)}</p>'
    body = "\n".join(
        table(item) if isinstance(item, Table) else chart(item) for item in part.contents
    )
    if body:
        body = f'<div class="columns-{part.columns}">\n{body}\n</div>'
    if part.folded:
        head, body = f"<details><summary>{head}</summary>", f"{body}</details>"
    return f'<section id="{_address(place)}">\n{head}\n{body}\n</section>'


def links(sections: Sequence[Section]) -> str:
    """The way to each section."""
    return "\n".join(
        f'<a href="#{_address(place)}">{text(part.title)}</a>'
        for place, part in enumerate(sections)
    )


def spans(items: Iterable[str]) -> str:
    """Short facts that stand in a row and wrap between them."""
    return "\n".join(f"<span>{text(item)}</span>" for item in items)


def cards(items: Iterable[tuple[str, str, str]]) -> str:
    """Headline numbers: what it is, the number, and what to know about it."""
    return "\n".join(
        f'<div class="card"><dt>{text(name)}</dt><dd><strong>{text(value)}</strong>'
        f"<small>{text(note)}</small></dd></div>"
        for name, value, note in items
    )


def chart(figure: go.Figure) -> str:
    """A figure under its title as a heading; the page's script draws it."""
    drawing: dict[str, Any] = json.loads(figure.to_json())
    layout = drawing["layout"]
    layout.pop("template", None)  # the page has one for light and one for dark
    layout.setdefault("colorway", list(COLOURS))
    height = layout.pop("height", DEFAULT_HEIGHT)
    title = layout.pop("title", {})
    name = title.get("text", "")
    meaning = title.get("subtitle", {}).get("text", "")
    axis = layout.get("yaxis", {}).get("title", {}).get("text", "")
    label = ", ".join(part for part in (name, axis) if part) or "chart"
    return "\n".join(
        [
            '<figure class="card">',
            f"<h3>{text(name)}</h3>" if name else "",
            f'<p class="meaning">{text(meaning)}</p>' if meaning else "",
            f'<div class="chart" role="img" aria-label="{text(label)}" style="height:{height}px">',
            f'<script type="application/json">{chart_data(drawing)}</script>',
            "</div>",
            "</figure>",
        ]
    )


def chart_data(drawing: dict[str, Any]) -> str:
    """JSON that cannot end the element it stands in."""
    return json.dumps(drawing, separators=(",", ":")).replace("<", "\\u003c")


def table(content: Table) -> str:
    """A table in a box of its own, in which it scrolls when it is wide or long."""
    sides = [
        ' class="number"' if all(_is_number(row[column]) for row in content.rows) else ""
        for column in range(len(content.columns))
    ]
    head = "".join(
        f'<th scope="col"{side}>{text(name)}</th>'
        for name, side in zip(content.columns, sides, strict=True)
    )
    rows = []
    for index, row in enumerate(content.rows):
        cells = (
            f"<td{side}>{text(cell if isinstance(cell, str) else number(cell))}</td>"
            for cell, side in zip(row, sides, strict=True)
        )
        mark = ' class="marked"' if index == content.marked else ""
        rows.append(f"<tr{mark}>{''.join(cells)}</tr>")
    return "\n".join(
        [
            '<div class="card">',
            f"<h3>{text(content.title)}</h3>" if content.title else "",
            f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>',
            *rows,
            "</tbody></table></div>",
            "</div>",
        ]
    )


def _is_number(cell: Cell) -> bool:
    """A number, or a text that begins like one (`1.7 s`, `45 %`)."""
    if isinstance(cell, str):
        return cell[:1].isdigit() or cell[:1] in (MINUS, MISSING)
    return True


def _address(place: int) -> str:
    return f"section-{place + 1}"
