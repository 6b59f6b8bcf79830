"""TDS of TCRP Report 210: trip requests in, responses out, with the published field names."""

import json

import jsonschema_rs
import pytest
from fastapi.testclient import TestClient

from helpers.desk import FIRST_DAY, book_as_requested, make_desk, trips
from hundredfold.desk.server import create_app

TIME = {"type": "object", "properties": {"time": {"type": "string", "format": "date-time"}}, "required": ["time"]}
ADDRESS = {
    "type": "object",
    "properties": {
        "addressName": {"type": "string", "minLength": 1},
        "lat": {"type": "number", "minimum": -90, "maximum": 90},
        "long": {"type": "number", "minimum": -180, "maximum": 180},
    },
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
