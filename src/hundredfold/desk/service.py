"""The booking desk itself, without a server: requests, quotes, responses, days and riders.

Every change is written to the journal before its result is returned. One lock keeps callers apart:
pricing takes milliseconds, and a quote must see the bookings of all others.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Final, TypeVar

import numpy as np

from hundredfold.core.batch import FloatArray
from hundredfold.desk.day import DeskDay, FinalRoutes
from hundredfold.desk.intake import Intake, response_data
from hundredfold.desk.learning import DeskBeliefs, OfferResponse
from hundredfold.desk.models import (
    BookingView,
    DayView,
    DeskError,
    Json,
    Place,
    Quote,
    ResponseIn,
    RiderView,
    TripIn,
    WhatIfIn,
    WhatIfView,
)
from hundredfold.desk.population import DeskPopulation, FullPopulationError
from hundredfold.desk.quoter import WEEK, DeskPolicy, Quoter
from hundredfold.desk.quoting import offer_of_minutes
from hundredfold.desk.records import (
    CANCEL,
    CHANGES,
    CLOSE,
    OPEN,
    QUOTE,
    REQUEST,
    RESPONSE,
    UNDO,
    DayRecord,
    RequestRecord,
    requests_of,
)
from hundredfold.desk.settings import DeskSettings
from hundredfold.desk.storage import Event, Journal, StoredEvent
from hundredfold.desk.times import DeskClock, zone_of
from hundredfold.desk.views import booking_view, day_view, places, route_views, schedule_of, trip_views
from hundredfold.envs.dvrp.demand import population_for
from hundredfold.envs.dvrp.population import TYPE_NAMES
from hundredfold.routing.lns_oracle import LNSOracle

__all__ = ["Desk"]

Result = TypeVar("Result")

# Days held in memory; others are rebuilt from the journal when needed.
MAX_LIVE_DAYS: Final = 64
# Requests shown of one rider, the latest.
HISTORY: Final = 100
# Requests for days further ahead than this are mistakes.
MAX_DAYS_AHEAD: Final = 731
# A closing waits for the search without the lock; after this many bookings in between it keeps the lock.
MAX_SEARCHES: Final = 3


class Desk:
    """Quotes, books and routes trips, and remembers everything in a journal.

    Args:
        policy: Policy and settings of its env.
        journal: Where events are stored.
        settings: Quotes and limits; defaults if omitted.
        now: The present time, with any time zone; by default that of the system.
    """

    def __init__(
        self,
        policy: DeskPolicy,
        journal: Journal,
        settings: DeskSettings | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.policy, self.journal, self.settings = policy, journal, settings or DeskSettings()
        self.clock = DeskClock(zone_of(self.settings.time_zone), now)
        self.env_settings = policy.env_settings
        self.base = population_for(policy.settings)
        self.fingerprint = self._fingerprint()
        self.lock = threading.RLock()
        self._load()

    def request(self, day: date, trip: TripIn, number: int | None = None) -> Quote:
        """Quote a request: the trip as requested and the best offers.

        Args:
            day: Day of the trip.
            trip: The trip.
            number: Offers to return, at most; by default that of the settings.
        """
        with self.lock:
            return self._with_room(lambda: self._request(day, trip, number))

    def respond(self, request_id: str, response: ResponseIn) -> BookingView:
        """Book the accepted offer or the trip as requested, or note that the rider declined.

        Raises a `DeskError` with status 409 and a new quote if the old one has expired, or cannot be
        kept because the day has changed. The same response a second time changes nothing.
        """
        with self.lock:
            record = self._record_of(request_id)
            request = record.request(request_id)
            if request.status in ("booked", "declined"):
                same = (response.quote_id, response.choice, response.offer)
                if tuple(request.response[name] for name in ("quote_id", "choice", "offer")) == same:
                    return booking_view(record.day, request, schedule_of(record))
                raise DeskError(409, "already_answered", f"The request is already {request.status}.")
            _require_open(record)
            quote = request.quote
            if request.status == "cancelled" or quote is None:
                raise DeskError(409, "cancelled", "The request was cancelled; request the trip again.")
            if response.quote_id != quote.quote_id:
                raise DeskError(409, "replaced", "The request has another quote by now; use that one.", quote)
            data = response_data(quote, response)
            if response.choice != "declined":
                windows = np.array(data["windows"])
                self.intake.require_free(record, request.rider, windows, request_id)
                self._require_valid(record, request, quote, windows)
            self._commit(record, Event(RESPONSE, record.day, request_id, request.rider, data))
            self._learn(request, data)
            return booking_view(record.day, record.request(request_id), schedule_of(record))

    def cancel(self, request_id: str) -> BookingView:
        """Cancel a request or a booking, of a closed day too; a second time changes nothing."""
        with self.lock:
            record = self._record_of(request_id)
            request = record.request(request_id)
            if request.status == "cancelled":
                return booking_view(record.day, request, {})
            self._commit(record, Event(CANCEL, record.day, request_id, request.rider))
            return booking_view(record.day, record.request(request_id), {})

    def undo(self, day: date, version: int | None = None) -> DayView:
        """Take back the last response, cancellation or closing of a day.

        Args:
            day: The day.
            version: Version of the day that the caller knows. If the day has changed since, the step of
                another clerk would be taken back: then nothing is, and the status is 409.
        """
        with self.lock:
            record = self._record(day)
            last = record.last_change
            if version is not None and version != record.version:
                raise DeskError(409, "day_moved_on", "The day has changed meanwhile; look again before you undo.")
            if last is None:
                raise DeskError(409, "nothing_to_undo", f"Nothing on {day} can be undone.")
            event = last.event
            undo = Event(UNDO, day, event.request_id, event.rider, {"seq": last.seq})
            try:
                stored = self.journal.append([undo], self.clock.now())
                if event.kind == RESPONSE:
                    self._learn(record.request(event.request_id or ""), event.data, forget=True)
                self.days[day] = record = record.after_undo(stored[0])
            except BaseException:
                self._drop(record)
                raise
            return day_view(record)

    def view(self, request_id: str) -> BookingView:
        """A request and what became of it."""
        with self.lock:
            record = self._record_of(request_id)
            return booking_view(record.day, record.request(request_id), schedule_of(record))

    def day(self, day: date) -> DayView:
        """Bookings, routes and figures of a day."""
        with self.lock:
            return day_view(self._record(day))

    def close_day(self, day: date) -> DayView:
        """Optimise the routes of the whole day a last time, and accept no further bookings."""
        for _ in range(MAX_SEARCHES):
            with self.lock:
                record = self._record(day)
                if record.is_closed:
                    return day_view(record)
                if not record.live.bookings and day < self.clock.today():
                    raise DeskError(409, "nothing_to_close", f"{day} is in the past and has no bookings.")
                version, search = record.version, record.live.final_search()
            final = search()
            with self.lock:
                record = self._record(day)
                if record.version == version:
                    return self._close(record, final)
        with self.lock:
            record = self._record(day)
            return day_view(record) if record.is_closed else self._close(record, record.live.final_search()())

    def what_if(self, day: date, change: WhatIfIn) -> WhatIfView:
        """The day after a change, without making it."""
        with self.lock:
            changed, quote, before = self._with_room(lambda: self._changed(day, change))
        # The copy is this caller's own: others need not wait for the search.
        live = changed.live
        solution = live.routes.solutions()
        if change.vehicles is not None:
            problems = live.routes.problems.rows(np.array([0]))
            problems.fleet = replace(problems.fleet, num_vehicles=change.vehicles, free_vehicles=change.vehicles)
            solution = LNSOracle().solve(problems)
        unserved = [booking.request_id for row, booking in enumerate(live.bookings) if solution.unserved[0, row]]
        names = {request.request_id: request.rider for request in changed.requests.values()}
        feasible = not unserved and (quote is None or quote.as_requested.bookable)
        driving = float(solution.driving_minutes[0])
        return WhatIfView(
            feasible=feasible,
            driving_minutes=driving if feasible else None,
            change_minutes=driving - before if feasible else None,
            unserved=unserved,
            routes=route_views(live, solution, live.bookings, names, changed.passed_by),
            quote=quote,
        )

    def warm_up(self) -> None:
        """Quote, book, cancel and close on a day that is thrown away, so that compiled kernels are loaded."""
        with self.lock:
            record, trips = self._new_record(self.clock.today()), self.riders.population.trips
            for number in range(2):
                request = RequestRecord(
                    request_id=str(number),
                    rider="",
                    pickup="",
                    dropoff="",
                    passengers=1,
                    purpose="other",
                    windows=trips.windows[number],
                    is_appointment=False,
                    customer=0,
                    trip=number,
                )
                free = np.ones(self.base.offers.num_offers, bool)
                self.quoter.quote(record, request, free, self.base.offers.num_offers)
                record.live.book(request.booking())
            record.live.final_search()()
            record.live.cancel("0")

    def places(self) -> list[Place]:
        """Places that trips may start and end at."""
        return places(self.base.city)

    def rider(self, rider: str) -> RiderView:
        """How often a rider was given offers, what they responded, and which trips they make."""
        with self.lock:
            events = self.journal.of_rider(rider)
            customer = self.riders.riders.get(rider)
            if not events and (customer is None or customer >= self.base.size):
                raise DeskError(404, "unknown_rider", "There is no rider with this id.")
            assert customer is not None, "riders of the journal are numbered when it is read"
            # Days that are not in memory are not rebuilt: there may be hundreds of them.
            schedules = {day: schedule_of(record) for day, record in self.days.items()}
            found = requests_of(events, self.intake.read)
            requests = [request for _, request in found]
            limit, recent = self.settings.max_offers_per_week, self.quoter.offers_this_week(rider)
            return RiderView(
                rider=rider,
                requests=len(requests),
                offers_made=sum(request.offer_made for request in requests),
                offers_accepted=sum(request.response.get("choice") == "offer" for request in requests),
                shift_minutes=sum(request.shift_minutes for request in requests if request.status == "booked"),
                denials=sum(request.status == "denied" for request in requests),
                cancellations=sum(request.status == "cancelled" for request in requests),
                offers_this_week=recent,
                offers_left_this_week=None if limit is None else max(limit - recent, 0),
                flexibility=dict(zip(TYPE_NAMES, self.beliefs.type_probabilities(customer).tolist(), strict=True)),
                bookings=[booking_view(day, request, schedules.get(day, {})) for day, request in found[-HISTORY:]],
                recurring_trips=trip_views(self.riders.population, self.riders.recurring_trips(customer)),
            )

    def _load(self) -> None:
        """Read riders, trips and responses in the order of the journal; days are read when needed."""
        self.days: OrderedDict[date, DayRecord] = OrderedDict()
        requests = list(self.journal.of_kinds(REQUEST))
        self.riders = DeskPopulation(self.base, self.env_settings, len(requests))
        self.intake = Intake(self.riders, self.env_settings, self.settings.window_minutes, self.clock)
        records = {stored.event.request_id: self.intake.read(stored.event) for stored in requests}
        self.day_of = {stored.event.request_id: stored.event.day for stored in requests}
        self.beliefs = DeskBeliefs(self.riders, self.env_settings, self.policy.beliefs, self.settings.learn)
        responses: dict[int, Event] = {}
        for stored in self.journal.of_kinds(RESPONSE, UNDO, CLOSE):
            event = stored.event
            if event.kind == RESPONSE:
                responses[stored.seq] = event
                self._learn(records[event.request_id], event.data)
            elif event.kind == CLOSE:
                self.beliefs.refit()
            elif event.data["seq"] in responses:
                undone = responses[event.data["seq"]]
                self._learn(records[undone.request_id], undone.data, forget=True)
        self.quoter = Quoter(self.policy, self.settings, self.riders, self.beliefs, self.clock)
        for stored in self.journal.of_kinds(QUOTE, since=self.clock.now() - WEEK):
            self.quoter.note_offers(stored)

    def _with_room(self, call: Callable[[], Result]) -> Result:
        """Call a function; a second time, with more room, if there are too many new riders or trips."""
        try:
            return call()
        except FullPopulationError:
            self._load()
            return call()

    def _fingerprint(self) -> str:
        """Hash of what the routes of a day depend on, besides its bookings and its fleet."""
        env, city = self.env_settings, self.base.city
        search = (env.improve_passes, env.lns_iterations, env.oracle, self.settings.seed, self.settings.first_day)
        limits = (env.service_minutes, env.day_minutes, env.max_ride_minutes, env.effective_ride_factor)
        digest = hashlib.sha256(city.travel_minutes.tobytes())
        digest.update(repr((city.names, city.depot_cell, search, limits, env.vehicle_cost)).encode())
        return digest.hexdigest()[:32]

    def _new_record(self, day: date) -> DayRecord:
        def new_day(opened: Json) -> DeskDay:
            fleet = {name: opened[name] for name in ("num_vehicles", "capacity") if name in opened}
            number = (day - self.settings.first_day).days
            return DeskDay(number, self.settings.seed, self.riders.population, replace(self.env_settings, **fleet))

        return DayRecord(day, new_day, self.intake.read, self.settings.max_bookings)

    def _record(self, day: date) -> DayRecord:
        """A day, from memory or from the journal."""
        if day in self.days:
            self.days.move_to_end(day)
            return self.days[day]
        record = self._new_record(day)
        events = self.journal.of_day(day)
        if any(stored.event.data.get("fingerprint", self.fingerprint) != self.fingerprint for stored in events[:1]):
            raise DeskError(
                409,
                "other_settings",
                f"The bookings of {day} were made with other travel times, limits or seed; start the desk with those.",
            )
        record.replay(events)
        self.days[day] = record
        while len(self.days) > MAX_LIVE_DAYS:
            self.days.popitem(last=False)
        return record

    def _record_of(self, request_id: str) -> DayRecord:
        if request_id not in self.day_of:
            raise DeskError(404, "unknown_request", "There is no request with this id.")
        return self._record(self.day_of[request_id])

    def _commit(self, record: DayRecord, *events: Event) -> list[StoredEvent]:
        """Apply events to a day and write them to the journal: both, or neither."""
        if not record.events:
            env = self.env_settings
            opened = {"num_vehicles": env.fleet_size, "capacity": env.capacity, "fingerprint": self.fingerprint}
            events = (Event(OPEN, record.day, data=opened), *events)
        try:
            before = record.copy() if any(event.kind in CHANGES for event in events) else record.before
            for event in events:
                record.apply(event)
            stored = self.journal.append(events, self.clock.now())
        except BaseException:
            self._drop(record)
            raise
        record.events += stored
        record.before = before
        return stored

    def _drop(self, record: DayRecord) -> None:
        """Forget a day in memory that may differ from the journal; it is read again when needed."""
        self.days.pop(record.day, None)

    def _request(self, day: date, trip: TripIn, number: int | None) -> Quote:
        today = self.clock.today()
        if day < today:
            raise DeskError(422, "in_the_past", f"{day} is in the past.")
        if day > today + timedelta(days=MAX_DAYS_AHEAD):
            raise DeskError(422, "too_far_ahead", f"{day} is more than two years ahead.")
        record = self._record(day)
        _require_open(record)
        known = record.by_reference.get(trip.reference or "")
        if known is not None:
            same = record.requests[known]
            if not self.intake.is_same(same, trip):
                raise DeskError(
                    409, "reference_used", "Another request of this day has this reference; give each its own."
                )
            assert same.quote is not None, "a request and its quote are written together"
            return same.quote
        event = self.intake.check(record, trip)
        quote = self._quote(record, self.intake.read(event), number)
        stored = self._commit(record, event, _quote_event(quote))
        self.day_of[quote.request_id] = day
        self.quoter.note_offers(stored[-1])
        return quote

    def _changed(self, day: date, change: WhatIfIn) -> tuple[DayRecord, Quote | None, float]:
        """A copy of a day after a change, the quote of the trip that was added, and the driving minutes before."""
        record = self._record(day)
        copy, quote = record.copy(), None
        if change.cancel is not None:
            if copy.request(change.cancel).status != "booked":
                raise DeskError(409, "not_booked", "Only a booking can be cancelled on trial.")
            copy.apply(Event(CANCEL, day, change.cancel))
        if change.trip is not None:
            request = self.intake.read(self.intake.check(copy, change.trip))
            quote = self._quote(copy, request, None)
            if quote.as_requested.bookable:
                copy.requests[request.request_id] = request
                copy.live.book(request.booking())
        return copy, quote, record.live.cost

    def _close(self, record: DayRecord, final: FinalRoutes) -> DayView:
        routes = [final.solution.route(0, vehicle) for vehicle in range(final.solution.lengths.shape[1])]
        data = {"routes": routes, "baseline_minutes": final.baseline_minutes}
        self._commit(record, Event(CLOSE, record.day, data=data))
        self.beliefs.refit()
        return day_view(record)

    def _quote(self, record: DayRecord, request: RequestRecord, number: int | None) -> Quote:
        return self.quoter.quote(record, request, self.intake.free_offers(record, request), number)

    def _require_valid(self, record: DayRecord, request: RequestRecord, quote: Quote, windows: FloatArray) -> None:
        """Raise a 409 with a new quote if this one has expired or its windows can no longer be served."""
        record.make_room()
        if self.clock.now() > quote.expires_at:
            code, reason = "expired", f"The quote expired after {self.settings.quote_minutes:g} minutes."
        elif record.version != quote.version and not record.live.trial(request.booking(windows)).feasible:
            code, reason = "day_changed", "Other bookings came in between, and no vehicle is free at these times now."
        else:
            return
        new = self._quote(record, request, None)
        stored = self._commit(record, _quote_event(new))
        self.quoter.note_offers(stored[-1])
        raise DeskError(409, code, f"{reason} Here is a new quote.", new)

    def _learn(self, request: RequestRecord, data: Json, *, forget: bool = False) -> None:
        """Update the beliefs by a response, or take the update back."""
        purpose = int(self.riders.population.trips.purpose[request.trip])
        accepted = [data["minutes"]] if data["choice"] == "offer" else []
        rows = [(minutes, False) for minutes in data["refused"]] + [(minutes, True) for minutes in accepted]
        change = self.beliefs.forget if forget else self.beliefs.observe
        for minutes, is_accepted in rows:
            offer = offer_of_minutes(self.base.offers, minutes)
            if offer is not None:
                change(OfferResponse(request.customer, request.trip, purpose, offer, is_accepted))


def _require_open(record: DayRecord) -> None:
    if record.is_closed:
        raise DeskError(409, "day_closed", f"{record.day} is closed.")


def _quote_event(quote: Quote) -> Event:
    return Event(QUOTE, quote.day, quote.request_id, quote.rider, quote.model_dump(mode="json"))
