"""Output of commands: a table for people, one JSON object for programs."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hundredfold.core.formatting import format_table_number

Row = Mapping[str, Any]

# Width of tables that go to a file or a pipe.
PIPE_WIDTH = 200


def print_rows(rows: Sequence[Row], *, command: Sequence[str], as_json: bool, title: str = "") -> None:
    """Print rows to standard output as a table or as one JSON object.

    Args:
        rows: One mapping per row.
        command: The command line without the program name, for the JSON object.
        as_json: Print JSON.
        title: Title of the table.
    """
    if as_json:
        print(json.dumps({"command": list(command), "machine": machine(), "rows": list(rows)}))
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    console.print(table(rows, title))


def table(rows: Sequence[Row], title: str = "") -> Table:
    """A rich table with the union of the rows' columns, numbers right-aligned."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    rich_table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD)
    for name in columns:
        numeric = all(isinstance(row.get(name, 0), int | float) for row in rows)
        rich_table.add_column(name.replace("_", " "), justify="right" if numeric else "left")
    for row in rows:
        rich_table.add_row(*(format_cell(row.get(name)) for name in columns))
    return rich_table


def format_cell(value: Any) -> str:
    """A table cell: numbers formatted, everything else escaped."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return escape(str(value))
    return format_table_number(value)


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


def note(text: str) -> None:
    """Print to standard error."""
    print(text, file=sys.stderr)
