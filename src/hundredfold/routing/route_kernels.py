"""Kernels on one route: its schedule, the cheapest insertion of a request, insertion and removal.

Every position knows the earliest time it can be reached and the latest at which the rest of the
route stays feasible; their difference is the forward time slack (Savelsbergh 1992), so an insertion
is tested against the time windows in constant time. Ride-time and route-duration limits have quick
necessary tests; a candidate that passes them and is the cheapest so far is decided by an exact
schedule.

The two kernels where most time is spent, `update_time_bounds` and `cheapest_insertion`, take plain
arrays: passing a whole workspace would cost as much as they do.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hundredfold.core.numba_kernels import noalloc_kernel
from hundredfold.routing.problem import EARLY, INFEASIBLE, LATE, ROOM_BITS, UNLIMITED
from hundredfold.routing.workspace import (
    DEPOT,
    EARLIEST,
    LATEST,
    LENGTH,
    LOAD,
    MAX_RIDE,
    PLACES,
    RIDE_SLACK,
    RIDERS,
    SHIFT_END,
    SHIFT_START,
    STOP,
    TRAVEL_TIME,
    TRIAL_LEG,
    TRIAL_POSITION,
    TRIAL_STOP,
    TRIAL_TIME,
    VERSION,
)


@noalloc_kernel
def schedule_exists(stops: Any, trial: Any, length: Any, max_route: Any) -> Any:
    """Compute the earliest feasible schedule of the trial route; False if there is none.

    Time windows need one forward pass. Ride-time and route-duration limits also point backwards: a
    pickup or the departure may have to wait. All constraints read "this stop at least so long after
    that one" (a simple temporal problem, Dechter, Meiri and Pearl 1991), so raising times until all
    hold, as Bellman-Ford does, gives the earliest schedule. The eight-step evaluation of Cordeau
    and Laporte (2003) serves the same purpose.

    `trial` holds the stops and the legs between them, the depot at 0 and at `length + 1`.
    """
    last = length + 1
    for k in range(last + 1):
        stop = trial[k, TRIAL_STOP]
        trial[stop, TRIAL_POSITION] = k
        trial[k, TRIAL_TIME] = stops[stop, EARLY]
    first = np.int64(0)
    # Each round settles one more backward constraint; more rounds than stops mean a positive cycle.
    for _ in range(last + 1):
        if not _propagate_forward(stops, trial, first, last):
            return False
        first = _apply_duration_limits(stops, trial, last, max_route)
        if first > last:
            return True
    return False


@noalloc_kernel
def _propagate_forward(stops: Any, trial: Any, start: Any, last: Any) -> Any:
    """Raise every time to what the stop before it allows; False if a time window is missed."""
    time = trial[start, TRIAL_TIME]
    if time > stops[trial[start, TRIAL_STOP], LATE]:
        return False
    for k in range(start + 1, last + 1):
        time = max(time + trial[k - 1, TRIAL_LEG], trial[k, TRIAL_TIME])
        if time > stops[trial[k, TRIAL_STOP], LATE]:
            return False
        trial[k, TRIAL_TIME] = time
    return True


@noalloc_kernel
def _apply_duration_limits(stops: Any, trial: Any, last: Any, max_route: Any) -> Any:
    """Delay pickups and departure as limits require; the first raised position, or `last + 1`."""
    first = last + 1
    start = trial[last, TRIAL_TIME] - max_route
    if trial[0, TRIAL_TIME] < start:
        trial[0, TRIAL_TIME] = start
        first = 0
    for k in range(1, last):
        stop = trial[k, TRIAL_STOP]
        if stop % 2 == 0 and stop != DEPOT:
            pickup = trial[stop - 1, TRIAL_POSITION]
            earliest = trial[k, TRIAL_TIME] - stops[stop - 1, MAX_RIDE]
            if trial[pickup, TRIAL_TIME] < earliest:
                trial[pickup, TRIAL_TIME] = earliest
                first = min(first, pickup)
    return first


@noalloc_kernel
def set_shift(stops: Any, stats: Any) -> None:
    """Make the time window of the depot the shift of a vehicle."""
    stops[DEPOT, EARLY] = stats[SHIFT_START]
    stops[DEPOT, LATE] = stats[SHIFT_END]


@noalloc_kernel
def update_time_bounds(travel: Any, stops: Any, route: Any, stats: Any, limited: Any) -> Any:
    """Recompute a route's earliest and latest times and loads; False if a time window is missed."""
    length = stats[LENGTH]
    set_shift(stops, stats)
    time = stops[DEPOT, EARLY]
    load = 0
    travel_time = 0
    before = DEPOT
    route[0, STOP] = DEPOT
    route[0, EARLIEST] = time
    route[0, LOAD] = 0
    for k in range(1, length + 2):
        stop = route[k, STOP]
        leg = travel[before, stop]
        travel_time += leg
        time = max(time + leg, stops[stop, EARLY])
        load += stops[stop, RIDERS]
        route[k, EARLIEST] = time
        route[k, LOAD] = load
        before = stop
    stats[TRAVEL_TIME] = travel_time

    time = stops[DEPOT, LATE]
    feasible = route[length + 1, EARLIEST] <= time
    route[length + 1, LATEST] = time
    after = DEPOT
    for k in range(length, -1, -1):
        stop = route[k, STOP]
        time = min(time - travel[stop, after], stops[stop, LATE])
        route[k, LATEST] = time
        feasible &= route[k, EARLIEST] <= time
        after = stop
    if limited:
        _update_ride_slack(travel, stops, route, length)
    return feasible


@noalloc_kernel
def _update_ride_slack(travel: Any, stops: Any, route: Any, length: Any) -> None:
    """Compute how much longer each leg may become within the ride-time limits of those on board."""
    for k in range(length + 2):
        route[k, RIDE_SLACK] = UNLIMITED
    for start in range(1, length):
        pickup = route[start, STOP]
        longest = stops[pickup, MAX_RIDE]
        if pickup % 2 == 0 or longest >= UNLIMITED:
            continue
        ridden = 0
        end = start
        while route[end, STOP] != pickup + 1:
            ridden += travel[route[end, STOP], route[end + 1, STOP]]
            end += 1
        for k in range(start, end):
            route[k, RIDE_SLACK] = min(route[k, RIDE_SLACK], longest - ridden)


@noalloc_kernel
def cheapest_insertion(
    travel: Any, stops: Any, route: Any, stats: Any, trial: Any, constraints: Any, request: Any
) -> Any:
    """Cheapest feasible insertion of a request: (added cost, pickup after, dropoff after).

    The cost is INFEASIBLE if the request fits nowhere. Ties go to the earliest position of the
    pickup, then of the dropoff.
    """
    length = stats[LENGTH]
    limited = constraints.has_duration_limits
    pickup, dropoff = 2 * request + 1, 2 * request + 2
    pickup_early, pickup_late = stops[pickup, EARLY], stops[pickup, LATE]
    dropoff_early, dropoff_late = stops[dropoff, EARLY], stops[dropoff, LATE]
    room = stats[PLACES] - stops[pickup, RIDERS]
    max_ride = stops[pickup, MAX_RIDE]
    direct = travel[pickup, dropoff]
    best, best_i, best_j = INFEASIBLE, -1, -1

    # Skip positions whose next stop must be reached before the pickup's window opens.
    i = 0
    while i < length and route[i + 1, LATEST] < pickup_early:
        i += 1
    while i <= length and route[i, EARLIEST] <= pickup_late:
        here, after = route[i, STOP], route[i + 1, STOP]
        to_pickup = travel[here, pickup]
        picked = max(route[i, EARLIEST] + to_pickup, pickup_early)
        if picked > pickup_late or (room - route[i, LOAD]) & ROOM_BITS != ROOM_BITS:
            i += 1
            continue
        deadline = route[i + 1, LATEST]
        detour = to_pickup - travel[here, after]

        # The dropoff right after the pickup.
        onward = travel[dropoff, after]
        dropped = max(picked + direct, dropoff_early)
        added = detour + direct + onward
        improves = added < best and dropped <= dropoff_late and direct <= max_ride
        improves = improves and dropped + onward <= deadline
        if improves and limited:
            improves = _insertion_is_feasible(travel, stops, route, stats, trial, constraints, request, i, i, added)
        if improves:
            best, best_i, best_j = added, i, i

        # The dropoff further on: follow the route and try it after every stop.
        leg = travel[pickup, after]
        detour += leg
        time = picked + leg
        ridden = leg
        if detour >= best + constraints.max_shortcut or (limited and detour > route[i, RIDE_SLACK]):
            i += 1
            continue
        j = i + 1
        while j <= length and time <= deadline:
            here = after
            time = max(time, stops[here, EARLY])
            if time > dropoff_late or (room - route[j, LOAD]) & ROOM_BITS != ROOM_BITS or ridden > max_ride:
                break
            after = route[j + 1, STOP]
            deadline = route[j + 1, LATEST]
            leg = travel[here, after]
            to_dropoff, onward = travel[here, dropoff], travel[dropoff, after]
            dropped = max(time + to_dropoff, dropoff_early)
            added = detour + to_dropoff + onward - leg
            improves = added < best and dropped <= dropoff_late and dropped + onward <= deadline
            improves = improves and ridden + to_dropoff <= max_ride
            if improves and limited:
                improves = added - detour <= route[j, RIDE_SLACK] and _insertion_is_feasible(
                    travel, stops, route, stats, trial, constraints, request, i, j, added
                )
            if improves:
                best, best_i, best_j = added, i, j
            time += leg
            ridden += leg
            j += 1
        i += 1
    return best, best_i, best_j


@noalloc_kernel
def _insertion_is_feasible(
    travel: Any,
    stops: Any,
    route: Any,
    stats: Any,
    trial: Any,
    constraints: Any,
    request: Any,
    i: Any,
    j: Any,
    added: Any,
) -> Any:
    """Whether the route with the request inserted has a schedule within all duration limits."""
    if stats[TRAVEL_TIME] + added > constraints.max_route:
        return False
    if i == j and added > route[i, RIDE_SLACK]:
        return False
    length = stats[LENGTH]
    for k in range(i + 1):
        trial[k, TRIAL_STOP] = route[k, STOP]
    trial[i + 1, TRIAL_STOP] = 2 * request + 1
    for k in range(i + 1, j + 1):
        trial[k + 1, TRIAL_STOP] = route[k, STOP]
    trial[j + 2, TRIAL_STOP] = 2 * request + 2
    for k in range(j + 1, length + 2):
        trial[k + 2, TRIAL_STOP] = route[k, STOP]
    set_shift(stops, stats)
    return trial_is_feasible(travel, stops, trial, length + 2, constraints.max_route)


@noalloc_kernel
def trial_is_feasible(travel: Any, stops: Any, trial: Any, length: Any, max_route: Any) -> Any:
    """Whether the stops of the trial route have a schedule within all duration limits."""
    for k in range(length + 1):
        trial[k, TRIAL_LEG] = travel[trial[k, TRIAL_STOP], trial[k + 1, TRIAL_STOP]]
    return schedule_exists(stops, trial, length, max_route)


@noalloc_kernel
def insert_request(ws: Any, constraints: Any, vehicle: Any, request: Any, i: Any, j: Any) -> None:
    """Insert the pickup after position i and the dropoff after position j; must be feasible."""
    route = ws.route[vehicle]
    length = ws.stats[vehicle, LENGTH]
    for k in range(length + 1, j, -1):
        route[k + 2, STOP] = route[k, STOP]
    route[j + 2, STOP] = 2 * request + 2
    for k in range(j, i, -1):
        route[k + 1, STOP] = route[k, STOP]
    route[i + 1, STOP] = 2 * request + 1
    ws.stats[vehicle, LENGTH] = length + 2
    ws.vehicle[request] = vehicle
    update_route(ws, constraints, vehicle)


@noalloc_kernel
def remove_unassigned(ws: Any, constraints: Any, vehicle: Any) -> Any:
    """Remove the stops of requests no longer assigned to this vehicle; False if infeasible then.

    Removal can make a route infeasible only where the triangle inequality is violated.
    """
    route, trial = ws.route[vehicle], ws.trial
    end = 1
    for k in range(1, ws.stats[vehicle, LENGTH] + 1):
        stop = route[k, STOP]
        if ws.vehicle[(stop - 1) >> 1] == vehicle:
            route[end, STOP] = stop
            end += 1
    route[end, STOP] = DEPOT
    length = end - 1
    ws.stats[vehicle, LENGTH] = length
    feasible = update_route(ws, constraints, vehicle)
    if feasible and constraints.has_duration_limits and constraints.max_shortcut > 0:
        for k in range(length + 2):
            trial[k, TRIAL_STOP] = route[k, STOP]
        set_shift(ws.stops, ws.stats[vehicle])
        feasible = trial_is_feasible(ws.travel, ws.stops, trial, length, constraints.max_route)
    return feasible


@noalloc_kernel
def update_route(ws: Any, constraints: Any, vehicle: Any) -> Any:
    """Recompute a changed route and give it a new version; False if a time window is missed."""
    if ws.stats[vehicle, LENGTH] == 0:
        ws.stats[vehicle, VERSION] = 0
    else:
        ws.last_version[0] += 1
        ws.stats[vehicle, VERSION] = ws.last_version[0]
    ws.changed[vehicle] = True
    return update_time_bounds(
        ws.travel, ws.stops, ws.route[vehicle], ws.stats[vehicle], constraints.has_duration_limits
    )
