"""CSV files as spreadsheets write them, and a list of all that is wrong in them.

Cells are separated by comma, semicolon, tab or bar; the text is UTF-8, UTF-16 or Windows-1252; a
number may have a decimal comma where commas do not separate cells. Rows are counted as in a
spreadsheet: the header is row 1, and empty rows count.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hundredfold.core.errors import SettingsError, suggest
from hundredfold.core.formatting import format_count, printable

DELIMITERS: Final = ",;\t|"
# Problems and rows that a message names; the rest is counted.
MAX_PROBLEMS, MAX_ROWS = 20, 5
# Longer files are not trips or travel times of a city.
MAX_FILE_BYTES: Final = 2**30
# A row behind the last one; it becomes part of a cell whose double quote is not closed.
END: Final = "end of file"

# Not all that float() accepts: `1_0` and other scripts' digits are more likely mistakes than numbers.
_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_DECIMAL_COMMA: Final = re.compile(r"[+-]?\d+,\d+", re.ASCII)
# Control characters that no text has.
_BINARY: Final = re.compile("[\x00-\x08\x0e-\x1f]")


@dataclass(slots=True)
class Problem:
    """Something that is wrong in a file: once, or in the same way in several cells."""

    path: Path
    text: str
    cells: list[tuple[int | None, str | None]]  # row and column; both None: the whole file
    differs: bool = False  # the text describes the first cell, others are wrong in the same way with other contents

    def __str__(self) -> str:
        if self.differs:
            return f"{self._place_and_text()} (That is row {self.cells[0][0]}; the others are of this kind.)"
        return self._place_and_text()

    def _place_and_text(self) -> str:
        row, column = self.cells[0]
        if row is None:
            return f"{self.path} {self.text}" if column is None else f"{self.path}, column {column}: {self.text}"
        rows = [str(number) for number, _ in self.cells]
        if len(rows) == 1:
            place = f"row {row}"
        elif len({name for _, name in self.cells}) > 1:
            more = format_count(len(rows) - 1, "more cell")
            return f"{self.path}, row {row}, column {column} and {more}: {self.text}"
        elif len(rows) <= MAX_ROWS:
            place = f"rows {', '.join(rows[:-1])} and {rows[-1]}"
        else:
            place = f"rows {', '.join(rows[:MAX_ROWS])} and {len(rows) - MAX_ROWS:,} more"
        if column is not None:
            place += f", column {column}"
        return f"{self.path}, {place}: {self.text}"


class DataError(SettingsError):
    """Files with problems; the message has a line for each."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        lines = [str(problem) for problem in problems[:MAX_PROBLEMS]]
        if len(problems) > MAX_PROBLEMS:
            lines.append(f"and {len(problems) - MAX_PROBLEMS:,} more problems.")
        if len(problems) > 1:
            lines.insert(0, f"{len(problems)} problems in your data:")
        super().__init__("\n  ".join(lines))


class Problems:
    """Collects problems of several files, so that a user sees all of them at once."""

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], Problem] = {}

    def __len__(self) -> int:
        return len(self._found)

    @property
    def found(self) -> list[Problem]:
        """All problems, in order of discovery."""
        return list(self._found.values())

    def rows_of(self, path: Path, columns: Sequence[str | None] | None = None) -> set[int]:
        """Rows of a file that have a problem, in any column or in these."""
        cells = [cell for problem in self.found if problem.path == path for cell in problem.cells]
        return {row for row, column in cells if row is not None and (columns is None or column in columns)}

    def are_of_rows_of(self, path: Path) -> bool:
        """Whether all problems are of single rows of one file, so that its other rows can be used."""
        return all(problem.path == path and problem.cells[0][0] is not None for problem in self.found)

    def add(
        self, path: Path, text: str, *, row: int | None = None, column: str | None = None, kind: str | None = None
    ) -> None:
        """Add a problem.

        Args:
            path: The file.
            text: What is wrong and what to do. For a whole file it continues its name: `has no ...`.
            row: Row as a spreadsheet counts.
            column: Heading of the column.
            kind: Cells with problems of one kind become one problem, described by the first; by
                default those with the same text.
        """
        shown = None if column is None else printable(column)
        key = (path, kind or text)
        if key in self._found:
            self._found[key].cells.append((row, shown))
            self._found[key].differs |= text != self._found[key].text
        else:
            self._found[key] = Problem(path, text, [(row, shown)])

    def raise_any(self) -> None:
        """Raise a DataError if there are problems."""
        if self._found:
            raise DataError(self.found)


@dataclass(frozen=True, slots=True)
class CsvTable:
    """Header and cells of a CSV file, as stripped text."""

    path: Path
    header: list[str]
    rows: list[list[str]]
    row_numbers: list[int]  # (rows,) as a spreadsheet counts
    delimiter: str = ","
    notes: list[str] = field(default_factory=list)  # how the file was read, where that was a guess

    def find(self, names: Iterable[str]) -> str | None:
        """The first of these headings that the file has, as the file writes it."""
        headings = {heading_key(text): text for text in reversed(self.header)}
        return next((headings[name] for name in names if name in headings), None)

    def column(self, heading: str) -> list[str]:
        """All cells of a column."""
        index = self.header.index(heading)
        return [row[index] for row in self.rows]

    def require_columns(self, names: Sequence[str]) -> None:
        """Raise a SettingsError if a column is missing."""
        for name in names:
            if name not in self.header:
                found = [printable(column) for column in self.header if column]
                raise SettingsError(f"{self.path} has no column {name}; {suggest(name, found[:20])}")

    def number(self, text: str) -> float | None:
        """The number in a cell; None if it is not a finite number in plain digits."""
        if self.delimiter != "," and _DECIMAL_COMMA.fullmatch(text):
            text = text.replace(",", ".")
        return finite_number(text)

    def error(self, row: int, column: str, problem: str) -> SettingsError:
        """An error about one cell; `row` counts data rows from 0."""
        return SettingsError(f"{self.path}, row {self.row_numbers[row]}, column {printable(column)}: {problem}")


def heading_key(text: str) -> str:
    """A heading as columns are compared: lower case, words joined by underscores."""
    return re.sub(r"[^\w]+|_+", "_", text.strip().lower()).strip("_")


def finite_number(text: str) -> float | None:
    """The number in a text; None if it is not a finite number in plain digits."""
    if not _NUMBER.fullmatch(text):
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def read_table(path: str | Path, content: str, problems: Problems) -> CsvTable | None:
    """Read a CSV file; rows that are shorter than the header are filled up with empty cells.

    Args:
        path: The file.
        content: What it should contain, for messages.
        problems: Collects what is wrong.

    Returns:
        The table, or None if there is none to speak of.
    """
    file_path = Path(path)
    notes: list[str] = []
    text = _read_text(file_path, content, problems, notes)
    if text is None:
        return None
    delimiter = _delimiter(text)
    try:
        lines = list(csv.reader(io.StringIO(f"{text}\n{END}", newline=""), delimiter=delimiter))
    except csv.Error:
        problems.add(file_path, f"is not a CSV file; save {content} as comma-separated text.")
        return None
    if lines.pop() != [END]:
        unclosed = "the row has a double quote that is not closed, so that all rows below became part of it; remove it."
        problems.add(file_path, unclosed, row=len(lines) + 1)
        return None
    numbered = [(number, [cell.strip() for cell in line]) for number, line in enumerate(lines, 1)]
    numbered = [(number, line) for number, line in numbered if any(line)]
    if numbered and numbered[0][1][0].lower().startswith("sep="):
        del numbered[0]
    if not numbered:
        problems.add(file_path, f"is empty; expected {content} under a header row.")
        return None
    header = numbered[0][1]
    if not _has_unique_headings(file_path, header, problems):
        return None
    # Exports that were joined have the headings several times.
    repeated = [number for number, line in numbered[1:] if line == header]
    if repeated:
        what = (
            "1 row that repeats the headings was"
            if len(repeated) == 1
            else (f"{len(repeated):,} rows that repeat the headings were")
        )
        notes.append(f"{file_path.name}: {what} skipped.")
        numbered = [(number, line) for number, line in numbered if number not in repeated]
    for number, line in numbered[1:]:
        if len(line) > len(header) and any(line[len(header) :]):
            problems.add(
                file_path,
                f"the row has {len(line)} columns, but the header has {len(header)}; put cells that contain "
                f"{delimiter!r} in double quotes.",
                row=number,
                kind="width",
            )
    rows = [(line + [""] * len(header))[: len(header)] for _, line in numbered[1:]]
    return CsvTable(file_path, header, rows, [number for number, _ in numbered[1:]], delimiter, notes)


def _read_text(path: Path, content: str, problems: Problems, notes: list[str]) -> str | None:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            problems.add(path, f"has more than a gigabyte; expected {content}.")
            return None
        data = path.read_bytes()
    except OSError as error:
        problems.add(path, f"cannot be read ({error.strerror}); expected {content}.")
        return None
    if data.startswith(b"PK\x03\x04") or data.startswith(b"\xd0\xcf\x11\xe0"):
        problems.add(path, f"is a spreadsheet file; save {content} as CSV (File > Save as > CSV UTF-8).")
        return None
    is_utf16 = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    for encoding in ("utf-16",) if is_utf16 else ("utf-8-sig", "cp1252", "latin-1"):
        try:
            text = data.decode(encoding)
        except UnicodeDecodeError:
            continue
        if _BINARY.search(text):
            break
        if (kind := _other_format(text)) is not None:
            problems.add(path, f"is {kind}; save {content} as CSV.")
            return None
        if encoding in ("cp1252", "latin-1"):
            notes.append(f"{path.name} is not in UTF-8; it was read as Windows-1252.")
        return text
    problems.add(path, f"is not a text file; save {content} as CSV in UTF-8.")
    return None


def _other_format(text: str) -> str | None:
    """What a text is that has no table to read, from its first characters: portals save such files as .csv."""
    start = text.lstrip()
    if start.startswith("<"):
        return "a web page or another file of tags (HTML, XML)"
    if re.match(r"[\[{]\s*[\[{\]}\"]", start):
        return "a JSON file"
    return "a PDF file" if start.startswith("%PDF-") else None


def _delimiter(text: str) -> str:
    """The delimiter that occurs most often in the header, outside of quotes; the comma in doubt."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    if first.lower().startswith("sep=") and first[4:5] in tuple(DELIMITERS):
        return first[4]
    counts = Counter(re.sub(r'"[^"]*"', "", first))
    return max(DELIMITERS, key=lambda delimiter: counts[delimiter])


def _has_unique_headings(path: Path, header: Sequence[str], problems: Problems) -> bool:
    twice = [name for name, count in Counter(header).items() if name and count > 1]
    if twice:
        shown = ", ".join(printable(name) for name in twice[:MAX_ROWS])
        problems.add(path, f"has more than one column {shown}; every column needs a heading of its own.")
    return not twice
