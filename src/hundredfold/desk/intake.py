"""Checks of incoming requests and responses, and their form in the journal."""

from __future__ import annotations

import secrets
from datetime import UTC, date
from typing import Final

import numpy as np

from hundredfold.core.batch import BoolArray, FloatArray
from hundredfold.core.errors import suggest
from hundredfold.desk.models import DeskError, Json, Quote, ResponseIn, TripIn, minutes_of
from hundredfold.desk.population import DeskPopulation
from hundredfold.desk.records import REQUEST, DayRecord, RequestRecord
from hundredfold.desk.storage import Event
from hundredfold.desk.text import CODE_CHARACTERS, has_code, normalised
from hundredfold.desk.times import DeskClock
from hundredfold.envs.dvrp.offers import servable_alone
from hundredfold.envs.dvrp.population import GRID_MINUTES, ride_limits
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.envs.dvrp.trip_purposes import purpose_of
from hundredfold.routing.problem import DROPOFF, EARLY, LATE, PICKUP

__all__ = ["Intake", "response_data"]

# Fields of a request's event that make it the same trip.
CONTENT: Final = ("rider", "pickup", "dropoff", "passengers", "purpose", "is_appointment")


class Intake:
    """Reads requests: those of callers are checked, those of the journal were.

    Args:
        riders: Riders and trips of the desk.
        settings: Settings of the env.
        window_minutes: Width of windows around a wanted time.
        clock: The present time.
    """

    def __init__(
        self, riders: DeskPopulation, settings: DvrpSettings, window_minutes: float, clock: DeskClock | None = None
    ) -> None:
        self.riders, self.settings, self.window_minutes = riders, settings, window_minutes
        self.clock = clock or DeskClock(UTC)
        self.city = riders.population.city
        self.cells = {normalised(name): cell for cell, name in enumerate(self.city.names)}

    def read(self, event: Event) -> RequestRecord:
        """The record of a request event; new riders and trips are numbered in order of appearance."""
        data = event.data
        windows = np.array(data["windows"])
        customer = self.riders.customer(data["rider"])
        cells = (self.cells[normalised(data["pickup"])], self.cells[normalised(data["dropoff"])])
        trip = data.get("trip")
        if trip is None:
            trip = self.riders.trip(customer, cells, windows, purpose_of(data["purpose"]))
        return RequestRecord(
            request_id=event.request_id or "",
            rider=data["rider"],
            pickup=data["pickup"],
            dropoff=data["dropoff"],
            passengers=data["passengers"],
            purpose=data["purpose"],
            windows=windows,
            is_appointment=data["is_appointment"],
            customer=customer,
            trip=trip,
            reference=data.get("reference"),
        )

    def check(self, record: DayRecord, trip: TripIn) -> Event:
        """The event of a caller's request; a `DeskError` if it cannot be served on any route."""
        data = self._data(trip)
        cells, windows = (self._cell(trip.pickup), self._cell(trip.dropoff)), np.array(data["windows"])
        if cells[PICKUP] == cells[DROPOFF]:
            raise DeskError(422, "same_place", "Pickup and dropoff are the same place.")
        if trip.passengers > record.live.settings.capacity:
            seats = record.live.settings.capacity
            raise DeskError(422, "too_many", f"A vehicle has {seats} seats, not {trip.passengers}.")
        self._require_possible(record.day, cells, windows)
        self.require_free(record, trip.rider, windows)
        if trip.trip is not None:
            self._require_recurring(trip, trip.trip, cells, windows)
        return Event(REQUEST, record.day, secrets.token_hex(8), trip.rider, data)

    def is_same(self, request: RequestRecord, trip: TripIn) -> bool:
        """Whether a caller's request is the one that was recorded."""
        data = self._data(trip)
        same = all(getattr(request, name) == data[name] for name in CONTENT)
        return same and request.windows.tolist() == data["windows"] and data.get("trip", request.trip) == request.trip

    def free_offers(self, record: DayRecord, request: RequestRecord) -> BoolArray:
        """(offers,) offers at whose times the rider has no other booking."""
        windows = self.riders.population.offers.windows_of_all(request.windows)
        free = np.ones(len(windows), bool)
        for other in _bookings_of(record, request.rider, request.request_id):
            free &= ~_overlaps(windows, other)
        return free

    def require_free(self, record: DayRecord, rider: str, windows: FloatArray, request_id: str = "") -> None:
        """Raise a 409 if the rider has another booking at the same time: nobody is in two vehicles.

        Args:
            record: The day.
            rider: The rider.
            windows: (2, 2) time windows.
            request_id: The request that these windows belong to.
        """
        if any(_overlaps(windows, other).any() for other in _bookings_of(record, rider, request_id)):
            raise DeskError(409, "double_booking", "This rider is already booked at that time.")

    def _data(self, trip: TripIn) -> Json:
        """A request in the form of the journal."""
        if trip.rider not in self.riders.riders and has_code(trip.rider):
            unwanted = " ".join(sorted(CODE_CHARACTERS))
            raise DeskError(422, "invalid", f"The name of a new rider must not have any of {unwanted}.")
        cells = (self._cell(trip.pickup), self._cell(trip.dropoff))
        data: Json = {
            "rider": trip.rider,
            "pickup": self.city.names[cells[PICKUP]],
            "dropoff": self.city.names[cells[DROPOFF]],
            "passengers": trip.passengers,
            "purpose": trip.purpose,
            "windows": self._windows(trip, cells).tolist(),
            "is_appointment": trip.appointment or trip.appointment_time is not None,
            "reference": trip.reference,
        }
        return data if trip.trip is None else {**data, "trip": trip.trip}

    def _cell(self, name: str) -> int:
        cell = self.cells.get(normalised(name))
        if cell is None:
            hint = suggest(name, self.cells, "GET /v1/places lists all.")
            raise DeskError(422, "unknown_place", f"There is no place of this name; {hint}")
        return cell

    def _windows(self, trip: TripIn, cells: tuple[int, int]) -> FloatArray:
        """(2, 2) requested windows."""
        if trip.pickup_window is not None and trip.dropoff_window is not None:
            return np.array([[side.early, side.late] for side in (trip.pickup_window, trip.dropoff_window)])
        width = self.window_minutes
        ride = max(GRID_MINUTES, np.rint(self.city.travel_minutes[cells] / GRID_MINUTES) * GRID_MINUTES)
        if trip.appointment_time is not None:
            start = minutes_of(trip.appointment_time) - width - ride
        else:
            start = minutes_of(trip.pickup_time or "00:00")
        return np.array([[start, start + width], [start + ride, start + ride + width]])

    def _require_possible(self, day: date, cells: tuple[int, int], windows: FloatArray) -> None:
        if day == self.clock.today() and windows[PICKUP, LATE] < self.clock.minute():
            raise DeskError(422, "in_the_past", "The pickup time is in the past.")
        city, env, trips = self.city, self.settings, np.array([cells])
        alone = servable_alone(
            windows[None],
            trips,
            city.travel_minutes,
            city.depot_cell,
            env.day_minutes,
            env.service_minutes,
            ride_limits(trips, city, env),
        )
        if not alone[0]:
            raise DeskError(
                422,
                "impossible",
                f"No vehicle can serve this trip within its time windows, the ride-time limit and the day: the direct "
                f"ride takes {city.travel_minutes[cells]:.0f} minutes, and the day ends at minute {env.day_minutes}.",
            )

    def _require_recurring(self, trip: TripIn, number: int, cells: tuple[int, int], windows: FloatArray) -> None:
        customer = self.riders.riders.get(trip.rider)
        trips = self.riders.population.trips
        if (
            customer is None
            or number not in self.riders.recurring_trips(customer)
            or tuple(trips.cells[number]) != cells
            or not np.array_equal(trips.windows[number], windows)
        ):
            raise DeskError(422, "other_trip", f"Trip {number} is not this trip of the rider; omit it for a new trip.")


def _bookings_of(record: DayRecord, rider: str, but: str) -> list[FloatArray]:
    """(2, 2) windows of a rider's bookings, without one request."""
    return [
        other.booked_windows
        for other in record.requests.values()
        if other.rider == rider and other.status == "booked" and other.booked_windows is not None
        if other.request_id != but
    ]


def _overlaps(windows: FloatArray, booked: FloatArray) -> BoolArray:
    """(...,) whether trips of (..., 2, 2) windows can be under way at the same time as a booked one."""
    starts_before = windows[..., PICKUP, EARLY] < booked[DROPOFF, LATE]
    return np.asarray(starts_before & (booked[PICKUP, EARLY] < windows[..., DROPOFF, LATE]), bool)


def response_data(quote: Quote, response: ResponseIn) -> Json:
    """A response in the form of the journal: offers by their minutes, booked windows."""
    offers = {offer.offer: offer for offer in quote.offers}
    refused = response.refused
    if refused is None:
        made = response.choice == "as_requested" and quote.recommended is not None
        refused = [quote.recommended] if made and quote.recommended is not None else []
    unknown = [offer for offer in (*refused, response.offer) if offer is not None and offer not in offers]
    if unknown or response.offer in refused:
        raise DeskError(422, "unknown_offer", "The response names an offer that the quote does not contain.")
    chosen = quote.as_requested if response.offer is None else offers[response.offer]
    if response.choice == "as_requested" and not quote.as_requested.bookable:
        raise DeskError(409, "not_bookable", "The trip cannot be booked as requested; choose an offer or decline.")
    sides = (chosen.pickup_window, chosen.dropoff_window)
    minutes = [[offers[offer].earlier_minutes, offers[offer].later_minutes] for offer in refused]
    accepted = None if response.offer is None else offers[response.offer]
    return {
        "quote_id": response.quote_id,
        "choice": response.choice,
        "offer": response.offer,
        "refused": minutes,
        "minutes": None if accepted is None else [accepted.earlier_minutes, accepted.later_minutes],
        "windows": [[side.early, side.late] for side in sides],
    }
