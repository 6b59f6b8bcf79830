"""An operator's files: what is understood, what is filled in, and one answer to every wrong file."""

import re
from itertools import cycle

import numpy as np
import pytest

from hundredfold.core.errors import SettingsError
from hundredfold.envs.dvrp.csv_files import DataError, Problems, read_table
from hundredfold.envs.dvrp.custom_data import read_data
from hundredfold.envs.dvrp.data_check import check_data, unserved_days
from hundredfold.envs.dvrp.data_template import write_template
from hundredfold.envs.dvrp.demand import population_for
from hundredfold.envs.dvrp.env import Dvrp
from hundredfold.envs.dvrp.evaluation import simulate_days
from hundredfold.envs.dvrp.population import TYPE_SHARES
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.routing.problem import WHEELCHAIR
from hundredfold.routing.verifier import violations

PLACES = {
    "Bahnhof": (48.14, 11.56),
    "Klinik": (48.11, 11.47),
    "Markt": (48.17, 11.59),
    "Schule": (48.12, 11.61),
    "Café": (48.15, 11.53),
}


def trip_rows(customers=12, trips=4):
    """Header and rows of trips with names and coordinates, a time each and no flexibility."""
    rows = [["Customer", "Date", "From", "To", "from_lat", "from_lon", "to_lat", "to_lon", "pickup_time", "purpose"]]
    places = cycle(PLACES)
    for customer in range(customers):
        for trip in range(trips):
            start, end = next(places), next(places)
            time = f"{7 + 3 * trip}:{10 + customer:02d}"
            day = f"{2 + trip:02d}.03.2026"
            points = [f"{degree}" for place in (start, end) for degree in PLACES[place]]
            rows.append([f"Frau M{customer}", day, start, end, *points, time, "medical"])
    return rows


def write(path, rows, delimiter=",", encoding="utf-8", decimal="."):
    lines = [delimiter.join(re.sub(r"^(\d+)\.(\d+)$", rf"\1{decimal}\2", cell) for cell in row) for row in rows]
    path.write_bytes("\n".join(lines).encode(encoding))
    return str(path)


def matrix_rows(seconds=600):
    return [["", *PLACES], *([row, *("0" if row == place else str(seconds) for place in PLACES)] for row in PLACES)]


def settings(trips, **options):
    return DvrpSettings(num_customers=options.pop("num_customers", 5), trips=trips, **options)


def same_trips(first, second):
    return all(
        np.array_equal(getattr(first.trips, name), getattr(second.trips, name))
        for name in ("cells", "windows", "purpose", "tolerance")
    )


# --- what is understood


@pytest.mark.parametrize(
    ("delimiter", "encoding", "decimal"),
    [(";", "utf-8", ","), (";", "utf-8-sig", "."), ("\t", "utf-16", ","), (";", "cp1252", ","), ("|", "utf-8", ".")],
)
def test_files_of_spreadsheets_give_the_same_trips(tmp_path, delimiter, encoding, decimal):
    plain = population_for(settings(write(tmp_path / "plain.csv", trip_rows())))
    other = write(tmp_path / "other.csv", trip_rows(), delimiter, encoding, decimal)
    assert same_trips(plain, population_for(settings(other)))
    assert plain.city.names[0] == "Bahnhof"


def test_a_separator_line_and_empty_rows_are_skipped_and_rows_count_as_in_a_spreadsheet(tmp_path):
    rows = trip_rows()
    rows[5][8] = "noon"
    path = write(tmp_path / "trips.csv", [["sep=;"], *rows[:3], [""], ["", "", ""], *rows[3:]], ";")
    with pytest.raises(DataError, match=r"trips\.csv, row 9, column pickup_time: 'noon'"):
        read_data(settings(path))


def test_headings_that_are_repeated_in_the_file_are_skipped(tmp_path):
    rows = trip_rows()
    plain = population_for(settings(write(tmp_path / "trips.csv", rows)))
    joined = settings(write(tmp_path / "joined.csv", [*rows[:4], rows[0], *rows[4:]]))
    assert same_trips(plain, population_for(joined))
    assert "joined.csv: 1 row that repeats the headings was skipped." in read_data(joined).notes


def test_customer_ids_are_any_text_and_numbers_are_in_order(tmp_path):
    data = read_data(settings(write(tmp_path / "trips.csv", trip_rows())))
    assert data.rows.customer_ids[:2] == ("Frau M0", "Frau M1")
    rows = trip_rows()
    for number, row in enumerate(rows[1:]):
        row[0] = str(40 - 3 * (number % 12))
    numbered = population_for(settings(write(tmp_path / "numbers.csv", rows)))
    assert numbered.customers.ids == tuple(str(number) for number in range(7, 41, 3))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("08:00-08:30", (480, 510)),
        ("8.15", (495, 525)),
        ("08:00:00 - 08:45:00", (480, 525)),
        ("8:05 AM to 8:25 am", (485, 505)),
        ("1:10 PM", (790, 820)),
        ("2026-03-02T09:40", (580, 610)),
        ("12:00 am\u201312:30 AM", (0, 30)),
    ],
)
def test_times_are_windows_or_single_times(tmp_path, text, expected):
    rows = trip_rows()
    rows[1][8] = text
    data = read_data(settings(write(tmp_path / "trips.csv", rows)))
    assert tuple(data.rows.windows[0, 0]) == expected


def test_a_missing_window_follows_from_the_other_and_the_direct_ride(tmp_path):
    rows = trip_rows()
    rows[0][8] = "appointment"
    matrix = write(tmp_path / "matrix.csv", matrix_rows(17 * 60))
    data = read_data(settings(write(tmp_path / "trips.csv", rows), travel_times=matrix))
    # The appointment at 7:10 is the latest arrival; the ride of 17 minutes counts as 20.
    assert data.rows.windows[0].tolist() == [[380, 410], [400, 430]]
    assert any("without a pickup window" in note for note in data.notes)


def test_travel_times_follow_from_straight_lines_and_a_speed(tmp_path):
    path = write(tmp_path / "trips.csv", trip_rows())
    slow, fast = (read_data(settings(path, speed_kmh=speed)) for speed in (20.0, 40.0))
    assert np.allclose(slow.places.minutes, 2.0 * fast.places.minutes)
    # 7.5 km from the station to the clinic in a straight line.
    assert slow.places.minutes[0, 1] == pytest.approx(60 * 1.3 * 7.47 / 20, rel=0.01)
    assert any("straight lines" in note and "20 km/h" in note for note in slow.notes)


def test_places_without_names_are_named_after_their_coordinates(tmp_path):
    rows = [row[:2] + row[4:] for row in trip_rows()]
    data = read_data(settings(write(tmp_path / "trips.csv", rows)))
    assert "48.140, 11.560" in data.places.names
    assert len(data.places.names) == len(PLACES)


def test_flexibility_that_is_not_given_is_sampled_from_the_stated_shares(tmp_path):
    path = write(tmp_path / "trips.csv", trip_rows(customers=45))
    first, other = (read_data(settings(path, city_seed=seed)) for seed in (0, 1))
    assert not np.array_equal(first.rows.types, other.rows.types)
    assert np.array_equal(first.rows.types, read_data(settings(path)).rows.types)
    assert any("late 25 %, early 40 %, none 20 %, both 15 %" in note for note in first.notes)
    by_customer = dict(zip(first.rows.customer.tolist(), first.rows.types.tolist(), strict=True))
    shares = np.bincount(list(by_customer.values()), minlength=4) / len(by_customer)
    assert np.abs(shares - TYPE_SHARES).max() < 0.25


def test_given_flexibility_is_kept(tmp_path):
    rows = trip_rows()
    rows[0].append("flexibility")
    for row in rows[1:]:
        row.append("both" if row[0] == "Frau M3" else "")
    data = read_data(settings(write(tmp_path / "trips.csv", rows)))
    assert set(data.rows.types[data.rows.customer == 3]) == {3}
    assert any("for 11 of 12 customers" in note for note in data.notes)


def test_a_matrix_in_minutes_says_so_in_its_first_cell(tmp_path):
    trips = write(tmp_path / "trips.csv", [row[:4] + row[8:] for row in trip_rows()])
    rows = matrix_rows(12)
    with pytest.raises(DataError, match="median drive of 12 seconds, so its times seem to be minutes"):
        read_data(settings(trips, travel_times=write(tmp_path / "unclear.csv", rows)))
    for unit, minutes in (("minutes", 12.0), ("seconds", 0.2)):
        rows[0][0] = unit
        data = read_data(settings(trips, travel_times=write(tmp_path / f"{unit}.csv", rows)))
        assert data.places.minutes[0, 1] == pytest.approx(minutes)


def test_columns_that_are_not_used_are_named(tmp_path):
    rows = trip_rows()
    rows[0].append("whelchair")
    for row in rows[1:]:
        row.append("1")
    data = read_data(settings(write(tmp_path / "trips.csv", rows)))
    assert any("not used: whelchair" in note for note in data.notes)


# --- wrong files


def cell(row, column, text):
    def change(rows, _):
        rows[row - 1][rows[0].index(column)] = text

    return change


def matrix_cell(row, column, text):
    def change(_, matrix):
        matrix[row - 1][column - 1] = text

    return change


def all_times(seconds):
    def change(_, matrix):
        matrix[:] = matrix_rows(seconds)

    return change


def heading(old, new):
    def change(rows, _):
        rows[0][rows[0].index(old)] = new

    return change


def added_column(name, text):
    def change(rows, _):
        for number, row in enumerate(rows):
            row.append(text if number else name)

    return change


def drop_rows(rows, _):
    del rows[1:]


def exchange_coordinates(rows, _):
    for place in (4, 6):
        rows[1][place], rows[1][place + 1] = "-33.9", "151.2"


def no_coordinates(rows, _):
    for row in rows:
        del row[4:8]


# Name: whether there is a matrix, the changes, and what the answer names.
WRONG_FILES = {
    "no customer column": (False, [heading("Customer", "note")], ["trips.csv has no column customer"]),
    "misspelt heading": (False, [heading("Customer", "custommer")], ["user_id); did you mean custommer?"]),
    "no place": (False, [heading("From", "a"), heading("from_lat", "b")], ["has no column from (also called"]),
    "no time": (False, [heading("pickup_time", "a")], ["has no column pickup_window"]),
    "everything missing": (
        False,
        [heading("Customer", "a"), heading("From", "b"), heading("from_lat", "c"), heading("pickup_time", "d")],
        ["no column customer", "no column from", "no column pickup_window"],
    ),
    "no headings": (
        False,
        [lambda rows, _: rows.pop(0)],
        ["trips.csv has no headings, its first row is Frau M0, 02.03.2026, Bahnhof, Klinik, 48.14,"],
    ),
    "duplicate headings": (False, [heading("purpose", "Customer")], ["has more than one column Customer"]),
    "no trips": (False, [drop_rows], ["trips.csv has a header but no trips"]),
    "no customer": (False, [cell(3, "Customer", "")], ["row 3, column Customer: the customer is missing"]),
    "no place in a row": (True, [cell(4, "To", "")], ["row 4, column To: the place is missing"]),
    "no time in a row": (False, [cell(5, "pickup_time", "")], ["row 5, column pickup_time: the trip has no time"]),
    "not a time": (False, [cell(5, "pickup_time", "25:00")], ["row 5, column pickup_time: '25:00' is not a time"]),
    "window backwards": (False, [cell(2, "pickup_time", "9:00-8:00")], ["column pickup_time: the window 9:00-8:00"]),
    "several rows": (
        False,
        [cell(row, "pickup_time", "noon") for row in range(2, 12)],
        ["rows 2, 3, 4, 5, 6 and 5 more, column pickup_time: 'noon'"],
    ),
    "several texts in one column": (
        False,
        [cell(3, "Date", "31.13.2026"), cell(5, "Date", "tomorrow")],
        ["rows 3 and 5, column Date: '31.13.2026' is not a date like 2026-03-02. (That is row 3; the others"],
    ),
    "coordinates of a map grid in all rows": (
        False,
        [cell(row, name, "5335000") for row in range(2, 50) for name in ("from_lat", "to_lat")],
        [
            "and 43 more, column from_lat: '5335000' is not a latitude",
            "and 43 more, column to_lat: '5335000' is not a latitude",
        ],
    ),
    "a place without coordinates": (
        False,
        [cell(4, "To", "Hospital"), cell(4, "to_lat", "")],
        ["places (Hospital), and there is no file of travel times. Fill the columns from_lat,"],
    ),
    "dropoff first": (False, [added_column("dropoff_time", "06:30")], ["column dropoff_time: the dropoff window"]),
    "not a date": (False, [cell(3, "Date", "31.02.2026")], ["row 3, column Date: '31.02.2026' is not a date"]),
    "latitude": (False, [cell(3, "from_lat", "248.1")], ["row 3, column from_lat: '248.1' is not a latitude"]),
    "text as longitude": (False, [cell(3, "to_lon", "east")], ["row 3, column to_lon: 'east' is not a longitude"]),
    "far place": (
        False,
        [cell(2, "From", "Sydney"), cell(2, "To", "Manly"), exchange_coordinates],
        ["row 2, column From and 1 more cell: the place 'Sydney' at -33.900, 151.200 is 16,330 km from the middle"],
    ),
    "exchanged coordinates": (
        False,
        [cell(5, "from_lat", "11.47"), cell(5, "from_lon", "48.11")],
        ["row 5, column From: the place 'Klinik' is at 11.470, 48.110 here, but at 48.110, 11.470 in row 2"],
    ),
    "coordinates of another place": (
        True,
        [cell(2, "to_lat", "48.17"), cell(2, "to_lon", "11.59")],
        ["row 2, column To: the place 'Klinik' is at 48.170, 11.590 here", "these are the coordinates of 'Markt'."],
    ),
    "one name for two places": (
        False,
        [cell(2, "to_lat", "48.2"), cell(2, "to_lon", "11.7")],
        ["row 2, column To: the place 'Klinik' is at 48.200", "another place needs another name."],
    ),
    "one name for everybody's home": (
        False,
        [
            change
            for row in range(2, 12)
            for change in (cell(row, "To", "home"), cell(row, "to_lat", f"{48.1 + 0.03 * (row % 5)}"))
        ],
        ["column To: the place 'home' is at "],
    ),
    "same place": (
        False,
        [cell(2, "To", "Bahnhof"), cell(2, "to_lat", "48.14"), cell(2, "to_lon", "11.56")],
        ["row 2, column To: pickup and dropoff are the same place, 'Bahnhof'"],
    ),
    "a place without a name does not count": (
        False,
        [no_coordinates, cell(2, "To", "")],
        ["row 2, column To: the place is missing", "has no coordinates for 5 of its 5 places (Bahnhof, "],
    ),
    "headings in another language": (
        False,
        [heading("Customer", "Kunde"), heading("pickup_time", "Abholzeit"), cell(3, "Date", "soon")],
        [
            "no column customer (also called traveler_id, traveller_id, customer_id, client_id, client, rider_id,",
            "no column pickup_window (also called departure_time_window, pickup_time,",
            "row 3, column Date: 'soon'",
        ],
    ),
    "places, times and people": (
        False,
        [
            added_column("passengers", "2"),
            cell(3, "from_lat", "11.59"),
            cell(3, "from_lon", "48.17"),
            cell(4, "pickup_time", "23:50"),
            cell(5, "passengers", "99"),
            cell(6, "passengers", "none"),
            cell(7, "Customer", ""),
        ],
        [
            "row 3, column From: the place 'Markt' is at 11.590, 48.170 here",
            "row 4, column pickup_time: no vehicle can serve this trip: its dropoff may be as late as 24:",
            "row 5, column passengers: 99 people, 0 of them in wheelchairs, have places in no vehicle",
            "row 6, column passengers: 'none'",
            "row 7, column Customer",
        ],
    ),
    "passengers": (False, [added_column("passengers", "0")], ["column passengers: '0' is not a number of people"]),
    "wheelchair": (False, [added_column("wheelchair", "maybe")], ["'maybe' is neither yes (yes, y, true, x, ja,"]),
    "flexibility": (False, [added_column("flexibility", "grumpy")], ["column flexibility: 'grumpy' is not a customer"]),
    "tolerance": (
        False,
        [added_column("earlier_minutes", "5"), added_column("later_minutes", "-5")],
        ["column later_minutes: '-5' is not a number of minutes"],
    ),
    "no coordinates and no matrix": (False, [no_coordinates], ["has no coordinates for 5 of its 5 places"]),
    "a cell too many": (False, [lambda rows, _: rows[6].append("x")], ["row 7: the row has 11 columns, but"]),
    "unknown place": (
        True,
        [cell(6, "From", "Bahnhoff")],
        ["column From: the place 'Bahnhoff'", "did you mean Bahnhof"],
    ),
    "115-day drive": (True, [matrix_cell(2, 3, "9936000")], ["row 2, column Klinik: a drive of 115 d 00 h (9936000)"]),
    "all zero": (True, [all_times(0)], ["matrix.csv has no travel time above 0"]),
    "minutes": (True, [all_times(14)], ["seem to be minutes. Write minutes"]),
    "other units": (
        True,
        [matrix_cell(1, 1, "km"), cell(2, "Customer", "")],
        ["matrix.csv has km in its first cell; expected driving times in seconds or minutes", "row 2, column Customer"],
    ),
    "a few unknown places": (
        True,
        [cell(6, "From", "Bahnhoff"), cell(7, "To", "Kaserne"), cell(8, "From", "Kaserne")],
        [
            "row 6, column From: the place 'Bahnhoff' is not in",
            "did you mean Bahnhof",
            "row 7, column To and 1 more cell: the place 'Kaserne' is not in",
        ],
    ),
    "many unknown places": (
        True,
        [cell(row, "From", f"Haus {row}") for row in range(2, 10)],
        ["rows 2, 3, 4, 5, 6 and 3 more, column From: 8 places are not in", "matrix.csv: Haus 2, Haus 3, Haus 4,"],
    ),
    "a list of pairs": (
        True,
        [lambda _, matrix: matrix.__setitem__(slice(None), [["From", "To", "s"], ["Bahnhof", "Markt", "300"]])],
        ["matrix.csv is a list of pairs; expected a table with one row and one column per place"],
    ),
    "not square": (True, [lambda _, matrix: matrix.pop()], ["matrix.csv is not square: 4 rows and 5 columns"]),
    "labels": (True, [matrix_cell(3, 1, "Klinikum")], ["row 3, column 1: the row is labelled 'Klinikum'"]),
    "too slow": (
        True,
        [all_times(40_000)],
        ["no vehicle can serve this trip: a vehicle must le", "no vehicle can serve this trip: its dropoff may be"],
    ),
    "faster than any vehicle": (True, [all_times(70)], ["median speed of"]),
    "both files": (
        True,
        [
            cell(2, "Customer", ""),
            cell(3, "pickup_time", "early"),
            cell(4, "To", "Nowhere"),
            cell(5, "Date", "soon"),
            matrix_cell(2, 3, "far"),
            matrix_cell(4, 4, "60"),
        ],
        [
            "6 problems",
            "row 2, column Customer",
            "row 3, column pickup_time: 'early'",
            "row 4, column To: the place 'Nowhere'",
            "row 5, column Date: 'soon'",
            "matrix.csv, row 2, column Klinik: 'far' is not a travel time",
            "matrix.csv, row 4, column Markt: the travel time from a place to itself",
        ],
    ),
}


@pytest.mark.parametrize(("has_matrix", "changes", "messages"), WRONG_FILES.values(), ids=WRONG_FILES)
def test_a_wrong_file_gets_one_answer_that_names_all_its_problems(tmp_path, has_matrix, changes, messages):
    rows, matrix = trip_rows(), matrix_rows()
    for change in changes:
        change(rows, matrix)
    trips = write(tmp_path / "trips.csv", rows)
    travel_times = write(tmp_path / "matrix.csv", matrix) if has_matrix else None
    with pytest.raises(DataError) as caught:
        read_data(settings(trips, travel_times=travel_times))
    text = str(caught.value)
    for message in messages:
        assert message in text
    same = ("problems", "mean Bahnhof", "of 'Markt'.", "another name.", "Haus 4,")
    expected = len([message for message in messages if not message.endswith(same)])
    assert len(caught.value.problems) == expected, text
    assert len(text) < 2000


@pytest.mark.filterwarnings("error")
def test_a_matrix_of_another_city_is_named_without_warnings(tmp_path):
    matrix = write(tmp_path / "matrix.csv", [["", "A", "B"], ["A", "0", "300"], ["B", "300", "0"]])
    with pytest.raises(DataError, match="the place 'Bahnhof' is not in") as caught:
        read_data(settings(write(tmp_path / "trips.csv", trip_rows()), travel_times=matrix))
    assert len(caught.value.problems) == 5


def test_points_of_one_place_may_differ_a_little_and_those_of_an_area_more(tmp_path):
    rows = trip_rows()
    for number, row in enumerate(rows[1:]):
        for column in (4, 6):
            row[column] = f"{float(row[column]) + 0.002 * (number % 5):.4f}"
    read_data(settings(write(tmp_path / "trips.csv", rows)))
    for number, row in enumerate(rows[1:]):
        for column in (4, 6):
            row[column] = f"{float(row[column]) + 0.01 * (number % 7):.4f}"
    areas = write(tmp_path / "areas.csv", rows)
    read_data(settings(areas, travel_times=write(tmp_path / "matrix.csv", matrix_rows())))
    with pytest.raises(DataError, match="'Bahnhof' is at 11 positions; a place has one position, so give each another"):
        read_data(settings(areas))


def test_trips_within_an_area_of_the_matrix_are_noted(tmp_path):
    rows = trip_rows()
    rows[3][3] = rows[3][2]
    trips = write(tmp_path / "trips.csv", [row[:4] + row[8:] for row in rows])
    data = read_data(settings(trips, travel_times=write(tmp_path / "matrix.csv", matrix_rows())))
    assert "trips.csv: 1 trip to the place of the pickup, with a ride of 0 minutes: row 4." in data.notes


@pytest.mark.parametrize("text", ["Ja", "oui", "SI", "1"])
def test_yes_is_understood_in_several_languages(tmp_path, text):
    rows = [[*row, "wheelchair" if number == 0 else text] for number, row in enumerate(trip_rows())]
    assert read_data(settings(write(tmp_path / "trips.csv", rows))).rows.wheelchairs.all()


def test_a_quote_that_is_not_closed_is_named_with_its_row(tmp_path):
    rows = trip_rows()
    rows[3][0] = '"' + rows[3][0]
    with pytest.raises(DataError, match=r"row 4: the row has a double quote that is not closed") as caught:
        read_data(settings(write(tmp_path / "trips.csv", rows)))
    assert len(caught.value.problems) == 1
    rows[3][0] += '"'
    assert len(read_data(settings(write(tmp_path / "trips.csv", rows))).rows.customer) == len(rows) - 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\x03\x04 and so on", "is a spreadsheet file; save trips as CSV"),
        (b"a,b\n\x00\x01,2", "is not a text file"),
        (b"\xff\xfea", "is not a text file"),
        (b"", "is empty; expected trips under a header row"),
        (b"\n<!DOCTYPE html><html><table><tr><td>Client</td>", "is a web page or another file of tags (HTML, XML)"),
        (b'<?xml version="1.0"?>\n<trips><trip/></trips>', "is a web page or another file of tags (HTML, XML)"),
        (b'[{"client": "A", "from": "x"}]', "is a JSON file; save trips as CSV"),
        (b'{\n  "trips": []\n}', "is a JSON file; save trips as CSV"),
        (b"%PDF-1.7\n1 0 obj", "is a PDF file; save trips as CSV"),
    ],
)
def test_a_file_that_is_no_csv_file_says_what_it_is(tmp_path, content, message):
    (tmp_path / "trips.csv").write_bytes(content)
    problems = Problems()
    assert read_table(tmp_path / "trips.csv", "trips", problems) is None
    assert [message in str(problem) for problem in problems.found] == [True]


# --- passengers, wheelchairs and vehicles

VEHICLES = [
    ["Type", "Count", "Seats", "Wheelchair places", "Shift start", "Shift end"],
    ["van", "2", "2", "1", "06:00", "13:00"],
    ["late van", "2", "2", "1", "12:00", ""],
    ["bus", "2", "6", "", "", ""],
]


def group_trips():
    """Trips of one to five people, some of them in wheelchairs."""
    rows = trip_rows(customers=20)
    rows[0] += ["passengers", "wheelchair"]
    for number, row in enumerate(rows[1:]):
        row += ["1", "yes"] if number % 5 == 0 else [str(1 + number % 4 + (number % 7 == 0)), "0"]
    return rows


def test_days_keep_the_places_and_shifts_of_the_vehicles(tmp_path):
    trips = write(tmp_path / "trips.csv", group_trips(), ";")
    vehicles = write(tmp_path / "vehicles.csv", VEHICLES, ";")
    own = settings(trips, num_customers=10, vehicles=vehicles, unserved="penalty")
    population = population_for(own)
    assert [(kind.count, kind.seats, kind.wheelchairs, kind.shift) for kind in population.vehicle_types] == [
        (2, 2, 1, (360.0, 780.0)),
        (2, 2, 1, (720.0, 1440.0)),
        (2, 6, 0, (0.0, 1440.0)),
    ]
    assert set(np.unique(population.riders)) == {1, 2, 3, 4, 5, WHEELCHAIR}
    env = Dvrp(np.arange(8), own)
    batch = env.reset(1)
    riders = population.riders[env.true_state["trip_id"]].copy()
    for _ in range(9):
        batch = env.step(env.offers.largest(batch.mask))
    routes = env.route_costs.routes
    assert np.array_equal(routes.problems.riders[:, :9], riders[:, :9])
    assert violations(routes.problems, routes.solutions()) == []
    assert routes.problems.fleet.num_vehicles == 6

    days, _ = simulate_days("none", own, 4, seed=1)
    problems = days.problems(days.requested_windows, population, own)
    assert np.array_equal(problems.riders, population.riders[days.trip_id])
    assert problems.fleet.types == population.vehicle_types
    assert check_data(own).fit_problem.endswith(
        f"add vehicles to {vehicles}, make shifts longer, or lower --customers."
    )


def test_offers_that_only_a_shift_forbids_are_not_allowed(tmp_path):
    trips = write(tmp_path / "trips.csv", trip_rows())
    early = [VEHICLES[0], ["van", "5", "8", "0", "07:00", "24:00"]]
    plain, limited = (
        population_for(settings(trips, vehicles=path)) for path in (None, write(tmp_path / "vehicles.csv", early))
    )
    first = limited.trips.windows[:, 0, 0] <= 7 * 60 + 30
    assert (limited.allowed <= plain.allowed).all()
    assert limited.allowed[first].sum() < plain.allowed[first].sum()
    assert np.array_equal(limited.allowed[~first], plain.allowed[~first])


def test_without_vehicles_passengers_take_seats(tmp_path):
    path = write(tmp_path / "trips.csv", group_trips())
    data = read_data(settings(path))
    assert data.riders.max() == 5
    assert any("16 trips with a wheelchair, but no vehicles were given" in note for note in data.notes)
    with pytest.raises(DataError, match="5 people, 0 of them in wheelchairs, have places in no vehicle"):
        read_data(settings(path, capacity=4))


WRONG_VEHICLES = {
    "no seats": ((0, 2, "places"), "vehicles.csv has no column seats"),
    "count": ((1, 1, "two"), "row 2, column Count: 'two' is not a whole number from 1"),
    "no number of seats": ((3, 2, "many"), "row 4, column Seats: 'many' is not a whole number"),
    "half a seat": ((2, 2, "1.5"), "row 3, column Seats: '1.5' is not a whole number"),
    "shift": ((1, 4, "dawn"), "row 2, column Shift start: 'dawn' is not a time like 06:00"),
    "backwards": ((1, 5, "05:00"), "row 2, column Shift end: the shift ends before it starts"),
    "no places": ((3, 2, "0"), "row 4, column Seats: the vehicle has neither seats"),
    "too small": ((3, 2, "3"), "4 people, 0 of them in wheelchairs, have places in no vehicle; add seats"),
    "too early": ((2, 4, "23:00"), "a vehicle must leave the depot by .* and no shift of a vehicle"),
}


@pytest.mark.parametrize(("change", "message"), WRONG_VEHICLES.values(), ids=WRONG_VEHICLES)
def test_errors_in_vehicles_name_row_and_column(tmp_path, change, message):
    row, column, text = change
    rows = [list(line) for line in VEHICLES]
    rows[row][column] = text
    vehicles = write(tmp_path / "vehicles.csv", rows)
    with pytest.raises(DataError, match=message) as caught:
        read_data(settings(write(tmp_path / "trips.csv", group_trips()), vehicles=vehicles))
    assert len(caught.value.problems) == 1


# --- the check as a whole, and the template


def test_a_fleet_that_is_too_small_is_named_with_one_that_suffices(tmp_path):
    rows = trip_rows(customers=20, trips=1)
    for row in rows[1:]:
        row[8] = "08:00-08:05"
    small = settings(write(tmp_path / "trips.csv", rows), num_customers=10, num_vehicles=2, capacity=1)
    problem = check_data(small).fit_problem
    assert "2 vehicles cannot serve all 10 requests on 16 of 16 sampled days; " in problem
    enough = int(problem.split("--num-vehicles ")[1].partition(")")[0])
    larger = settings(small.trips, num_customers=10, num_vehicles=enough, capacity=1)
    assert unserved_days(population_for(larger), larger) == 0
    assert check_data(larger).fit_problem == ""


def test_a_fleet_that_is_too_small_is_named_together_with_wrong_rows(tmp_path):
    rows = trip_rows(customers=20, trips=1)
    for row in rows[1:]:
        row[8] = "08:00-08:05"
    rows[0].append("passengers")
    for number, row in enumerate(rows[1:]):
        row.append("99" if number == 2 else "1")
    small = settings(write(tmp_path / "trips.csv", rows), num_customers=10, num_vehicles=1, capacity=1)
    summary = check_data(small)
    assert [problem.cells for problem in summary.problems] == [[(4, "passengers")]]
    assert summary.fit_problem.startswith("1 vehicle cannot serve all 10 requests on 16 of 16 sampled days; ")
    assert summary.fit_problem.endswith("(The rows above were left out here.)")
    few = check_data(settings(small.trips, num_customers=25, capacity=1))
    assert len(few.problems) == 1
    assert "only 19 customers with trips for 25 requests a day, at most one per customer; set" in few.fit_problem
    for row in rows[1:]:
        row[-1] = "99"
    none = check_data(settings(write(tmp_path / "trips.csv", rows), num_customers=10, capacity=1))
    assert len(none.problems) == 1
    assert none.fit_problem == ""


def test_one_person_is_not_called_people(tmp_path):
    rows = trip_rows()
    rows[0].append("wheelchair")
    for number, row in enumerate(rows[1:]):
        row.append("yes" if number == 3 else "")
    vehicles = write(tmp_path / "vehicles.csv", [["count", "seats", "wheelchairs"], ["1", "1", ""], ["1", "4", ""]])
    own = settings(write(tmp_path / "trips.csv", rows), vehicles=vehicles)
    assert "row 5, column wheelchair: 1 person, 1 of them in wheelchairs, has places" in str(
        check_data(own).problems[0]
    )
    rows[4][-1] = ""
    own = settings(write(tmp_path / "trips.csv", rows), vehicles=vehicles, num_customers=2)
    figures = check_data(own).figures
    assert figures["vehicles"] == "1 vehicle with 1 seat, 00:00 to 24:00; 1 vehicle with 4 seats, 00:00 to 24:00"


def test_requests_per_day_that_differ_from_the_file_are_noted(tmp_path):
    path = write(tmp_path / "trips.csv", trip_rows(customers=40, trips=2))
    assert any("consider --customers 40" in note for note in check_data(settings(path)).notes)


def test_the_template_is_without_problems_and_explains_every_column(tmp_path):
    trips, travel_times, vehicles, readme = write_template(tmp_path / "own")
    default = DvrpSettings(trips=str(trips), travel_times=str(travel_times), vehicles=str(vehicles))
    data = read_data(default)
    assert not any("not used" in note for note in data.notes)
    population = population_for(default)
    assert population.customers.num_known == 30
    explained = readme.read_text()
    for heading_ in (*data.table.header, *vehicles.read_text().splitlines()[0].split(",")):
        assert f"| {heading_} |" in explained
    with pytest.raises(SettingsError, match="exists already"):
        write_template(tmp_path / "own")
