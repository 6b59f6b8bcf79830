"""Putting requests into routes: where each is cheapest, and in which order they go in.

The cheapest place of a request in a route is an **offer**. It holds until the route changes, so
offers are kept with the route's stamp and looked up again for nothing.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from hundredfold.core.compiled import integer
from hundredfold.oracles.desk import (
    ADDED,
    DROPOFF_AFTER,
    LENGTH,
    NOBODY,
    OFFER_STAMP,
    PICKUP_AFTER,
    STAMP,
    TICKS,
    bare_kernel,
)
from hundredfold.oracles.routes import cheapest_insertion, put_in
from hundredfold.oracles.ticks import FOREVER, TICKS_PER_MINUTE

# What a request left out weighs while searching: more than any detour or vehicle.
UNSERVED_TICKS: Final = 10_000_000 * TICKS_PER_MINUTE


@bare_kernel
def vehicles_used(desk: Any, rules: Any) -> Any:
    """Vehicles that leave the depot."""
    used = 0
    for vehicle in range(rules.num_vehicles):
        used += desk.head[vehicle, LENGTH] > 0
    return used


@bare_kernel
def opening_ticks(desk: Any, rules: Any) -> Any:
    """What it costs to send out one more vehicle."""
    if rules.vehicle_ticks > 0 and vehicles_used(desk, rules) >= rules.free_vehicles:
        return rules.vehicle_ticks
    return 0


@bare_kernel
def objective(desk: Any, rules: Any, num_left: Any) -> Any:
    """What the search makes small: drive, service, extra vehicles, and requests left out."""
    ticks = num_left * UNSERVED_TICKS
    for vehicle in range(rules.num_vehicles):
        ticks += desk.head[vehicle, TICKS]
    extra = max(0, vehicles_used(desk, rules) - rules.free_vehicles)
    return ticks + extra * rules.vehicle_ticks


@bare_kernel
def refresh_offer(desk: Any, rules: Any, request: Any, vehicle: Any) -> None:
    """Find the request's cheapest place in the route, if the route changed since last time."""
    stamp = desk.head[vehicle, STAMP]
    if desk.offers[request, vehicle, OFFER_STAMP] != stamp:
        added, pickup_after, dropoff_after = cheapest_insertion(
            desk.travel,
            desk.stops,
            desk.route[vehicle],
            desk.head[vehicle],
            desk.trial,
            rules,
            request,
        )
        desk.offers[request, vehicle, ADDED] = added
        desk.offers[request, vehicle, PICKUP_AFTER] = pickup_after
        desk.offers[request, vehicle, DROPOFF_AFTER] = dropoff_after
        desk.offers[request, vehicle, OFFER_STAMP] = stamp


@bare_kernel
def two_best_offers(desk: Any, rules: Any, request: Any, opening: Any) -> Any:
    """The cheapest vehicle, what it adds, and what the second cheapest adds.

    Ties go to the lowest vehicle; all empty vehicles are alike, so only the first is asked.
    """
    best_vehicle, best, second = int(NOBODY), FOREVER, FOREVER
    empty_seen = False
    for vehicle in range(rules.num_vehicles):
        extra = 0
        if desk.head[vehicle, LENGTH] == 0:
            if empty_seen:
                continue
            empty_seen = True
            extra = opening
        refresh_offer(desk, rules, request, vehicle)
        added = desk.offers[request, vehicle, ADDED] + extra
        if added < best:
            best_vehicle, best, second = vehicle, added, best
        elif added < second:
            second = added
    return best_vehicle, best, second


@bare_kernel
def accept_offer(desk: Any, rules: Any, request: Any, vehicle: Any) -> None:
    """Put the request where its offer for this vehicle says."""
    pickup_after = desk.offers[request, vehicle, PICKUP_AFTER]
    dropoff_after = desk.offers[request, vehicle, DROPOFF_AFTER]
    put_in(desk, rules, vehicle, request, pickup_after, dropoff_after)


@bare_kernel
def insert_most_regretted(desk: Any, rules: Any, waiting: Any) -> Any:
    """Put in whoever would lose most by waiting, again and again; returns how many are left."""
    while waiting > 0:
        opening = opening_ticks(desk, rules)
        chosen, chosen_vehicle, most = -1, NOBODY, -1
        for place in range(waiting):
            vehicle, best, second = two_best_offers(desk, rules, desk.pool[place], opening)
            if vehicle != NOBODY and second - best > most:
                chosen, chosen_vehicle, most = place, vehicle, second - best
        if chosen < 0:
            break
        request = desk.pool[chosen]
        waiting -= 1
        desk.pool[chosen] = desk.pool[waiting]
        accept_offer(desk, rules, request, chosen_vehicle)
    return waiting


@bare_kernel
def insert_in_turn(desk: Any, rules: Any, waiting: Any) -> Any:
    """Put in one after the other where it is cheapest; returns how many are left."""
    left = 0
    for place in range(waiting):
        request = desk.pool[place]
        opening = opening_ticks(desk, rules)
        vehicle, _, _ = two_best_offers(desk, rules, request, opening)
        if vehicle == NOBODY:
            desk.pool[left] = request
            left += 1
        else:
            accept_offer(desk, rules, request, vehicle)
    return left


@bare_kernel
def shuffle_pool(desk: Any, waiting: Any, key: Any, count: Any) -> Any:
    """Put the waiting requests into random order; returns the next count."""
    for last in range(waiting - 1, 0, -1):
        other = integer(key, count, last + 1)
        count += np.uint64(1)
        request = desk.pool[last]
        desk.pool[last] = desk.pool[other]
        desk.pool[other] = request
    return count
