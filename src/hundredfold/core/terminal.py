"""Messages on standard error, wrapped between words to the width of the terminal, `COLUMNS`, or 80 in a pipe."""

from __future__ import annotations

import shutil
import sys
import textwrap
from typing import Final

__all__ = ["note", "wrap"]

# Stands for a space at which a line must not be broken.
JOINT: Final = "\0"


def note(text: str) -> None:
    """Print a message to standard error."""
    print(wrap(text, shutil.get_terminal_size().columns), file=sys.stderr, flush=True)


def wrap(text: str, width: int) -> str:
    """Text with every line wrapped between words; continued lines are indented two more spaces.

    Short parts of a line that are separated by two spaces (`return 44.83  evaluated 377.50`) stay whole.
    """
    lines = []
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        lines += textwrap.wrap(
            _join_parts(line, width // 2),
            width,
            break_long_words=False,
            break_on_hyphens=False,
            subsequent_indent=indent,
        ) or [""]
    return "\n".join(lines).replace(JOINT, " ")


def _join_parts(line: str, longest: int) -> str:
    """The line with no break allowed inside of its parts."""
    start = line[: len(line) - len(line.lstrip())]
    parts = line.lstrip().split("  ")
    if len(parts) == 1:
        return line
    return start + "  ".join(part.replace(" ", JOINT) if len(part) <= longest else part for part in parts)
