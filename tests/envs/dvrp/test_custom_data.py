"""Populations from CSV files, and error messages about broken files."""

import csv
import itertools
import re

import numpy as np
import pytest

import hundredfold
from helpers.offers import NO_CHANGE, OFFER_MINUTES
from hundredfold.core.errors import SettingsError
from hundredfold.envs.dvrp.csv_files import DataError
from hundredfold.envs.dvrp.demand import population_for
from hundredfold.envs.dvrp.offers import DEFAULT_OFFERS
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.envs.dvrp.trip_rows import TYPE_TEXTS

# Headings of the research data set; `test_data_files.py` uses the documented ones.
COLUMNS = [
    "traveler_id",
    "flexibility",
    "trip_purpose",
    "departure_location",
    "arrival_location",
    "departure_time_window",
    "arrival_time_window",
    "origin_h3",
    "destination_h3",
]
CELLS = ["87a", "87b", "87c", "87d"]
SECONDS = [[0, 600, 900, 700], [620, 0, 500, 800], [880, 520, 0, 450], [710, 790, 460, 0]]
TOLERANCES = ["flexibility_pickup_earlier", "flexibility_dropoff_later"]


class Files:
    """A small city in two CSV files whose cells can be changed."""

    def __init__(self, folder):
        self.folder = folder
        self.header = [*COLUMNS, *TOLERANCES]
        self.trips = [self.trip(customer, number) for customer in range(12) for number in range(5)]
        self.matrix = [["", *CELLS]] + [[label, *map(str, row)] for label, row in zip(CELLS, SECONDS, strict=True)]

    def trip(self, customer, number):
        start = 8 + number
        cells = CELLS[customer % 4], CELLS[(customer + 1 + number % 3) % 4]
        return [
            str(customer + 1),
            TYPE_TEXTS[customer % 4],
            "work" if number else "visit_friends",
            "home",
            f"place {number}",
            f"{start:02d}:00-{start:02d}:30",
            f"{start:02d}:20-{start:02d}:50",
            *cells,
            str(5 * (customer % 7)),
            str(5 * number),
        ]

    def settings(self, **options):
        with (self.folder / "trips.csv").open("w", newline="") as file:
            csv.writer(file).writerows([self.header, *self.trips])
        with (self.folder / "matrix.csv").open("w", newline="") as file:
            csv.writer(file).writerows(self.matrix)
        return DvrpSettings(
            num_customers=options.pop("num_customers", 5),
            trips=str(self.folder / "trips.csv"),
            travel_times=str(self.folder / "matrix.csv"),
            **options,
        )

    def set(self, number, column, text):
        self.trips[number][self.header.index(column)] = text

    def drop(self, column):
        index = self.header.index(column)
        for row in [self.header, *self.trips]:
            del row[index]


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


def test_trips_and_travel_times_make_a_population(files):
    population = population_for(files.settings())
    assert population.city.names == tuple(CELLS)
    assert population.city.travel_minutes[1, 0] == pytest.approx(620 / 60)
    assert population.size == 12
    assert population.customers.num_trips.tolist() == [5] * 12
    assert population.customers.types.tolist() == [0, 1, 2, 3] * 3
    trips = population.trips
    first = population.first_trip[3]
    assert sorted(trips.windows[first : first + 5, 0, 0]) == [480, 540, 600, 660, 720]
    assert sorted(trips.tolerance[first : first + 5, 1]) == [0, 5, 10, 15, 20]
    assert (population.accepts == DEFAULT_OFFERS.tolerated(trips.tolerance)).all()


def test_customers_are_held_out_if_enough_remain(files):
    assert population_for(files.settings()).customers.num_known == 7
    all_known = population_for(files.settings(num_customers=8))
    assert all_known.customers.num_known == 12
    with pytest.raises(SettingsError, match="only 0 customers with trips in the split unseen_customers"):
        population_for(files.settings(num_customers=8, split="unseen_customers"))


def test_the_depot_is_the_given_or_the_most_central_cell(files):
    assert population_for(files.settings()).city.depot_cell in range(4)
    assert population_for(files.settings(depot="87d")).city.depot_cell == 3
    with pytest.raises(SettingsError, match="no place '87x' for the depot"):
        population_for(files.settings(depot="87x"))


def test_coordinates_of_trips_become_positions(files):
    points = {cell: (37.7 + 0.01 * place, -122.4) for place, cell in enumerate(CELLS)}
    for side in ("origin", "destination"):
        place = files.header.index(f"{side}_h3")
        for row in files.trips:
            row.append("[{}, {}]".format(*points[row[place]]))
        files.header.append(f"{side}_gps")
    positions = population_for(files.settings()).city.positions
    assert np.allclose(positions[:, 0], [0, 1 / 3, 2 / 3, 1])


def test_without_tolerance_columns_tolerances_are_sampled(files):
    for name in TOLERANCES:
        files.drop(name)
    population = population_for(files.settings(tolerances="types"))
    assert set(population.trips.tolerance.ravel()) == {0.0, 30.0}
    soft = population_for(files.settings())
    assert len(set(soft.trips.tolerance.ravel())) > 3


def test_age_occupation_and_unnamed_columns_are_accepted(files):
    files.header += ["age", "occupation", ""]
    for row in files.trips:
        row += [str(20 + int(row[0])), "nurse", "7"]
    customers = population_for(files.settings()).customers
    assert customers.ages.tolist() == list(range(21, 33))
    assert set(customers.occupations) == {"nurse"}


def test_an_edited_file_is_read_again(files):
    before = population_for(files.settings())
    files.matrix[1][2] = "660"
    after = population_for(files.settings())
    assert (before.city.travel_minutes[0, 1], after.city.travel_minutes[0, 1]) == (10.0, 11.0)


def test_trips_outside_the_given_hours_are_skipped(files):
    files.set(1, "arrival_time_window", "09:01-09:03")  # cannot be served, but is skipped
    population = population_for(files.settings(earliest_pickup=600, latest_dropoff=12 * 60 + 30))
    assert population.customers.num_trips.tolist() == [2] * 12
    assert set(population.trips.windows[:, 0, 0]) == {600, 660}
    with pytest.raises(SettingsError, match="has no trip between minutes 900 and"):
        population_for(files.settings(earliest_pickup=900))


BROKEN_TRIPS = {
    "unknown cell": (3, "origin_h3", "zzz", "row 5, column origin_h3: the place 'zzz' is not in"),
    "end before start": (
        7,
        "departure_time_window",
        "09:30-09:00",
        "row 9, column departure_time_window: the window 09:30-09:00 ends before",
    ),
    "midnight": (
        0,
        "arrival_time_window",
        "23:50-00:20",
        "row 2, column arrival_time_window: the window 23:50-00:20 .*midnight",
    ),
    "not a window": (1, "arrival_time_window", "noon", "row 3, column arrival_time_window: 'noon'"),
    "dropoff first": (
        1,
        "arrival_time_window",
        "07:00-07:30",
        "row 3, column arrival_time_window: the dropoff window begins before",
    ),
    "unservable": (
        1,
        "arrival_time_window",
        "09:01-09:03",
        "row 3, column arrival_time_window: no vehicle can serve this trip",
    ),
    "no customer": (2, "traveler_id", "", "row 4, column traveler_id: the customer is missing"),
    "two types": (2, "flexibility", TYPE_TEXTS[3], "row 4, column flexibility: customer 1 has"),
    "unknown type": (2, "flexibility", "grumpy", "row 4, column flexibility: 'grumpy' is not a customer type"),
    "tolerance": (4, TOLERANCES[0], "nan", f"row 6, column {TOLERANCES[0]}: 'nan'"),
    "underscore": (4, TOLERANCES[0], "1_0", f"row 6, column {TOLERANCES[0]}: '1_0'"),
    "underscore in a time": (
        1,
        "arrival_time_window",
        "1_0:00-11:00",
        "row 3, column arrival_time_window: '1_0:00-11:00'",
    ),
}


@pytest.mark.parametrize(("number", "column", "text", "message"), BROKEN_TRIPS.values(), ids=BROKEN_TRIPS)
def test_errors_in_trips_name_row_and_column(files, number, column, text, message):
    files.set(number, column, text)
    with pytest.raises(SettingsError, match=rf"trips\.csv, {message}"):
        population_for(files.settings())


@pytest.mark.parametrize(
    ("column", "usual"),
    [("passengers", "1"), ("wheelchair", "0"), ("from_lat", "37"), ("from_lon", "-122"), ("to_gps", "[37.7, -122.4]")],
)
@pytest.mark.parametrize("odd", ["1_0", "\N{ARABIC-INDIC DIGIT ONE}"])
def test_numbers_of_trips_have_plain_digits_only(files, column, usual, odd):
    """Python also accepts underscores between digits, and the digits of other scripts."""
    columns = {"from_lat": "37", "from_lon": "-122", "to_gps": "[37.7, -122.4]"} | {column: usual}
    files.header += columns
    for row in files.trips:
        row += columns.values()
    text = f"[{odd}, -122.4]" if column == "to_gps" else odd
    files.set(2, column, text)
    with pytest.raises(SettingsError, match=rf"trips\.csv, row 4, column {column}: {re.escape(repr(text))}"):
        population_for(files.settings())


@pytest.mark.parametrize("column", ["traveler_id", "origin_h3", "destination_h3"])
def test_a_missing_column_is_named(files, column):
    files.drop(column)
    for name in ("departure_location", "arrival_location"):
        files.drop(name)
    documented = {"traveler_id": "customer", "origin_h3": "from", "destination_h3": "to"}
    with pytest.raises(SettingsError, match=rf"trips\.csv has no column {documented[column]}"):
        population_for(files.settings())


def test_two_columns_with_one_heading_are_rejected(files):
    files.header[-1] = files.header[0]
    with pytest.raises(SettingsError, match=r"trips\.csv has more than one column traveler_id"):
        population_for(files.settings())


def test_two_cells_with_one_label_are_rejected(files):
    files.matrix[0][2] = files.matrix[2][0] = "87a"
    with pytest.raises(SettingsError, match=r"matrix\.csv has more than one column 87a"):
        population_for(files.settings())


def test_travel_times_that_are_all_zero_are_rejected(files):
    files.matrix[1:] = [[row[0], *["0"] * 4] for row in files.matrix[1:]]
    with pytest.raises(SettingsError, match=r"matrix\.csv has no travel time above 0"):
        population_for(files.settings())


BROKEN_MATRIX = {
    "underscore": ((1, 2), "1_0", "row 2, column 87b: '1_0' is not a travel time"),
    "other digits": ((1, 2), "\u0661\u0660", "row 2, column 87b: .* is not a travel time"),
    "negative": ((2, 3), "-5", "row 3, column 87c: '-5' is not a travel time"),
    "NaN": ((1, 2), "nan", "row 2, column 87b: 'nan' is not a travel time"),
    "text": ((1, 2), "far", "row 2, column 87b: 'far' is not a travel time"),
    "empty cell": ((4, 1), "", "row 5, column 87a: '' is not a travel time"),
    "diagonal": ((2, 2), "60", "row 3, column 87b: the travel time from a place to itself"),
    "label": ((3, 0), "87x", "row 4, column 1: the row is labelled '87x'"),
}


@pytest.mark.parametrize(("place", "text", "message"), BROKEN_MATRIX.values(), ids=BROKEN_MATRIX)
def test_errors_in_travel_times_name_row_and_column(files, place, text, message):
    files.matrix[place[0]][place[1]] = text
    with pytest.raises(SettingsError, match=rf"matrix\.csv, {message}"):
        population_for(files.settings())


def test_a_matrix_that_is_not_square_is_rejected(files):
    files.matrix.pop()
    with pytest.raises(SettingsError, match="not square: 3 rows and 4 columns"):
        population_for(files.settings())


def test_a_row_of_another_width_is_rejected(files):
    files.matrix[2].append("9")
    with pytest.raises(SettingsError, match="row 3: the row has 6 columns"):
        population_for(files.settings())


NOISE = np.random.default_rng(0).integers(0, 256, 10_000_000, np.uint8).tobytes()
PRINTABLE = bytes(32 + byte % 95 for byte in NOISE[:2_000_000])


@pytest.mark.parametrize("name", ["trips.csv", "matrix.csv"])
@pytest.mark.parametrize(
    "content", [b"", b"\n\n", NOISE, PRINTABLE], ids=["empty", "blank", "noise", "printable noise"]
)
def test_garbage_files_give_one_short_message(files, name, content):
    settings = files.settings()
    (files.folder / name).write_bytes(content)
    with pytest.raises(SettingsError, match=name.replace(".", r"\.")) as caught:
        population_for(settings)
    assert len(str(caught.value)) < 1200
    assert all(line.isprintable() for line in str(caught.value).splitlines())
    assert caught.value.__cause__ is None


def test_a_file_with_only_a_header_is_rejected(files):
    files.trips.clear()
    with pytest.raises(SettingsError, match="has a header but no trips"):
        population_for(files.settings())


def test_a_missing_file_is_named(tmp_path):
    settings = DvrpSettings(trips=str(tmp_path / "no.csv"), travel_times=str(tmp_path / "no.csv"))
    with pytest.raises(SettingsError, match=r"no\.csv cannot be read"):
        population_for(settings)


# --- recorded responses

TRIP_COLUMNS = [
    "traveler_id",
    "trip_purpose",
    "departure_location",
    "arrival_location",
    "departure_time_window",
    "arrival_time_window",
]


def response_rows(files):
    header = [*TRIP_COLUMNS, "pickup_shift_min", "dropoff_shift_min", "flexibility", *TYPE_TEXTS]
    rows = [header]
    indices = [files.header.index(name) for name in TRIP_COLUMNS]
    kind = files.header.index("flexibility")
    for trip, (offer, (earlier, later)) in itertools.product(files.trips, enumerate(OFFER_MINUTES.astype(int))):
        responses = ["accept" if (offer + number) % 3 else "reject" for number in range(4)]
        key = [trip[index] for index in indices]
        rows.append([*key, str(earlier), str(later), trip[kind], *responses])
    return rows


def settings_with_responses(files, rows):
    path = files.folder / "responses.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return files.settings(recorded_responses=str(path))


def test_recorded_responses_replace_tolerances(files):
    population = population_for(settings_with_responses(files, response_rows(files)))
    types = np.repeat(population.customers.types, 5)
    expected = (np.arange(16) + types[:, None]) % 3 != 0
    expected[:, NO_CHANGE] = True
    assert (population.accepts == expected).all()


def test_time_windows_identify_a_trip(files):
    """Two trips that differ only in their windows have their own responses."""
    rows = response_rows(files)
    first, second = rows[1:17], rows[17:33]
    for row in second:
        row[1:4] = first[0][1:4]
        row[-4:] = ["accept"] * 4
    for column, text in zip(TRIP_COLUMNS[1:4], first[0][1:4], strict=True):
        files.set(1, column, text)
    population = population_for(settings_with_responses(files, rows))
    accepts = population.accepts[population.first_trip[0] : population.first_trip[1]]
    assert sum(row.all() for row in accepts) == 1


@pytest.mark.parametrize(
    ("break_rows", "message"),
    [
        (lambda rows: rows.pop(20), r"trips\.csv, row 3: .*responses\.csv has no response for this trip"),
        (lambda rows: rows[4].__setitem__(9, "maybe"), "row 5, column .*'maybe' is neither"),
        (lambda rows: rows[4].__setitem__(6, "x"), "row 5, column pickup_shift_min: 'x'"),
        (lambda rows: rows[4].__setitem__(6, "15"), "row 5, .*no offer shifts by 15 and"),
        (lambda rows: rows[0].__setitem__(9, "y"), "has no column flexible for late dropoff"),
        (lambda rows: rows.append([*rows[3][:9], *["accept"] * 3, "reject"]), "row 962, .*other responses"),
    ],
    ids=["missing", "response", "shift", "no offer", "column", "contradiction"],
)
def test_errors_in_responses_name_row_and_column(files, break_rows, message):
    rows = response_rows(files)
    break_rows(rows)
    with pytest.raises(SettingsError, match=message):
        population_for(settings_with_responses(files, rows))


def test_all_problems_of_recorded_responses_are_named_at_once(files):
    rows = response_rows(files)
    rows[4][9], rows[7][9], rows[5][6], rows[6][6] = "maybe", "perhaps", "x", "15"
    with pytest.raises(DataError) as caught:
        population_for(settings_with_responses(files, rows))
    places = [problem.cells[0] for problem in caught.value.problems]
    assert [row for row, _ in places] == [6, 5, 7]
    assert len(caught.value.problems[1].cells) == 2


def test_training_on_custom_data_writes_a_report(files):
    own = files.settings(num_customers=5)
    run = hundredfold.train(
        "dvrp",
        trips=own.trips,
        travel_times=own.travel_times,
        num_customers=5,
        num_envs=4,
        epochs=2,
        eval_episodes=4,
        hidden_sizes=(8,),
        save_dir=files.folder,
        name="run",
    )
    assert run.finished
    page = (run.path / "report.html").read_text("utf-8")
    for heading in ("A typical day", "Offers and acceptance", "What is known about customers"):
        assert heading in page
