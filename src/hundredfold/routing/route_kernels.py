"""One route: its times, the cheapest place for a request in it, putting in and taking out.

Every position knows the earliest time it can be reached and the latest at which the rest of the
route still works, so an insertion is tested against the windows in constant time. Limits on ride
time and duration have quick necessary tests; a candidate that passes them and is the cheapest so
far is settled by an exact schedule.

The two kernels that everything else spends its time in take bare arrays: handing over a whole desk
would cost as much as they do.

When a route's stops are served, and whether its limits can be kept at all.

Windows alone ask for one pass forwards. Limits on ride time and route duration also look back: a
pickup may have to wait so that its dropoff does not come too late after it, and a vehicle may have
to leave later. All of it says "this stop not before that time", so the earliest schedule is found
by raising times until every rule holds, and there is none when a time passes its deadline.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hundredfold.core.numba_kernels import noalloc_kernel
from hundredfold.routing.problem import EARLY, LATE, UNLIMITED
from hundredfold.routing.workspace import (
    DEPOT,
    EARLIEST,
    LATEST,
    LENGTH,
    LOAD,
    MAX_RIDE,
    RIDERS,
    ROOM,
    STAMP,
    STOP,
    TICKS,
    TRIAL_LEG,
    TRIAL_STOP,
    TRIAL_TIME,
    TRIAL_WHERE,
)


@noalloc_kernel
def schedule_exists(stops: Any, trial: Any, length: Any, max_route: Any) -> Any:
    """Write the earliest times at which the trial route keeps all rules; False when it cannot.

    `trial` holds the stops and the legs between them, the depot at 0 and at `length + 1`.
    """
    last = length + 1
    for k in range(last + 1):
        stop = trial[k, TRIAL_STOP]
        trial[stop, TRIAL_WHERE] = k
        trial[k, TRIAL_TIME] = stops[stop, EARLY]
    dirty = np.int64(0)
    # Each round settles one more look back; more rounds than stops mean that they chase each other.
    for _ in range(last + 1):
        if not _pushed_forward(stops, trial, dirty, last):
            return False
        dirty = _raised_by_limits(stops, trial, last, max_route)
        if dirty > last:
            return True
    return False


@noalloc_kernel
def _pushed_forward(stops: Any, trial: Any, start: Any, last: Any) -> Any:
    """Let every stop wait for the one before it; False when one misses its deadline."""
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
def _raised_by_limits(stops: Any, trial: Any, last: Any, max_route: Any) -> Any:
    """Delay pickups and the departure as the limits ask; the first position raised, or beyond."""
    first = last + 1
    start = trial[last, TRIAL_TIME] - max_route
    if trial[0, TRIAL_TIME] < start:
        trial[0, TRIAL_TIME] = start
        first = 0
    for k in range(1, last):
        stop = trial[k, TRIAL_STOP]
        if stop % 2 == 0 and stop != DEPOT:
            pickup = trial[stop - 1, TRIAL_WHERE]
            soonest = trial[k, TRIAL_TIME] - stops[stop - 1, MAX_RIDE]
            if trial[pickup, TRIAL_TIME] < soonest:
                trial[pickup, TRIAL_TIME] = soonest
                first = min(first, pickup)
    return first


@noalloc_kernel
def windows_hold(travel: Any, stops: Any, route: Any, head: Any, limited: Any) -> Any:
    """Work out a route's times and loads after a change; False when a window is missed."""
    length = head[LENGTH]
    time = stops[DEPOT, EARLY]
    load = 0
    ticks = 0
    before = DEPOT
    route[0, STOP] = DEPOT
    route[0, EARLIEST] = time
    route[0, LOAD] = 0
    for k in range(1, length + 2):
        stop = route[k, STOP]
        leg = travel[before, stop]
        ticks += leg
        time = max(time + leg, stops[stop, EARLY])
        load += stops[stop, RIDERS]
        route[k, EARLIEST] = time
        route[k, LOAD] = load
        before = stop
    head[TICKS] = ticks

    time = stops[DEPOT, LATE]
    holds = route[length + 1, EARLIEST] <= time
    route[length + 1, LATEST] = time
    after = DEPOT
    for k in range(length, -1, -1):
        stop = route[k, STOP]
        time = min(time - travel[stop, after], stops[stop, LATE])
        route[k, LATEST] = time
        holds &= route[k, EARLIEST] <= time
        after = stop
    if limited:
        _measure_room(travel, stops, route, length)
    return holds


@noalloc_kernel
def _measure_room(travel: Any, stops: Any, route: Any, length: Any) -> None:
    """Write how much longer each leg may become, as far as the riders on board are concerned."""
    for k in range(length + 2):
        route[k, ROOM] = UNLIMITED
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
            route[k, ROOM] = min(route[k, ROOM], longest - ridden)


@noalloc_kernel
def cheapest_insertion(
    travel: Any, stops: Any, route: Any, head: Any, trial: Any, rules: Any, request: Any
) -> Any:
    """What the request adds at its cheapest place: (ticks, pickup after, dropoff after).

    UNLIMITED when it fits nowhere. Of equal places the earliest wins, pickup before dropoff.
    """
    length = head[LENGTH]
    limited = rules.has_duration_limits
    pickup, dropoff = 2 * request + 1, 2 * request + 2
    pickup_early, pickup_late = stops[pickup, EARLY], stops[pickup, LATE]
    dropoff_early, dropoff_late = stops[dropoff, EARLY], stops[dropoff, LATE]
    most_on_board = rules.capacity - stops[pickup, RIDERS]
    longest_ride = stops[pickup, MAX_RIDE]
    direct = travel[pickup, dropoff]
    best, best_i, best_j = UNLIMITED, -1, -1

    i = 0
    while i < length and route[i + 1, LATEST] < pickup_early:
        i += 1
    while i <= length and route[i, EARLIEST] <= pickup_late:
        here, after = route[i, STOP], route[i + 1, STOP]
        to_pickup = travel[here, pickup]
        picked = max(route[i, EARLIEST] + to_pickup, pickup_early)
        if picked > pickup_late or route[i, LOAD] > most_on_board:
            i += 1
            continue
        deadline = route[i + 1, LATEST]
        detour = to_pickup - travel[here, after]

        # The dropoff right behind the pickup.
        onward = travel[dropoff, after]
        dropped = max(picked + direct, dropoff_early)
        added = detour + direct + onward
        if (
            added < best
            and dropped <= dropoff_late
            and dropped + onward <= deadline
            and direct <= longest_ride
            and (
                not limited
                or _limits_hold(travel, stops, route, head, trial, rules, request, i, i, added)
            )
        ):
            best, best_i, best_j = added, i, i

        # The dropoff further on: drive along the route and try it behind every stop.
        leg = travel[pickup, after]
        detour += leg
        time = picked + leg
        ridden = leg
        if detour >= best + rules.max_shortcut or (limited and detour > route[i, ROOM]):
            i += 1
            continue
        j = i + 1
        while j <= length and time <= deadline:
            here = after
            time = max(time, stops[here, EARLY])
            if time > dropoff_late or route[j, LOAD] > most_on_board or ridden > longest_ride:
                break
            after = route[j + 1, STOP]
            deadline = route[j + 1, LATEST]
            leg = travel[here, after]
            to_dropoff, onward = travel[here, dropoff], travel[dropoff, after]
            dropped = max(time + to_dropoff, dropoff_early)
            added = detour + to_dropoff + onward - leg
            if (
                added < best
                and dropped <= dropoff_late
                and dropped + onward <= deadline
                and ridden + to_dropoff <= longest_ride
                and (
                    not limited
                    or (
                        added - detour <= route[j, ROOM]
                        and _limits_hold(
                            travel, stops, route, head, trial, rules, request, i, j, added
                        )
                    )
                )
            ):
                best, best_i, best_j = added, i, j
            time += leg
            ridden += leg
            j += 1
        i += 1
    return best, best_i, best_j


@noalloc_kernel
def _limits_hold(
    travel: Any,
    stops: Any,
    route: Any,
    head: Any,
    trial: Any,
    rules: Any,
    request: Any,
    i: Any,
    j: Any,
    added: Any,
) -> Any:
    """Whether the route with the request in it has a schedule within all limits."""
    if head[TICKS] + added > rules.max_route:
        return False
    if i == j and added > route[i, ROOM]:
        return False
    length = head[LENGTH]
    for k in range(i + 1):
        trial[k, TRIAL_STOP] = route[k, STOP]
    trial[i + 1, TRIAL_STOP] = 2 * request + 1
    for k in range(i + 1, j + 1):
        trial[k + 1, TRIAL_STOP] = route[k, STOP]
    trial[j + 2, TRIAL_STOP] = 2 * request + 2
    for k in range(j + 1, length + 2):
        trial[k + 2, TRIAL_STOP] = route[k, STOP]
    return trial_holds(travel, stops, trial, length + 2, rules.max_route)


@noalloc_kernel
def trial_holds(travel: Any, stops: Any, trial: Any, length: Any, max_route: Any) -> Any:
    """Whether the stops written on the trial route have a schedule within all limits."""
    for k in range(length + 1):
        trial[k, TRIAL_LEG] = travel[trial[k, TRIAL_STOP], trial[k + 1, TRIAL_STOP]]
    return schedule_exists(stops, trial, length, max_route)


@noalloc_kernel
def put_in(desk: Any, rules: Any, vehicle: Any, request: Any, i: Any, j: Any) -> None:
    """Put pickup behind position i and dropoff behind position j, which must be feasible."""
    route = desk.route[vehicle]
    length = desk.head[vehicle, LENGTH]
    for k in range(length + 1, j, -1):
        route[k + 2, STOP] = route[k, STOP]
    route[j + 2, STOP] = 2 * request + 2
    for k in range(j, i, -1):
        route[k + 1, STOP] = route[k, STOP]
    route[i + 1, STOP] = 2 * request + 1
    desk.head[vehicle, LENGTH] = length + 2
    desk.vehicle[request] = vehicle
    note_change(desk, rules, vehicle)


@noalloc_kernel
def take_out_unassigned(desk: Any, rules: Any, vehicle: Any) -> Any:
    """Take out the stops of requests that left this vehicle; False when the rest does not hold.

    That happens only where a stop on the way was a shortcut.
    """
    route, trial = desk.route[vehicle], desk.trial
    kept = 1
    for k in range(1, desk.head[vehicle, LENGTH] + 1):
        stop = route[k, STOP]
        if desk.vehicle[(stop - 1) >> 1] == vehicle:
            route[kept, STOP] = stop
            kept += 1
    route[kept, STOP] = DEPOT
    length = kept - 1
    desk.head[vehicle, LENGTH] = length
    holds = note_change(desk, rules, vehicle)
    if holds and rules.has_duration_limits and rules.max_shortcut > 0:
        for k in range(length + 2):
            trial[k, TRIAL_STOP] = route[k, STOP]
        holds = trial_holds(desk.travel, desk.stops, trial, length, rules.max_route)
    return holds


@noalloc_kernel
def note_change(desk: Any, rules: Any, vehicle: Any) -> Any:
    """Time a route anew and give it a fresh stamp; False when a window is missed."""
    if desk.head[vehicle, LENGTH] == 0:
        desk.head[vehicle, STAMP] = 0
    else:
        desk.stamps[0] += 1
        desk.head[vehicle, STAMP] = desk.stamps[0]
    desk.touched[vehicle] = True
    return windows_hold(
        desk.travel, desk.stops, desk.route[vehicle], desk.head[vehicle], rules.has_duration_limits
    )
