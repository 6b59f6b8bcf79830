"""Operators of the large neighbourhood search: removal, insertion and 2-opt*.

* Destroy: Shaw removal (Shaw 1998) and random removal.
* Repair: regret-2 insertion and greedy insertion (Ropke and Pisinger 2006). The cheapest insertion
  of a request into a route is cached until the route changes.
* Local search: 2-opt* (Potvin and Rousseau 1995), tail exchange between two routes. Large
  neighbourhood search moves a handful of requests at a time and rarely finds such moves by itself;
  trying them after every repair halves its gap.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from hundredfold.core.numba_kernels import integer, noalloc_kernel, uniform
from hundredfold.routing.problem import EARLY, INFEASIBLE, LATE, MICROSECONDS_PER_MINUTE, ROOM_BITS
from hundredfold.routing.route_kernels import (
    cheapest_insertion,
    insert_request,
    set_shift,
    trial_is_feasible,
    update_route,
)
from hundredfold.routing.workspace import (
    ADDED,
    DEPOT,
    DROPOFF_AFTER,
    EARLIEST,
    INSERTION_VERSION,
    LATEST,
    LENGTH,
    LOAD,
    PICKUP_AFTER,
    PLACES,
    SHIFT_END,
    STOP,
    TRAVEL_TIME,
    TRIAL_STOP,
    TYPE,
    UNASSIGNED,
    VERSION,
)

# The relatedness of a request to the seed is multiplied by uniform noise between these.
MIN_NOISE, MAX_NOISE = 0.5, 1.5
# Weight of differences between time windows relative to travel times, in Shaw's relatedness.
TIME_WEIGHT: Final = 0.5
# Objective of an unserved request: more than any detour or vehicle.
UNSERVED_PENALTY: Final = 10_000_000 * MICROSECONDS_PER_MINUTE


@noalloc_kernel
def collect_unassigned(ws: Any, num_requests: Any) -> Any:
    """Write the unassigned requests into the request bank; returns how many."""
    num_unassigned = 0
    for request in range(num_requests):
        if ws.vehicle[request] == UNASSIGNED:
            ws.bank[num_unassigned] = request
            num_unassigned += 1
    return num_unassigned


@noalloc_kernel
def score_shaw_removal(ws: Any, num_requests: Any, seed: Any, key: Any, count: Any) -> Any:
    """Shaw removal (Shaw 1998): score requests by how unrelated they are to a seed request.

    Related requests are near each other in space and time, so they can trade places. Returns the
    next draw count.
    """
    travel, stops = ws.travel, ws.stops
    seed_pickup, seed_dropoff = 2 * seed + 1, 2 * seed + 2
    for request in range(num_requests):
        pickup, dropoff = 2 * request + 1, 2 * request + 2
        apart = travel[seed_pickup, pickup] + travel[seed_dropoff, dropoff]
        time_apart = abs(stops[seed_pickup, EARLY] - stops[pickup, EARLY]) + abs(
            stops[seed_dropoff, LATE] - stops[dropoff, LATE]
        )
        noise = MIN_NOISE + (MAX_NOISE - MIN_NOISE) * uniform(key, count)
        ws.score[request] = (apart + TIME_WEIGHT * time_apart) * noise
        count += np.uint64(1)
    ws.score[seed] = -1.0
    return count


@noalloc_kernel
def score_random_removal(ws: Any, num_requests: Any, key: Any, count: Any) -> Any:
    """Random removal: score requests at random; returns the next draw count."""
    for request in range(num_requests):
        ws.score[request] = uniform(key, count)
        count += np.uint64(1)
    return count


@noalloc_kernel
def remove_lowest_scores(ws: Any, num_requests: Any, number: Any, num_unassigned: Any) -> Any:
    """Move the `number` assigned requests with the lowest scores to the bank; returns its size."""
    for _ in range(number):
        chosen, lowest = -1, np.inf
        for request in range(num_requests):
            if ws.vehicle[request] != UNASSIGNED and ws.score[request] < lowest:
                chosen, lowest = request, ws.score[request]
        if chosen < 0:
            break
        ws.changed[ws.vehicle[chosen]] = True
        ws.vehicle[chosen] = UNASSIGNED
        ws.bank[num_unassigned] = chosen
        num_unassigned += 1
    return num_unassigned


@noalloc_kernel
def vehicles_used(ws: Any, constraints: Any) -> Any:
    """Vehicles that leave the depot."""
    used = 0
    for vehicle in range(constraints.num_vehicles):
        used += ws.stats[vehicle, LENGTH] > 0
    return used


@noalloc_kernel
def vehicle_open_cost(ws: Any, constraints: Any) -> Any:
    """Fixed cost of opening one more route."""
    if constraints.extra_vehicle_cost > 0 and vehicles_used(ws, constraints) >= constraints.free_vehicles:
        return constraints.extra_vehicle_cost
    return 0


@noalloc_kernel
def objective(ws: Any, constraints: Any, num_unserved: Any) -> Any:
    """Objective of the search: driving, service, extra vehicles and unserved requests."""
    total = num_unserved * UNSERVED_PENALTY
    for vehicle in range(constraints.num_vehicles):
        total += ws.stats[vehicle, TRAVEL_TIME]
    extra = max(0, vehicles_used(ws, constraints) - constraints.free_vehicles)
    return total + extra * constraints.extra_vehicle_cost


@noalloc_kernel
def update_insertion(ws: Any, constraints: Any, request: Any, vehicle: Any) -> None:
    """Recompute the cached cheapest insertion if the route has changed since."""
    version = ws.stats[vehicle, VERSION]
    if ws.insertions[request, vehicle, INSERTION_VERSION] != version:
        added, pickup_after, dropoff_after = cheapest_insertion(
            ws.travel, ws.stops, ws.route[vehicle], ws.stats[vehicle], ws.trial, constraints, request
        )
        ws.insertions[request, vehicle, ADDED] = added
        ws.insertions[request, vehicle, PICKUP_AFTER] = pickup_after
        ws.insertions[request, vehicle, DROPOFF_AFTER] = dropoff_after
        ws.insertions[request, vehicle, INSERTION_VERSION] = version


@noalloc_kernel
def best_two_insertions(ws: Any, constraints: Any, request: Any, open_cost: Any) -> Any:
    """The vehicle with the cheapest insertion, its cost, and the cost in the second-best vehicle.

    Ties go to the lowest vehicle. Empty vehicles of one type are identical, so only the first is tried.
    """
    best_vehicle, best, second = int(UNASSIGNED), INFEASIBLE, INFEASIBLE
    empty_type = -1
    for vehicle in range(constraints.num_vehicles):
        extra = 0
        if ws.stats[vehicle, LENGTH] == 0:
            # Vehicles are ordered by type.
            if ws.stats[vehicle, TYPE] == empty_type:
                continue
            empty_type = ws.stats[vehicle, TYPE]
            extra = open_cost
        update_insertion(ws, constraints, request, vehicle)
        added = ws.insertions[request, vehicle, ADDED] + extra
        if added < best:
            best_vehicle, best, second = vehicle, added, best
        elif added < second:
            second = added
    return best_vehicle, best, second


@noalloc_kernel
def apply_insertion(ws: Any, constraints: Any, request: Any, vehicle: Any) -> None:
    """Insert the request into this vehicle's route at its cached cheapest position."""
    pickup_after = ws.insertions[request, vehicle, PICKUP_AFTER]
    dropoff_after = ws.insertions[request, vehicle, DROPOFF_AFTER]
    insert_request(ws, constraints, vehicle, request, pickup_after, dropoff_after)


@noalloc_kernel
def regret_insertion(ws: Any, constraints: Any, num_unassigned: Any) -> Any:
    """Regret-2 insertion (Ropke and Pisinger 2006) of the request bank; returns how many remain.

    Inserts next the request whose best vehicle is most ahead of its second-best.
    """
    while num_unassigned > 0:
        open_cost = vehicle_open_cost(ws, constraints)
        chosen, chosen_vehicle, max_regret = -1, UNASSIGNED, -1
        for place in range(num_unassigned):
            vehicle, best, second = best_two_insertions(ws, constraints, ws.bank[place], open_cost)
            if vehicle != UNASSIGNED and second - best > max_regret:
                chosen, chosen_vehicle, max_regret = place, vehicle, second - best
        if chosen < 0:
            break
        request = ws.bank[chosen]
        num_unassigned -= 1
        ws.bank[chosen] = ws.bank[num_unassigned]
        apply_insertion(ws, constraints, request, chosen_vehicle)
    return num_unassigned


@noalloc_kernel
def greedy_insertion(ws: Any, constraints: Any, num_unassigned: Any) -> Any:
    """Greedy insertion of the request bank in its order; returns how many remain."""
    remaining = 0
    for place in range(num_unassigned):
        request = ws.bank[place]
        open_cost = vehicle_open_cost(ws, constraints)
        vehicle, _, _ = best_two_insertions(ws, constraints, request, open_cost)
        if vehicle == UNASSIGNED:
            ws.bank[remaining] = request
            remaining += 1
        else:
            apply_insertion(ws, constraints, request, vehicle)
    return remaining


@noalloc_kernel
def shuffle_bank(ws: Any, num_unassigned: Any, key: Any, count: Any) -> Any:
    """Shuffle the request bank; returns the next draw count."""
    for last in range(num_unassigned - 1, 0, -1):
        other = integer(key, count, last + 1)
        count += np.uint64(1)
        request = ws.bank[last]
        ws.bank[last] = ws.bank[other]
        ws.bank[other] = request
    return count


@noalloc_kernel
def two_opt_star(ws: Any, constraints: Any) -> None:
    """2-opt* (Potvin and Rousseau 1995): exchange the tails of two routes while that saves cost.

    Only pairs with a changed route are tried. Routes are cut where the vehicle is empty, so every
    pickup stays with its dropoff; time windows are tested in constant time.
    """
    improved = True
    while improved:
        improved = False
        for first in range(1, constraints.num_vehicles):
            for second in range(first):
                if not (ws.changed[first] or ws.changed[second]):
                    continue
                if ws.stats[first, LENGTH] == 0 or ws.stats[second, LENGTH] == 0:
                    continue
                saved, i, j = _best_exchange(ws, constraints, first, second)
                if saved > 0:
                    _exchange_tails(ws, constraints, first, i, second, j)
                    improved = True


@noalloc_kernel
def _best_exchange(ws: Any, constraints: Any, first: Any, second: Any) -> Any:
    """Best tail exchange of two routes: (saving, cut after, cut after); the saving is 0 if none."""
    travel, one, two = ws.travel, ws.route[first], ws.route[second]
    one_length, two_length = ws.stats[first, LENGTH], ws.stats[second, LENGTH]
    # Appending a whole route to the other closes a route, which may save a fixed cost.
    closing = 0
    if constraints.extra_vehicle_cost > 0 and vehicles_used(ws, constraints) > constraints.free_vehicles:
        closing = constraints.extra_vehicle_cost
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
                saved += closing
            if (
                saved > best
                and ready + over <= two[j + 1, LATEST]
                and two[j, EARLIEST] + back <= deadline
                and (
                    ws.stats[first, TYPE] == ws.stats[second, TYPE]
                    or (_vehicle_fits_tail(ws, first, i, second, j) and _vehicle_fits_tail(ws, second, j, first, i))
                )
                and (
                    not constraints.has_duration_limits
                    or (
                        _joined_route_is_feasible(ws, constraints, first, i, second, j)
                        and _joined_route_is_feasible(ws, constraints, second, j, first, i)
                    )
                )
            ):
                best, best_i, best_j = saved, i, j
    return best, best_i, best_j


@noalloc_kernel
def _vehicle_fits_tail(ws: Any, first: Any, i: Any, second: Any, j: Any) -> Any:
    """Whether one vehicle has the places and the shift to go on with the tail of the other's route."""
    time, stop = ws.route[first, i, EARLIEST], ws.route[first, i, STOP]
    for k in range(j + 1, ws.stats[second, LENGTH] + 1):
        after = ws.route[second, k, STOP]
        time = max(time + ws.travel[stop, after], ws.stops[after, EARLY])
        if (ws.stats[first, PLACES] - ws.route[second, k, LOAD]) & ROOM_BITS != ROOM_BITS:
            return False
        stop = after
    return time + ws.travel[stop, DEPOT] <= ws.stats[first, SHIFT_END]


@noalloc_kernel
def _joined_route_is_feasible(ws: Any, constraints: Any, first: Any, i: Any, second: Any, j: Any) -> Any:
    """Whether the head of one route and the tail of the other keep all duration limits."""
    for k in range(i + 1):
        ws.trial[k, TRIAL_STOP] = ws.route[first, k, STOP]
    tail = ws.stats[second, LENGTH] - j
    for k in range(tail + 1):
        ws.trial[i + 1 + k, TRIAL_STOP] = ws.route[second, j + 1 + k, STOP]
    set_shift(ws.stops, ws.stats[first])
    return trial_is_feasible(ws.travel, ws.stops, ws.trial, i + tail, constraints.max_route)


@noalloc_kernel
def _exchange_tails(ws: Any, constraints: Any, first: Any, i: Any, second: Any, j: Any) -> None:
    """Exchange the stops after position i of one route and after position j of the other."""
    one, two, trial = ws.route[first], ws.route[second], ws.trial
    one_tail = ws.stats[first, LENGTH] - i
    two_tail = ws.stats[second, LENGTH] - j
    for k in range(one_tail):
        trial[k, TRIAL_STOP] = one[i + 1 + k, STOP]
    for k in range(two_tail):
        stop = two[j + 1 + k, STOP]
        one[i + 1 + k, STOP] = stop
        ws.vehicle[(stop - 1) >> 1] = first
    for k in range(one_tail):
        stop = trial[k, TRIAL_STOP]
        two[j + 1 + k, STOP] = stop
        ws.vehicle[(stop - 1) >> 1] = second
    one[i + 1 + two_tail, STOP] = DEPOT
    two[j + 1 + one_tail, STOP] = DEPOT
    ws.stats[first, LENGTH] = i + two_tail
    ws.stats[second, LENGTH] = j + one_tail
    update_route(ws, constraints, first)
    update_route(ws, constraints, second)
