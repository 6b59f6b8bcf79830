"""Taking requests out of a plan, for repair to put them back better.

Most of the time they are alike: near each other in place and time, so that they can trade places.
Now and then it is anybody.

Putting requests into routes: where each is cheapest, and in which order they go in.

The cheapest place of a request in a route is an **offer**. It holds until the route changes, so
offers are kept with the route's stamp and looked up again for nothing.

Two vehicles trade the rest of their day: cut both routes where nobody is on board, and swap.

Each pair of cuts is tested in constant time. Large neighbourhood search moves a handful of requests
at a time and rarely finds such trades by itself; trying them after every repair halves its gap.
Every request has riders, so an empty vehicle has no open pairs.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from hundredfold.core.numba_kernels import integer, noalloc_kernel, uniform
from hundredfold.routing.problem import EARLY, LATE, MICROSECONDS_PER_MINUTE, UNLIMITED
from hundredfold.routing.route_kernels import cheapest_insertion, note_change, put_in, trial_holds
from hundredfold.routing.workspace import (
    ADDED,
    DEPOT,
    DROPOFF_AFTER,
    EARLIEST,
    LATEST,
    LENGTH,
    LOAD,
    NOBODY,
    OFFER_STAMP,
    PICKUP_AFTER,
    STAMP,
    STOP,
    TICKS,
    TRIAL_STOP,
)

# A request's distance from the seed is multiplied by a number between these, afresh each time.
LEAST_BLUR, MOST_BLUR = 0.5, 1.5
# Minutes apart in time count half as much as minutes apart in space.
TIME_WEIGHT: Final = 0.5


@noalloc_kernel
def collect_waiting(desk: Any, num_requests: Any) -> Any:
    """Write the requests nobody serves into the pool; returns how many."""
    waiting = 0
    for request in range(num_requests):
        if desk.vehicle[request] == NOBODY:
            desk.pool[waiting] = request
            waiting += 1
    return waiting


@noalloc_kernel
def score_by_distance(desk: Any, num_requests: Any, seed: Any, key: Any, count: Any) -> Any:
    """Score requests by how far they are from the seed, blurred; returns the next count."""
    travel, stops = desk.travel, desk.stops
    seed_pickup, seed_dropoff = 2 * seed + 1, 2 * seed + 2
    for request in range(num_requests):
        pickup, dropoff = 2 * request + 1, 2 * request + 2
        apart = travel[seed_pickup, pickup] + travel[seed_dropoff, dropoff]
        apart_in_time = abs(stops[seed_pickup, EARLY] - stops[pickup, EARLY]) + abs(
            stops[seed_dropoff, LATE] - stops[dropoff, LATE]
        )
        blur = LEAST_BLUR + (MOST_BLUR - LEAST_BLUR) * uniform(key, count)
        desk.score[request] = (apart + TIME_WEIGHT * apart_in_time) * blur
        count += np.uint64(1)
    desk.score[seed] = -1.0
    return count


@noalloc_kernel
def score_by_chance(desk: Any, num_requests: Any, key: Any, count: Any) -> Any:
    """Score requests at random; returns the next count."""
    for request in range(num_requests):
        desk.score[request] = uniform(key, count)
        count += np.uint64(1)
    return count


@noalloc_kernel
def remove_lowest(desk: Any, num_requests: Any, number: Any, waiting: Any) -> Any:
    """Move the served requests with the lowest scores into the pool; returns how many wait."""
    for _ in range(number):
        chosen, lowest = -1, np.inf
        for request in range(num_requests):
            if desk.vehicle[request] != NOBODY and desk.score[request] < lowest:
                chosen, lowest = request, desk.score[request]
        if chosen < 0:
            break
        desk.touched[desk.vehicle[chosen]] = True
        desk.vehicle[chosen] = NOBODY
        desk.pool[waiting] = chosen
        waiting += 1
    return waiting


# What a request left out weighs while searching: more than any detour or vehicle.
UNSERVED_TICKS: Final = 10_000_000 * MICROSECONDS_PER_MINUTE


@noalloc_kernel
def vehicles_used(desk: Any, rules: Any) -> Any:
    """Vehicles that leave the depot."""
    used = 0
    for vehicle in range(rules.num_vehicles):
        used += desk.head[vehicle, LENGTH] > 0
    return used


@noalloc_kernel
def opening_ticks(desk: Any, rules: Any) -> Any:
    """What it costs to send out one more vehicle."""
    if rules.extra_vehicle_cost > 0 and vehicles_used(desk, rules) >= rules.free_vehicles:
        return rules.extra_vehicle_cost
    return 0


@noalloc_kernel
def objective(desk: Any, rules: Any, num_left: Any) -> Any:
    """What the search makes small: drive, service, extra vehicles, and requests left out."""
    ticks = num_left * UNSERVED_TICKS
    for vehicle in range(rules.num_vehicles):
        ticks += desk.head[vehicle, TICKS]
    extra = max(0, vehicles_used(desk, rules) - rules.free_vehicles)
    return ticks + extra * rules.extra_vehicle_cost


@noalloc_kernel
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


@noalloc_kernel
def two_best_offers(desk: Any, rules: Any, request: Any, opening: Any) -> Any:
    """The cheapest vehicle, what it adds, and what the second cheapest adds.

    Ties go to the lowest vehicle; all empty vehicles are alike, so only the first is asked.
    """
    best_vehicle, best, second = int(NOBODY), UNLIMITED, UNLIMITED
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


@noalloc_kernel
def accept_offer(desk: Any, rules: Any, request: Any, vehicle: Any) -> None:
    """Put the request where its offer for this vehicle says."""
    pickup_after = desk.offers[request, vehicle, PICKUP_AFTER]
    dropoff_after = desk.offers[request, vehicle, DROPOFF_AFTER]
    put_in(desk, rules, vehicle, request, pickup_after, dropoff_after)


@noalloc_kernel
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


@noalloc_kernel
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


@noalloc_kernel
def shuffle_pool(desk: Any, waiting: Any, key: Any, count: Any) -> Any:
    """Put the waiting requests into random order; returns the next count."""
    for last in range(waiting - 1, 0, -1):
        other = integer(key, count, last + 1)
        count += np.uint64(1)
        request = desk.pool[last]
        desk.pool[last] = desk.pool[other]
        desk.pool[other] = request
    return count


@noalloc_kernel
def trade_tails(desk: Any, rules: Any) -> None:
    """Make the best trade of every pair with a touched route, until no trade saves anything."""
    traded = True
    while traded:
        traded = False
        for first in range(1, rules.num_vehicles):
            for second in range(first):
                if not (desk.touched[first] or desk.touched[second]):
                    continue
                if desk.head[first, LENGTH] == 0 or desk.head[second, LENGTH] == 0:
                    continue
                saved, i, j = _best_cuts(desk, rules, first, second)
                if saved > 0:
                    _swap(desk, rules, first, i, second, j)
                    traded = True


@noalloc_kernel
def _best_cuts(desk: Any, rules: Any, first: Any, second: Any) -> Any:
    """Behind which positions to cut the two routes, and the ticks it saves; 0 when nothing does."""
    travel, one, two = desk.travel, desk.route[first], desk.route[second]
    one_length, two_length = desk.head[first, LENGTH], desk.head[second, LENGTH]
    # Hanging a whole route behind the other sends a vehicle home, which may have a price.
    merging = 0
    if rules.extra_vehicle_cost > 0 and vehicles_used(desk, rules) > rules.free_vehicles:
        merging = rules.extra_vehicle_cost
    best, best_i, best_j = 0, -1, -1
    start = 0
    for i in range(one_length + 1):
        if one[i, LOAD] != 0:
            continue
        ready, deadline = one[i, EARLIEST], one[i + 1, LATEST]
        here, after = one[i, STOP], one[i + 1, STOP]
        leg = travel[here, after]
        while start <= two_length and two[start + 1, LATEST] < ready:
            start += 1
        for j in range(start, two_length + 1):
            if two[j, EARLIEST] > deadline:
                break
            if two[j, LOAD] != 0:
                continue
            there, beyond = two[j, STOP], two[j + 1, STOP]
            over, back = travel[here, beyond], travel[there, after]
            saved = leg + travel[there, beyond] - over - back
            if (i == 0 and j == two_length) or (j == 0 and i == one_length):
                saved += merging
            if (
                saved > best
                and ready + over <= two[j + 1, LATEST]
                and two[j, EARLIEST] + back <= deadline
                and (
                    not rules.has_duration_limits
                    or (
                        _joint_holds(desk, rules, first, i, second, j)
                        and _joint_holds(desk, rules, second, j, first, i)
                    )
                )
            ):
                best, best_i, best_j = saved, i, j
    return best, best_i, best_j


@noalloc_kernel
def _joint_holds(desk: Any, rules: Any, first: Any, i: Any, second: Any, j: Any) -> Any:
    """Whether the head of one route and the tail of the other make a route within all limits."""
    for k in range(i + 1):
        desk.trial[k, TRIAL_STOP] = desk.route[first, k, STOP]
    tail = desk.head[second, LENGTH] - j
    for k in range(tail + 1):
        desk.trial[i + 1 + k, TRIAL_STOP] = desk.route[second, j + 1 + k, STOP]
    return trial_holds(desk.travel, desk.stops, desk.trial, i + tail, rules.max_route)


@noalloc_kernel
def _swap(desk: Any, rules: Any, first: Any, i: Any, second: Any, j: Any) -> None:
    one, two, trial = desk.route[first], desk.route[second], desk.trial
    one_tail = desk.head[first, LENGTH] - i
    two_tail = desk.head[second, LENGTH] - j
    for k in range(one_tail):
        trial[k, TRIAL_STOP] = one[i + 1 + k, STOP]
    for k in range(two_tail):
        stop = two[j + 1 + k, STOP]
        one[i + 1 + k, STOP] = stop
        desk.vehicle[(stop - 1) >> 1] = first
    for k in range(one_tail):
        stop = trial[k, TRIAL_STOP]
        two[j + 1 + k, STOP] = stop
        desk.vehicle[(stop - 1) >> 1] = second
    one[i + 1 + two_tail, STOP] = DEPOT
    two[j + 1 + one_tail, STOP] = DEPOT
    desk.head[first, LENGTH] = i + two_tail
    desk.head[second, LENGTH] = j + one_tail
    note_change(desk, rules, first)
    note_change(desk, rules, second)
