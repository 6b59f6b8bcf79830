"""Transactional data specification for demand-responsive transport (TDS, TCRP Report 210).

Telegram 1A, `tripRequest`, becomes a request of the desk; its quote becomes telegram 1B,
`tripRequestResponse`. Field names are those of the specification. Times with a zone are converted to
that of the desk; times without one are local.
"""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated, Any, Final

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from hundredfold.desk.models import DeskError, Offer, Quote, Reference, TripIn, clock
from hundredfold.desk.service import Desk
from hundredfold.desk.text import normalised, problems_text
from hundredfold.desk.times import DeskClock
from hundredfold.envs.dvrp.city import City, great_circle_km
from hundredfold.envs.dvrp.trip_purposes import OTHER, PURPOSE_NAMES, purpose_of

__all__ = ["TripRequest", "TripRequestResponse", "answer_trip_request"]

# A place counts as the address if it is this near.
MAX_DISTANCE_KM: Final = 1.0
# Codes of trip purposes: adult day program, dialysis, employment, grocery, health, medical, personal,
# recreation, and public transit.
PURPOSE_CODES: Final = {
    "A": "social",
    "D": "medical",
    "E": "work",
    "G": "shopping",
    "HR": "medical",
    "M": "medical",
    "P": "errand",
    "R": "recreation",
    "T": "other",
}

Text = Annotated[str, Field(max_length=500)]
Texts = Annotated[list[Text], Field(max_length=50)]


class TdsModel(BaseModel):
    """Base of telegrams: fields of local use are ignored, as the specification allows."""

    model_config = ConfigDict(extra="ignore")


def _require_text(value: Any) -> Any:
    """Numbers are no times here, though pydantic would take them for seconds since 1970."""
    if not isinstance(value, str | datetime):
        raise ValueError("must be a date and a time such as 2027-01-15T08:30:00-05:00")
    return value


class Time(TdsModel):
    """A point in time."""

    time: Annotated[datetime, BeforeValidator(_require_text)]


class GeographicLocation(TdsModel):
    """Coordinates in degrees."""

    lat: float = Field(ge=-90, le=90)
    long: float = Field(ge=-180, le=180)


class Address(TdsModel):
    """An address, by the name of a place or by coordinates, its own or those of `geographicLocation`."""

    addressName: Text | None = None
    street: Text | None = None
    city: Text | None = None
    lat: float | None = Field(default=None, ge=-90, le=90)
    long: float | None = Field(default=None, ge=-180, le=180)
    geographicLocation: GeographicLocation | None = None

    @property
    def degrees(self) -> tuple[float, float] | None:
        """Latitude and longitude; None if they are not given."""
        if self.lat is not None and self.long is not None:
            return self.lat, self.long
        point = self.geographicLocation
        return None if point is None else (point.lat, point.long)


class CustomerInfo(TdsModel):
    """The rider."""

    customerId: Text | None = None


class TripRequest(TdsModel):
    """Telegram 1A: a client asks whether a trip is available.

    Every field of the published list is checked, also those that the desk has no use for.
    """

    tripTicketId: Reference
    pickupAddress: Address
    dropoffAddress: Address
    pickupTime: Time | None = None
    appointmentTime: Time | None = None
    dropoffTime: Time | None = None
    pickupWindowStartTime: Time | None = None
    pickupWindowEndTime: Time | None = None
    negotiatedPickupTime: Time | None = None
    hardConstraintOnPickupTime: bool | None = None
    hardConstraintOnDropoffTime: bool | None = None
    customerInfo: CustomerInfo | None = None
    numOtherReservedPassengers: int | None = Field(default=None, ge=0, le=999)
    tripPurpose: Text | None = None
    detoursPermissible: bool | None = None
    specialAttributes: Texts | Text | None = None
    transportServices: Texts | Text | None = None
    detailedPickupLocationDescription: Text | None = None
    detailedDropoffLocationDescription: Text | None = None
    notesForDriver: Text | None = None
    openAttribute: Text | None = None

    @model_validator(mode="after")
    def _has_time(self) -> TripRequest:
        times = (self.pickupTime, self.appointmentTime, self.dropoffTime, self.pickupWindowStartTime)
        if all(time is None for time in (*times, self.negotiatedPickupTime)):
            raise ValueError("must have pickupTime, pickupWindowStartTime, appointmentTime or dropoffTime")
        return self


class TripRequestResponse(TdsModel):
    """Telegram 1B: whether the trip is available, and when.

    `negotiatedPickupTime` is set if the time to offer differs from the requested one; the window
    around the scheduled time is in the fields that telegram 1A has for it.
    """

    tripTicketId: str
    tripAvailable: bool
    scheduledPickupTime: Time | None = None
    scheduledPickupPoint: Address | None = None
    scheduledDropoffPoint: Address | None = None
    negotiatedPickupTime: Time | None = None
    pickupWindowStartTime: Time | None = None
    pickupWindowEndTime: Time | None = None
    hardConstraintOnPickupTime: bool | None = None
    openAttribute: str | None = None


def answer_trip_request(desk: Desk, telegram: TripRequest) -> TripRequestResponse:
    """Quote the trip of a telegram; a ticket that is sent again gets the same quote.

    The trip is not booked. The quote's ids, with which it is booked, come in `openAttribute`.
    """
    city = desk.base.city
    pickup, dropoff = _place(city, telegram.pickupAddress), _place(city, telegram.dropoffAddress)
    day, fields = _time_fields(telegram, desk.clock)
    customer = None if telegram.customerInfo is None else telegram.customerInfo.customerId
    fields |= {
        "rider": customer or f"ticket {telegram.tripTicketId}",
        "pickup": pickup,
        "dropoff": dropoff,
        "passengers": 1 + (telegram.numOtherReservedPassengers or 0),
        "purpose": _purpose(telegram.tripPurpose),
        "reference": telegram.tripTicketId,
    }
    try:
        trip = TripIn.model_validate(fields)
    except ValidationError as error:
        raise DeskError(422, "invalid", problems_text(error.errors())) from error
    # An agreed time must not be negotiated again.
    is_fixed = telegram.hardConstraintOnPickupTime or telegram.negotiatedPickupTime is not None
    quote = desk.request(day, trip, 0 if is_fixed else None)
    return _response(telegram, quote, city, (pickup, dropoff), desk.clock)


def _time_fields(telegram: TripRequest, desk_clock: DeskClock) -> tuple[date, dict[str, Any]]:
    """Day of the trip, and its time as a request of the desk has it."""
    arrival = telegram.appointmentTime or (telegram.dropoffTime if telegram.hardConstraintOnDropoffTime else None)
    pickup = telegram.negotiatedPickupTime or telegram.pickupWindowStartTime or telegram.pickupTime
    if arrival is not None and telegram.negotiatedPickupTime is None:
        moment, name = arrival.time, "appointment_time"
    elif pickup is not None:
        moment, name = pickup.time, "pickup_time"
    else:
        assert telegram.dropoffTime is not None, "checked by TripRequest"
        moment, name = telegram.dropoffTime.time, "appointment_time"
    try:
        local = desk_clock.local(moment)
    except OverflowError as error:
        raise DeskError(422, "impossible", "The time lies outside of the calendar.") from error
    return local.date(), {name: clock(60.0 * local.hour + local.minute)}


def _purpose(text: str | None) -> str:
    """The desk's purpose for a code of the specification or for free text."""
    if text is None:
        return PURPOSE_NAMES[OTHER]
    return PURPOSE_CODES.get(text.strip().upper()) or PURPOSE_NAMES[purpose_of(text)]


def _place(city: City, address: Address) -> str:
    """The place of this name, or the nearest one to the coordinates."""
    if address.addressName is not None:
        wanted = normalised(address.addressName)
        for name in city.names:
            if normalised(name) == wanted:
                return name
    if address.degrees is not None and city.degrees is not None:
        points = np.vstack([address.degrees, np.nan_to_num(city.degrees, nan=1e3)])
        distance = great_circle_km(points)[0, 1:]
        nearest = int(np.where(np.isnan(city.degrees[:, 0]), np.inf, distance).argmin())
        if distance[nearest] <= MAX_DISTANCE_KM:
            return city.names[nearest]
    raise DeskError(
        422, "unknown_place", f"No place has this addressName or lies within {MAX_DISTANCE_KM:g} km of lat and long."
    )


def _response(
    telegram: TripRequest, quote: Quote, city: City, places: tuple[str, str], desk_clock: DeskClock
) -> TripRequestResponse:
    offer = next((offer for offer in quote.offers if offer.offer == quote.recommended), None)
    chosen = offer or quote.as_requested
    ids = f"request_id={quote.request_id} quote_id={quote.quote_id}"
    if not quote.servable or chosen.pickup_minute is None:
        return TripRequestResponse(tripTicketId=telegram.tripTicketId, tripAvailable=False, openAttribute=ids)

    def at(minute: float) -> Time:
        return Time(time=desk_clock.at(quote.day, minute))

    return TripRequestResponse(
        tripTicketId=telegram.tripTicketId,
        tripAvailable=True,
        scheduledPickupTime=at(chosen.pickup_minute),
        scheduledPickupPoint=_address(city, places[0]),
        scheduledDropoffPoint=_address(city, places[1]),
        negotiatedPickupTime=at(chosen.pickup_window.early) if isinstance(chosen, Offer) else None,
        pickupWindowStartTime=at(chosen.pickup_window.early),
        pickupWindowEndTime=at(chosen.pickup_window.late),
        hardConstraintOnPickupTime=telegram.hardConstraintOnPickupTime,
        openAttribute=ids if offer is None else f"{ids} offer={offer.offer}",
    )


def _address(city: City, name: str) -> Address:
    degrees = None if city.degrees is None else city.degrees[city.names.index(name)]
    if degrees is None or np.isnan(degrees).any():
        return Address(addressName=name)
    return Address(addressName=name, lat=float(degrees[0]), long=float(degrees[1]))
