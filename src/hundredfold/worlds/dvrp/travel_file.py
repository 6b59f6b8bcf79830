"""The user's matrix of travel times: square, labelled, in seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hundredfold.core.batch import FloatArray
from hundredfold.core.errors import SettingsError
from hundredfold.worlds.dvrp.tables import CsvTable, finite_number, read_table, shown


def read_travel_times(path: str | Path) -> tuple[tuple[str, ...], FloatArray]:
    """Labels of the cells and (cells, cells) driving minutes; the file holds seconds."""
    table = read_table(path, "travel times")
    labels = table.header[1:]
    if len(table.rows) != len(labels):
        raise SettingsError(
            f"{table.path} is not square: {len(table.rows)} rows and {len(labels)} columns of "
            "travel times; both need one per cell."
        )
    if not labels:
        raise SettingsError(f"{table.path} has no cells; it needs one row and column per cell.")
    if len(set(labels)) < len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        raise SettingsError(f"{table.path} has two columns {shown(twice)}; name each cell once.")
    seconds = np.zeros((len(labels), len(labels)))
    for number, (label, row) in enumerate(zip(labels, table.rows, strict=True)):
        if row[0] != label:
            raise table.error(
                number,
                table.header[0] or "1",
                f"the row is called {shown(row[0])!r} while that column is called "
                f"{shown(label)!r}; rows and columns need the same labels in the same order.",
            )
        for place, text in enumerate(row[1:]):
            seconds[number, place] = _seconds(table, number, place, text)
    return tuple(labels), seconds / 60.0


def _seconds(table: CsvTable, number: int, place: int, text: str) -> float:
    value = finite_number(text)
    column = table.header[1 + place]
    if value is None or not 0.0 <= value < 1e7:
        raise table.error(
            number, column, f"{shown(text)!r} is not a travel time; give seconds from 0 up."
        )
    if number == place and value != 0.0:
        raise table.error(
            number, column, f"driving from a cell to itself takes 0 seconds, not {shown(text)}."
        )
    return value
