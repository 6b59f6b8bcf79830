"""Messages on standard error, wrapped between words to the width of the terminal, `COLUMNS`, or 80 in a pipe."""

from __future__ import annotations

import shutil
import sys
import textwrap

__all__ = ["note", "wrap"]


def note(text: str) -> None:
    """Print a message to standard error."""
    print(wrap(text, shutil.get_terminal_size().columns), file=sys.stderr, flush=True)


def wrap(text: str, width: int) -> str:
    """Text with every line wrapped between words; continued lines are indented two more spaces."""
    lines = []
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        lines += textwrap.wrap(
            line, width, break_long_words=False, break_on_hyphens=False, subsequent_indent=indent
        ) or [""]
    return "\n".join(lines)
