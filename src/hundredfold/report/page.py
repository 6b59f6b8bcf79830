"""The page of a run: one HTML file that needs no network, drawn from the run folder alone.

Sections as HTML. Whatever comes from a run passes through `text` or `chart_data`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from hundredfold.core.errors import CheckpointError
from hundredfold.core.formatting import (
    MINUS,
    MISSING,
    format_count,
    format_duration,
    format_interval,
    format_large_number,
    format_number,
)
from hundredfold.report.figures import COLOURS
from hundredfold.report.run_data import EVALUATED, RunRecord, read_record
from hundredfold.report.run_sections import Cell, Section, Table, env_sections, run_sections
from hundredfold.training.run_folder import RunFolder, write_atomically

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


def cards_markup(items: Iterable[tuple[str, str, str]]) -> str:
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
            f"<td{side}>{text(cell if isinstance(cell, str) else format_number(cell))}</td>"
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


def write_report(folder: RunFolder) -> Path:
    """Draw `report.html` in the run folder, or draw it anew; returns where it is."""
    page = draw_page(folder)
    try:
        write_atomically(folder.report_file, page)
    except OSError as error:
        raise CheckpointError(
            f"cannot write {folder.report_file}: {error.strerror}. The run itself is safe; "
            "make room, then draw the page again."
        ) from error
    return folder.report_file


def draw_page(folder: RunFolder) -> str:
    """The whole page as text."""
    record = read_record(folder)
    learning, *others = run_sections(record)
    sections = [learning, *env_sections(record.env, folder), *others]
    return page_text(
        title=f"{record.env}, seed {record.settings.get('seed')}",
        heading=record.env,
        facts=_facts(record),
        status=_status(record),
        finished=record.finished,
        progress=record.done_epochs / max(record.num_epochs, record.done_epochs, 1),
        cards=_headlines(record),
        sections=sections,
    )


def page_text(
    *,
    title: str,
    heading: str,
    facts: Iterable[str],
    status: str,
    finished: bool,
    progress: float,
    cards: Iterable[tuple[str, str, str]],
    sections: Sequence[Section],
) -> str:
    """A page of sections under a heading; `cards` are name, number and remark."""
    return Template(_file("templates/page.html")).substitute(
        title=text(title),
        env=text(heading),
        facts=spans(facts),
        status=text(status),
        state="finished" if finished else "unfinished",
        progress=f"{100 * progress:.1f}",
        cards=cards_markup(cards),
        links=links(sections),
        sections="\n".join(section(part, place) for place, part in enumerate(sections)),
        style=_file("templates/page.css"),
        plotly=get_plotlyjs(),
        script=_file("templates/page.js"),
    )


def _facts(record: RunRecord) -> Iterator[str]:
    yield f"seed {record.settings.get('seed')}"
    yield f"started {record.started.day} {record.started:%B %Y, %H:%M}"
    yield record.name


def _status(record: RunRecord) -> str:
    if record.finished:
        return f"finished, {format_count(record.done_epochs, 'epoch')}"
    if not record.num_epochs:
        return f"{format_count(record.done_epochs, 'epoch')} so far"
    return f"{record.done_epochs:,} of {format_count(record.num_epochs, 'epoch')} so far"


def _headlines(record: RunRecord) -> Iterator[tuple[str, str, str]]:
    """Name, number and remark of each card; only what the run can tell."""
    best = record.best
    if best is not None:
        within = format_interval(best.get("eval/ci_low"), best.get("eval/ci_high"))
        count = format_count(len(record.evaluations), "evaluation")
        yield (
            "best evaluated return",
            format_number(best[EVALUATED]),
            f"95 % interval {within}; epoch {format_number(best['epoch'])}, the best of {count}",
        )
    last = next(
        (row for row in reversed(record.epochs) if row.get("return_mean") is not None), None
    )
    if last is not None:
        yield (
            "final training return",
            format_number(last["return_mean"]),
            f"mean of the episodes that ended in epoch {format_number(last['epoch'])}",
        )
    if record.epochs:
        steps, episodes = record.last("total_steps"), record.last("total_episodes")
        played = "" if episodes is None else f" in {format_large_number(episodes)} episodes"
        yield "environment steps", format_large_number(steps), f"of all envs together{played}"
        per_epoch = record.wall_seconds / len(record.epochs)
        yield (
            "wall-clock time",
            format_duration(record.wall_seconds),
            f"{format_duration(per_epoch)} per epoch",
        )
        if steps and record.wall_seconds:
            rate = round(steps / record.wall_seconds)
            yield (
                "samples per second",
                format_large_number(rate),
                "over the whole run, evaluation included",
            )


def _file(name: str) -> str:
    return resources.files("hundredfold.report").joinpath(name).read_text("utf-8")
