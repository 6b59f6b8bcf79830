"""What the desk receives and returns, as pydantic models; the API's schemas follow from them.

Times are minutes after midnight of the day, and may exceed 1440 on days that end after midnight.
"""

from __future__ import annotations

import re
from datetime import date, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from hundredfold.core.errors import HundredfoldError
from hundredfold.desk.text import CLOCK_PATTERN, REFERENCE_PATTERN, plain_text, plain_words

__all__ = [
    "AsRequested",
    "BookingView",
    "Choice",
    "Clock",
    "ClosedDay",
    "DayView",
    "DeskConfig",
    "DeskError",
    "Json",
    "LastStep",
    "Manifest",
    "Offer",
    "Place",
    "Problem",
    "Quote",
    "Reference",
    "ResponseIn",
    "RiderName",
    "RiderView",
    "RouteView",
    "Status",
    "StopView",
    "TripIn",
    "TripView",
    "UndoIn",
    "WhatIfIn",
    "WhatIfView",
    "Window",
    "clock",
    "minutes_of",
]

Choice = Literal["offer", "as_requested", "declined"]
Status = Literal["quoted", "booked", "declined", "denied", "cancelled"]

RiderName = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(plain_text)]
PlaceName = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(plain_text)]
Purpose = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(plain_words)]
Reference = Annotated[str, Field(min_length=1, max_length=64, pattern=REFERENCE_PATTERN)]
Clock = Annotated[str, Field(pattern=CLOCK_PATTERN, examples=["08:30"])]
Minutes = Annotated[float, Field(ge=0.0, le=2880.0, allow_inf_nan=False)]
OfferNumber = Annotated[int, Field(ge=0, le=10_000)]


class DeskError(HundredfoldError):
    """A request that the desk refuses.

    Args:
        status: HTTP status, 4xx.
        code: Short name of the reason, for programs.
        reason: One sentence for people.
        quote: A new quote, where the old one cannot be kept.
    """

    def __init__(self, status: int, code: str, reason: str, quote: Quote | None = None) -> None:
        super().__init__(reason)
        self.status, self.code, self.reason, self.quote = status, code, reason, quote


def clock(minutes: float) -> str:
    """Minutes after midnight as HH:MM, rounded down to the minute as riders are told."""
    whole = int(minutes + 1e-6)
    return f"{whole // 60:02d}:{whole % 60:02d}"


def minutes_of(text: str) -> float:
    """HH:MM as minutes after midnight."""
    match = re.fullmatch(r"(\d{1,2}):(\d{2})", text)
    assert match is not None, "checked by the pattern of Clock"
    return 60.0 * int(match[1]) + int(match[2])


class Model(BaseModel):
    """Base of all models: unknown fields are errors."""

    model_config = ConfigDict(extra="forbid")


class Window(Model):
    """A time window."""

    early: Minutes
    late: Minutes
    text: str = ""

    @model_validator(mode="after")
    def _in_order(self) -> Window:
        if self.late < self.early:
            raise ValueError("must not end before it begins")
        self.text = f"{clock(self.early)}-{clock(self.late)}"
        return self


class TripIn(Model):
    """A trip that a rider requests, by wanted pickup time, appointment time, or both time windows."""

    rider: RiderName
    pickup: PlaceName
    dropoff: PlaceName
    pickup_time: Clock | None = Field(default=None, description="Wanted pickup time, HH:MM.")
    appointment_time: Clock | None = Field(default=None, description="Arrive by this time, HH:MM.")
    pickup_window: Window | None = None
    dropoff_window: Window | None = None
    appointment: bool = Field(
        default=False, description="The dropoff window ends with an appointment; implied by appointment_time."
    )
    passengers: int = Field(default=1, ge=1, le=1000)
    purpose: Purpose = "other"
    trip: int | None = Field(default=None, ge=0, le=10**9, description="Number of a recurring trip of this rider.")
    reference: Reference | None = Field(
        default=None,
        description="The caller's own id: the same trip sent again on the same day with it is the same request.",
    )

    @model_validator(mode="after")
    def _one_time(self) -> TripIn:
        if (self.pickup_window is None) != (self.dropoff_window is None):
            raise ValueError("must have both of pickup_window and dropoff_window, or neither")
        given = [self.pickup_time, self.appointment_time, self.pickup_window]
        if sum(value is not None for value in given) != 1:
            raise ValueError("must have exactly one of pickup_time, appointment_time, and both windows")
        if self.appointment and self.pickup_time is not None:
            raise ValueError("has a pickup_time, which is no appointment; give appointment_time or both windows")
        return self


class AsRequested(Model):
    """The trip as requested."""

    bookable: bool
    pickup_window: Window
    dropoff_window: Window
    added_minutes: float | None = Field(description="Driving minutes that the booking adds; null if not bookable.")
    vehicle: int | None = Field(description="Vehicle that would serve it, counted from 1.")
    pickup_minute: float | None
    dropoff_minute: float | None
    reason: str


class Offer(Model):
    """Shifted time windows that may be offered to the rider."""

    offer: OfferNumber
    earlier_minutes: float = Field(description="Minutes by which the pickup moves earlier; negative: later.")
    later_minutes: float = Field(description="Minutes by which the dropoff moves later; negative: earlier.")
    pickup_window: Window
    dropoff_window: Window
    added_minutes: float = Field(description="Driving minutes that the booking adds.")
    change_minutes: float | None = Field(description="Driving minutes compared with the trip as requested.")
    probability: float = Field(description="Probability that the rider accepts.")
    expected_saving_minutes: float | None = Field(description="Probability times driving minutes saved.")
    vehicle: int
    pickup_minute: float
    dropoff_minute: float
    recommended: bool = Field(description="Whether the policy decides for this offer.")
    reason: str


class Quote(Model):
    """What the desk can do for a request, valid until it expires."""

    request_id: str
    quote_id: str
    day: date
    version: int = Field(description="Version of the day that the quote was made for.")
    rider: str
    expires_at: datetime
    servable: bool
    as_requested: AsRequested
    offers: list[Offer]
    recommended: OfferNumber | None = Field(description="The offer to make first; null: book as requested.")
    policy: str
    notes: list[str] = []


class ResponseIn(Model):
    """What the rider responded."""

    quote_id: Reference
    choice: Choice
    offer: OfferNumber | None = Field(default=None, description="The accepted offer, for choice=offer.")
    refused: list[OfferNumber] | None = Field(
        default=None,
        max_length=64,
        description="Offers that were made and refused; by default the recommended one if the choice is as_requested.",
    )

    @model_validator(mode="after")
    def _offer_given(self) -> ResponseIn:
        if (self.choice == "offer") != (self.offer is not None):
            raise ValueError("must name an offer if the choice is offer, and only then")
        return self


class BookingView(Model):
    """A request and what became of it."""

    request_id: str
    day: date
    rider: str
    pickup: str
    dropoff: str
    passengers: int
    purpose: str
    status: Status
    requested_pickup_window: Window
    requested_dropoff_window: Window
    pickup_window: Window | None = None
    dropoff_window: Window | None = None
    shift_minutes: float = 0.0
    vehicle: int | None = None
    pickup_minute: float | None = None
    dropoff_minute: float | None = None
    quote: Quote | None = None


class StopView(Model):
    """A stop of a route."""

    request_id: str
    rider: str
    kind: Literal["pickup", "dropoff"]
    place: str
    minute: float
    time: str
    passengers: int
    on_board: int = Field(description="Passengers on board after the stop.")


class RouteView(Model):
    """The route of one vehicle, from and to the depot."""

    vehicle: int
    start_minute: float
    end_minute: float
    driving_minutes: float
    stops: list[StopView]


class UndoIn(Model):
    """Which step to take back."""

    version: int | None = Field(
        default=None,
        ge=0,
        le=10**9,
        description="The day's version that the caller knows; 409 if it has changed since.",
    )


class LastStep(Model):
    """The step of a day that an undo takes back."""

    kind: Literal["response", "cancel", "close"]
    request_id: str | None
    rider: str | None


class DayView(Model):
    """Bookings, routes and figures of a day."""

    day: date
    version: int = Field(description="Increases with every booking, cancellation and undo.")
    closed: bool
    depot: str
    vehicles: int
    bookings: list[BookingView]
    routes: list[RouteView]
    driving_minutes: float
    baseline_minutes: float = Field(description="Driving minutes of the same bookings, all as requested.")
    saved_minutes: float
    saved_pct: float
    shift_minutes: float = Field(description="Minutes by which pickups and dropoffs were moved, added up.")
    requests: int
    offers_made: int
    offers_accepted: int
    denials: int
    cancellations: int
    last_step: LastStep | None = Field(description="What an undo takes back; null if there is nothing to undo.")


class WhatIfIn(Model):
    """A change to try without booking: one more trip, a cancellation, or another number of vehicles."""

    trip: TripIn | None = None
    cancel: Reference | None = None
    vehicles: int | None = Field(default=None, ge=1, le=1000)


class WhatIfView(Model):
    """The day after a change that is not booked."""

    feasible: bool
    driving_minutes: float | None
    change_minutes: float | None
    unserved: list[str] = Field(description="Request ids that would have no vehicle.")
    routes: list[RouteView]
    quote: Quote | None = None


class TripView(Model):
    """A recurring trip of a rider."""

    trip: int
    pickup: str
    dropoff: str
    pickup_window: Window
    dropoff_window: Window
    purpose: str


class RiderView(Model):
    """How often a rider was given offers, and what they responded."""

    rider: str
    requests: int
    offers_made: int
    offers_accepted: int
    shift_minutes: float
    denials: int
    cancellations: int
    offers_this_week: int
    offers_left_this_week: int | None
    flexibility: dict[str, float] = Field(description="Believed probabilities of the customer types.")
    bookings: list[BookingView]
    recurring_trips: list[TripView]


class Place(Model):
    """A place that trips may start and end at."""

    name: str
    x: float = Field(description="Position in the unit square, west to east.")
    y: float = Field(description="South to north.")
    latitude: float | None
    longitude: float | None


class Manifest(Model):
    """The stops of one vehicle, for its driver."""

    vehicle: int
    csv: str
    geojson: dict[str, Any] = Field(description="Empty where places have no coordinates.")


class ClosedDay(Model):
    """A closed day and the manifests of its vehicles."""

    day: DayView
    manifests: list[Manifest]


class DeskConfig(Model):
    """Settings of the desk that a page shows or needs."""

    today: date
    time_zone: str
    policy: str
    purposes: list[str]
    capacity: int
    vehicles: int
    day_minutes: int
    window_minutes: float
    quote_minutes: float
    offers_per_quote: int
    max_offers_per_week: int | None
    tile_url: str | None


class Problem(Model):
    """Why a request was refused."""

    code: str
    reason: str
    quote: Quote | None = None


Json = dict[str, Any]
