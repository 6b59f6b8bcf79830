"""Recorded answers: a table that says, for every trip and offer, whether it was accepted.

A row is found by everything the question said: traveller, purpose, both places, both windows and
the two shifts. With less, one trip would answer for another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from hundredfold.core.batch import BoolArray, IntArray
from hundredfold.core.errors import SettingsError
from hundredfold.worlds.dvrp.offers import NO_CHANGE, NUM_OFFERS, OFFER_MINUTES
from hundredfold.worlds.dvrp.purposes import normalised
from hundredfold.worlds.dvrp.tables import FIRST_ROW, CsvTable, read_table, shown

CONTEXT: Final = (
    "traveler_id",
    "trip_purpose",
    "departure_location",
    "arrival_location",
    "departure_time_window",
    "arrival_time_window",
)
SHIFTS: Final = ("pickup_shift_min", "dropoff_shift_min")
ANSWERS: Final = {"accept": True, "reject": False}

Context = tuple[str, ...]


def recorded_answers(
    path: str, trips: CsvTable, type_texts: Sequence[str], types: IntArray
) -> BoolArray:
    """(trips, offers) in the order of the trips' file; each traveller answers as its own type."""
    table = read_table(path, "recorded answers")
    table.require((*CONTEXT, *SHIFTS, *type_texts))
    answers = _answers_by_question(table, type_texts)
    accepts = np.zeros((len(trips.rows), NUM_OFFERS), bool)
    for number, context in enumerate(_contexts(trips)):
        for offer in range(NUM_OFFERS):
            found = answers.get((context, offer))
            if found is None and offer != NO_CHANGE:
                earlier, later = OFFER_MINUTES[offer]
                raise SettingsError(
                    f"{table.path} has no answer for row {number + FIRST_ROW} of {trips.path} with "
                    f"{SHIFTS[0]} {earlier:.0f} and {SHIFTS[1]} {later:.0f}; every trip needs one "
                    "for each offer."
                )
            if found is not None:
                accepts[number, offer] = found[types[number]]
    # Asking for nothing is accepted, whatever was recorded.
    accepts[:, NO_CHANGE] = True
    return accepts


def _answers_by_question(
    table: CsvTable, type_texts: Sequence[str]
) -> dict[tuple[Context, int], tuple[bool, ...]]:
    offer_of = {tuple(minutes): offer for offer, minutes in enumerate(OFFER_MINUTES.tolist())}
    columns = [table.column(name) for name in type_texts]
    earlier, later = (_shifts(table, name) for name in SHIFTS)
    found: dict[tuple[Context, int], tuple[bool, ...]] = {}
    for number, context in enumerate(_contexts(table)):
        shift = (earlier[number], later[number])
        if shift not in offer_of:
            raise table.error(
                number, SHIFTS[0], f"no offer shifts by {shift[0]:g} and {shift[1]:g} minutes."
            )
        answer = tuple(
            _answer(table, number, name, column[number])
            for name, column in zip(type_texts, columns, strict=True)
        )
        known = found.setdefault((context, offer_of[shift]), answer)
        if known != answer:
            raise table.error(
                number, type_texts[0], "the same question was answered otherwise further up."
            )
    return found


def _answer(table: CsvTable, number: int, column: str, text: str) -> bool:
    if text.lower() not in ANSWERS:
        raise table.error(number, column, f"{shown(text)!r} is neither accept nor reject.")
    return ANSWERS[text.lower()]


def _shifts(table: CsvTable, column: str) -> list[float]:
    found = []
    for number, text in enumerate(table.column(column)):
        try:
            # Some tables write an earlier pickup as a negative shift.
            found.append(abs(float(text)))
        except ValueError:
            raise table.error(
                number, column, f"{shown(text)!r} is not a number of minutes."
            ) from None
    return found


def _contexts(table: CsvTable) -> list[Context]:
    """What identifies a question besides its offer, row by row."""
    columns = [table.column(name) for name in CONTEXT]
    return [tuple(map(normalised, cells)) for cells in zip(*columns, strict=True)]
