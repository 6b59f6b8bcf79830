"""One day of the desk: bookings, their routes, and what a further request would cost.

The day is a `Dvrp` env with one row whose requests come from callers instead of a sampler. A policy
therefore sees what it sees in training and evaluation. All state follows from the bookings,
cancellations included, in their order, so that the same journal gives the same routes to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from hundredfold.core import rng
from hundredfold.core.batch import Arrays, BoolArray, FloatArray, StepBatch
from hundredfold.core.rng import Keys
from hundredfold.envs.dvrp.demand import ROUTES_CHILD
from hundredfold.envs.dvrp.env import Dvrp
from hundredfold.envs.dvrp.heuristics import OfferPolicy
from hundredfold.envs.dvrp.population import Population
from hundredfold.envs.dvrp.route_costs import UNSERVED_PENALTY_MINUTES, RouteCosts, served_costs
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.routing.incremental import IncrementalRoutes
from hundredfold.routing.lns_oracle import LNSOracle, LNSSettings
from hundredfold.routing.problem import Solutions

__all__ = ["Booking", "DeskDay", "FinalRoutes", "Trial", "total_shift"]

# A day that exceeds the expected number of requests is given room for this many more.
MORE_REQUESTS: Final = 32
# Arrays of the true state with one row per request; the others are figures of the whole day.
REQUEST_ARRAYS: Final = (
    "customer_id",
    "trip_id",
    "type",
    "cells",
    "requested_windows",
    "booked_windows",
    "max_ride_minutes",
    "tolerance",
    "accepts",
    "allowed",
    "offers",
    "accepted",
)


@dataclass(frozen=True, slots=True, eq=False)
class Booking:
    """A request as the routes see it."""

    request_id: str
    customer: int
    trip: int
    passengers: int
    requested_windows: FloatArray  # (2, 2) minutes
    booked_windows: FloatArray  # (2, 2) minutes; as requested until booked

    @property
    def shift_minutes(self) -> float:
        """Minutes by which pickup and dropoff were moved, added up."""
        moved = np.abs(self.booked_windows - self.requested_windows)[:, 0]
        return float(moved.sum())


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """Routes of the day with one more request."""

    cost: float  # driving minutes
    solution: Solutions
    feasible: bool  # whether everybody is served


@dataclass(frozen=True, slots=True, eq=False)
class FinalRoutes:
    """Routes of a closed day, and the cost of the same bookings as requested after the same search."""

    solution: Solutions
    baseline_minutes: float


class DeskDay(Dvrp):
    """Bookings and routes of one day, and the observation of the next request.

    Args:
        number: Number of the day, which selects its stream of random numbers.
        seed: Seed of the desk.
        population: Riders and trips.
        settings: Settings of the env; `num_customers` is the expected number of requests.
    """

    def __init__(self, number: int, seed: int, population: Population, settings: DvrpSettings) -> None:
        super().__init__(np.array([number]), settings, population)
        self.number, self.seed = number, seed
        self.policy: OfferPolicy | None = None  # a policy that follows this day's bookings
        self.beliefs_version = -1
        self.bookings: list[Booking] = []
        self.baseline = RouteCosts(1, population, settings)
        self.reset(seed)

    def start(self) -> None:
        """An empty day; `observe_request` writes the first observation."""
        for array in self.true_state.values():
            array[...] = 0
        self.route_costs.clear(np.ones(1, bool))
        self.baseline.clear(np.ones(1, bool))

    @property
    def routes(self) -> IncrementalRoutes:
        """Routes of the bookings."""
        return self.route_costs.routes

    @property
    def cost(self) -> float:
        """Driving minutes of the day."""
        return float(self.routes.driving_minutes[0])

    @property
    def is_full(self) -> bool:
        """Whether the arrays have no room for another request."""
        return len(self.bookings) == self.settings.num_customers

    def with_more_room(self) -> DeskDay:
        """The same day with room for more requests."""
        return self.copy(self.settings.num_customers + MORE_REQUESTS)

    def copy(self, num_customers: int | None = None) -> DeskDay:
        """The same day, to change without changing this one.

        Args:
            num_customers: Requests that it has room for; by default as many as this one.
        """
        settings = replace(self.settings, num_customers=num_customers or self.settings.num_customers)
        day = DeskDay(self.number, self.seed, self.population, settings)
        day.bookings = list(self.bookings)
        for own, other in ((self.routes, day.routes), (self.baseline.routes, day.baseline.routes)):
            other.restore(_padded(own, other))
        for name in REQUEST_ARRAYS:
            day.true_state[name][:, : self.settings.num_customers] = self.true_state[name]
        day._count()
        return day

    def observe_request(self, booking: Booking, allowed: BoolArray) -> StepBatch:
        """The observation of a request, as a policy gets it.

        Args:
            booking: The request.
            allowed: (offers,) offers that the operator allows, besides what the trip itself allows.
        """
        self._write_request(booking)
        state = self.true_state
        state["allowed"][0, len(self.bookings)] &= allowed
        state["allowed"][0, len(self.bookings), self.population.offers.no_change] = True
        self.observe()
        return self.out

    def insertion_costs(self, booking: Booking) -> FloatArray:
        """(offers,) cost that the cheapest insertion adds, in minutes; inf where there is none."""
        trip = booking.trip
        self.route_costs.riders[:] = booking.passengers
        costs = self.routes.candidate_costs(
            self.population.trips.cells[trip][None],
            self.population.offers.windows_of_all(booking.requested_windows)[None],
            riders=booking.passengers,
            service_minutes=self.settings.service_minutes,
            max_ride_minutes=self.population.max_ride_minutes[trip],
        ).insertion
        return np.asarray(costs[0] - served_costs(self.routes, self.settings.vehicle_cost)[0], np.float64)

    def trial(self, booking: Booking) -> Trial:
        """The routes if this request were booked now, without booking it."""
        trip = booking.trip
        self.route_costs.riders[:] = booking.passengers
        self.route_costs.cost_with(
            self.population.trips.cells[trip][None],
            booking.booked_windows[None],
            self.population.max_ride_minutes[trip][None],
            self._route_keys(),
        )
        routes = self.route_costs.trial
        assert routes is not None
        return Trial(
            cost=float(routes.driving_minutes[0]), solution=routes.solutions(), feasible=not bool(routes.unserved.any())
        )

    def book(self, booking: Booking) -> None:
        """Book a request with its booked windows and improve the routes."""
        self._write_request(booking)
        trip, state, at = booking.trip, self.true_state, len(self.bookings)
        cells, max_ride = self.population.trips.cells[trip][None], self.population.max_ride_minutes[trip][None]
        for costs, windows in ((self.route_costs, booking.booked_windows), (self.baseline, booking.requested_windows)):
            costs.riders[:] = booking.passengers
            costs.add(cells, windows[None], max_ride, self._route_keys())
        state["booked_windows"][0, at] = booking.booked_windows
        state["offers"][0, at] = self.population.offers.no_change
        state["accepted"][0, at] = True
        self.bookings.append(booking)
        self._count()

    def cancel(self, request_id: str) -> bool:
        """Remove a booking.

        Where travel times violate the triangle inequality, a vehicle without this stop could be late
        at another. Then all routes are built again.

        Returns:
            False if somebody would have no vehicle even then; the routes stay as they are.
        """
        index = next(number for number, booking in enumerate(self.bookings) if booking.request_id == request_id)
        others, keys = [*self.bookings[:index], *self.bookings[index + 1 :]], self._route_keys()
        before = self.routes.state()
        if not self.routes.remove(0, index, keys):
            self._insert_all(self.route_costs, others, [booking.booked_windows for booking in others])
            if self.routes.unserved.any():
                self.routes.restore(before)
                return False
        if not self.baseline.routes.remove(0, index, keys):
            self._insert_all(self.baseline, others, [booking.requested_windows for booking in others])
        self.bookings = others
        for name in REQUEST_ARRAYS:
            array = self.true_state[name]
            array[0, index:-1] = array[0, index + 1 :].copy()
            array[0, -1] = 0
        self._count()
        return True

    def baseline_cost(self) -> float:
        """Driving minutes of the same bookings as requested, with the penalty for whom that leaves unserved."""
        return _penalised(self.baseline.routes)

    def final_search(self) -> Callable[[], FinalRoutes]:
        """A longer search for the whole day, as booked and as requested, which may run while the day changes.

        It returns the routes found, or those of now if they are no worse.
        """
        present = [routes.solutions() for routes in (self.routes, self.baseline.routes)]
        rows = [routes.problems.rows(np.array([0])) for routes in (self.routes, self.baseline.routes)]
        oracle = LNSOracle(LNSSettings(threads=self.settings.oracle_threads))

        def search() -> FinalRoutes:
            found = [oracle.solve(problems) for problems in rows] if self.bookings else present
            best = [new if _penalised(new) < _penalised(old) else old for new, old in zip(found, present, strict=True)]
            return FinalRoutes(best[0], _penalised(best[1]))

        return search

    def _insert_all(self, costs: RouteCosts, bookings: Sequence[Booking], windows: Sequence[FloatArray]) -> None:
        """Build routes anew from bookings in their order."""
        costs.clear(np.ones(1, bool))
        for booking, times in zip(bookings, windows, strict=True):
            costs.riders[:] = booking.passengers
            cells = self.population.trips.cells[booking.trip][None]
            costs.add(cells, times[None], self.population.max_ride_minutes[booking.trip][None], self._route_keys())

    def _write_request(self, booking: Booking) -> None:
        """Write a request behind the bookings; policies read it there."""
        trip, at = booking.trip, len(self.bookings)
        trips, state = self.population.trips, self.true_state
        self.route_costs.riders[:] = booking.passengers
        state["customer_id"][0, at] = booking.customer
        state["trip_id"][0, at] = trip
        state["cells"][0, at] = trips.cells[trip]
        state["requested_windows"][0, at] = booking.requested_windows
        state["booked_windows"][0, at] = 0.0
        state["max_ride_minutes"][0, at] = self.population.max_ride_minutes[trip]
        state["accepts"][0, at] = True
        state["allowed"][0, at] = self.population.allowed[trip]
        state["offers"][0, at] = self.population.offers.no_change

    def _count(self) -> None:
        self.true_state["num_booked"][:] = len(self.bookings)
        self.true_state["cost"][:] = self.route_costs.cost

    def _route_keys(self) -> Keys:
        """(1,) RNG key of the search, the same as in the env."""
        return rng.spawn(self._episode_keys(), ROUTES_CHILD)


def _penalised(routes: Solutions | IncrementalRoutes) -> float:
    """Driving minutes of one day, with the penalty for whom the routes leave unserved."""
    return float(routes.driving_minutes[0] + UNSERVED_PENALTY_MINUTES * routes.unserved[0].sum())


def total_shift(bookings: list[Booking]) -> float:
    """Minutes moved over all bookings."""
    return float(sum(booking.shift_minutes for booking in bookings))


def _padded(source: IncrementalRoutes, target: IncrementalRoutes) -> Arrays:
    """The state of some routes in the shapes of routes with room for more requests."""
    state = target.state()
    for name, array in source.state().items():
        region = tuple(slice(0, size) for size in array.shape)
        state[name][region] = array
    return state
