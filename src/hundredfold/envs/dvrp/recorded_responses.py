"""Recorded responses of an operator as rows of a CSV file: a row per trip and offer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from hundredfold.core.batch import BoolArray, IntArray
from hundredfold.core.formatting import printable
from hundredfold.envs.dvrp.csv_files import CsvTable, Problems, read_table
from hundredfold.envs.dvrp.offers import OfferTable
from hundredfold.envs.dvrp.trip_columns import COLUMNS
from hundredfold.envs.dvrp.trip_purposes import normalise_text

# The columns that identify a trip in a file of recorded responses. With fewer, the response of one
# trip could be taken for that of another.
TRIP_COLUMNS: Final = {
    "customer": COLUMNS["customer"].aliases,
    "purpose": COLUMNS["purpose"].aliases,
    "departure_location": ("from", *COLUMNS["from"].aliases),
    "arrival_location": ("to", *COLUMNS["to"].aliases),
    "pickup_window": COLUMNS["pickup_window"].aliases,
    "dropoff_window": COLUMNS["dropoff_window"].aliases,
}
SHIFT_COLUMNS: Final = ("pickup_shift_min", "dropoff_shift_min")
RESPONSES: Final = {"accept": True, "reject": False}

TripKey = tuple[str, ...]


def read_recorded_responses(
    path: str, trips: CsvTable, type_texts: Sequence[str], types: IntArray, offers: OfferTable
) -> BoolArray:
    """Recorded responses to every offer of every trip.

    Args:
        path: CSV file with a row per trip and offer, and a column per customer type.
        trips: The file of trips.
        type_texts: Column names of the customer types.
        types: (trips,) type of each trip's customer, which selects the column.
        offers: Offers that may be made; pickups earlier and dropoffs later only.

    Returns:
        (trips, offers) in the order of the trip file; no change is always accepted.

    Raises:
        DataError: Names all problems of the file.
    """
    problems = Problems()
    table = read_table(path, "recorded responses", problems)
    if table is not None:
        _require_headings(table, (*SHIFT_COLUMNS, *type_texts), problems)
        _require_headings(trips, (), problems)
    problems.raise_any()
    assert table is not None
    recorded = _responses_by_offer(table, type_texts, offers, problems)
    problems.raise_any()
    accepts = np.zeros((len(trips.rows), offers.num_offers), bool)
    for number, key in enumerate(_trip_keys(trips)):
        for offer in range(offers.num_offers):
            found = recorded.get((key, offer))
            if found is None and offer != offers.no_change:
                earlier, later = offers.minutes[offer]
                problems.add(
                    trips.path,
                    f"{table.path} has no response for this trip with {SHIFT_COLUMNS[0]} {earlier:.0f} and "
                    f"{SHIFT_COLUMNS[1]} {later:.0f}; every trip needs one for each offer.",
                    row=trips.row_numbers[number],
                    kind="no response",
                )
            if found is not None:
                accepts[number, offer] = found[types[number]]
    problems.raise_any()
    return offers.with_no_change(accepts)


def _require_headings(table: CsvTable, names: Sequence[str], problems: Problems) -> None:
    """Add a problem for every missing column: these, and those that identify a trip."""
    missing = [name for name in names if name not in table.header]
    missing += [name for name, aliases in TRIP_COLUMNS.items() if table.find((name, *aliases)) is None]
    for name in missing:
        problems.add(
            table.path,
            f"has no column {name}; recorded responses have the columns {', '.join((*TRIP_COLUMNS, *SHIFT_COLUMNS))} "
            "and one per customer type.",
        )


def _responses_by_offer(
    table: CsvTable, type_texts: Sequence[str], offers: OfferTable, problems: Problems
) -> dict[tuple[TripKey, int], tuple[bool, ...]]:
    """Responses of all customer types, by trip and offer; rows with a problem are left out."""
    offer_index = {tuple(minutes): offer for offer, minutes in enumerate(offers.minutes.tolist())}
    columns = [table.column(name) for name in type_texts]
    shifts = zip(*(_shifts(table, name, problems) for name in SHIFT_COLUMNS), strict=True)
    recorded: dict[tuple[TripKey, int], tuple[bool, ...]] = {}
    for number, (key, shift) in enumerate(zip(_trip_keys(table), shifts, strict=True)):
        row, texts = table.row_numbers[number], [column[number].lower() for column in columns]
        for name, text in zip(type_texts, texts, strict=True):
            if text not in RESPONSES:
                problem = f"{printable(text)!r} is neither accept nor reject."
                problems.add(table.path, problem, row=row, column=name, kind=f"{name} response")
        if None not in shift and shift not in offer_index:
            sizes = " ".join(f"{size:g}" for size in offers.sizes)
            problem = (
                f"no offer shifts by {shift[0]:g} and {shift[1]:g} minutes; the sizes of offer_minutes are {sizes}."
            )
            problems.add(table.path, problem, row=row, column=SHIFT_COLUMNS[0], kind="no offer")
        if shift not in offer_index or not RESPONSES.keys() >= set(texts):
            continue
        responses = tuple(RESPONSES[text] for text in texts)
        if recorded.setdefault((key, offer_index[shift]), responses) != responses:
            problem = "an earlier row has other responses for this trip and offer."
            problems.add(table.path, problem, row=row, column=type_texts[0])
    return recorded


def _shifts(table: CsvTable, column: str, problems: Problems) -> list[float | None]:
    """Minutes of shift; some files write an earlier pickup as a negative number."""
    shifts = []
    for number, text in enumerate(table.column(column)):
        value = table.number(text)
        if value is None:
            problem = f"{printable(text)!r} is not a number of minutes."
            problems.add(table.path, problem, row=table.row_numbers[number], column=column, kind=f"{column} number")
        shifts.append(None if value is None else abs(value))
    return shifts


def _trip_keys(table: CsvTable) -> list[TripKey]:
    """The normalised cells that identify the trip of each row."""
    columns = [table.column(table.find((name, *aliases)) or name) for name, aliases in TRIP_COLUMNS.items()]
    return [tuple(map(normalise_text, cells)) for cells in zip(*columns, strict=True)]
