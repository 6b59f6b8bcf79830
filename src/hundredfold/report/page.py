"""The page of a run: one HTML file that needs no network, drawn from the run folder alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from string import Template

from plotly.offline import get_plotlyjs

from hundredfold.core.errors import CheckpointError
from hundredfold.report import markup
from hundredfold.report.record import EVALUATED, RunRecord, read_record
from hundredfold.report.run_sections import run_sections
from hundredfold.report.sections import Section, world_sections
from hundredfold.report.words import big_number, counted, duration, interval, number
from hundredfold.training.run_folder import RunFolder, write_atomically


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
    sections = [learning, *world_sections(record.world, folder), *others]
    return page_text(
        title=f"{record.world}, seed {record.settings.get('seed')}",
        heading=record.world,
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
    return Template(_file("page.html")).substitute(
        title=markup.text(title),
        world=markup.text(heading),
        facts=markup.spans(facts),
        status=markup.text(status),
        state="finished" if finished else "unfinished",
        progress=f"{100 * progress:.1f}",
        cards=markup.cards(cards),
        links=markup.links(sections),
        sections="\n".join(markup.section(part, place) for place, part in enumerate(sections)),
        style=_file("page.css"),
        plotly=get_plotlyjs(),
        script=_file("page.js"),
    )


def _facts(record: RunRecord) -> Iterator[str]:
    yield f"seed {record.settings.get('seed')}"
    yield f"started {record.started.day} {record.started:%B %Y, %H:%M}"
    yield record.name


def _status(record: RunRecord) -> str:
    if record.finished:
        return f"finished, {counted(record.done_epochs, 'epoch')}"
    if not record.num_epochs:
        return f"{counted(record.done_epochs, 'epoch')} so far"
    return f"{record.done_epochs:,} of {counted(record.num_epochs, 'epoch')} so far"


def _headlines(record: RunRecord) -> Iterator[tuple[str, str, str]]:
    """Name, number and remark of each card; only what the run can tell."""
    best = record.best
    if best is not None:
        within = interval(best.get("eval/ci_low"), best.get("eval/ci_high"))
        count = counted(len(record.evaluations), "evaluation")
        yield (
            "best evaluated return",
            number(best[EVALUATED]),
            f"95 % interval {within}; epoch {number(best['epoch'])}, the best of {count}",
        )
    last = next((row for row in reversed(record.epochs) if row.get("avg_reward") is not None), None)
    if last is not None:
        yield (
            "final training return",
            number(last["avg_reward"]),
            f"mean of the episodes that ended in epoch {number(last['epoch'])}",
        )
    if record.epochs:
        steps, episodes = record.last("total_steps"), record.last("total_episodes")
        played = "" if episodes is None else f" in {big_number(episodes)} episodes"
        yield "environment steps", big_number(steps), f"of all envs together{played}"
        per_epoch = record.wall_seconds / len(record.epochs)
        yield "wall-clock time", duration(record.wall_seconds), f"{duration(per_epoch)} per epoch"
        if steps and record.wall_seconds:
            rate = round(steps / record.wall_seconds)
            yield "samples per second", big_number(rate), "over the whole run, evaluation included"


def _file(name: str) -> str:
    return resources.files("hundredfold.report").joinpath(name).read_text("utf-8")
