"""Features of each offer: how well the request, so shifted, shares routes with other trips.

A pair of trips has potentials: driving minutes that one vehicle saves when it serves both, with and
without riders of the two on board together, and how close one's dropoff is to the other's pickup.
Every offer is described by its insertion cost, before and after a short search improves the routes,
its shift, the slack of its windows, and its potentials with the bookings of the day and, in
expectation, with the trips of known customers who have not called yet. Costs and potentials are
relative to no change. The context describes the request and the state of the day, the same for all
offers.

The features of offers that are hardly ever accepted are 0: they are not worth their time.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from hundredfold.core.batch import Array, Arrays, BoolArray, FloatArray, IntArray
from hundredfold.core.numba_kernels import kernel, noalloc_kernel
from hundredfold.envs.dvrp.population import Population
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.routing.incremental import CandidateCosts
from hundredfold.routing.lns import parallel_ranges
from hundredfold.routing.problem import DROPOFF, EARLY, LATE, PICKUP

# Orders in which one vehicle serves two trips (0, 1: stops of the first; 2, 3: of the second). The
# first two serve one trip after the other; in the others both ride together for a while.
STOP_ORDERS: Final = np.array(
    [[0, 1, 2, 3], [2, 3, 0, 1], [0, 2, 1, 3], [0, 2, 3, 1], [2, 0, 1, 3], [2, 0, 3, 1]], np.int64
)
FIRST_SHARED_ORDER: Final = 2
# Potentials of a pair: savings in any order, savings when shared, shared path shorter than both
# direct rides, shared detour below a limit, link from dropoff to pickup forwards and backwards.
NUM_POTENTIALS: Final = 6
SAVINGS, SHARED_SAVINGS, OVERLAP, SHORT_DETOUR, LINK_AFTER, LINK_BEFORE = range(NUM_POTENTIALS)
DETOUR_LIMIT_MINUTES: Final = 10.0
LINK_LIMIT_MINUTES: Final = 15.0
# Of future trips also the chance that one has shared savings, or a short detour, above these.
SAVINGS_LEVELS: Final = (10.0, 20.0, 30.0)
DETOUR_LEVELS: Final = (5.0, 10.0, 15.0)
NUM_LEVELS: Final = len(SAVINGS_LEVELS) + len(DETOUR_LEVELS)
NUM_FUTURE: Final = NUM_POTENTIALS + NUM_LEVELS
MAX_SHARE: Final = 0.98  # keeps the logarithm of the complement finite

# Columns of the features of an offer: insertion cost and its negative part, the same once routes are
# improved, shift of both sides, slack of the windows, then potentials.
NUM_BASIC: Final = 8
# Potentials with bookings: largest, second largest and sum.
NUM_BOOKED: Final = 3 * NUM_POTENTIALS
NUM_RELATIVE: Final = NUM_BOOKED + NUM_FUTURE
NUM_FEATURES: Final = NUM_BASIC + NUM_RELATIVE
NUM_REQUEST: Final = 12
NUM_CONTEXT: Final = NUM_REQUEST + NUM_RELATIVE

# Future requests are estimated from at most this many customers, evenly spaced among the known.
MAX_FUTURE_CUSTOMERS: Final = 32
HALF_HOURS: Final = 48
NEAR_MINUTES: Final = 60.0
UNUSED: Final = -1


class CityArrays(NamedTuple):
    """Travel times and depot for kernels."""

    travel: FloatArray  # (cells, cells) minutes
    depot: int
    service_minutes: float


class Pair(NamedTuple):
    """Two trips: stops 0 and 1 are pickup and dropoff of the first, 2 and 3 of the second."""

    windows: FloatArray  # (4, 2) of each stop
    legs: FloatArray  # (orders, 3) minutes from stop to stop
    gains: FloatArray  # (orders, 2) minutes saved against two vehicles, and detour of those on board


class FutureTrips(NamedTuple):
    """Known trips that may still be requested, grouped by customer."""

    cells: IntArray  # (trips, 2)
    windows: FloatArray  # (trips, 2, 2)
    first: IntArray  # (customers,) first trip of each
    number: IntArray  # (customers,)
    half_hours: FloatArray  # (customers, 48) share of each customer's trips by half hour of pickup
    position: IntArray  # (population,) which of these customers, -1 = none


class FuturePotentials:
    """Potentials of trips under every offer with the trips of each future customer.

    A trip is computed when it is first requested, and kept. Envs of one population share the table.

    Args:
        population: Customers, trips and city.
        service_minutes: Service time at each stop.
    """

    def __init__(self, population: Population, service_minutes: float) -> None:
        city = population.city
        self.city = CityArrays(city.travel_minutes.astype(np.float64), int(city.depot_cell), service_minutes)
        self.trips, self.offers = population.trips, population.offers
        self.future = _future_trips(population)
        self.slots = np.full(len(self.trips.cells), UNUSED)  # (trips,) row of `table`
        self.num_used = 0
        self.table = np.zeros((0, self.offers.num_offers, len(self.future.first), NUM_FUTURE), np.float32)

    def add(self, trips: IntArray, threads: int) -> None:
        """Compute the potentials of these trips, where missing."""
        new = trips[self.slots[trips] == UNUSED]
        if len(new) == 0:
            return
        first, last = self.num_used, self.num_used + len(new)
        if last > len(self.table):
            table = np.zeros((max(last, 2 * len(self.table)), *self.table.shape[1:]), np.float32)
            table[:first] = self.table[:first]
            self.table = table
        rows = self.table[first:last]
        cells, windows = self.trips.cells[new], self.offers.windows_of_all(self.trips.windows[new])
        parallel_ranges(
            threads,
            len(new),
            lambda start, end: _future_potentials(self.city, self.future, cells, windows, rows, start, end),
        )
        self.slots[new] = np.arange(first, last)
        self.num_used = last


@lru_cache(maxsize=4)
def future_potentials(population: Population, service_minutes: float) -> FuturePotentials:
    """The table of a population, shared by all its envs in this process."""
    return FuturePotentials(population, service_minutes)


class OfferFeatures:
    """Writes the features of every offer and the context, for all envs at once.

    Args:
        population: Customers, trips and city.
        settings: Service times, requests per day and threads.
    """

    def __init__(self, population: Population, settings: DvrpSettings) -> None:
        self.potentials = future_potentials(population, settings.service_minutes)
        self.city, self.future, self.offers = self.potentials.city, self.potentials.future, self.potentials.offers
        self.threads, self.num_customers = settings.oracle_threads, settings.num_customers

    def write(self, offers: Array, context: Array, state: Arrays, likely: BoolArray, costs: CandidateCosts) -> None:
        """Write features and context; zeros where the day is over.

        Args:
            offers: (envs, offers, NUM_FEATURES), written to.
            context: (envs, NUM_CONTEXT), written to.
            state: The `true_state` arrays; only what an operator knows is read.
            likely: (envs, offers) offers to describe, no change among them; the features of others are 0.
            costs: (envs, offers) minutes relative to no change.
        """
        num_booked = state["num_booked"]
        envs = np.arange(len(num_booked))
        current = np.minimum(num_booked, self.num_customers - 1)
        trips = state["trip_id"][envs, current]
        self.potentials.add(np.unique(trips[num_booked < self.num_customers]), self.threads)
        arguments = (
            self.city,
            self.future,
            self.potentials.table,
            self.potentials.slots[trips],
            np.ascontiguousarray(state["customer_id"]),
            np.ascontiguousarray(state["cells"]),
            np.ascontiguousarray(state["booked_windows"]),
            self.offers.windows_of_all(state["requested_windows"][envs, current]),
            num_booked,
            state["cost"],
            likely,
            *costs,
            self.offers.minutes,
            self.offers.no_change,
        )
        parallel_ranges(
            self.threads, len(envs), lambda first, last: _write_features(*arguments, offers, context, first, last)
        )


def _future_trips(population: Population) -> FutureTrips:
    customers, first, number = population.split_customers("known")
    chosen = np.unique(np.linspace(0, len(customers) - 1, MAX_FUTURE_CUSTOMERS).astype(np.int64))
    customers, first, number = customers[chosen], first[chosen], number[chosen]
    position = np.full(population.size, UNUSED)
    position[customers] = np.arange(len(customers))
    half_hours = np.zeros((len(customers), HALF_HOURS))
    for customer, (start, count) in enumerate(zip(first, number, strict=True)):
        early = population.trips.windows[start : start + count, PICKUP, EARLY]
        np.add.at(half_hours[customer], np.clip(early // 30.0, 0, HALF_HOURS - 1).astype(np.int64), 1.0 / count)
    trips = population.trips
    return FutureTrips(
        np.ascontiguousarray(trips.cells), np.ascontiguousarray(trips.windows), first, number, half_hours, position
    )


@kernel
def new_pair() -> Any:
    """A `Pair` to be filled."""
    return Pair(np.zeros((4, 2)), np.zeros((len(STOP_ORDERS), 3)), np.zeros((len(STOP_ORDERS), 2)))


@noalloc_kernel
def set_pair(city: Any, cells: Any, other_cells: Any, other_windows: Any, pair: Any) -> None:
    """Fill in what does not depend on the windows of the first trip.

    Args:
        city: `CityArrays`.
        cells: (2,) of the first trip.
        other_cells: (2,) of the second.
        other_windows: (2, 2) of the second, in minutes.
        pair: `Pair`, written to.
    """
    travel, depot = city.travel, city.depot
    direct = travel[cells[0], cells[1]]
    other_direct = travel[other_cells[0], other_cells[1]]
    alone = travel[depot, cells[0]] + direct + travel[cells[1], depot]
    alone += travel[depot, other_cells[0]] + other_direct + travel[other_cells[1], depot]
    for side in range(2):
        pair.windows[2 + side, EARLY] = other_windows[side, EARLY]
        pair.windows[2 + side, LATE] = other_windows[side, LATE]
    for order in range(len(STOP_ORDERS)):
        path = 0.0
        first_cell, cell = np.int64(0), np.int64(0)
        for position in range(4):
            stop = STOP_ORDERS[order, position]
            next_cell = cells[stop] if stop < 2 else other_cells[stop - 2]
            if position == 0:
                first_cell = next_cell
            else:
                pair.legs[order, position - 1] = travel[cell, next_cell]
                path += travel[cell, next_cell]
            cell = next_cell
        pair.gains[order, 0] = alone - (travel[depot, first_cell] + path + travel[cell, depot])
        pair.gains[order, 1] = path - direct - other_direct


@noalloc_kernel
def pair_potentials(pair: Any, windows: Any, service_minutes: Any, potentials: Any) -> None:
    """Write the potentials of two trips, 0 where no order of their stops is on time.

    Args:
        pair: What `set_pair` filled in.
        windows: (2, 2) of the first trip, in minutes.
        service_minutes: Service time at each stop.
        potentials: (NUM_POTENTIALS,), written to.
    """
    for side in range(2):
        pair.windows[side, EARLY] = windows[side, EARLY]
        pair.windows[side, LATE] = windows[side, LATE]
    for k in range(NUM_POTENTIALS):
        potentials[k] = 0.0
    for order in range(len(STOP_ORDERS)):
        now = pair.windows[STOP_ORDERS[order, 0], EARLY]
        on_time = True
        for position in range(1, 4):
            stop = STOP_ORDERS[order, position]
            now = max(pair.windows[stop, EARLY], now + service_minutes + pair.legs[order, position - 1])
            if now > pair.windows[stop, LATE] + 1e-9:
                on_time = False
                break
        if not on_time:
            continue
        savings, detour = pair.gains[order, 0], pair.gains[order, 1]
        potentials[SAVINGS] = max(potentials[SAVINGS], savings)
        if order >= FIRST_SHARED_ORDER:
            potentials[SHARED_SAVINGS] = max(potentials[SHARED_SAVINGS], savings)
            potentials[OVERLAP] = max(potentials[OVERLAP], -detour)
            potentials[SHORT_DETOUR] = max(potentials[SHORT_DETOUR], DETOUR_LIMIT_MINUTES - detour)
        else:
            potentials[LINK_AFTER + order] = max(0.0, LINK_LIMIT_MINUTES - pair.legs[order, 1])


@kernel
def _future_potentials(
    city: Any, future: Any, cells: Any, windows: Any, table: Any, first_trip: Any, last_trip: Any
) -> None:
    """Write mean potentials with each customer's trips, and logarithms of 1 - share above levels."""
    pair, potentials = new_pair(), np.zeros(NUM_POTENTIALS)
    for trip in range(first_trip, last_trip):
        for customer in range(len(future.first)):
            number = future.number[customer]
            for other in range(future.first[customer], future.first[customer] + number):
                set_pair(city, cells[trip], future.cells[other], future.windows[other], pair)
                for offer in range(windows.shape[1]):
                    pair_potentials(pair, windows[trip, offer], city.service_minutes, potentials)
                    row = table[trip, offer, customer]
                    for k in range(NUM_POTENTIALS):
                        row[k] += potentials[k] / number
                    for k in range(3):
                        if potentials[SHARED_SAVINGS] > SAVINGS_LEVELS[k]:
                            row[NUM_POTENTIALS + k] += 1.0 / number
                        if potentials[SHORT_DETOUR] > DETOUR_LEVELS[k]:
                            row[NUM_POTENTIALS + 3 + k] += 1.0 / number
            for offer in range(windows.shape[1]):
                for k in range(NUM_POTENTIALS, NUM_FUTURE):
                    table[trip, offer, customer, k] = np.log1p(-min(table[trip, offer, customer, k], MAX_SHARE))


@kernel
def _write_features(
    city: Any,
    future: Any,
    table: Any,
    slots: Any,
    customers: Any,
    cells: Any,
    booked_windows: Any,
    offer_windows: Any,
    num_booked: Any,
    cost: Any,
    likely: Any,
    insertion_costs: Any,
    improved_costs: Any,
    offer_minutes: Any,
    no_change: Any,
    offers: Any,
    context: Any,
    first_env: Any,
    last_env: Any,
) -> None:
    num_offers = len(offer_minutes)
    relative = np.zeros((num_offers, NUM_RELATIVE))
    pair, potentials = new_pair(), np.zeros(NUM_POTENTIALS)
    weights = np.zeros(len(future.first))
    num_customers = cells.shape[1]
    for env in range(first_env, last_env):
        booked = num_booked[env]
        if booked >= num_customers:
            offers[env] = 0.0
            context[env] = 0.0
            continue
        relative[:] = 0.0
        remaining = num_customers - 1 - booked
        _future_weights(future, customers[env], booked, remaining, weights)
        for k in range(booked):
            set_pair(city, cells[env, booked], cells[env, k], booked_windows[env, k], pair)
            for offer in range(num_offers):
                if likely[env, offer]:
                    pair_potentials(pair, offer_windows[env, offer], city.service_minutes, potentials)
                    _pool(relative[offer], potentials)
        for offer in range(num_offers):
            if likely[env, offer]:
                _expect(table[slots[env], offer], weights, relative[offer])
        windows = offer_windows[env]
        direct = city.travel[cells[env, booked, PICKUP], cells[env, booked, DROPOFF]]
        for offer in range(num_offers):
            row = offers[env, offer]
            if not likely[env, offer]:
                row[:] = 0.0
                continue
            row[0] = insertion_costs[env, offer]
            row[1] = min(insertion_costs[env, offer], 0.0)
            row[2] = improved_costs[env, offer]
            row[3] = min(improved_costs[env, offer], 0.0)
            row[4] = offer_minutes[offer, 0] / 10.0
            row[5] = offer_minutes[offer, 1] / 10.0
            row[6] = (windows[offer, DROPOFF, LATE] - windows[offer, PICKUP, EARLY] - direct) / 30.0
            row[7] = (windows[offer, DROPOFF, EARLY] - windows[offer, PICKUP, LATE] - direct) / 30.0
            for k in range(NUM_RELATIVE):
                row[NUM_BASIC + k] = relative[offer, k] - relative[no_change, k]
        pickup = windows[no_change, PICKUP, EARLY]
        row = context[env]
        row[0] = booked / num_customers
        row[1] = remaining / num_customers
        row[2] = direct / 20.0
        row[3] = np.sin(2.0 * np.pi * pickup / 1440.0)
        row[4] = np.cos(2.0 * np.pi * pickup / 1440.0)
        row[5] = (pickup - 780.0) / 360.0
        row[6] = _expected_near(future.half_hours, weights, pickup)
        row[7] = _booked_near(booked_windows[env], booked, pickup)
        row[8] = cost[env] / 500.0
        row[9] = cost[env] / max(booked, 1) / 20.0
        row[10] = city.travel[city.depot, cells[env, booked, PICKUP]] / 20.0
        row[11] = city.travel[cells[env, booked, DROPOFF], city.depot] / 20.0
        for k in range(NUM_RELATIVE):
            row[NUM_REQUEST + k] = relative[no_change, k] / 10.0


@noalloc_kernel
def _future_weights(future: Any, customers: Any, booked: Any, remaining: Any, weights: Any) -> None:
    """Expected number of further requests of each customer; 0 for those who have called today."""
    weights[:] = 1.0
    for k in range(booked + 1):
        customer = future.position[customers[k]]
        if customer != UNUSED:
            weights[customer] = 0.0
    total = weights.sum()
    if total > 0.0:
        for customer in range(len(weights)):
            weights[customer] *= remaining / total


@noalloc_kernel
def _pool(row: Any, potentials: Any) -> None:
    """Add the potentials with one booking: largest, second largest, sum."""
    for k in range(NUM_POTENTIALS):
        value = potentials[k]
        row[2 * NUM_POTENTIALS + k] += value
        if value > row[k]:
            row[NUM_POTENTIALS + k] = row[k]
            row[k] = value
        elif value > row[NUM_POTENTIALS + k]:
            row[NUM_POTENTIALS + k] = value


@noalloc_kernel
def _expect(table: Any, weights: Any, row: Any) -> None:
    """Add expected sums of potentials, and chances that any trip exceeds each level."""
    for customer in range(len(weights)):
        if weights[customer] > 0.0:
            for k in range(NUM_FUTURE):
                row[NUM_BOOKED + k] += weights[customer] * table[customer, k]
    for k in range(NUM_BOOKED + NUM_POTENTIALS, NUM_RELATIVE):
        row[k] = 1.0 - np.exp(row[k])


@noalloc_kernel
def _expected_near(half_hours: Any, weights: Any, pickup: Any) -> Any:
    """Expected further requests within about an hour of this pickup time."""
    middle: Any = min(max(np.int64(pickup // 30.0), 1), HALF_HOURS - 2)
    expected = 0.0
    for customer in range(len(weights)):
        for k in range(middle - 1, middle + 2):
            expected += weights[customer] * half_hours[customer, k]
    return expected


@noalloc_kernel
def _booked_near(windows: Any, booked: Any, pickup: Any) -> Any:
    """Bookings within an hour of this pickup time."""
    count = 0
    for k in range(booked):
        if abs(windows[k, PICKUP, EARLY] - pickup) <= NEAR_MINUTES:
            count += 1
    return count
