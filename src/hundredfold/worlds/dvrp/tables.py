"""CSV files as tables whose complaints name file, row and column.

Rows are counted as a spreadsheet counts them: the header is row 1.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hundredfold.core.errors import SettingsError, near_names

FIRST_ROW: Final = 2
_SHOWN: Final = 40


@dataclass(frozen=True, slots=True)
class CsvTable:
    """A file's header and cells, all as stripped text."""

    path: Path
    header: list[str]
    rows: list[list[str]]

    def column(self, name: str) -> list[str]:
        """All cells of a column."""
        place = self.header.index(name)
        return [row[place] for row in self.rows]

    def has(self, name: str) -> bool:
        return name in self.header

    def require(self, names: Sequence[str]) -> None:
        """Refuse a table that lacks one of these columns."""
        for name in names:
            if name not in self.header:
                found = [word for word in self.header if word]
                raise SettingsError(
                    f"{self.path} has no column {name}; {near_names(name, map(shown, found[:20]))}"
                )

    def error(self, number: int, column: str, complaint: str) -> SettingsError:
        """A complaint about one cell; `number` counts data rows from 0."""
        return SettingsError(
            f"{self.path}, row {number + FIRST_ROW}, column {shown(column)}: {complaint}"
        )


def read_table(path: str | Path, what: str) -> CsvTable:
    """The table in a file, every row as wide as the header; `what` says what it should hold."""
    place = Path(path)
    try:
        with place.open(newline="", encoding="utf-8-sig") as file:
            lines = [[cell.strip() for cell in row] for row in csv.reader(file) if row]
    except OSError as error:
        raise SettingsError(f"cannot read {what} from {place}: {error.strerror}.") from None
    except (UnicodeDecodeError, csv.Error):
        raise SettingsError(
            f"{place} is not a CSV file in UTF-8; save {what} as comma-separated text."
        ) from None
    if not lines:
        raise SettingsError(f"{place} is empty; it should hold {what} under a line of headings.")
    table = CsvTable(place, lines[0], lines[1:])
    for number, row in enumerate(table.rows):
        if len(row) != len(table.header):
            raise SettingsError(
                f"{place}, row {number + FIRST_ROW} has {len(row)} columns while its headings "
                f"name {len(table.header)}."
            )
    return table


def shown(text: str) -> str:
    """A cell as a message shows it: noise is cut short and made printable."""
    printable = "".join(letter if letter.isprintable() else "?" for letter in text)
    return printable if len(printable) <= _SHOWN else f"{printable[:_SHOWN]}..."


def finite_number(text: str) -> float | None:
    """The number a cell holds; None for anything else, NaN and infinity included."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
