"""State of a day as the journal implies it: requests, bookings and routes.

`DayRecord.apply` is the only way in which a day changes, for new events as well as for those read
back after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import date

import numpy as np

from hundredfold.core.batch import FloatArray
from hundredfold.desk.day import Booking, DeskDay, FinalRoutes
from hundredfold.desk.models import DeskError, Json, Quote, Status
from hundredfold.desk.storage import Event, StoredEvent
from hundredfold.routing.problem import Solutions
from hundredfold.routing.solution import solutions_from_routes

__all__ = [
    "CANCEL",
    "CHANGES",
    "CLOSE",
    "OPEN",
    "QUOTE",
    "REQUEST",
    "RESPONSE",
    "UNDO",
    "DayRecord",
    "RequestRecord",
    "requests_of",
]

# Kinds of events.
OPEN, REQUEST, QUOTE, RESPONSE, CANCEL, UNDO, CLOSE = (
    "open",
    "request",
    "quote",
    "response",
    "cancel",
    "undo",
    "close",
)
# Events after which an older quote may no longer hold, and which can be undone.
CHANGES = (RESPONSE, CANCEL, CLOSE)


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """A request and what became of it."""

    request_id: str
    rider: str
    pickup: str
    dropoff: str
    passengers: int
    purpose: str
    windows: FloatArray  # (2, 2) as requested
    is_appointment: bool
    customer: int
    trip: int
    reference: str | None = None
    status: Status = "quoted"
    quote: Quote | None = None
    booked_windows: FloatArray | None = None
    response: Json = field(default_factory=dict)

    def booking(self, windows: FloatArray | None = None) -> Booking:
        """The request with booked windows; by default as requested."""
        return Booking(
            request_id=self.request_id,
            customer=self.customer,
            trip=self.trip,
            passengers=self.passengers,
            requested_windows=self.windows,
            booked_windows=self.windows if windows is None else windows,
        )

    def note(self, event: Event) -> None:
        """Change the record by one event about this request."""
        if event.kind == QUOTE:
            self.quote = Quote.model_validate(event.data)
            self.status = "quoted" if self.quote.servable else "denied"
        elif event.kind == RESPONSE:
            self.response = event.data
            is_booked = event.data["choice"] != "declined"
            self.booked_windows = np.array(event.data["windows"]) if is_booked else None
            self.status = "booked" if is_booked else "declined"
        elif event.kind == CANCEL:
            self.status = "cancelled"

    @property
    def shift_minutes(self) -> float:
        """Minutes by which pickup and dropoff were moved, added up."""
        return 0.0 if self.booked_windows is None else self.booking(self.booked_windows).shift_minutes

    @property
    def offer_made(self) -> bool:
        """Whether the rider responded to an offer."""
        return self.response.get("choice") == "offer" or bool(self.response.get("refused"))


class DayRecord:
    """Requests, bookings and routes of one day.

    Args:
        day: The date.
        new_day: Creates the empty day of routes.
        read_request: From the data of a request event to its record.
        max_bookings: Bookings of the day, at most.
    """

    def __init__(
        self,
        day: date,
        new_day: Callable[[Json], DeskDay],
        read_request: Callable[[Event], RequestRecord],
        max_bookings: int,
    ) -> None:
        self.day, self.new_day, self.read_request, self.max_bookings = day, new_day, read_request, max_bookings
        self.events: list[StoredEvent] = []
        self.undone: set[int] = set()
        # The day before its last change, so that an undo need not build all routes again.
        self.before: DayRecord | None = None
        self._clear({})

    def _clear(self, opened: Json) -> None:
        self.opened = opened
        self.live = self.new_day(opened)
        self.requests: dict[str, RequestRecord] = {}
        self.by_reference: dict[str, str] = {}
        self.final: FinalRoutes | None = None
        self.cancellations = 0
        # Cancelled bookings that are still on the routes.
        self.passed_by: set[str] = set()

    @property
    def version(self) -> int:
        """Number of changes so far, undone ones included."""
        return sum(1 for stored in self.events if stored.event.kind in (*CHANGES, UNDO))

    @property
    def is_closed(self) -> bool:
        return self.final is not None

    @property
    def solution(self) -> Solutions:
        """The routes: those of the last optimisation if the day is closed."""
        return self.live.routes.solutions() if self.final is None else self.final.solution

    @property
    def baseline_minutes(self) -> float:
        """Driving minutes of the same bookings as requested."""
        return self.live.baseline_cost() if self.final is None else self.final.baseline_minutes

    @property
    def last_change(self) -> StoredEvent | None:
        """The change that an undo would take back."""
        changes = (stored for stored in reversed(self.events) if stored.event.kind in CHANGES)
        return next((stored for stored in changes if stored.seq not in self.undone), None)

    @property
    def travelling(self) -> list[Booking]:
        """Bookings of riders who travel."""
        return [booking for booking in self.live.bookings if booking.request_id not in self.passed_by]

    def copy(self) -> DayRecord:
        """The same day, to change without changing this one."""
        day = copy(self)
        day.events, day.undone, day.passed_by = list(self.events), set(self.undone), set(self.passed_by)
        day.requests = {request_id: replace(request) for request_id, request in self.requests.items()}
        day.by_reference = dict(self.by_reference)
        day.live, day.before = self.live.copy(), None
        return day

    def request(self, request_id: str) -> RequestRecord:
        """A request of this day."""
        if request_id not in self.requests:
            raise DeskError(404, "unknown_request", "There is no request with this id.")
        return self.requests[request_id]

    def replay(self, events: Iterable[StoredEvent]) -> None:
        """Rebuild the day from its events."""
        self.events, self.before = list(events), None
        self.undone = {stored.event.data["seq"] for stored in self.events if stored.event.kind == UNDO}
        self._clear(next((stored.event.data for stored in self.events if stored.event.kind == OPEN), {}))
        for stored in self.events:
            if stored.seq not in self.undone and stored.event.kind != UNDO:
                self.apply(stored.event)

    def after_undo(self, undo: StoredEvent) -> DayRecord:
        """The day without the change that an event undoes; this record must not be used any more."""
        events = [*self.events, undo]
        if self.before is None:
            self.replay(events)
            return self
        day, seq = self.before, undo.event.data["seq"]
        for stored in self.events[len(day.events) :]:
            if stored.seq != seq:
                day.apply(stored.event)
        day.events, day.undone = events, {*self.undone, seq}
        return day

    def apply(self, event: Event) -> None:
        """Change the day by one event."""
        if event.kind == REQUEST:
            record = self.read_request(event)
            self.requests[record.request_id] = record
            if record.reference is not None:
                self.by_reference[record.reference] = record.request_id
        elif event.kind in (QUOTE, RESPONSE, CANCEL):
            record = self.requests[event.request_id or ""]
            if event.kind == CANCEL:
                self._cancel(record)
            record.note(event)
            if event.kind == RESPONSE and record.booked_windows is not None:
                self.make_room()
                self.live.book(record.booking(record.booked_windows))
        elif event.kind == CLOSE:
            rows = self.live.routes.problems.rows(np.array([0]))
            self.final = FinalRoutes(
                solutions_from_routes(rows, [event.data["routes"]]),
                event.data.get("baseline_minutes", self.live.baseline_cost()),
            )

    def make_room(self) -> None:
        """Ensure that the day can take another request."""
        if len(self.live.bookings) >= self.max_bookings:
            raise DeskError(409, "day_full", f"The day has {self.max_bookings} bookings, as many as are allowed.")
        if self.live.is_full:
            self.live = self.live.with_more_room()

    def _cancel(self, record: RequestRecord) -> None:
        """Remove a booking from the routes where that is possible; a rider who does not travel is always recorded.

        A closed day keeps its routes, and so does one on which another rider would be late: the
        vehicle then drives by without a stop.
        """
        self.cancellations += 1
        if record.status == "booked" and (self.is_closed or not self.live.cancel(record.request_id)):
            self.passed_by.add(record.request_id)


def requests_of(
    events: Iterable[StoredEvent], read_request: Callable[[Event], RequestRecord]
) -> list[tuple[date, RequestRecord]]:
    """Requests with their days, as some events leave them; routes are not built."""
    rows = list(events)
    undone = {stored.event.data["seq"] for stored in rows if stored.event.kind == UNDO}
    found: dict[str | None, tuple[date, RequestRecord]] = {}
    for stored in rows:
        event = stored.event
        if event.kind == REQUEST:
            found[event.request_id] = (event.day, read_request(event))
        elif event.request_id in found and stored.seq not in undone:
            found[event.request_id][1].note(event)
    return list(found.values())
