"""TDS of TCRP Report 210: trip requests in, responses out, with the published field names."""

import json
from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

import jsonschema_rs
import pytest
from fastapi.testclient import TestClient
from pydantic import ValidationError

from helpers.desk import FIRST_DAY, book_as_requested, make_desk, trips
from hundredfold.desk.server import create_app
from hundredfold.desk.tds import TripRequest, TripRequestResponse

TIME = {"type": "object", "properties": {"time": {"type": "string", "format": "date-time"}}, "required": ["time"]}
ADDRESS = {
    "type": "object",
    "properties": {
        "addressName": {"type": "string", "minLength": 1},
        "lat": {"type": "number", "minimum": -90, "maximum": 90},
        "long": {"type": "number", "minimum": -180, "maximum": 180},
    },
}
TEXT = {"type": "string", "maxLength": 500}
NULL = {"type": "null"}
TEXTS = {"anyOf": [{"type": "array", "items": TEXT, "maxItems": 50}, TEXT, NULL]}
OPTIONAL_TIME, OPTIONAL_FLAG, OPTIONAL_TEXT = ({"anyOf": [kind, NULL]} for kind in (TIME, {"type": "boolean"}, TEXT))
PLACE = {
    "type": "object",
    "properties": {
        "addressName": OPTIONAL_TEXT,
        "street": OPTIONAL_TEXT,
        "city": OPTIONAL_TEXT,
        "lat": {"anyOf": [{"type": "number", "minimum": -90, "maximum": 90}, NULL]},
        "long": {"anyOf": [{"type": "number", "minimum": -180, "maximum": 180}, NULL]},
        "geographicLocation": {
            "anyOf": [
                {
                    "type": "object",
                    "properties": {
                        "lat": {"type": "number", "minimum": -90, "maximum": 90},
                        "long": {"type": "number", "minimum": -180, "maximum": 180},
                    },
                    "required": ["lat", "long"],
                },
                NULL,
            ]
        },
    },
}
# Telegram 1A, from the published list of fields.
TRIP_REQUEST = {
    "type": "object",
    "properties": {
        "tripTicketId": {"type": "string", "pattern": "^[A-Za-z0-9._:-]+$", "minLength": 1, "maxLength": 64},
        "pickupAddress": PLACE,
        "dropoffAddress": PLACE,
        "pickupTime": OPTIONAL_TIME,
        "appointmentTime": OPTIONAL_TIME,
        "dropoffTime": OPTIONAL_TIME,
        "pickupWindowStartTime": OPTIONAL_TIME,
        "pickupWindowEndTime": OPTIONAL_TIME,
        "detoursPermissible": OPTIONAL_FLAG,
        "negotiatedPickupTime": OPTIONAL_TIME,
        "hardConstraintOnPickupTime": OPTIONAL_FLAG,
        "hardConstraintOnDropoffTime": OPTIONAL_FLAG,
        "customerInfo": {"anyOf": [{"type": "object", "properties": {"customerId": OPTIONAL_TEXT}}, NULL]},
        "numOtherReservedPassengers": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 999}, NULL]},
        "tripPurpose": OPTIONAL_TEXT,
        "specialAttributes": TEXTS,
        "transportServices": TEXTS,
        "detailedPickupLocationDescription": OPTIONAL_TEXT,
        "detailedDropoffLocationDescription": OPTIONAL_TEXT,
        "notesForDriver": OPTIONAL_TEXT,
        "openAttribute": OPTIONAL_TEXT,
    },
    "required": ["tripTicketId", "pickupAddress", "dropoffAddress"],
}
# Telegram 1B, from the published list of fields; others are for local use.
RESPONSE = {
    "type": "object",
    "properties": {
        "tripTicketId": {"type": "string"},
        "tripAvailable": {"type": "boolean"},
        "scheduledPickupTime": TIME,
        "scheduledPickupPoint": ADDRESS,
        "scheduledDropoffPoint": ADDRESS,
        "transferPoint": ADDRESS,
        "fareAmount": {"type": "number"},
        "negotiatedPickupTime": TIME,
        "pickupWindowStartTime": TIME,
        "pickupWindowEndTime": TIME,
        "hardConstraintOnPickupTime": {"type": "boolean"},
        "openAttribute": {"type": "string"},
    },
    "required": ["tripTicketId", "tripAvailable"],
    "additionalProperties": False,
}
TICKET = "0b9a2f0e-7d2c-4b60-8a34-8e0f5bb1c001"
REQUEST = {
    "tripTicketId": TICKET,
    "pickupAddress": {"addressName": "Union Square"},
    "dropoffAddress": {"lat": 37.7557, "long": -122.4046},
    "pickupTime": {"time": f"{FIRST_DAY}T09:00:00"},
    "customerInfo": {"customerId": "customer-3", "firstLegalName": "Ada"},
    "numOtherReservedPassengers": 1,
    "tripPurpose": "Medical",
}


@pytest.fixture(scope="module")
def client():
    desk = make_desk()
    for trip in trips(desk, 10):
        if trip.rider != "customer-3":
            book_as_requested(desk, FIRST_DAY, trip)
    return TestClient(create_app(desk), base_url="http://localhost")


@pytest.fixture(scope="module")
def new_york():
    """A desk three days before the clocks go forward in New York, and a client."""
    desk = make_desk(now=lambda: datetime(2026, 3, 5, 12, tzinfo=UTC), time_zone="America/New_York")
    return TestClient(create_app(desk), base_url="http://localhost")


def send(client, **changes):
    answer = client.post("/v1/tds/tripRequest", json={**REQUEST, **changes})
    assert answer.status_code == 200, answer.text
    jsonschema_rs.validate(RESPONSE, answer.json())
    return answer.json()


def test_a_trip_request_is_answered_by_a_response_of_the_schema(client):
    response = send(client)
    assert response["tripAvailable"]
    assert response["tripTicketId"] == TICKET
    assert response["scheduledDropoffPoint"]["addressName"] == "SF General"
    start, end = (response[f"pickupWindow{side}Time"]["time"] for side in ("Start", "End"))
    assert start <= response["scheduledPickupTime"]["time"] <= end
    assert send(client)["openAttribute"] == response["openAttribute"], "the same ticket gets the same quote"
    day = client.get(f"/v1/days/{FIRST_DAY}").json()
    (request,) = [view for view in day["bookings"] if view["rider"] == "customer-3"]
    assert (request["passengers"], request["purpose"], request["status"]) == (2, "medical", "quoted")


def test_a_hard_constraint_leaves_the_pickup_where_it_is(client):
    response = send(client, tripTicketId="hard-1", hardConstraintOnPickupTime=True)
    assert "negotiatedPickupTime" not in response
    assert response["pickupWindowStartTime"]["time"].startswith(f"{FIRST_DAY}T09:00")


def test_an_appointment_is_reached_in_time(client):
    time = {"time": f"{FIRST_DAY}T12:00:00Z"}
    response = send(client, tripTicketId="late-1", pickupTime=None, appointmentTime=time)
    assert response["pickupWindowEndTime"]["time"] < f"{FIRST_DAY}T12:00"


def test_a_telegram_without_time_or_place_is_refused(client):
    for changes in ({"pickupTime": None}, {"pickupAddress": {"addressName": "Atlantis"}}, {"tripTicketId": "<b>"}):
        answer = client.post(
            "/v1/tds/tripRequest",
            content=json.dumps({**REQUEST, **changes}),
            headers={"content-type": "application/json"},
        )
        assert answer.status_code == 422


def test_the_models_have_the_fields_of_the_published_list():
    assert set(TripRequest.model_fields) == set(TRIP_REQUEST["properties"])
    assert set(TripRequestResponse.model_fields) == set(RESPONSE["properties"]) - {"transferPoint", "fareAmount"}
    jsonschema_rs.validate(TRIP_REQUEST, REQUEST)


VALUES = (None, True, 1, 2.5, "x", [], ["x"], {}, {"time": "2100-01-01T09:00:00Z"}, {"time": 1}, {"lat": 1, "long": 2})


@pytest.mark.parametrize("field", TRIP_REQUEST["properties"])
def test_the_models_take_what_the_schema_allows_and_nothing_else(field):
    """Numbers as flags and flags as numbers are read leniently, as clients write them."""
    for value in VALUES:
        telegram = {**REQUEST, "appointmentTime": {"time": "2100-01-01T10:00:00Z"}, field: value}
        allowed = jsonschema_rs.is_valid(TRIP_REQUEST, telegram)
        try:
            TripRequest.model_validate(telegram)
        except ValidationError:
            assert not allowed, value
        else:
            assert allowed or isinstance(value, bool | int), value


WRONG = {
    "no ticket": {"tripTicketId": None},
    "SQL as ticket": {"tripTicketId": "x'; DROP TABLE journal; --"},
    "address without its form": {"pickupAddress": "Union Square"},
    "latitude beyond the pole": {"dropoffAddress": {"lat": 91, "long": 0}},
    "half a passenger": {"numOtherReservedPassengers": 0.5},
    "word as flag": {"hardConstraintOnPickupTime": "perhaps"},
    "time of no calendar": {"pickupTime": {"time": "2100-02-30T09:00:00"}},
    "time without its form": {"pickupTime": "09:00"},
    "long note": {"notesForDriver": "x" * 501},
    "HTML as rider": {"customerInfo": {"customerId": "<script>alert(1)</script>"}},
    "SQL as rider": {"customerInfo": {"customerId": "x'; DROP TABLE journal; --"}},
    "HTML as address": {"pickupAddress": {"addressName": "<script>alert(1)</script>"}},
    "before the calendar": {"pickupTime": {"time": "0001-01-01T00:00:00+14:00"}},
    "after the calendar": {"pickupTime": {"time": "9999-12-31T23:59:59-14:00"}},
    "last day": {"pickupTime": {"time": "9999-12-31T23:00:00"}},
}


@pytest.mark.parametrize("changes", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_telegram_is_refused_and_nothing_is_stored(changes):
    desk = make_desk()
    client = TestClient(create_app(desk), base_url="http://localhost")
    answer = client.post("/v1/tds/tripRequest", json={**REQUEST, **changes})
    assert answer.status_code == 422, answer.text
    assert "script" not in answer.text
    assert "DROP" not in answer.text
    assert list(desk.journal.all_events()) == []


def test_a_ticket_with_another_trip_is_refused(client):
    send(client, tripTicketId="twice")
    other = {**REQUEST, "tripTicketId": "twice", "pickupTime": {"time": f"{FIRST_DAY}T15:00:00"}}
    answer = client.post("/v1/tds/tripRequest", json=other)
    assert (answer.status_code, answer.json()["code"]) == (409, "reference_used")


@pytest.mark.parametrize(
    ("code", "purpose"), [("D", "medical"), ("E", "work"), ("g", "shopping"), ("dentist", "medical"), ("?", "other")]
)
def test_codes_and_words_of_purposes_are_read(client, code, purpose):
    ticket = f"purpose-{purpose}-{len(code)}"
    ids = send(client, tripTicketId=ticket, tripPurpose=code, customerInfo=None)["openAttribute"]
    assert client.get(f"/v1/requests/{ids.split()[0].partition('=')[2]}").json()["purpose"] == purpose


@pytest.mark.parametrize(
    ("sent", "day", "minute", "offset"),
    [
        ("2026-03-07T14:00:00Z", date(2026, 3, 7), 540, "-05:00"),  # nine in winter
        ("2026-03-08T13:00:00Z", date(2026, 3, 8), 540, "-04:00"),  # nine in summer, on the day of the change
        ("2026-03-09T13:00:00+00:00", date(2026, 3, 9), 540, "-04:00"),
        ("2026-03-09T09:00:00", date(2026, 3, 9), 540, "-04:00"),  # without a zone: local
        ("2026-11-02T14:00:00Z", date(2026, 11, 2), 540, "-05:00"),
    ],
)
def test_times_are_those_of_the_zone_whatever_the_season(new_york, sent, day, minute, offset):
    ticket = sent.replace("+", "p")
    response = send(new_york, tripTicketId=ticket, pickupTime={"time": sent}, hardConstraintOnPickupTime=True)
    start = response["pickupWindowStartTime"]["time"]
    assert start == f"{day}T09:00:00{offset}"
    request = response["openAttribute"].split()[0].partition("=")[2]
    view = new_york.get(f"/v1/requests/{request}").json()
    assert (view["day"], view["requested_pickup_window"]["early"]) == (str(day), minute)
    if "Z" in sent or "+" in sent:
        assert datetime.fromisoformat(start) == datetime.fromisoformat(sent.replace("Z", "+00:00"))
    assert (
        datetime.fromisoformat(start).utcoffset()
        == datetime(day.year, day.month, day.day, 9, tzinfo=ZoneInfo("America/New_York")).utcoffset()
    )


def test_coordinates_in_a_geographic_location_find_the_place(client):
    point = {"geographicLocation": {"lat": 37.7557, "long": -122.4046, "precision": 1}}
    response = send(client, tripTicketId="geo-1", dropoffAddress=point)
    assert response["scheduledDropoffPoint"]["addressName"] == "SF General"
