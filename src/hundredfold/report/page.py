"""HTML report of a run: one self-contained file, drawn from the run folder alone."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from hundredfold.core.errors import CheckpointError
from hundredfold.core.files import write_atomically
from hundredfold.core.formatting import (
    MINUS,
    MISSING,
    format_count,
    format_duration,
    format_interval,
    format_large_number,
    format_number,
)
from hundredfold.envs.registry import ENVS
from hundredfold.report.figures import COLOURS
from hundredfold.report.html import template_file, templates
from hundredfold.report.replay import Replay, replay_script, replay_style
from hundredfold.report.run_data import EVALUATED, RunRecord, read_record
from hundredfold.report.run_sections import (
    Card,
    Cell,
    Content,
    Section,
    Table,
    VideoFile,
    env_sections,
    run_sections,
    video_sections,
)
from hundredfold.training.run_folder import RunFolder

DEFAULT_HEIGHT: Final = 360  # pixels


def write_report(folder: RunFolder) -> Path:
    """Write `report.html` into the run folder, replacing an older one; returns its path."""
    page = render_run(folder)
    try:
        write_atomically(folder.report_file, page)
    except OSError as error:
        raise CheckpointError(
            f"cannot write {folder.report_file}: {error.strerror}. The run itself is safe; free "
            "some space, then run `hundredfold report` again."
        ) from error
    return folder.report_file


def render_run(folder: RunFolder) -> str:
    """The report of a run as HTML."""
    record = read_record(folder)
    learning, *others = run_sections(record)
    of_env = env_sections(record.env, folder)
    return render_page(
        title=f"{record.env}, seed {record.settings.get('seed')}",
        heading=record.env,
        facts=_facts(record),
        status=_status(record),
        finished=record.finished,
        progress=record.done_epochs / max(record.num_epochs, record.done_epochs, 1),
        cards=[*(section.card for section in of_env if section.card is not None), *_cards(record)],
        # What the run achieved comes first, how it learned after that.
        sections=[*of_env, *video_sections(folder), learning, *others],
        kind="run",
        source="the run folder: settings.toml, metrics.jsonl, versions.json, checkpoints and report data",
    )


def render_page(
    *,
    title: str,
    heading: str,
    facts: Iterable[str],
    status: str,
    finished: bool,
    progress: float,
    cards: Iterable[Card],
    sections: Sequence[Section],
    kind: str,
    source: str,
) -> str:
    """A page of sections as HTML.

    Args:
        title: Title of the browser window.
        heading: Heading of the page.
        facts: Short texts below the heading.
        status: How far the run has come, as text.
        finished: Colours the status.
        progress: Fraction of the progress bar.
        cards: Headline numbers.
        sections: Sections, in order.
        kind: What the page shows, in a word above the heading: run, sweep, ...
        source: Files that it was drawn from, for the footer.
    """
    has_replay = any(isinstance(item, Replay) for section in sections for item in section.contents)
    return (
        templates()
        .get_template("page.html")
        .render(
            title=title,
            heading=heading,
            facts=facts,
            status=status,
            finished=finished,
            progress=progress,
            cards=cards,
            sections=[_section_context(section) for section in sections],
            kind=kind,
            source=source,
            style=replay_style() if has_replay else template_file("page.css"),
            plotly=get_plotlyjs(),
            script=template_file("page.js"),
            replay_script=replay_script() if has_replay else "",
        )
    )


def _section_context(section: Section) -> dict[str, Any]:
    return {
        "title": section.title,
        "explanation": section.explanation,
        "columns": section.columns,
        "folded": section.folded,
        "contents": [_content_context(item) for item in section.contents],
    }


def _content_context(item: Content) -> dict[str, Any]:
    if isinstance(item, Table):
        return {"kind": "table", **_table_context(item)}
    if isinstance(item, VideoFile):
        return {"kind": "video", "title": item.title, "base64": b64encode(item.mp4).decode()}
    if isinstance(item, Replay):
        return {"kind": "replay", "replay": item}
    return {"kind": "chart", **_chart_context(item)}


def _chart_context(figure: go.Figure) -> dict[str, Any]:
    """A figure whose title and subtitle stand above it as HTML; the page's script draws it."""
    drawing: dict[str, Any] = json.loads(figure.to_json())
    layout = drawing["layout"]
    layout.pop("template", None)  # the page has one for light and one for dark
    layout.setdefault("colorway", list(COLOURS))
    height = layout.pop("height", DEFAULT_HEIGHT)
    heading = layout.pop("title", {})
    title = heading.get("text", "")
    y_title = layout.get("yaxis", {}).get("title", {}).get("text", "")
    return {
        "title": title,
        "subtitle": heading.get("subtitle", {}).get("text", ""),
        "label": ", ".join(part for part in (title, y_title) if part) or "chart",
        "height": height,
        "drawing": drawing,
    }


def _table_context(table: Table) -> dict[str, Any]:
    """A table with its cells as text; columns of numbers are aligned to the right."""
    return {
        "title": table.title,
        "columns": table.columns,
        "numeric": {
            column for column in range(len(table.columns)) if all(_is_number(row[column]) for row in table.rows)
        },
        "rows": [[cell if isinstance(cell, str) else format_number(cell) for cell in row] for row in table.rows],
        "marked": table.marked,
    }


def _is_number(cell: Cell) -> bool:
    """True for a number and for text that begins like one (`1.7 s`, `45 %`)."""
    if isinstance(cell, str):
        return cell[:1].isdigit() or cell[:1] in (MINUS, MISSING)
    return True


def _facts(record: RunRecord) -> Iterator[str]:
    if record.env in ENVS:
        yield ENVS[record.env].summary
    yield f"seed {record.settings.get('seed')}"
    yield f"started {record.started.day} {record.started:%B %Y, %H:%M}"
    yield record.name


def _status(record: RunRecord) -> str:
    if record.stop_reason is not None:
        return f"stopped after {format_count(record.done_epochs, 'epoch')}: {record.stop_reason}"
    if record.finished:
        return f"finished, {format_count(record.done_epochs, 'epoch')}"
    if not record.num_epochs:
        return f"{format_count(record.done_epochs, 'epoch')} so far"
    return f"{record.done_epochs:,} of {format_count(record.num_epochs, 'epoch')} so far"


def _cards(record: RunRecord) -> Iterator[Card]:
    """The headline numbers that the run has."""
    best = record.best
    if best is not None:
        interval = format_interval(best.get("eval/ci_low"), best.get("eval/ci_high"))
        count = len(record.evaluations)
        which = "the only evaluation" if count == 1 else f"the best of {count:,} evaluations"
        yield Card(
            "best evaluated return",
            format_number(best[EVALUATED]),
            f"95 % interval {interval}; epoch {format_number(best['epoch'])}, {which}",
        )
    last = next((row for row in reversed(record.epochs) if row.get("return_mean") is not None), None)
    if last is not None:
        yield Card(
            "final training return",
            format_number(last["return_mean"]),
            f"mean of the episodes that ended in epoch {format_number(last['epoch'])}",
        )
    if not record.epochs:
        return
    steps, episodes = record.last("total_steps"), record.last("total_episodes")
    within = "" if episodes is None else f" in {format_large_number(episodes)} episodes"
    yield Card("environment steps", format_large_number(steps), f"of all envs together{within}")
    seconds = record.wall_seconds
    per_epoch = format_duration(seconds / len(record.epochs))
    yield Card("wall-clock time", format_duration(seconds), f"{per_epoch} per epoch")
    if steps and seconds:
        rate = format_large_number(round(steps / seconds))
        yield Card("samples per second", rate, "over the whole run, evaluation included")
