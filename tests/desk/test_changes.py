"""Changes of a day that must never go wrong: double bookings, cancellations, undo, closing, daylight saving time."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from helpers.desk import ENV, FIRST_DAY, Clock, book_as_requested, make_desk, own_city, trips
from hundredfold.cli.desk import DeskOptions, desk_policy
from hundredfold.core.errors import SettingsError
from hundredfold.desk.day import REQUEST_ARRAYS
from hundredfold.desk.models import DeskError, ResponseIn, TripIn, WhatIfIn
from hundredfold.desk.settings import DeskSettings, with_service
from hundredfold.desk.times import machine_zone, zone_of
from hundredfold.routing.verifier import violations

MEDICAL = TripIn(rider="Ada", pickup="Union Square", dropoff="SF General", pickup_time="09:00", purpose="medical")


def window(early, late):
    return {"early": early, "late": late}


def as_requested(quote):
    return ResponseIn(quote_id=quote.quote_id, choice="as_requested")


def journal_rows(desk):
    return len(list(desk.journal.all_events()))


def test_two_quotes_for_one_trip_book_one():
    desk = make_desk()
    first, second = desk.request(FIRST_DAY, MEDICAL), desk.request(FIRST_DAY, MEDICAL)
    desk.respond(first.request_id, as_requested(first))
    rows = journal_rows(desk)
    with pytest.raises(DeskError, match="already booked") as refused:
        desk.respond(second.request_id, as_requested(second))
    assert (refused.value.status, refused.value.code) == (409, "double_booking")
    assert journal_rows(desk) == rows
    declined = desk.respond(second.request_id, ResponseIn(quote_id=second.quote_id, choice="declined"))
    assert declined.status == "declined"
    desk.cancel(first.request_id)
    third = desk.request(FIRST_DAY, MEDICAL)
    assert desk.respond(third.request_id, as_requested(third)).status == "booked"


def test_no_offer_moves_a_trip_into_another_of_the_rider():
    """The way back begins when the way there ends at the latest: it may move later, and no minute earlier."""
    desk = make_desk()
    earlier = desk.base.offers.minutes[:, 0] > 0
    for number, trip in enumerate(trips(desk, 12)):
        way_there = book_as_requested(desk, FIRST_DAY, trip)
        end = way_there.dropoff_window.late
        if end > 20 * 60:
            continue
        back = TripIn(
            rider=trip.rider,
            pickup=trip.dropoff,
            dropoff=trip.pickup,
            pickup_window=window(end, end + 30),
            dropoff_window=window(end + 15, end + 90),
        )
        quote = desk.request(FIRST_DAY, back, 16)
        assert all(offer.earlier_minutes <= 0 for offer in quote.offers)
        record = desk.days[FIRST_DAY]
        own = record.request(quote.request_id)
        np.testing.assert_array_equal(desk.intake.free_offers(record, own), ~earlier)
        stranger = record.request(desk.request(FIRST_DAY, back.model_copy(update={"rider": f"S{number}"})).request_id)
        assert desk.intake.free_offers(record, stranger).all()


# From A to C by way of B takes 10 minutes, straight 100: without the stop at B a vehicle is late at C.
DETOUR = {
    "Depot": [0, 10, 10, 10, 10],
    "A": [10, 0, 5, 100, 10],
    "B": [10, 5, 0, 5, 10],
    "C": [10, 100, 5, 0, 10],
    "D": [10, 10, 10, 10, 0],
}
DETOUR_TRIPS = [
    ("Xenia", "A", "D", "09:00-09:01", "10:00-11:00"),
    ("Yves", "B", "D", "09:05-09:06", "10:00-11:00"),
    ("Zoe", "C", "D", "09:10-09:11", "10:00-11:00"),
]


def detour_desk(tmp_path, num_vehicles):
    env = own_city(tmp_path, DETOUR, DETOUR_TRIPS, num_vehicles=num_vehicles, service="research")
    return make_desk(env=env, policy="none")


def book_detour(desk):
    booked = []
    for rider, pickup, minute in (("Xenia", "A", 540), ("Yves", "B", 545), ("Zoe", "C", 550)):
        trip = TripIn(
            rider=rider,
            pickup=pickup,
            dropoff="D",
            pickup_window=window(minute, minute + 1),
            dropoff_window=window(600, 660),
        )
        booked.append(book_as_requested(desk, FIRST_DAY, trip).request_id)
    return booked


@pytest.mark.parametrize("num_vehicles", [1, 2])
def test_a_cancellation_is_always_recorded(tmp_path, num_vehicles):
    """One vehicle drives by the cancelled stop in order to be on time; with two the routes are built again."""
    desk = detour_desk(tmp_path, num_vehicles)
    booked = book_detour(desk)
    before = desk.day(FIRST_DAY)
    assert desk.cancel(booked[1]).status == "cancelled"
    after = desk.day(FIRST_DAY)
    assert (after.cancellations, len(desk.days[FIRST_DAY].passed_by)) == (1, int(num_vehicles == 1))
    stops = [stop.rider for route in after.routes for stop in route.stops]
    assert sorted(stops) == ["Xenia", "Xenia", "Zoe", "Zoe"]
    assert max(stop.on_board for route in after.routes for stop in route.stops) <= 2
    live = desk.days[FIRST_DAY].live
    assert violations(live.routes.problems, live.routes.solutions()) == []
    assert after.driving_minutes == pytest.approx(sum(route.driving_minutes for route in after.routes))
    late = TripIn(rider="Yves", pickup="B", dropoff="D", pickup_time="12:00")
    assert desk.request(FIRST_DAY, late).as_requested.bookable
    assert desk.what_if(FIRST_DAY, WhatIfIn(cancel=booked[2])).feasible
    undone = desk.undo(FIRST_DAY)
    assert undone.routes == before.routes


def test_a_day_with_a_stop_driven_by_is_rebuilt(tmp_path):
    url = f"sqlite:///{tmp_path / 'desk.db'}"
    env = own_city(tmp_path, DETOUR, DETOUR_TRIPS, num_vehicles=1, service="research")
    desk = make_desk(url, env=env, policy="none")
    desk.cancel(book_detour(desk)[1])
    before = desk.day(FIRST_DAY)
    desk.journal.close()
    assert make_desk(url, env=env, policy="none").day(FIRST_DAY) == before


def test_a_rider_of_a_closed_day_can_cancel_and_the_manifest_omits_the_stops():
    desk = make_desk()
    booked = [book_as_requested(desk, FIRST_DAY, trip) for trip in trips(desk, 8)]
    closed = desk.close_day(FIRST_DAY)
    assert desk.cancel(booked[2].request_id).status == "cancelled"
    after = desk.day(FIRST_DAY)
    gone = {stop.request_id for route in closed.routes for stop in route.stops} - {
        stop.request_id for route in after.routes for stop in route.stops
    }
    assert gone == {booked[2].request_id}
    assert after.closed
    assert desk.undo(FIRST_DAY).routes == closed.routes


def test_cancelling_moves_the_arrays_of_all_requests():
    """As many requests as offers or as pickup and dropoff: axes of equal length must not be confused."""
    for num_customers in (2, 16):
        desk = make_desk(env=replace(ENV, num_customers=num_customers))
        booked = [book_as_requested(desk, FIRST_DAY, trip) for trip in trips(desk, 2)]
        live = desk.days[FIRST_DAY].live
        second = {name: live.true_state[name][0, 1].copy() for name in REQUEST_ARRAYS}
        figures = {name: array.shape for name, array in live.true_state.items() if name not in REQUEST_ARRAYS}
        assert figures == {"num_booked": (1,), "cost": (1,), "baseline_cost": (1, num_customers + 1)}
        desk.cancel(booked[0].request_id)
        for name, row in second.items():
            np.testing.assert_array_equal(live.true_state[name][0, 0], row)


def test_a_reference_names_one_trip():
    desk = make_desk()
    trip = MEDICAL.model_copy(update={"reference": "call-1"})
    quote = desk.request(FIRST_DAY, trip)
    assert desk.request(FIRST_DAY, trip) == quote
    rows = journal_rows(desk)
    changes = {"pickup_time": "10:00", "passengers": 2, "rider": "Grace", "dropoff": "Ferry Building"}
    for name, value in changes.items():
        with pytest.raises(DeskError, match="this reference") as refused:
            desk.request(FIRST_DAY, trip.model_copy(update={name: value}))
        assert (refused.value.status, refused.value.code) == (409, "reference_used")
    assert journal_rows(desk) == rows
    assert desk.request(FIRST_DAY + timedelta(days=1), trip).request_id != quote.request_id


def test_an_empty_day_of_the_past_cannot_be_closed():
    desk = make_desk()
    with pytest.raises(DeskError, match="no bookings") as refused:
        desk.close_day(FIRST_DAY - timedelta(days=30))
    assert refused.value.status == 409
    assert journal_rows(desk) == 0
    assert desk.close_day(FIRST_DAY).closed, "a day to come without service may be closed"


def test_a_day_can_be_closed_while_others_book(monkeypatch):
    desk = make_desk()
    first, *rest = trips(desk, 6)
    book_as_requested(desk, FIRST_DAY, first)
    live = desk.days[FIRST_DAY].live.__class__
    search = live.final_search

    def search_while_another_books(day):
        found = search(day)

        def run():
            if rest:
                book_as_requested(desk, FIRST_DAY, rest.pop())
            return found()

        return run

    monkeypatch.setattr(live, "final_search", search_while_another_books)
    # The search that keeps the lock is by the same thread here, which may enter.
    rest[:] = rest[:2]
    closed = desk.close_day(FIRST_DAY)
    assert closed.closed
    assert len({stop.request_id for route in closed.routes for stop in route.stops}) == 3


def test_an_undo_names_the_version_that_it_takes_back():
    desk = make_desk()
    first, second = trips(desk, 2)
    book_as_requested(desk, FIRST_DAY, first)
    known = desk.day(FIRST_DAY)
    assert (known.last_step.kind, known.last_step.rider) == ("response", first.rider)
    book_as_requested(desk, FIRST_DAY, second)
    with pytest.raises(DeskError, match="changed meanwhile") as refused:
        desk.undo(FIRST_DAY, known.version)
    assert (refused.value.status, refused.value.code) == (409, "day_moved_on")
    now = desk.day(FIRST_DAY)
    assert [view.status for view in now.bookings] == ["booked", "booked"]
    undone = desk.undo(FIRST_DAY, now.version)
    assert [view.status for view in undone.bookings] == ["booked", "quoted"]
    assert desk.undo(FIRST_DAY, undone.version).last_step is None


def test_undo_step_by_step_equals_the_days_before(tmp_path):
    """Also with quotes in between, which stay."""
    desk = make_desk(f"sqlite:///{tmp_path / 'desk.db'}")
    before, booked = [], []
    for number, trip in enumerate(trips(desk, 14)):
        quote = desk.request(FIRST_DAY, trip)
        desk.request(FIRST_DAY, MEDICAL.model_copy(update={"rider": f"waiting {number}"}))
        before.append(desk.day(FIRST_DAY).routes)
        booked.append(desk.respond(quote.request_id, as_requested(quote)))
    before.append(desk.day(FIRST_DAY).routes)
    desk.cancel(booked[5].request_id)
    desk.request(FIRST_DAY, MEDICAL.model_copy(update={"rider": "after"}))
    for routes in reversed(before):
        undone = desk.undo(FIRST_DAY)
        assert undone.routes == routes
    assert {view.status for view in undone.bookings} == {"quoted"}
    assert len(undone.bookings) == 29
    desk.journal.close()
    assert make_desk(f"sqlite:///{tmp_path / 'desk.db'}").day(FIRST_DAY) == undone


def test_a_failed_undo_leaves_the_day_of_the_journal(monkeypatch):
    desk = make_desk()
    for trip in trips(desk, 3):
        book_as_requested(desk, FIRST_DAY, trip)
    record = desk.days[FIRST_DAY]

    def fail(_undo):
        record.requests.clear()
        raise RuntimeError("no memory")

    monkeypatch.setattr(record, "after_undo", fail)
    with pytest.raises(RuntimeError, match="no memory"):
        desk.undo(FIRST_DAY)
    statuses = [view.status for view in desk.day(FIRST_DAY).bookings]
    assert statuses == ["booked", "booked", "quoted"], "the undo is in the journal, and the day is read from there"


def test_an_appointment_given_as_windows_is_never_offered_later():
    desk = make_desk(max_offers_per_week=None)
    for trip in trips(desk, 12):
        book_as_requested(desk, FIRST_DAY, trip)
    offers = {False: [], True: []}
    for number, trip in enumerate(trips(desk, 12, seed=1)):
        for appointment, found in offers.items():
            changed = trip.model_copy(update={"rider": f"R{number}", "trip": None, "appointment": appointment})
            found += desk.request(FIRST_DAY, changed, 16).offers
    assert any(offer.later_minutes > 0 for offer in offers[False])
    assert offers[True]
    assert all(offer.later_minutes <= 0 for offer in offers[True])


def test_an_operator_shifts_by_an_hour_at_most_unless_told():
    assert desk_policy(DeskOptions()).settings.service == "operator"
    assert with_service(DeskSettings(), "operator").max_shift_minutes == 60.0
    assert with_service(DeskSettings(), "research").max_shift_minutes is None
    assert with_service(DeskSettings(max_shift_minutes=90.0), "operator").max_shift_minutes == 90.0


def test_the_past_and_years_ahead_are_refused():
    desk = make_desk()
    for day, code in (
        (date(2099, 12, 30), "in_the_past"),
        (date(2206, 1, 1), "too_far_ahead"),
        (date.max, "too_far_ahead"),
    ):
        with pytest.raises(DeskError) as refused:
            desk.request(day, MEDICAL)
        assert refused.value.code == code
    assert journal_rows(desk) == 0


NEW_YORK = ZoneInfo("America/New_York")


@pytest.mark.parametrize(
    ("now", "today"),
    [
        (datetime(2026, 3, 8, 4, 30, tzinfo=UTC), date(2026, 3, 7)),  # half past eleven in the evening, in winter
        (datetime(2026, 3, 9, 3, 30, tzinfo=UTC), date(2026, 3, 8)),  # half past eleven in the evening, in summer
        (datetime(2026, 3, 9, 4, 30, tzinfo=UTC), date(2026, 3, 9)),
    ],
)
def test_the_day_changes_at_midnight_of_the_time_zone(now, today):
    desk = make_desk(now=lambda: now, time_zone="America/New_York")
    assert desk.clock.today() == today
    assert desk.clock.minute() == now.astimezone(NEW_YORK).hour * 60 + 30


def test_a_quote_lasts_five_minutes_when_the_clocks_change():
    """At 1:58 before the clocks go back the hands show 1:03 five minutes later."""
    now = Clock()
    now.time = datetime(2026, 11, 1, 1, 58, tzinfo=NEW_YORK)
    desk = make_desk(now=now, time_zone="America/New_York")
    quote = desk.request(date(2026, 11, 3), MEDICAL)
    assert quote.expires_at == datetime(2026, 11, 1, 6, 3, tzinfo=UTC)
    now.time = datetime(2026, 11, 1, 6, 2, tzinfo=UTC).astimezone(NEW_YORK)
    assert desk.respond(quote.request_id, as_requested(quote)).status == "booked"
    late = desk.request(date(2026, 11, 3), MEDICAL.model_copy(update={"rider": "Grace"}))
    now.time = datetime(2026, 11, 1, 6, 8, tzinfo=UTC).astimezone(NEW_YORK)
    with pytest.raises(DeskError, match="expired"):
        desk.respond(late.request_id, as_requested(late))


def test_time_zones_are_named_and_the_machine_has_one(monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    assert machine_zone() == ZoneInfo("Europe/Berlin")
    monkeypatch.setenv("TZ", ":Asia/Tokyo")
    assert zone_of(None) == ZoneInfo("Asia/Tokyo")
    monkeypatch.delenv("TZ")
    assert datetime.now(machine_zone()).utcoffset() == datetime.now().astimezone().utcoffset()
    for wrong in ("Mars/Olympus", "../../etc/passwd", ""):
        with pytest.raises(SettingsError, match="time zone"):
            zone_of(wrong)
