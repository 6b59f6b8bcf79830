"""A user's own city: trips, travel times and, where recorded, answers, all from CSV files.

Whatever cannot be used is refused with one sentence that names file, row and column. Reading is
done by `trip_file`, `travel_file` and `decisions`; here their parts become a population.

Recorded answers: a table that says, for every trip and offer, whether it was accepted.

A row is found by everything the question said: traveller, purpose, both places, both windows and
the two shifts. With less, one trip would answer for another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from hundredfold.core import rng
from hundredfold.core.batch import BoolArray, FloatArray, IntArray
from hundredfold.core.errors import SettingsError, suggest
from hundredfold.core.formatting import printable
from hundredfold.core.rng import Keys
from hundredfold.envs.dvrp.city import (
    TOLERANCE_BRANCH,
    TRIP_BRANCH,
    City,
    most_central_cell,
    positions_from_travel,
    scaled_positions,
)
from hundredfold.envs.dvrp.csv_files import (
    FIRST_ROW,
    TYPE_TEXTS,
    WINDOW_COLUMNS,
    CsvTable,
    TripRows,
    finite_number,
    read_table,
    read_travel_times,
    read_trip_rows,
)
from hundredfold.envs.dvrp.offers import NO_CHANGE, NUM_OFFERS, OFFER_MINUTES
from hundredfold.envs.dvrp.population import (
    Customers,
    Population,
    Trips,
    drawn_tolerances,
    finished_population,
    servable_trips,
)
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.envs.dvrp.trip_purposes import normalised
from hundredfold.routing.problem import DROPOFF, EARLY, LATE, PICKUP, TravelTable

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
        raise table.error(number, column, f"{printable(text)!r} is neither accept nor reject.")
    return ANSWERS[text.lower()]


def _shifts(table: CsvTable, column: str) -> list[float]:
    found = []
    for number, text in enumerate(table.column(column)):
        try:
            # Some tables write an earlier pickup as a negative shift.
            found.append(abs(float(text)))
        except ValueError:
            raise table.error(
                number, column, f"{printable(text)!r} is not a number of minutes."
            ) from None
    return found


def _contexts(table: CsvTable) -> list[Context]:
    """What identifies a question besides its offer, row by row."""
    columns = [table.column(name) for name in CONTEXT]
    return [tuple(map(normalised, cells)) for cells in zip(*columns, strict=True)]


# Downtown San Francisco: the depot where the matrix has this H3 cell and nobody says otherwise.
USUAL_DEPOT: Final = "872830828ffffff"
# One person in five is held back from training, where enough remain.
HELD_BACK_SHARE: Final = 5


def load_population(settings: DvrpSettings) -> Population:
    """Customers, trips and city of `settings.trips` and `settings.travel_times`."""
    assert settings.trips is not None
    assert settings.travel_times is not None
    table = read_table(settings.trips, "trips")
    labels, minutes = read_travel_times(settings.travel_times)
    rows = read_trip_rows(table, {label: cell for cell, label in enumerate(labels)})
    city = City(
        names=labels,
        positions=_positions(rows, minutes),
        travel=TravelTable(minutes),
        depot_cell=_depot_cell(labels, minutes, settings),
    )
    wanted = _within_hours(rows, settings)
    _check_servable(table, rows, wanted, city, settings)
    accepts: BoolArray | None = None
    if settings.recorded_responses is not None:
        accepts = recorded_answers(settings.recorded_responses, table, TYPE_TEXTS, rows.types)
    order = _by_person(rows, wanted, settings)
    people = _people(table, rows, order, settings)
    trips = Trips(
        cells=rows.cells[order],
        windows=rows.windows[order],
        purpose=rows.purpose[order],
        tolerance=_tolerance(rows, settings)[order],
    )
    return finished_population(
        city, people, trips, settings, None if accepts is None else accepts[order]
    )


def _positions(rows: TripRows, minutes: FloatArray) -> FloatArray:
    """(cells, 2) on the unit square: mean coordinates where trips give them, else from times."""
    if rows.degrees is None:
        return positions_from_travel(minutes)
    sums, counts = np.zeros((len(minutes), 2)), np.zeros(len(minutes))
    np.add.at(sums, rows.cells, rows.degrees)
    np.add.at(counts, rows.cells, 1.0)
    points = sums / np.maximum(counts, 1.0)[:, None]
    # Cells that no trip touches stand in the middle; the agent never sees them.
    points[counts == 0] = points[counts > 0].mean(axis=0)
    return scaled_positions(points)


def _depot_cell(labels: tuple[str, ...], minutes: FloatArray, settings: DvrpSettings) -> int:
    if settings.depot is not None:
        if settings.depot not in labels:
            raise SettingsError(
                f"the depot {settings.depot!r} is not in {settings.travel_times}; "
                f"{suggest(settings.depot, labels[:20])}"
            )
        return labels.index(settings.depot)
    if USUAL_DEPOT in labels:
        return labels.index(USUAL_DEPOT)
    return most_central_cell(minutes)


def _within_hours(rows: TripRows, settings: DvrpSettings) -> BoolArray:
    """(rows,) trips inside the hours that the settings ask for."""
    begins = rows.windows[:, PICKUP, EARLY] >= settings.earliest_pickup
    ends = rows.windows[:, DROPOFF, LATE] <= settings.latest_dropoff
    return np.asarray(begins & ends, bool)


def _check_servable(
    table: CsvTable, rows: TripRows, wanted: BoolArray, city: City, settings: DvrpSettings
) -> None:
    alone = ~wanted | servable_trips(rows.windows, rows.cells, city, settings)
    if alone.all():
        return
    number = int(alone.argmin())
    pickup, dropoff = rows.cells[number]
    room = rows.windows[number, DROPOFF, LATE] - rows.windows[number, PICKUP, EARLY]
    raise table.error(
        number,
        WINDOW_COLUMNS[DROPOFF],
        f"no vehicle can serve this trip: the drive takes "
        f"{city.travel_minutes[pickup, dropoff]:.1f} of the {room:.0f} minutes from earliest "
        f"pickup to latest dropoff, and it must fit the depot's day of {settings.day_minutes} "
        "minutes and the ride limit.",
    )


def _row_keys(rows: TripRows, settings: DvrpSettings, branch: int) -> Keys:
    root = rng.spawn(rng.seed_key(settings.city_seed), branch)
    return rng.spawn(root, np.arange(len(rows.traveller)))


def _by_person(rows: TripRows, wanted: BoolArray, settings: DvrpSettings) -> IntArray:
    """The wanted rows in an order that puts each person's trips side by side, shuffled.

    Shuffled, because the last ones are held back from training and files are often sorted by hour.
    """
    luck = rng.uniforms(_row_keys(rows, settings, TRIP_BRANCH), 0)
    order = np.lexsort((luck, rows.traveller))
    return np.asarray(order[wanted[order]], np.int64)


def _tolerance(rows: TripRows, settings: DvrpSettings) -> FloatArray:
    """(rows, 2) the file's own tolerances, or drawn ones where it has none."""
    if rows.tolerance is not None and settings.tolerances == "soft":
        return rows.tolerance
    keys = _row_keys(rows, settings, TOLERANCE_BRANCH)
    return drawn_tolerances(rows.types, rows.purpose, keys, settings.tolerances, settings.softness)


def _people(table: CsvTable, rows: TripRows, order: IntArray, settings: DvrpSettings) -> Customers:
    num_trips = np.bincount(rows.traveller[order], minlength=int(rows.traveller.max()) + 1)
    if not num_trips.all():
        raise SettingsError(
            f"{table.path}: traveller {int(num_trips.argmin()) + 1} has no trip between minutes "
            f"{settings.earliest_pickup} and {settings.latest_dropoff}; widen earliest_pickup and "
            "latest_dropoff, or take the traveller out."
        )
    one_row_each = order[np.cumsum(num_trips) - num_trips]
    num_people = len(num_trips)
    held_back = max(settings.num_customers, num_people // HELD_BACK_SHARE)
    enough = num_people >= 2 * settings.num_customers
    ages = table.column("age") if table.has("age") else [""] * len(table.rows)
    occupations = table.column("occupation") if table.has("occupation") else [""] * len(table.rows)
    return Customers(
        types=rows.types[one_row_each],
        num_known=num_people - held_back if enough else num_people,
        num_trips=num_trips,
        ages=np.array([_age(ages[row]) for row in one_row_each]),
        occupations=tuple(occupations[row] for row in one_row_each),
    )


def _age(text: str) -> int:
    value = finite_number(text)
    return -1 if value is None else int(value)
