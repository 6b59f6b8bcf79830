"""How commands answer: a table for people, one JSON object for programs."""

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

# Columns of a table that goes to a file or a pipe, where nothing needs folding.
WIDE = 200


def print_rows(
    rows: Sequence[Row], *, command: Sequence[str], as_json: bool, title: str = ""
) -> None:
    """Standard output is the table, or nothing but the JSON object."""
    if as_json:
        print(json.dumps({"command": list(command), "machine": machine(), "rows": list(rows)}))
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDE
    console.print(table(rows, title))


def table(rows: Sequence[Row], title: str = "") -> Table:
    """Rows with the union of their columns, numbers to the right."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    found = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD)
    for name in columns:
        numeric = all(isinstance(row.get(name, 0), int | float) for row in rows)
        found.add_column(name.replace("_", " "), justify="right" if numeric else "left")
    for row in rows:
        found.add_row(*(shown(row.get(name)) for name in columns))
    return found


def shown(value: Any) -> str:
    """A value as a person reads it."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return escape(str(value))
    return format_table_number(value)


def machine() -> dict[str, Any]:
    """What a measurement was made on."""
    return {
        "platform": platform.platform(),
        "processor": processor_name(),
        "cores": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
    }


def processor_name() -> str:
    """The processor's own name where the system tells it."""
    try:
        with open("/proc/cpuinfo") as file:
            names = [
                line.partition(":")[2].strip() for line in file if line.startswith("model name")
            ]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def note(text: str) -> None:
    """A word to the person at the terminal, away from standard output."""
    print(text, file=sys.stderr)
