"""Populations from CSV files: trips, travel times and, optionally, recorded responses."""

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
    make_population,
    sample_tolerances,
    servable_trips,
)
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.envs.dvrp.trip_purposes import normalise_text
from hundredfold.routing.problem import DROPOFF, EARLY, LATE, PICKUP, TravelTable

# The default depot, if the travel times have this H3 cell: downtown San Francisco.
DEFAULT_DEPOT: Final = "872830828ffffff"
# One customer in five is held out from training, if enough remain.
HELD_OUT_SHARE: Final = 5

# The columns that identify a trip in a file of recorded responses. With fewer, the response of one
# trip could be taken for that of another.
TRIP_COLUMNS: Final = (
    "traveler_id",
    "trip_purpose",
    "departure_location",
    "arrival_location",
    "departure_time_window",
    "arrival_time_window",
)
SHIFT_COLUMNS: Final = ("pickup_shift_min", "dropoff_shift_min")
RESPONSES: Final = {"accept": True, "reject": False}

TripKey = tuple[str, ...]


def load_population(settings: DvrpSettings) -> Population:
    """The population of `settings.trips` and `settings.travel_times`."""
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
    included = _is_within_hours(rows, settings)
    _check_servable(table, rows, included, city, settings)
    accepts: BoolArray | None = None
    if settings.recorded_responses is not None:
        accepts = read_recorded_responses(settings.recorded_responses, table, TYPE_TEXTS, rows.types)
    order = _order_by_customer(rows, included, settings)
    customers = _customers(table, rows, order, settings)
    trips = Trips(
        cells=rows.cells[order],
        windows=rows.windows[order],
        purpose=rows.purpose[order],
        tolerance=_tolerance(rows, settings)[order],
    )
    return make_population(city, customers, trips, settings, None if accepts is None else accepts[order])


def _positions(rows: TripRows, minutes: FloatArray) -> FloatArray:
    """(cells, 2) in the unit square: mean coordinates of the trips, or else from travel times."""
    if rows.degrees is None:
        return positions_from_travel(minutes)
    sums, counts = np.zeros((len(minutes), 2)), np.zeros(len(minutes))
    np.add.at(sums, rows.cells, rows.degrees)
    np.add.at(counts, rows.cells, 1.0)
    points = sums / np.maximum(counts, 1.0)[:, None]
    # Cells without trips are placed in the middle; they never occur in an observation.
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
    if DEFAULT_DEPOT in labels:
        return labels.index(DEFAULT_DEPOT)
    return most_central_cell(minutes)


def _is_within_hours(rows: TripRows, settings: DvrpSettings) -> BoolArray:
    """(rows,) whether each trip lies between `earliest_pickup` and `latest_dropoff`."""
    begins = rows.windows[:, PICKUP, EARLY] >= settings.earliest_pickup
    ends = rows.windows[:, DROPOFF, LATE] <= settings.latest_dropoff
    return np.asarray(begins & ends, bool)


def _check_servable(table: CsvTable, rows: TripRows, included: BoolArray, city: City, settings: DvrpSettings) -> None:
    servable = ~included | servable_trips(rows.windows, rows.cells, city, settings)
    if servable.all():
        return
    number = int(servable.argmin())
    pickup, dropoff = rows.cells[number]
    available = rows.windows[number, DROPOFF, LATE] - rows.windows[number, PICKUP, EARLY]
    raise table.error(
        number,
        WINDOW_COLUMNS[DROPOFF],
        f"no vehicle can serve this trip: the direct ride takes "
        f"{city.travel_minutes[pickup, dropoff]:.1f} of the {available:.0f} minutes from earliest "
        f"pickup to latest dropoff, and the trip must fit into the day of {settings.day_minutes} "
        "minutes (from depot to depot) and the ride-time limit.",
    )


def _row_keys(rows: TripRows, settings: DvrpSettings, branch: int) -> Keys:
    root = rng.spawn(rng.seed_key(settings.city_seed), branch)
    return rng.spawn(root, np.arange(len(rows.customer)))


def _order_by_customer(rows: TripRows, included: BoolArray, settings: DvrpSettings) -> IntArray:
    """Included rows ordered by customer and shuffled within each.

    Shuffled because each customer's last trips are held out, and files are often sorted by time.
    """
    uniforms = rng.uniforms(_row_keys(rows, settings, TRIP_BRANCH), 0)
    order = np.lexsort((uniforms, rows.customer))
    return np.asarray(order[included[order]], np.int64)


def _tolerance(rows: TripRows, settings: DvrpSettings) -> FloatArray:
    """(rows, 2) tolerances of the file, or sampled ones if it has none."""
    if rows.tolerance is not None and settings.tolerances == "soft":
        return rows.tolerance
    keys = _row_keys(rows, settings, TOLERANCE_BRANCH)
    return sample_tolerances(rows.types, rows.purpose, keys, settings.tolerances, settings.effective_softness)


def _customers(table: CsvTable, rows: TripRows, order: IntArray, settings: DvrpSettings) -> Customers:
    num_trips = np.bincount(rows.customer[order], minlength=int(rows.customer.max()) + 1)
    if not num_trips.all():
        raise SettingsError(
            f"{table.path}: customer {int(num_trips.argmin()) + 1} has no trip between minutes "
            f"{settings.earliest_pickup} and {settings.latest_dropoff}; widen earliest_pickup and "
            "latest_dropoff, or remove the customer."
        )
    first_rows = order[np.cumsum(num_trips) - num_trips]
    size = len(num_trips)
    held_out = max(settings.num_customers, size // HELD_OUT_SHARE)
    enough = size >= 2 * settings.num_customers
    empty = [""] * len(table.rows)
    ages = table.column("age") if table.has_column("age") else empty
    occupations = table.column("occupation") if table.has_column("occupation") else empty
    return Customers(
        types=rows.types[first_rows],
        num_known=size - held_out if enough else size,
        num_trips=num_trips,
        ages=np.array([_age(ages[row]) for row in first_rows]),
        occupations=tuple(occupations[row] for row in first_rows),
    )


def _age(text: str) -> int:
    value = finite_number(text)
    return -1 if value is None else int(value)


def read_recorded_responses(path: str, trips: CsvTable, type_texts: Sequence[str], types: IntArray) -> BoolArray:
    """Recorded responses to every offer of every trip.

    Args:
        path: CSV file with a row per trip and offer, and a column per customer type.
        trips: The file of trips.
        type_texts: Column names of the customer types.
        types: (trips,) type of each trip's customer, which selects the column.

    Returns:
        (trips, offers) in the order of the trip file; offer 12 is always accepted.
    """
    table = read_table(path, "recorded responses")
    table.require_columns((*TRIP_COLUMNS, *SHIFT_COLUMNS, *type_texts))
    recorded = _responses_by_offer(table, type_texts)
    accepts = np.zeros((len(trips.rows), NUM_OFFERS), bool)
    for number, key in enumerate(_trip_keys(trips)):
        for offer in range(NUM_OFFERS):
            found = recorded.get((key, offer))
            if found is None and offer != NO_CHANGE:
                earlier, later = OFFER_MINUTES[offer]
                raise SettingsError(
                    f"{table.path} has no response for row {number + FIRST_ROW} of {trips.path} "
                    f"with {SHIFT_COLUMNS[0]} {earlier:.0f} and {SHIFT_COLUMNS[1]} {later:.0f}; "
                    "every trip needs one for each offer."
                )
            if found is not None:
                accepts[number, offer] = found[types[number]]
    accepts[:, NO_CHANGE] = True
    return accepts


def _responses_by_offer(table: CsvTable, type_texts: Sequence[str]) -> dict[tuple[TripKey, int], tuple[bool, ...]]:
    """Responses of all customer types, by trip and offer."""
    offer_index = {tuple(minutes): offer for offer, minutes in enumerate(OFFER_MINUTES.tolist())}
    columns = [table.column(name) for name in type_texts]
    earlier, later = (_shifts(table, name) for name in SHIFT_COLUMNS)
    recorded: dict[tuple[TripKey, int], tuple[bool, ...]] = {}
    for number, key in enumerate(_trip_keys(table)):
        shift = (earlier[number], later[number])
        if shift not in offer_index:
            raise table.error(number, SHIFT_COLUMNS[0], f"no offer shifts by {shift[0]:g} and {shift[1]:g} minutes.")
        responses = tuple(
            _response(table, number, name, column[number]) for name, column in zip(type_texts, columns, strict=True)
        )
        if recorded.setdefault((key, offer_index[shift]), responses) != responses:
            raise table.error(number, type_texts[0], "an earlier row has other responses for this trip and offer.")
    return recorded


def _response(table: CsvTable, row: int, column: str, text: str) -> bool:
    if text.lower() not in RESPONSES:
        raise table.error(row, column, f"{printable(text)!r} is neither accept nor reject.")
    return RESPONSES[text.lower()]


def _shifts(table: CsvTable, column: str) -> list[float]:
    shifts = []
    for number, text in enumerate(table.column(column)):
        value = finite_number(text)
        if value is None:
            raise table.error(number, column, f"{printable(text)!r} is not a number of minutes.")
        # Some files write an earlier pickup as a negative shift.
        shifts.append(abs(value))
    return shifts


def _trip_keys(table: CsvTable) -> list[TripKey]:
    """The normalised cells that identify the trip of each row."""
    columns = [table.column(name) for name in TRIP_COLUMNS]
    return [tuple(map(normalise_text, cells)) for cells in zip(*columns, strict=True)]
