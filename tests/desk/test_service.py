"""The desk without a server: quotes, bookings, cancellations, undo, restarts and limits."""

from dataclasses import replace

import numpy as np
import pytest

from helpers.desk import ENV, FIRST_DAY, Clock, assert_saves_as_evaluated, book_as_requested, make_desk, trip_of, trips
from hundredfold.desk import population as desk_population
from hundredfold.desk.models import DeskError, ResponseIn, TripIn, WhatIfIn
from hundredfold.envs.dvrp.demand import population_for
from hundredfold.envs.dvrp.evaluation import simulate_days
from hundredfold.envs.dvrp.policies import PolicyOptions
from hundredfold.routing.verifier import violations

SEED = 9999
MEDICAL = TripIn(rider="Ada", pickup="Union Square", dropoff="SF General", pickup_time="09:00", purpose="medical")


@pytest.mark.parametrize("num_days", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_the_desk_decides_and_saves_as_evaluate_says(num_days):
    desk = make_desk(learn=False)
    days, population = simulate_days(
        "belief_greedy",
        ENV,
        num_days,
        SEED,
        options=PolicyOptions(beliefs=desk.beliefs.model, shift_penalty=ENV.effective_shift_penalty),
    )
    assert days.made.any()
    assert_saves_as_evaluated(desk, days, population, ENV)


def test_a_quote_names_cost_windows_probability_and_a_reason():
    desk = make_desk()
    for trip in trips(desk, 10):
        quote = desk.request(FIRST_DAY, trip)
        desk.respond(quote.request_id, ResponseIn(quote_id=quote.quote_id, choice="as_requested"))
    offers = [offer for offer in quote.offers if offer.recommended]
    assert quote.as_requested.bookable
    assert quote.as_requested.added_minutes >= 0
    assert len(quote.offers) <= 3
    assert [offer.offer for offer in offers] == ([] if quote.recommended is None else [quote.recommended])
    for offer in quote.offers:
        moved = quote.as_requested.pickup_window.early - offer.pickup_window.early
        assert moved == offer.earlier_minutes
        assert offer.pickup_window.early <= offer.pickup_minute <= offer.pickup_window.late
        assert offer.expected_saving_minutes == pytest.approx(-offer.probability * offer.change_minutes)
        assert offer.reason.startswith(("Saves", "Adds", "Vehicle"))


def test_a_restart_rebuilds_routes_to_the_last_bit(tmp_path):
    url = f"sqlite:///{tmp_path / 'desk.db'}"
    desk = make_desk(url)
    booked = [book_as_requested(desk, FIRST_DAY, trip) for trip in trips(desk, 16)]
    for number in (3, 7, 11):
        desk.cancel(booked[number].request_id)
    desk.undo(FIRST_DAY)
    before, routes = desk.day(FIRST_DAY), desk.days[FIRST_DAY].live.routes.state()
    desk.journal.close()
    again = make_desk(url)
    assert again.day(FIRST_DAY) == before
    restored = again.days[FIRST_DAY].live.routes.state()
    for name in ("routes", "lengths"):
        size = tuple(slice(0, min(sizes)) for sizes in zip(routes[name].shape, restored[name].shape, strict=True))
        np.testing.assert_array_equal(restored[name][size], routes[name][size])


def test_cancelling_keeps_the_routes_feasible_and_undo_restores_them():
    desk = make_desk()
    booked = [book_as_requested(desk, FIRST_DAY, trip) for trip in trips(desk, 12)]
    full = desk.day(FIRST_DAY)
    desk.cancel(booked[4].request_id)
    live = desk.days[FIRST_DAY].live
    assert violations(live.routes.problems, live.routes.solutions()) == []
    after = desk.day(FIRST_DAY)
    assert after.driving_minutes <= full.driving_minutes
    assert {stop.request_id for route in after.routes for stop in route.stops} == {
        booking.request_id for booking in booked
    } - {booked[4].request_id}
    undone = desk.undo(FIRST_DAY)
    assert undone.routes == full.routes
    assert undone.version > after.version


def test_the_same_response_twice_books_once_and_another_is_refused():
    desk = make_desk()
    quote = desk.request(FIRST_DAY, MEDICAL)
    response = ResponseIn(quote_id=quote.quote_id, choice="as_requested")
    assert desk.respond(quote.request_id, response) == desk.respond(quote.request_id, response)
    assert len(desk.day(FIRST_DAY).bookings) == 1
    with pytest.raises(DeskError, match="already booked"):
        desk.respond(quote.request_id, ResponseIn(quote_id=quote.quote_id, choice="declined"))


def test_the_same_reference_returns_the_same_request():
    desk = make_desk()
    trip = MEDICAL.model_copy(update={"reference": "call-1"})
    assert desk.request(FIRST_DAY, trip).request_id == desk.request(FIRST_DAY, trip).request_id
    assert desk.day(FIRST_DAY).requests == 1


def test_an_expired_quote_is_quoted_again():
    now = Clock()
    desk = make_desk(now=now)
    quote = desk.request(FIRST_DAY, MEDICAL)
    now.pass_minutes(6)
    with pytest.raises(DeskError, match="expired") as refused:
        desk.respond(quote.request_id, ResponseIn(quote_id=quote.quote_id, choice="as_requested"))
    new = refused.value.quote
    assert (refused.value.status, new.request_id) == (409, quote.request_id)
    booked = desk.respond(quote.request_id, ResponseIn(quote_id=new.quote_id, choice="as_requested"))
    assert booked.status == "booked"


def test_a_quote_that_the_day_has_overtaken_is_quoted_again():
    """One vehicle with one seat: whoever books first gets it."""
    desk = make_desk(env=replace(ENV, num_vehicles=1, capacity=1))
    first = desk.request(FIRST_DAY, MEDICAL)
    second = desk.request(FIRST_DAY, MEDICAL.model_copy(update={"rider": "Grace"}))
    assert second.as_requested.bookable
    desk.respond(first.request_id, ResponseIn(quote_id=first.quote_id, choice="as_requested"))
    with pytest.raises(DeskError, match="Other bookings") as refused:
        desk.respond(second.request_id, ResponseIn(quote_id=second.quote_id, choice="as_requested"))
    assert refused.value.status == 409
    assert not refused.value.quote.as_requested.bookable


def test_a_trip_that_no_vehicle_can_serve_is_a_denial():
    desk = make_desk(env=replace(ENV, num_vehicles=1, capacity=1))
    book_as_requested(desk, FIRST_DAY, MEDICAL)
    quote = desk.request(FIRST_DAY, MEDICAL.model_copy(update={"rider": "Grace"}), 0)
    assert not quote.servable
    assert desk.day(FIRST_DAY).denials == 1


def test_limits_of_the_operator_restrict_offers():
    wide = make_desk()
    narrow = make_desk(max_shift_minutes=10.0, max_offers_per_week=1)
    moved = {desk: [] for desk in (wide, narrow)}
    for desk, shifts in moved.items():
        for trip in trips(desk, 14):
            quote = desk.request(FIRST_DAY, trip)
            shifts += [max(offer.earlier_minutes, offer.later_minutes) for offer in quote.offers]
            desk.respond(quote.request_id, ResponseIn(quote_id=quote.quote_id, choice="as_requested"))
    assert max(moved[wide]) > 10.0
    assert 0 < max(moved[narrow]) <= 10.0
    rider = next(view.rider for view in narrow.day(FIRST_DAY).bookings if narrow.rider(view.rider).offers_this_week)
    assert narrow.rider(rider).offers_left_this_week == 0
    again = next(trip for trip in trips(narrow, 14) if trip.rider == rider)
    tomorrow = FIRST_DAY.replace(day=2)
    assert narrow.request(tomorrow, again).offers == []


def test_an_appointment_is_never_offered_later():
    desk = make_desk()
    for trip in trips(desk, 12):
        book_as_requested(desk, FIRST_DAY, trip)
    offers = {"pickup_time": [], "appointment_time": []}
    for number, trip in enumerate(trips(desk, 12, seed=1)):
        for field, found in offers.items():
            hour = int(trip.pickup_window.early // 60) + 1
            changed = TripIn(rider=f"R{number}", pickup=trip.pickup, dropoff=trip.dropoff, **{field: f"{hour}:30"})
            quote = desk.request(FIRST_DAY, changed, 16)
            found += quote.offers
            if field == "appointment_time":
                assert quote.as_requested.dropoff_window.late == 60 * hour + 30
    assert offers["appointment_time"]
    assert all(offer.later_minutes <= 0 for offer in offers["appointment_time"])
    assert any(offer.later_minutes > 0 for offer in offers["pickup_time"])


def test_responses_change_the_beliefs_at_once_and_undo_takes_that_back():
    desk = make_desk()
    before = desk.rider("customer-1").flexibility
    population, quote = population_for(ENV), None
    first = int(population.first_trip[0])
    for trip in trips(desk, 12):
        if trip.rider != "customer-1":
            book_as_requested(desk, FIRST_DAY, trip)
    for trip in range(first, first + 50):
        quote = desk.request(FIRST_DAY, trip_of(population, 0, trip))
        if quote.offers:
            break
    offer = quote.offers[0].offer
    desk.respond(quote.request_id, ResponseIn(quote_id=quote.quote_id, choice="offer", offer=offer))
    after = desk.rider("customer-1")
    assert (after.offers_made, after.offers_accepted) == (1, 1)
    assert after.flexibility != before
    assert after.flexibility["none"] < before["none"]
    desk.undo(FIRST_DAY)
    assert desk.rider("customer-1").flexibility == pytest.approx(before)


def test_what_if_changes_nothing():
    desk = make_desk()
    booked = [book_as_requested(desk, FIRST_DAY, trip) for trip in trips(desk, 8)]
    before = desk.day(FIRST_DAY)
    without = desk.what_if(FIRST_DAY, WhatIfIn(cancel=booked[0].request_id))
    more = desk.what_if(FIRST_DAY, WhatIfIn(trip=MEDICAL))
    one = desk.what_if(FIRST_DAY, WhatIfIn(vehicles=1))
    assert without.change_minutes <= 0.0 <= more.change_minutes
    assert len(one.routes) == 1
    assert desk.day(FIRST_DAY) == before


def test_wider_offers_and_a_cost_per_vehicle_are_those_of_the_env():
    env = replace(ENV, offer_minutes=(0, 15, 45), offer_directions="both", vehicle_cost=30.0)
    desk = make_desk(env=env)
    shifts = set()
    for trip in trips(desk, 14):
        quote = desk.request(FIRST_DAY, trip, 64)
        shifts |= {(offer.earlier_minutes, offer.later_minutes) for offer in quote.offers}
        for offer in quote.offers:
            assert offer.pickup_window.early == trip.pickup_window.early - offer.earlier_minutes
        desk.respond(quote.request_id, ResponseIn(quote_id=quote.quote_id, choice="as_requested"))
    assert {abs(minutes) for shift in shifts for minutes in shift} == {0.0, 15.0, 45.0}
    assert min(min(shift) for shift in shifts) < 0
    day = desk.day(FIRST_DAY)
    assert day.saved_minutes == 0.0
    assert day.driving_minutes == pytest.approx(sum(route.driving_minutes for route in day.routes))


def test_a_closed_day_has_manifests_and_takes_no_bookings():
    desk = make_desk()
    for trip in trips(desk, 10):
        book_as_requested(desk, FIRST_DAY, trip)
    before = desk.day(FIRST_DAY)
    closed = desk.close_day(FIRST_DAY)
    assert closed.closed
    assert closed.driving_minutes <= before.driving_minutes
    with pytest.raises(DeskError, match="closed"):
        desk.request(FIRST_DAY, MEDICAL)
    assert desk.undo(FIRST_DAY).routes == before.routes


def test_strangers_and_more_bookings_than_expected_are_served():
    desk = make_desk(max_bookings=60)
    places = [place.name for place in desk.places()]
    booked = 0
    for number in range(48):
        trip = TripIn(
            rider=f"new rider {number}",
            pickup=places[1 + number % 20],
            dropoff=places[21 + number % 17],
            pickup_time=f"{7 + number % 12}:{number % 6}0",
        )
        quote = desk.request(FIRST_DAY, trip)
        if quote.as_requested.bookable:
            desk.respond(quote.request_id, ResponseIn(quote_id=quote.quote_id, choice="as_requested"))
            booked += 1
    live = desk.days[FIRST_DAY].live
    assert booked == len(live.bookings) > ENV.num_customers + 16
    assert violations(live.routes.problems, live.routes.solutions()) == []


def test_room_for_new_riders_grows_when_needed(monkeypatch):
    monkeypatch.setattr(desk_population, "MIN_ROOM", 3)
    desk = make_desk()
    for number in range(8):
        book_as_requested(desk, FIRST_DAY, MEDICAL, rider=f"new {number}", pickup_time=f"{8 + number}:00")
    before = desk.day(FIRST_DAY)
    trip = MEDICAL.model_copy(update={"rider": "another", "pickup_time": "18:00"})
    for _ in range(4):
        assert desk.what_if(FIRST_DAY, WhatIfIn(trip=trip)).feasible
        trip = trip.model_copy(update={"rider": trip.rider + "x"})
    assert desk.day(FIRST_DAY) == before
    assert desk.rider("new 5").bookings[0].vehicle is not None
