"""Populations from an operator's CSV files: trips and, optionally, travel times and recorded responses.

`read_data` reads and checks all files at once; `population_of` makes the population of an env from
them. Everything that the files leave open is filled in here and said in `CustomData.notes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from hundredfold.core import rng
from hundredfold.core.batch import BoolArray, FloatArray, IntArray
from hundredfold.core.errors import suggest
from hundredfold.core.formatting import format_clock, format_count, format_percent, printable
from hundredfold.core.rng import Keys
from hundredfold.envs.dvrp.city import (
    TOLERANCE_BRANCH,
    TRIP_BRANCH,
    TYPE_BRANCH,
    City,
    most_central_cell,
    positions_from_travel,
    scaled_positions,
)
from hundredfold.envs.dvrp.csv_files import MAX_ROWS, CsvTable, Problems, finite_number, read_table
from hundredfold.envs.dvrp.population import (
    GRID_MINUTES,
    TYPE_NAMES,
    TYPE_SHARES,
    WINDOW_MINUTES,
    Customers,
    Population,
    Trips,
    has_places,
    make_population,
    sample_categories,
    sample_tolerances,
    servable_trips,
)
from hundredfold.envs.dvrp.recorded_responses import read_recorded_responses
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.envs.dvrp.travel_times import Places, given_places, read_travel_times, straight_line_places
from hundredfold.envs.dvrp.trip_columns import DROPOFF_WINDOW, PICKUP_WINDOW, find_heading
from hundredfold.envs.dvrp.trip_rows import TYPE_TEXTS, UNKNOWN_TYPE, TripRows, read_trip_rows
from hundredfold.envs.dvrp.vehicle_rows import read_vehicle_types
from hundredfold.routing.problem import DROPOFF, EARLY, LATE, MAX_RIDERS, PICKUP, WHEELCHAIR, TravelTable, VehicleType

# The default depot, if the travel times have this H3 cell: downtown San Francisco.
DEFAULT_DEPOT: Final = "872830828ffffff"
# One customer in five is held out from training, if enough remain.
HELD_OUT_SHARE: Final = 5


@dataclass(frozen=True, slots=True, eq=False)
class CustomData:
    """All that an operator's files say, checked and completed."""

    table: CsvTable  # the file of trips
    rows: TripRows  # with every window and every type
    cells: IntArray  # (rows, 2) pickup and dropoff
    places: Places
    city: City
    riders: IntArray  # (rows,) packed as in a RouteProblems
    vehicle_types: tuple[VehicleType, ...]  # empty: identical vehicles
    included: BoolArray  # (rows,) whether a trip lies within the hours of the settings
    notes: tuple[str, ...]  # what was assumed, a sentence each


def load_population(settings: DvrpSettings) -> Population:
    """The population of the settings' files."""
    return population_of(read_data(settings), settings)


def read_data(settings: DvrpSettings) -> CustomData:
    """Read and check the files that the settings name.

    Args:
        settings: Files, speed and detour for travel times that are not given, depot, hours and
            limits that every trip must keep.

    Raises:
        DataError: Names all problems of all files.
    """
    problems = Problems()
    data = collect_data(settings, problems)
    problems.raise_any()
    assert data is not None, "data that cannot be read is a problem"
    return data


def collect_data(settings: DvrpSettings, problems: Problems) -> CustomData | None:
    """Read the files that the settings name, as far as they are readable.

    Args:
        settings: As for `read_data`.
        problems: Collects what is wrong; rows with a problem are not included.

    Returns:
        The data; None if too much is missing to go on.
    """
    assert settings.trips is not None
    notes: list[str] = []
    matrix = None if settings.travel_times is None else read_travel_times(settings.travel_times, problems)
    kinds = () if settings.vehicles is None else read_vehicle_types(settings.vehicles, settings.day_minutes, problems)
    table = read_table(settings.trips, "trips", problems)
    rows = None if table is None else read_trip_rows(table, settings.travel_times is not None, problems, notes)
    if table is None or rows is None or (matrix is None and settings.travel_times is not None):
        return None
    notes[:0] = table.notes
    places = _places(matrix, rows, table, settings, problems, notes)
    if not places.names:
        return None
    places_are_known = problems.are_of_rows_of(table.path)
    index = places.index
    cells = np.array([[index.get(label, -1) for label in pair] for pair in rows.places])
    _check_same_place(rows, cells, table, matrix is not None, problems, notes)
    windows = _complete_windows(rows.windows, cells, places.minutes, table, notes)
    rows = replace(rows, windows=windows, types=_complete_types(rows, settings, notes))
    if rows.tolerance is None and settings.recorded_responses is None:
        notes.append("Which offers a trip accepts is simulated: the tolerances are sampled by type and purpose.")
    city = City(
        names=places.names,
        positions=_positions(places),
        travel=TravelTable(places.minutes),
        depot_cell=_depot_cell(places, settings, notes, problems),
        degrees=places.degrees,
    )
    included = _is_within_hours(rows, settings) & _has_no_problem(table, problems)
    riders = _riders(rows, settings, notes)
    data = CustomData(table, rows, cells, places, city, riders, kinds, included, tuple(notes))
    if settings.vehicles is None:
        day = (0.0, float(settings.day_minutes))
        kinds = (VehicleType(seats=min(settings.capacity, MAX_RIDERS), shift=day),)
    if kinds:
        more = f"add seats or wheelchair places to {settings.vehicles}" if settings.vehicles else "raise --capacity"
        _check_places(data, kinds, more, problems)
        if places_are_known:
            _check_servable(data, kinds, settings, problems)
    if not included.any() and not len(problems):
        problems.add(
            table.path,
            f"has no trip between minutes {settings.earliest_pickup} and {settings.latest_dropoff} of the day; widen "
            "earliest_pickup and latest_dropoff.",
        )
    included &= _has_no_problem(table, problems)
    return data


def population_of(data: CustomData, settings: DvrpSettings) -> Population:
    """The population of an operator's data."""
    rows, table = data.rows, data.table
    accepts: BoolArray | None = None
    if settings.recorded_responses is not None:
        accepts = read_recorded_responses(
            settings.recorded_responses, table, TYPE_TEXTS, rows.types, settings.offer_table
        )
    order = _order_by_customer(rows, data.included, settings)
    trips = Trips(
        cells=data.cells[order],
        windows=rows.windows[order],
        purpose=rows.purpose[order],
        tolerance=_tolerance(rows, settings)[order],
        riders=data.riders[order],
    )
    customers = _customers(table, rows, order, settings)
    recorded = None if accepts is None else accepts[order]
    population = make_population(data.city, customers, trips, settings, recorded, data.vehicle_types)
    return replace(population, notes=data.notes)


def _places(
    matrix: tuple[tuple[str, ...], FloatArray] | None,
    rows: TripRows,
    table: CsvTable,
    settings: DvrpSettings,
    problems: Problems,
    notes: list[str],
) -> Places:
    if matrix is not None:
        return given_places(*matrix, rows, table, Path(str(settings.travel_times)), problems)
    notes.append(
        f"No travel times were given: they are straight lines between coordinates, {settings.detour_factor:g} times as "
        f"long by road, at {settings.speed_kmh:g} km/h (change it with --detour-factor and --speed-kmh)."
    )
    return straight_line_places(rows, table, settings.speed_kmh, settings.detour_factor, problems)


def _check_same_place(
    rows: TripRows, cells: IntArray, table: CsvTable, has_matrix: bool, problems: Problems, notes: list[str]
) -> None:
    """Name trips from a place to itself: a problem between points, a note in a matrix, whose places may be areas."""
    same = np.flatnonzero((cells[:, PICKUP] >= 0) & (cells[:, PICKUP] == cells[:, DROPOFF]))
    for row in () if has_matrix else same:
        problems.add(
            table.path,
            f"pickup and dropoff are the same place, {printable(rows.places[row][0])!r}; correct or remove the trip.",
            row=table.row_numbers[row],
            column=rows.place_columns[DROPOFF],
            kind="same place",
        )
    if has_matrix and len(same):
        first = ", ".join(str(table.row_numbers[row]) for row in same[:MAX_ROWS])
        more = f" and {len(same) - MAX_ROWS:,} more" if len(same) > MAX_ROWS else ""
        notes.append(
            f"{table.path.name}: {format_count(len(same), 'trip')} to the place of the pickup, with a ride of 0 "
            f"minutes: {'row' if len(same) == 1 else 'rows'} {first}{more}."
        )


def _complete_windows(
    windows: FloatArray, cells: IntArray, minutes: FloatArray, table: CsvTable, notes: list[str]
) -> FloatArray:
    """(rows, 2, 2) time windows; one that is missing follows from the other and the direct ride."""
    direct = np.where((cells >= 0).all(axis=1), minutes[cells[:, PICKUP], cells[:, DROPOFF]], 0.0)
    ride = np.maximum(GRID_MINUTES, np.ceil(direct / GRID_MINUTES) * GRID_MINUTES)
    given = ~np.isnan(windows[..., EARLY])
    complete = windows.copy()
    for side, other, sign in ((DROPOFF, PICKUP, 1.0), (PICKUP, DROPOFF, -1.0)):
        missing = ~given[:, side] & given[:, other]
        start = windows[missing, other, EARLY] + sign * ride[missing]
        complete[missing, side] = np.maximum(start[:, None] + (0.0, WINDOW_MINUTES), (0.0, 1.0))
        if missing.any():
            name, place = ("pickup", "before") if side == PICKUP else ("dropoff", "after")
            notes.append(
                f"{table.path.name}: {format_count(int(missing.sum()), 'trip')} without a {name} window; it was set to "
                f"the direct ride {place} the other one, {WINDOW_MINUTES:.0f} minutes wide."
            )
    return complete


def _complete_types(rows: TripRows, settings: DvrpSettings, notes: list[str]) -> IntArray:
    """(rows,) customer types; those that are not given are sampled."""
    unknown = rows.types == UNKNOWN_TYPE
    if not unknown.any():
        return rows.types
    keys = rng.spawn(rng.spawn(rng.seed_key(settings.city_seed), TYPE_BRANCH), np.arange(len(rows.customer_ids)))
    sampled = sample_categories(np.array(TYPE_SHARES), rng.uniforms(keys, 0))
    shares = ", ".join(
        f"{name} {format_percent(share, 0)}" for name, share in zip(TYPE_NAMES, TYPE_SHARES, strict=True)
    )
    notes.append(
        f"No flexibility was given for {len(set(rows.customer[unknown].tolist())):,} of {len(rows.customer_ids):,} "
        f"customers: theirs is simulated, sampled from these shares: {shares}."
    )
    return np.where(unknown, sampled[rows.customer], rows.types)


def _positions(places: Places) -> FloatArray:
    """(cells, 2) in the unit square: from coordinates, or else from travel times."""
    if places.degrees is None or np.isnan(places.degrees).all():
        return positions_from_travel(places.minutes)
    known = np.asarray(~np.isnan(places.degrees).any(axis=1))
    # Cells without trips are placed in the middle; they never occur in an observation.
    return scaled_positions(np.where(known[:, None], places.degrees, places.degrees[known].mean(axis=0)))


def _depot_cell(places: Places, settings: DvrpSettings, notes: list[str], problems: Problems) -> int:
    if settings.depot is not None:
        if settings.depot not in places.names:
            known = f"its places are {', '.join(map(printable, places.names[:8]))}."
            hint = suggest(settings.depot, places.names, known)
            path = Path(str(settings.travel_times or settings.trips))
            problems.add(path, f"has no place {printable(settings.depot)!r} for the depot; {hint}")
            return 0
        return places.index[settings.depot]
    if DEFAULT_DEPOT in places.names:
        return places.index[DEFAULT_DEPOT]
    depot = most_central_cell(places.minutes)
    notes.append(
        f"No depot was given: it is the most central place, {printable(places.names[depot])} (change it with --depot)."
    )
    return depot


def _is_within_hours(rows: TripRows, settings: DvrpSettings) -> BoolArray:
    """(rows,) whether each trip lies between `earliest_pickup` and `latest_dropoff`."""
    begins = rows.windows[:, PICKUP, EARLY] >= settings.earliest_pickup
    ends = rows.windows[:, DROPOFF, LATE] <= settings.latest_dropoff
    return np.asarray(begins & ends, bool)


def _has_no_problem(table: CsvTable, problems: Problems) -> BoolArray:
    """(rows,) whether each trip is without a problem so far."""
    return ~np.isin(table.row_numbers, list(problems.rows_of(table.path)))


def _riders(rows: TripRows, settings: DvrpSettings, notes: list[str]) -> IntArray:
    """(rows,) riders, packed; without vehicle types a wheelchair takes a seat."""
    if settings.vehicles is not None:
        return np.asarray(rows.passengers - rows.wheelchairs + WHEELCHAIR * rows.wheelchairs, np.int64)
    if rows.wheelchairs.any():
        notes.append(
            f"{format_count(int((rows.wheelchairs > 0).sum()), 'trip')} with a wheelchair, but no vehicles were given: "
            "a wheelchair takes a seat (name them with --vehicles)."
        )
    return rows.passengers


def _check_places(data: CustomData, kinds: Sequence[VehicleType], vehicles: str, problems: Problems) -> None:
    """Add a problem for trips with more people or wheelchairs than any vehicle has places for."""
    table = data.table
    fits = np.any([has_places(kind, data.riders) for kind in kinds], axis=0)
    headings = [heading for name in ("passengers", "wheelchair") if (heading := find_heading(table, name))]
    for number in np.flatnonzero(~fits):
        people, wheelchairs = int(data.rows.passengers[number]), int(data.rows.wheelchairs[number])
        problems.add(
            table.path,
            f"{people} {'person' if people == 1 else 'people'}, {wheelchairs} of them in wheelchairs, "
            f"{'has' if people == 1 else 'have'} places in no vehicle; {vehicles}.",
            row=table.row_numbers[number],
            column=headings[0] if headings else None,
            kind="places",
        )


def _check_servable(data: CustomData, kinds: Sequence[VehicleType], settings: DvrpSettings, problems: Problems) -> None:
    """Add a problem for trips that no vehicle has the time to serve; those that are not readable are skipped."""
    table, rows, cells, city = data.table, data.rows, data.cells, data.city
    fits = np.stack([has_places(kind, data.riders) for kind in kinds])
    in_time = np.stack([servable_trips(rows.windows, cells, city, settings, kind) for kind in kinds])
    checked = data.included & (cells >= 0).all(axis=1) & ~np.isnan(rows.windows).any(axis=(1, 2)) & fits.any(axis=0)
    servable = ~checked | (fits & in_time).any(axis=0)
    within_day = servable_trips(rows.windows, cells, city, settings)
    heading = find_heading(table, DROPOFF_WINDOW) or find_heading(table, PICKUP_WINDOW)
    for number in np.flatnonzero(~servable):
        kind, reason = _why_unservable(data, int(number), bool(within_day[number]), settings)
        problems.add(
            table.path,
            f"no vehicle can serve this trip: {reason}.",
            row=table.row_numbers[number],
            column=heading,
            kind=f"unservable {kind}",
        )


def _why_unservable(data: CustomData, number: int, within_day: bool, settings: DvrpSettings) -> tuple[str, str]:
    """What a trip lacks time for, in a word and in a sentence."""
    (pickup, dropoff), window = data.cells[number], data.rows.windows[number]
    minutes, depot, service = data.city.travel_minutes, data.city.depot_cell, settings.service_minutes
    ride = minutes[pickup, dropoff]
    available = window[DROPOFF, LATE] - window[PICKUP, EARLY]
    if ride + service > available:
        at_the_stop = f" and the stop {service:g}" if service else ""
        return "window", (
            f"the direct ride takes {ride:.1f}{at_the_stop} of the {available:.0f} minutes from earliest pickup to "
            "latest dropoff"
        )
    day_end = format_clock(settings.day_minutes)
    if window[DROPOFF, LATE] > settings.day_minutes:
        return (
            "late",
            f"its dropoff may be as late as {format_clock(window[DROPOFF, LATE])}, but the day ends at {day_end}",
        )
    leave = window[PICKUP, LATE] - minutes[depot, pickup]
    back = max(window[DROPOFF, EARLY], window[PICKUP, EARLY] + service + ride) + service + minutes[dropoff, depot]
    away = (
        f"a vehicle must leave the depot by {format_clock(leave)} and is back at {format_clock(back)} at the earliest"
    )
    if within_day:
        return "shift", (
            f"{away}, and no shift of a vehicle with places for it covers that; lengthen a shift in {settings.vehicles}"
        )
    if leave < 0.0 or back > settings.day_minutes:
        return "day", f"{away}, outside of the day from 00:00 to {day_end}"
    return "limit", "within its windows and the ride-time limit there is no time for it"


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
    return sample_tolerances(rows.types, rows.purpose, keys, settings)


def _customers(table: CsvTable, rows: TripRows, order: IntArray, settings: DvrpSettings) -> Customers:
    """Customers with a trip within the hours of the settings."""
    numbers, first, num_trips = np.unique(rows.customer[order], return_index=True, return_counts=True)
    first_rows = order[first]
    size = len(numbers)
    held_out = max(settings.num_customers, size // HELD_OUT_SHARE)
    enough = size >= 2 * settings.num_customers
    ages, occupations = (_optional_column(table, name) for name in ("age", "occupation"))
    return Customers(
        types=rows.types[first_rows],
        num_known=size - held_out if enough else size,
        num_trips=num_trips,
        ages=np.array([_age(ages[row]) for row in first_rows]),
        occupations=tuple(occupations[row] for row in first_rows),
        ids=tuple(rows.customer_ids[number] for number in numbers),
    )


def _optional_column(table: CsvTable, name: str) -> list[str]:
    heading = table.find((name,))
    return [""] * len(table.rows) if heading is None else table.column(heading)


def _age(text: str) -> int:
    value = finite_number(text)
    return -1 if value is None else int(value)
