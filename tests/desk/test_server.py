"""The HTTP API: booking a day, bad input, access, metrics and logs."""

import csv
import html
import io
import json
import logging
import socket
from urllib.parse import quote as percent

import hypothesis
import pytest
import schemathesis
from fastapi.testclient import TestClient

from helpers.desk import FIRST_DAY, Clock, make_desk, own_city, trips
from hundredfold.cli import desk as desk_cli
from hundredfold.cli import main
from hundredfold.core.errors import SettingsError
from hundredfold.desk.operations import JsonLog
from hundredfold.desk.security import GuardSettings
from hundredfold.desk.server import ServerOptions, create_app

DAY = f"/v1/days/{FIRST_DAY}"
TRIP = {"rider": "Ada", "pickup": "Union Square", "dropoff": "SF General", "pickup_time": "09:00"}
TOKEN = "correct-horse-battery"
SQL, HTML = "x'; DROP TABLE journal; --", "<script>alert(1)</script>"


@pytest.fixture
def desk(tmp_path):
    desk = make_desk(f"sqlite:///{tmp_path / 'desk.db'}")
    yield desk
    desk.journal.close()


@pytest.fixture(scope="module")
def untouched():
    """A desk that must stay empty, and a client."""
    desk = make_desk()
    return desk, TestClient(create_app(desk), base_url="http://localhost:8300")


@pytest.fixture
def client(desk):
    return TestClient(create_app(desk), base_url="http://localhost:8300")


def book(client, trip, choice="as_requested", **fields):
    quote = client.post(f"{DAY}/requests", json=trip).json()
    body = {"quote_id": quote["quote_id"], "choice": choice, **fields}
    return client.post(f"/v1/requests/{quote['request_id']}/response", json=body)


def journal_rows(desk):
    return len(list(desk.journal.all_events()))


def test_a_day_is_booked_changed_and_closed(client, desk):
    ids = []
    for trip in trips(desk, 10):
        answer = book(client, trip.model_dump(exclude_none=True))
        assert answer.status_code == 200, answer.text
        ids.append(answer.json()["request_id"])
    assert client.delete(f"/v1/requests/{ids[2]}").json()["status"] == "cancelled"
    assert client.get(f"/v1/requests/{ids[2]}").json()["vehicle"] is None
    assert client.post(f"{DAY}/undo").json()["cancellations"] == 0
    day = client.get(DAY).json()
    assert len(day["bookings"]) == 10
    assert day["driving_minutes"] == pytest.approx(sum(route["driving_minutes"] for route in day["routes"]))
    closed = client.post(f"{DAY}/close").json()
    stops = [line for manifest in closed["manifests"] for line in manifest["csv"].splitlines()[1:]]
    assert len(stops) == 20
    line, *points = closed["manifests"][0]["geojson"]["features"]
    assert len(line["geometry"]["coordinates"]) == len(points) + 2
    first = closed["manifests"][0]
    assert client.get(f"{DAY}/manifests/{first['vehicle']}.csv").text == first["csv"]
    rider = client.get(f"/v1/riders/{day['bookings'][0]['rider']}").json()
    assert (rider["requests"], len(rider["recurring_trips"])) == (1, 50)
    assert client.get("/v1/places").json()[0]["latitude"] == pytest.approx(37.7, abs=0.2)
    assert journal_rows(desk) == len(client.get("/v1/export").text.splitlines())


BAD_TRIPS = {
    "unknown place": ({"pickup": "Unoin Square"}, 422, "unknown_place"),
    "same place": ({"pickup": "SF General"}, 422, "same_place"),
    "no time": ({"pickup_time": None}, 422, "invalid"),
    "two times": ({"appointment_time": "10:00"}, 422, "invalid"),
    "time of no day": ({"pickup_time": "9:75"}, 422, "invalid"),
    "after the day": ({"pickup_time": "47:30"}, 422, "impossible"),
    "before the day": ({"pickup_time": None, "appointment_time": "00:05"}, 422, "impossible"),
    "too many passengers": ({"passengers": 9}, 422, "too_many"),
    "no passengers": ({"passengers": 0}, 422, "invalid"),
    "half a passenger": ({"passengers": 1.5}, 422, "invalid"),
    "window of no minutes": (
        {"pickup_time": None, "pickup_window": {"early": 600, "late": 500}, "dropoff_window": {"early": 1, "late": 2}},
        422,
        "invalid",
    ),
    "window too short for the ride": (
        {
            "pickup_time": None,
            "pickup_window": {"early": 600, "late": 601},
            "dropoff_window": {"early": 602, "late": 603},
        },
        422,
        "impossible",
    ),
    "one window": ({"pickup_time": None, "pickup_window": {"early": 600, "late": 630}}, 422, "invalid"),
    "infinite window": ({"pickup_window": {"early": 0, "late": 1e400}}, 422, "invalid"),
    "unknown field": ({"colour": "red"}, 422, "invalid"),
    "no rider": ({"rider": ""}, 422, "invalid"),
    "long rider": ({"rider": "x" * 65}, 422, "invalid"),
    "trip of another rider": ({"trip": 3}, 422, "other_trip"),
    "a year too far": ({"rider": "Ada"}, 422, "too_far_ahead"),
    "line break": ({"rider": "Ada\nLovelace"}, 422, "invalid"),
    "null character": ({"rider": "Ada\0"}, 422, "invalid"),
    "half a character": ({"rider": "Ada \ud800"}, 422, "invalid"),
    "disguised name": ({"rider": "Ada \u202eecalevoL"}, 422, "invalid"),
    "no letter": ({"rider": "..."}, 422, "invalid"),
    "appointment without its time": ({"appointment": True}, 422, "invalid"),
    **{
        f"{name} in {field}": ({field: text}, 422, code)
        for field, code in (
            ("rider", "invalid"),
            ("pickup", "unknown_place"),
            ("dropoff", "unknown_place"),
            ("purpose", "invalid"),
            ("pickup_time", "invalid"),
            ("appointment_time", "invalid"),
            ("reference", "invalid"),
            ("trip", "invalid"),
            ("passengers", "invalid"),
            ("pickup_window", "invalid"),
            (HTML, "invalid"),
        )
        for name, text in (("SQL", SQL), ("HTML", HTML))
    },
}


@pytest.mark.parametrize(("changes", "status", "code"), BAD_TRIPS.values(), ids=BAD_TRIPS.keys())
def test_a_bad_trip_is_refused_and_nothing_is_stored(untouched, changes, status, code):
    desk, client = untouched
    body = json.dumps({**TRIP, **changes})
    day = DAY.replace("2100", "2206") if code == "too_far_ahead" else DAY
    answer = client.post(f"{day}/requests", content=body, headers={"content-type": "application/json"})
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (status, code), problem
    assert "script" not in answer.text
    assert "DROP" not in answer.text
    assert problem["reason"].endswith((".", "?"))
    assert "^" not in problem["reason"], "a pattern tells a clerk nothing"
    assert journal_rows(desk) == 0


def test_other_bad_requests_are_refused_and_nothing_is_stored(untouched):
    desk, client = untouched
    requests = [
        ("POST", "/v1/days/2099-12-30/requests", TRIP, 422),
        ("POST", "/v1/days/2099-12-31/requests", TRIP, 422),  # today, but before noon
        ("POST", "/v1/days/tomorrow/requests", TRIP, 422),
        ("POST", f"{DAY}/requests?offers=-1", TRIP, 422),
        ("POST", f"{DAY}/requests", [1, 2], 422),
        ("POST", f"{DAY}/undo", None, 409),
        ("POST", f"{DAY}/what-if", {"cancel": "nothing"}, 404),
        ("POST", "/v1/requests/none/response", {"quote_id": "a", "choice": "declined"}, 404),
        ("POST", "/v1/requests/none/response", {"quote_id": "a", "choice": "maybe"}, 422),
        ("POST", f"/v1/requests/{percent(SQL)}/response", {"quote_id": "a", "choice": "declined"}, 422),
        ("DELETE", "/v1/requests/none", None, 404),
        ("GET", f"/v1/riders/{percent(HTML)}", None, 404),
        ("GET", f"/v1/riders/{percent(SQL)}", None, 404),
        ("GET", "/v1/riders/%00", None, 422),
        ("POST", "/v1/days/2099-11-30/close", None, 409),
        ("POST", f"{DAY}/undo", {"version": SQL}, 422),
        ("POST", f"{DAY}/undo", {"version": 3}, 409),
        *((("POST", f"{DAY}/what-if", {"cancel": text}, 422)) for text in (SQL, HTML)),
        *((("POST", f"{DAY}/what-if", {"trip": {**TRIP, "rider": text}}, 422)) for text in (SQL, HTML)),
        *((("POST", f"{DAY}/what-if", {"trip": {**TRIP, "pickup": text}}, 422)) for text in (SQL, HTML)),
        *(
            ("POST", "/v1/requests/none/response", {"quote_id": text, "choice": "declined"}, 422)
            for text in (SQL, HTML)
        ),
        *(("POST", "/v1/requests/none/response", {"quote_id": "a", "choice": text}, 422) for text in (SQL, HTML)),
        ("GET", "/v1/riders/stranger", None, 404),
        ("GET", f"{DAY}/manifests/3.csv", None, 404),
        ("GET", "/v1/nothing", None, 404),
        ("PUT", DAY, None, 405),
    ]
    for method, path, body, status in requests:
        answer = client.request(method, path, json=body)
        assert answer.status_code == status, (path, answer.text)
        assert set(answer.json()) == {"code", "reason", "quote"}
        assert "script" not in answer.text
        assert "DROP" not in answer.text
    malformed = client.post(f"{DAY}/requests", content=b'{"rider": ', headers={"content-type": "application/json"})
    assert malformed.status_code == 422
    assert journal_rows(desk) == 0


def test_a_rider_cannot_be_booked_twice_at_a_time(client, desk):
    assert book(client, TRIP).status_code == 200
    rows = journal_rows(desk)
    answer = client.post(f"{DAY}/requests", json={**TRIP, "pickup_time": "09:15"})
    assert (answer.status_code, answer.json()["code"]) == (409, "double_booking")
    assert journal_rows(desk) == rows
    assert client.post(f"{DAY}/requests", json={**TRIP, "pickup_time": "15:00"}).status_code == 201


def test_an_offer_that_was_not_made_cannot_be_accepted(client, desk):
    quote = client.post(f"{DAY}/requests", json=TRIP).json()
    for body in ({"choice": "offer", "offer": 5}, {"choice": "as_requested", "refused": [5]}):
        answer = client.post(
            f"/v1/requests/{quote['request_id']}/response", json={"quote_id": quote["quote_id"], **body}
        )
        assert (answer.status_code, answer.json()["code"]) == (422, "unknown_offer")


def test_a_large_body_is_refused_however_it_is_sent(client, desk):
    large = json.dumps({**TRIP, "purpose": "x" * 10_000_000}).encode()
    assert client.post(f"{DAY}/requests", content=large).status_code == 413
    chunks = (large[first : first + 65_536] for first in range(0, len(large), 65_536))
    assert client.post(f"{DAY}/requests", content=chunks).status_code == 413
    assert journal_rows(desk) == 0


def test_data_needs_the_token_and_the_page_does_not(desk):
    client = TestClient(create_app(desk, ServerOptions(token=TOKEN)), base_url="https://desk.example.org")
    assert client.get("/").status_code == 200
    assert client.get("/healthz").status_code == 200
    assert {client.get(path).status_code for path in ("/docs", "/openapi.json")} == {200}, "they describe, without data"
    paths = (DAY, "/v1/export", "/v1/riders/customer-1", "/metrics")
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": TOKEN}):
        assert {client.get(path, headers=headers).status_code for path in paths} == {401}
    allowed = {"authorization": f"Bearer {TOKEN}"}
    assert {client.get(path, headers=allowed).status_code for path in paths} == {200}


def test_pages_of_other_sites_do_not_reach_the_desk(client, desk):
    assert client.post(f"{DAY}/requests", json=TRIP, headers={"origin": "https://evil.example"}).status_code == 403
    assert client.get(DAY, headers={"host": "evil.example"}).status_code == 403
    own = client.get(DAY, headers={"origin": "http://localhost:8300"})
    assert own.status_code == 200
    assert "access-control-allow-origin" not in own.headers
    assert "script-src 'self'" in client.get("/").headers["content-security-policy"]
    assert journal_rows(desk) == 0


@pytest.mark.parametrize("origin", ["http://[", "null", "http://localhost:8300@evil.example", "http://", "\xff"])
def test_a_malformed_origin_is_refused(client, origin):
    assert client.get(DAY, headers={"origin": origin.encode("latin-1")}).status_code == 403


def test_a_length_of_thousands_of_digits_is_refused(client):
    answer = client.post(f"{DAY}/requests", content=b"{}", headers={"content-length": "9" * 5000})
    assert answer.status_code == 413


NAMES = (
    "Smith, John",
    "Siobhán O'Brien-Núñez",
    "李小龍",
    "محمد علي",
    "Jean-Luc (b. 1940)",
    "A&B Care #12/3",
    "+1 555 0100",
)


@pytest.mark.parametrize("name", NAMES)
def test_names_of_the_real_world_are_taken_and_found_again(client, desk, name):
    booked = book(client, {**TRIP, "rider": f" {name}  "})
    assert (booked.status_code, booked.json()["rider"]) == (200, name)
    assert client.get(f"/v1/riders/{percent(name, safe='')}").json()["requests"] == 1
    closed = client.post(f"{DAY}/close").json()
    (row, _) = csv.DictReader(io.StringIO(closed["manifests"][0]["csv"]))
    assert row["rider"] == ("'" + name if name[0] in "=+-@" else name)
    assert desk.view(booked.json()["request_id"]).rider == name


def test_composed_and_decomposed_letters_are_one_rider(client):
    assert book(client, {**TRIP, "rider": "Zo\u00eb"}).status_code == 200
    again = client.post(f"{DAY}/requests", json={**TRIP, "rider": "Zoe\u0308"})
    assert (again.status_code, again.json()["code"]) == (409, "double_booking")


def test_an_operators_own_city_is_served_with_its_names(capsys, tmp_path, monkeypatch):
    places = {"Depot": [0, 12, 9], "Main St #4": [12, 0, 15], "St. Mary's; Wing <B>": [9, 15, 0]}
    rows = [
        ("Smith, John", "Main St #4", "St. Mary's; Wing <B>", "09:00-09:30", "09:15-09:50"),
        ("=Mary & Co", "St. Mary's; Wing <B>", "Main St #4", "11:00-11:30", "11:15-11:50"),
    ]
    own_city(tmp_path, places, rows)
    files = ["--trips", str(tmp_path / "trips.csv"), "--travel-times", str(tmp_path / "matrix.csv"), "--customers", "2"]
    files += ["--depot", "Depot"]
    request = ["rider=Smith, John", "pickup=Nowhere", "dropoff=Depot", "pickup_time=10:00"]
    assert main.main(["quote", *files, "--request", *request]) == 2
    assert "there is no place 'nowhere'" in capsys.readouterr().err.lower()
    request = ["rider=Smith, John", "pickup=Main St #4", "dropoff=St. Mary's; Wing <B>", "appointment_time=10:00"]
    assert main.main(["quote", *files, "--json", "--request", *request]) == 0
    assert json.loads(capsys.readouterr().out)["as_requested"]["dropoff_window"]["late"] == 600
    monkeypatch.setenv("COLUMNS", "80")
    assert main.main(["quote", *files, "--request", *request]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
    options = desk_cli.DeskOptions(
        trips=str(tmp_path / "trips.csv"), travel_times=str(tmp_path / "matrix.csv"), depot="Depot", customers=2
    )
    client = TestClient(create_app(make_desk(policy=desk_cli.desk_policy(options))), base_url="http://localhost:8300")
    trip = {"pickup": rows[1][1], "dropoff": rows[1][2], "pickup_time": "11:00"}
    assert [place["name"] for place in client.get("/v1/places").json()] == list(places)
    assert book(client, {**trip, "rider": "=Mary & Co"}).status_code == 200, "a rider of the operator's file"
    assert client.get("/v1/riders/%3DMary & Co").json()["recurring_trips"][0]["pickup"] == rows[1][1]
    manifest = client.post(f"{DAY}/close").json()["manifests"][0]
    (first, _) = csv.DictReader(io.StringIO(manifest["csv"]))
    assert (first["rider"], first["place"]) == ("'=Mary & Co", rows[1][1])
    assert manifest["geojson"]["features"] == [], "places without coordinates"


def test_speed_and_detours_of_a_city_without_travel_times_can_be_given():
    options = desk_cli.DeskOptions(trips="trips.csv", speed_kmh=24.0, detour_factor=1.5)
    settings = desk_cli.desk_policy(options).settings
    assert (settings.speed_kmh, settings.detour_factor) == (24.0, 1.5)
    default = desk_cli.desk_policy(desk_cli.DeskOptions(trips="trips.csv")).settings
    assert (default.speed_kmh, default.detour_factor) == (30.0, 1.3)
    with pytest.raises(SettingsError, match="--speed-kmh, --detour-factor cannot be combined with RUN"):
        desk_cli.desk_policy(desk_cli.DeskOptions(run="run", speed_kmh=24.0, detour_factor=1.5))


def test_a_mistake_of_the_desk_is_logged_without_names_and_answered(desk, monkeypatch):
    log = io.StringIO()
    client = TestClient(create_app(desk, ServerOptions(log=JsonLog(log))), base_url="http://localhost:8300")

    def fail(rider):
        raise RuntimeError(f"cannot read {rider}")

    monkeypatch.setattr(desk, "rider", fail)
    answer = client.get("/v1/riders/Ada Lovelace")
    assert (answer.status_code, answer.json()["code"]) == (500, "error")
    error, request = (json.loads(line) for line in log.getvalue().splitlines())
    assert (error["event"], error["error"], error["route"]) == ("error", "RuntimeError", "/v1/riders/{rider}")
    assert error["where"][-1].endswith(" fail")
    assert (request["event"], request["status"]) == ("request", 500)
    assert "Lovelace" not in log.getvalue()


def test_lines_of_the_server_are_json_too(desk):
    file = io.StringIO()
    log = JsonLog(file)
    log.emit(logging.LogRecord("uvicorn.error", logging.WARNING, "server.py", 1, "slow %s", ("client",), None))
    line = json.loads(file.getvalue())
    assert (line["event"], line["logger"], line["text"]) == ("log", "uvicorn.error", "slow client")


def test_the_api_is_described_on_a_page(client):
    page = client.get("/docs").text
    paths = client.get("/openapi.json").json()["paths"]
    assert len(paths) >= 14
    for path in paths:
        assert html.escape(path) in page
    for field in ("appointment_time", "quote_id", "expected_saving_minutes", "hardConstraintOnPickupTime"):
        assert field in page


def test_requests_beyond_the_rate_are_refused(desk):
    options = ServerOptions(guard=GuardSettings(requests_per_second=0.001, burst=3))
    client = TestClient(create_app(desk, options), base_url="http://localhost")
    assert [client.get("/healthz").status_code for _ in range(5)] == [200, 200, 200, 429, 429]


def test_logs_and_metrics_name_routes_but_no_riders(desk):
    log = io.StringIO()
    client = TestClient(create_app(desk, ServerOptions(log=JsonLog(log))), base_url="http://localhost")
    book(client, {**TRIP, "rider": "Ada Lovelace"})
    client.get("/v1/riders/Ada Lovelace")
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [line["route"] for line in lines][-1] == "/v1/riders/{rider}"
    assert {line["status"] for line in lines} == {200, 201}
    metrics = client.get("/metrics").text
    assert 'desk_quotes_total{servable="true"} 1.0' in metrics
    assert "Lovelace" not in log.getvalue() + metrics


def test_a_quote_that_expired_comes_back_with_a_new_one(tmp_path):
    now = Clock()
    desk = make_desk(f"sqlite:///{tmp_path / 'desk.db'}", now=now)
    client = TestClient(create_app(desk), base_url="http://localhost")
    quote = client.post(f"{DAY}/requests", json=TRIP).json()
    now.pass_minutes(5.1)
    body = {"quote_id": quote["quote_id"], "choice": "as_requested"}
    answer = client.post(f"/v1/requests/{quote['request_id']}/response", json=body)
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (409, "expired")
    body["quote_id"] = problem["quote"]["quote_id"]
    assert client.post(f"/v1/requests/{quote['request_id']}/response", json=body).json()["status"] == "booked"


@pytest.mark.parametrize("examples", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_no_input_of_the_schema_makes_a_server_error(desk, examples):
    options = ServerOptions(token=TOKEN, guard=GuardSettings(requests_per_second=1e6, burst=10**6))
    allowed = {"authorization": f"Bearer {TOKEN}"}
    app = create_app(desk, options)
    schema = schemathesis.openapi.from_asgi("/openapi.json", app, headers=allowed)
    tried = 0

    for operation in schema.get_all_operations():

        @hypothesis.settings(max_examples=examples, deadline=None, derandomize=True, database=None)
        @hypothesis.given(case=operation.ok().as_strategy())
        def send(case):
            nonlocal tried
            answer = case.call(headers=allowed)
            assert answer.status_code < 500, (case.method, case.path, answer.status_code)
            tried += 1

        send()
    assert tried >= 10 * examples


def test_answers_are_sent_at_once():
    """asyncio disables Nagle's algorithm, which holds answers back by 40 ms, only where the protocol is named."""
    with desk_cli._listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_only_loopback_needs_no_token(capsys, tmp_path):
    assert main.main(["serve", "--host", "0.0.0.0"]) == 2
    assert "--token-file" in capsys.readouterr().err
    short = tmp_path / "token"
    short.write_text("secret\n")
    assert main.main(["serve", "--host", "0.0.0.0", "--token-file", str(short)]) == 2
    assert "at least 16" in capsys.readouterr().err


def test_quote_answers_one_request_without_a_server(capsys, tmp_path):
    bookings = tmp_path / "day.csv"
    bookings.write_text(
        "rider,pickup,dropoff,pickup_window,dropoff_window,purpose\n"
        "customer-1,Union Square,SF General,09:00-09:30,09:15-09:45,medical\n"
    )
    request = ["rider=Ada", "pickup=Ferry Building", "dropoff=SF General", "pickup_time=09:10"]
    arguments = ["quote", "--policy", "greedy_expected", "--day", str(bookings), "--request", *request]
    assert main.main(arguments) == 0
    assert "as requested: pickup 09:10-09:40" in capsys.readouterr().out
    assert main.main([*arguments, "--json"]) == 0
    quote = json.loads(capsys.readouterr().out)
    assert quote["as_requested"]["bookable"]
    assert "stops" in quote["as_requested"]["reason"]
    as_json = json.dumps(dict(word.split("=") for word in request))
    assert main.main([*arguments[:-4], as_json]) == 0
    assert "as requested: pickup 09:10-09:40" in capsys.readouterr().out
    for odd in ("0_9:00-09:30", "09:00", "09:00-9:75", "09:00-09:30-10:00", ""):
        bookings.write_text(bookings.read_text().replace("09:00-09:30", odd))
        assert main.main(arguments) == 2
        assert "row 2, column pickup_window: expected a window like 08:30-09:00" in capsys.readouterr().err
        bookings.write_text(bookings.read_text().replace(f"General,{odd},", "General,09:00-09:30,"))
    bookings.write_text(bookings.read_text().replace("SF General", "Atlantis"))
    assert main.main(arguments) == 2
    assert "row 2" in capsys.readouterr().err
