"""Output of commands: a table that fits the terminal for people, one JSON object for programs."""

from __future__ import annotations

import json
import math
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hundredfold.core.formatting import format_table_number
from hundredfold.core.terminal import note, wrap

__all__ = ["Column", "Row", "machine", "note", "print_rows", "print_text"]

Row = Mapping[str, Any]

# Text may be wrapped to the first of these; the first column and long words get the second if there is room.
MIN_TEXT_WIDTH: Final = 20
MAX_WORD_WIDTH: Final = 30
GAP: Final = 2

# Sizes of the numbers of a column that are all shown with the same digits after the point.
DECIMALS: Final = 2
SMALLEST: Final = 0.01
LARGEST: Final = 1000.0


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a terminal table."""

    key: str | tuple[str, str]
    """Key of the rows, or the keys of the bounds of an interval."""
    label: str = ""
    """Heading; by default the key in words."""
    priority: int = 1
    """Where the terminal is narrow, columns with the largest number are left out first."""
    decimals: int | None = None
    """Digits after the point; by default two for every number of a column that has numbers between 1 and 1000 and
    none so small that nothing would be left of it, otherwise as many as three significant digits need."""
    is_number: bool = False
    """Whether values that are text, such as 3.2 MB, are aligned as numbers."""

    @property
    def heading(self) -> str:
        return self.label or str(self.key).replace("_", " ")

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key,) if isinstance(self.key, str) else self.key

    def cell(self, row: Row) -> str:
        """The value of a row as text; empty if it has none."""
        return " to ".join(text for key in self.keys if (text := format_cell(row.get(key), self.decimals)))

    def is_text(self, rows: Sequence[Row]) -> bool:
        """Whether the values are text, which may be wrapped."""
        if self.is_number:
            return False
        values = [row.get(key) for row in rows for key in self.keys]
        return any(isinstance(value, bool | str) or not isinstance(value, int | float | None) for value in values)


def print_rows(
    rows: Sequence[Row],
    *,
    command: Sequence[str],
    as_json: bool,
    title: str = "",
    columns: Sequence[Column] = (),
    wide: bool = False,
    hint: bool = True,
) -> None:
    """Print rows to standard output as a table or as one JSON object.

    The table is as wide as the terminal or `COLUMNS`, 80 characters in a pipe.

    Args:
        rows: One mapping per row.
        command: The command line without the program name, for the JSON object.
        as_json: Print JSON.
        title: Title of the table.
        columns: Columns to show as far as they fit; by default all keys of the rows, the last ones left out first.
        wide: Show all keys of the rows, however wide the table gets.
        hint: Say on standard error how many columns are not shown.
    """
    if as_json:
        print(json.dumps({"command": list(command), "machine": machine(), "rows": list(rows)}))
        return
    console = Console(highlight=False)
    shown = all_columns(rows, columns)
    wanted = shown if wide or not columns else [column for column in shown if column in columns]
    fitting = wanted if wide else fit_columns(rows, wanted, console.width)
    width = console.width
    if wide:
        # A pager or a file shows long lines whole.
        console.width = max(width, sum(_widths(rows, fitting)) + GAP * (len(fitting) - 1))
    if title:
        console.print(wrap(title, width), markup=False, style="italic")
    console.print(table(rows, fitting, console.width))
    hidden = len(shown) - len(fitting)
    if hidden and hint:
        note(f"{hidden} more {'column' if hidden == 1 else 'columns'} with --wide")


def all_columns(rows: Sequence[Row], declared: Sequence[Column] = ()) -> list[Column]:
    """The declared columns that the rows have, then a column per other key."""
    keys = list(dict.fromkeys(name for row in rows for name in row))
    columns = [column for column in declared if any(key in keys for key in column.keys)]
    known = {key for column in columns for key in column.keys}
    others = [
        Column(key, priority=1 if not declared else 100, decimals=common_decimals([row.get(key) for row in rows]))
        for key in keys
        if key not in known
    ]
    return [*columns, *others]


def common_decimals(values: Sequence[Any]) -> int | None:
    """Digits after the point for a whole column of fractional numbers; None if each needs its own."""
    given = [value for value in values if value is not None]
    if not given or not all(isinstance(value, float) and math.isfinite(value) for value in given):
        return None
    sizes = [abs(value) for value in given if value]
    return DECIMALS if sizes and min(sizes) >= SMALLEST and 1 <= max(sizes) < LARGEST else None


def fit_columns(rows: Sequence[Row], columns: Sequence[Column], width: int) -> list[Column]:
    """The most important columns that fit beside each other, in their order; always the first.

    Optional columns (priority above 1) are left out before names in the first column are broken.
    """
    shown = list(columns)
    while len(shown) > 1:
        last = max(range(1, len(shown)), key=lambda index: (shown[index].priority, index))
        name_width = MAX_WORD_WIDTH if shown[last].priority > 1 else MIN_TEXT_WIDTH
        widths = [*_widths(rows, shown[:1], name_width), *_widths(rows, shown[1:], MIN_TEXT_WIDTH)]
        if sum(widths) + GAP * (len(shown) - 1) <= width:
            break
        del shown[last]
    return shown


def table(rows: Sequence[Row], columns: Sequence[Column], width: int) -> Table:
    """A rich table of these columns: numbers whole and right-aligned, text wrapped to the width."""
    widths = _widths(rows, columns, MIN_TEXT_WIDTH)
    room = width - GAP * (len(columns) - 1) - sum(widths)
    first = [*_widths(rows, columns[:1], MAX_WORD_WIDTH), *widths[1:]]
    for wanted in (first, _widths(rows, columns, MAX_WORD_WIDTH, words=True), _widths(rows, columns)):
        for _ in range(max(0, min(room, sum(max(0, w - h) for w, h in zip(wanted, widths, strict=True))))):
            short = max(range(len(columns)), key=lambda index: wanted[index] - widths[index])
            widths[short] += 1
            room -= 1
    rich_table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column, column_width in zip(columns, widths, strict=True):
        justify: Literal["left", "right"] = "left" if column.is_text(rows) else "right"
        rich_table.add_column(column.heading, justify=justify, width=column_width, overflow="fold")
    for row in rows:
        rich_table.add_row(*(escape(column.cell(row)) for column in columns))
    return rich_table


def _widths(
    rows: Sequence[Row], columns: Sequence[Column], max_text: int | None = None, words: bool = False
) -> list[int]:
    """Width of each column, at least that of its longest number.

    Args:
        rows: The rows.
        columns: The columns.
        max_text: Most characters of a line of text; None if text is not wrapped.
        words: Text needs the room of its longest word.
    """
    widths = []
    for column in columns:
        cells = [column.cell(row) for row in rows]
        if max_text is not None and column.is_text(rows):
            parts = [word for cell in cells for word in cell.split()] if words else cells
            width = min(max(map(len, parts), default=0), max_text)
        else:
            width = max(map(len, cells), default=0)
        widths.append(max(width, *map(len, column.heading.split())))
    return widths


def format_cell(value: Any, decimals: int | None = None) -> str:
    """A table cell: numbers formatted, everything else as text, empty for None."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return format_table_number(value) if decimals is None else f"{value:,.{decimals}f}"


def machine() -> dict[str, Any]:
    """The machine that a measurement was made on."""
    return {
        "platform": platform.platform(),
        "processor": processor_name(),
        "cores": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
    }


def processor_name() -> str:
    """Model name of the processor, where the system provides one."""
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def print_text(text: str) -> None:
    """Print sentences to standard output, wrapped between words to the width of tables."""
    print(wrap(text, Console().width))
