"""Riders and trips of the desk: a population with room for new riders and new trips.

Known riders and their recurring trips keep their numbers, so that a policy decides about them as it
does in the env. A new rider, and a new trip of any rider, takes the next free number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from hundredfold.core.batch import FloatArray
from hundredfold.core.errors import HundredfoldError
from hundredfold.desk.text import normalised
from hundredfold.envs.dvrp.population import Customers, Population, Trips, ride_limits
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.routing.problem import DROPOFF, PICKUP

__all__ = ["DeskPopulation", "FullPopulationError", "TripKey", "rider_name"]

# Room for new riders and trips beyond those that are already recorded.
MIN_ROOM: Final = 1024


class FullPopulationError(HundredfoldError):
    """There is no room for another new rider or trip."""


@dataclass(frozen=True, slots=True)
class TripKey:
    """What tells the trips of a rider apart."""

    customer: int
    cells: tuple[int, int]
    windows: tuple[float, float, float, float]
    purpose: int

    @classmethod
    def of(cls, customer: int, cells: tuple[int, int], windows: FloatArray, purpose: int) -> TripKey:
        """The key of a trip with (2, 2) windows."""
        pickup_early, pickup_late, dropoff_early, dropoff_late = (float(minute) for minute in windows.ravel())
        return cls(customer, cells, (pickup_early, pickup_late, dropoff_early, dropoff_late), purpose)


def rider_name(population: Population, customer: int) -> str:
    """Name under which the desk knows a customer: that of the operator's file, or customer-1 and so on."""
    ids = population.customers.ids
    return normalised(ids[customer]) if ids else f"customer-{customer + 1}"


class DeskPopulation:
    """A population, extended by the riders and trips that the desk meets.

    Args:
        base: Known customers and trips.
        settings: Ride-time limits, service times and the length of the day.
        num_recorded: New riders and trips to make room for, besides `MIN_ROOM` more.
    """

    def __init__(self, base: Population, settings: DvrpSettings, num_recorded: int = 0) -> None:
        self.base, self.settings = base, settings
        room = num_recorded + MIN_ROOM
        self.population = _with_room(base, room)
        self.num_riders, self.num_trips = base.size, len(base.trips.purpose)
        self.riders = {rider_name(base, customer): customer for customer in range(base.size)}
        self.names = {customer: name for name, customer in self.riders.items()}
        self.trips: dict[TripKey, int] = {}
        self.trips_of: dict[int, list[int]] = {}

    @property
    def num_new(self) -> int:
        """New riders or trips so far, whichever are more."""
        return max(self.num_riders - self.base.size, self.num_trips - len(self.base.trips.purpose))

    def customer(self, rider: str) -> int:
        """Number of a rider; a new rider gets the next one."""
        known = self.riders.get(rider)
        if known is not None:
            return known
        if self.num_riders == self.population.size:
            raise FullPopulationError(f"there is no room for more than {self.population.size} riders.")
        customer = self.num_riders
        self.num_riders += 1
        self.riders[rider] = customer
        self.names[customer] = rider
        return customer

    def trip(self, customer: int, cells: tuple[int, int], windows: FloatArray, purpose: int) -> int:
        """Number of a trip; a new one gets the next, and its ride-time limit and allowed offers.

        Args:
            customer: Number of the rider.
            cells: Pickup and dropoff cell.
            windows: (2, 2) requested time windows in minutes.
            purpose: Trip purpose.
        """
        self.recurring_trips(customer)
        key = TripKey.of(customer, cells, windows, purpose)
        if key in self.trips:
            return self.trips[key]
        trips = self.population.trips
        if self.num_trips == len(trips.purpose):
            raise FullPopulationError(f"there is no room for more than {self.num_trips} trips.")
        number = self.num_trips
        self.num_trips += 1
        trips.cells[number], trips.windows[number], trips.purpose[number] = cells, windows, purpose
        city, settings, row = self.population.city, self.settings, slice(number, number + 1)
        limit = ride_limits(trips.cells[row], city, settings)
        self.population.max_ride_minutes[number] = limit[0]
        self.population.allowed[row] = self.population.offers.allowed(
            trips.windows[row],
            trips.cells[row],
            city.travel_minutes,
            city.depot_cell,
            settings.day_minutes,
            settings.service_minutes,
            limit,
        )
        self._index(number, key)
        return number

    def recurring_trips(self, customer: int) -> list[int]:
        """Numbers of the trips that a rider is known to make."""
        if customer not in self.trips_of:
            self.trips_of[customer] = []
            if customer < self.base.size:
                first, trips = int(self.base.first_trip[customer]), self.population.trips
                for number in range(first, first + int(self.base.customers.num_trips[customer])):
                    cells = (int(trips.cells[number, PICKUP]), int(trips.cells[number, DROPOFF]))
                    self._index(number, TripKey.of(customer, cells, trips.windows[number], int(trips.purpose[number])))
        return self.trips_of[customer]

    def _index(self, number: int, key: TripKey) -> None:
        # Of equal trips the first counts, unless a request names another.
        self.trips.setdefault(key, number)
        self.trips_of.setdefault(key.customer, []).append(number)


def _with_room(base: Population, room: int) -> Population:
    """A copy of a population with `room` further customers, each with one trip that is not used yet."""
    customers, trips = base.customers, base.trips
    zeros = np.zeros(room, np.int64)
    no_tolerance = np.zeros((room, 2))
    return Population(
        city=base.city,
        offers=base.offers,
        customers=Customers(
            types=np.concatenate([customers.types, zeros]),
            num_known=customers.num_known,
            num_trips=np.concatenate([customers.num_trips, zeros + 1]),
            ages=np.concatenate([customers.ages, zeros - 1]),
            occupations=(*customers.occupations, *[""] * room),
            ids=(*customers.ids, *[""] * room) if customers.ids else (),
        ),
        trips=Trips(
            cells=np.concatenate([trips.cells, np.zeros((room, 2), np.int64)]),
            windows=np.concatenate([trips.windows, np.zeros((room, 2, 2))]),
            purpose=np.concatenate([trips.purpose, zeros]),
            tolerance=np.concatenate([trips.tolerance, no_tolerance]),
        ),
        max_ride_minutes=np.concatenate([base.max_ride_minutes, np.full(room, np.inf)]),
        accepts=np.concatenate([base.accepts, base.offers.tolerated(no_tolerance)]),
        allowed=np.concatenate([base.allowed, base.offers.tolerated(no_tolerance)]),
    )
