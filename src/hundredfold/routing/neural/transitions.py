"""One vehicle after the other, one move after the other: which moves keep every promise.

A move leads from where the vehicle stands to a pickup that is open, to the dropoff of somebody on
board, or home. It is allowed only if afterwards some order of dropoffs still brings everybody on
board to their place in time, and the vehicle home: nobody is ever stranded. Times are whole ticks,
so what is allowed does not depend on rounding. Inner kernels take bare arrays: handing over a whole
ride would cost as much as they do.

Under ride-time limits a ride is counted from the earliest time the vehicle can pick up; delaying a
pickup on purpose is left to the passes that improve a plan afterwards.

Whether routes keep every promise, compiled: what a policy proposes is checked before it counts.

`oracles/verifier.py` says the same in sentences, slowly and independently.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from hundredfold.core.numba_kernels import kernel, noalloc_kernel
from hundredfold.routing.neural.model import NUM_MOVE_FEATURES, NUM_STATE_FEATURES
from hundredfold.routing.problem import EARLY, LATE
from hundredfold.routing.route_kernels import schedule_exists
from hundredfold.routing.workspace import (
    DEPOT,
    MAX_RIDE,
    RIDERS,
    TRIAL_LEG,
    TRIAL_STOP,
)

# Parties that decoding puts into one vehicle at once: orders of dropoffs are tried over subsets.
MAX_ABOARD: Final = 8
# What is so at the moment; columns of `now`.
AT, TIME, LOAD, ABOARD, VEHICLE, OPEN, HOME_BY, STOPS, REQUESTS = range(9)
# Features are cut off here, in mean drives.
FAR: Final = np.float32(4.0)
USUAL_REQUESTS: Final = np.float32(30.0)
USUAL_VEHICLES: Final = np.float32(8.0)
NEVER_THERE: Final = 2**61


class Pace(NamedTuple):
    """Scales of the city and the day."""

    per_drive: float  # one over the mean drive in ticks
    day_start: float
    per_day: float  # one over the length of the day in ticks


class Ride(NamedTuple):
    """One book while it is being decoded, and room to work."""

    travel: Any  # (stops, stops) service at the first, then the drive to the second
    stops: Any  # (stops, 4) EARLY, LATE, RIDERS, MAX_RIDE
    open: Any  # (requests,) nobody has picked them up yet
    aboard: Any  # (MAX_ABOARD,) dropoffs of those on board
    due: Any  # (MAX_ABOARD,) by when
    now: Any  # (9,)
    choice: Any  # (stops,) where a move may lead
    arrive: Any  # (stops,) when service would start there
    features: Any  # (stops, move features)
    state: Any  # (state features,)
    left: Any  # (MAX_ABOARD + 1,) dropoffs to be reached, while testing a move
    left_due: Any  # (MAX_ABOARD + 1,)
    reached: Any  # (subsets x last,) earliest times, while testing orders


@kernel
def new_ride(num_requests: Any) -> Any:
    """Room for books of up to this size."""
    stops = 2 * num_requests + 1
    return Ride(
        np.zeros((stops, stops), np.int64),
        np.zeros((stops, 4), np.int64),
        np.zeros(num_requests, np.bool_),
        np.zeros(MAX_ABOARD, np.int64),
        np.zeros(MAX_ABOARD, np.int64),
        np.zeros(9, np.int64),
        np.zeros(stops, np.int64),
        np.zeros(stops, np.int64),
        np.zeros((stops, NUM_MOVE_FEATURES), np.float32),
        np.zeros(NUM_STATE_FEATURES, np.float32),
        np.zeros(MAX_ABOARD + 1, np.int64),
        np.zeros(MAX_ABOARD + 1, np.int64),
        np.zeros(2**MAX_ABOARD * MAX_ABOARD, np.int64),
    )


@noalloc_kernel
def begin(ride: Any, books: Any, book: Any) -> None:
    """Lay out a book with everybody waiting and the first vehicle in the depot."""
    requests = books.num_requests[book]
    for stop in range(2 * requests + 1):
        ride.stops[stop, EARLY] = books.early[book, stop]
        ride.stops[stop, LATE] = books.late[book, stop]
        ride.stops[stop, RIDERS] = books.riders[book, stop]
        ride.stops[stop, MAX_RIDE] = books.max_ride[book, stop]
        cell = books.cell[book, stop]
        service = books.service[book, stop]
        for other in range(2 * requests + 1):
            ride.travel[stop, other] = service + books.drive[cell, books.cell[book, other]]
    ride.open[:requests] = True
    ride.now[REQUESTS] = requests
    ride.now[OPEN] = requests
    ride.now[VEHICLE] = -1
    _next_vehicle(ride)


@noalloc_kernel
def _next_vehicle(ride: Any) -> None:
    ride.now[AT] = DEPOT
    ride.now[TIME] = ride.stops[DEPOT, EARLY]
    ride.now[LOAD] = 0
    ride.now[ABOARD] = 0
    ride.now[VEHICLE] += 1
    ride.now[HOME_BY] = ride.stops[DEPOT, LATE]
    ride.now[STOPS] = 0


@noalloc_kernel
def list_moves(ride: Any, rules: Any) -> Any:
    """Write the allowed moves, pickups first, then dropoffs, then home; returns how many.

    No move means that the day is over: everybody is served, or nobody else can be.
    """
    now, stops, travel = ride.now, ride.stops, ride.travel
    left, left_due = ride.left, ride.left_due
    here, time, aboard = now[AT], now[TIME], now[ABOARD]
    metric = rules.max_shortcut == 0
    if now[OPEN] == 0 and aboard == 0:
        return 0
    found = 0
    for request in range(now[REQUESTS]):
        pickup = 2 * request + 1
        if (
            not ride.open[request]
            or aboard == MAX_ABOARD
            or now[LOAD] + stops[pickup, RIDERS] > rules.capacity
        ):
            continue
        there = max(time + travel[here, pickup], stops[pickup, EARLY])
        if there > stops[pickup, LATE]:
            continue
        home_by = now[HOME_BY]
        if here == DEPOT:
            home_by = min(home_by, there - travel[here, pickup] + rules.max_route)
        left[0] = pickup + 1
        left_due[0] = min(stops[pickup + 1, LATE], there + stops[pickup, MAX_RIDE])
        for k in range(aboard):
            left[k + 1] = ride.aboard[k]
            left_due[k + 1] = ride.due[k]
        if _all_in_time(
            travel, stops, left, left_due, ride.reached, metric, pickup, there, aboard + 1, home_by
        ):
            ride.choice[found] = pickup
            ride.arrive[found] = there
            found += 1
    for slot in range(aboard):
        dropoff = ride.aboard[slot]
        there = max(time + travel[here, dropoff], stops[dropoff, EARLY])
        if there > ride.due[slot]:
            continue
        others = 0
        for k in range(aboard):
            if k != slot:
                left[others] = ride.aboard[k]
                left_due[others] = ride.due[k]
                others += 1
        if _all_in_time(
            travel,
            stops,
            left,
            left_due,
            ride.reached,
            metric,
            dropoff,
            there,
            others,
            now[HOME_BY],
        ):
            ride.choice[found] = dropoff
            ride.arrive[found] = there
            found += 1
    # Going home early is a choice only while another vehicle waits there.
    last = now[VEHICLE] + 1 >= rules.num_vehicles
    if here != DEPOT and aboard == 0 and not (last and found > 0):
        ride.choice[found] = DEPOT
        ride.arrive[found] = time + travel[here, DEPOT]
        found += 1
    return found


@noalloc_kernel
def _all_in_time(
    travel: Any,
    stops: Any,
    left: Any,
    left_due: Any,
    reached: Any,
    metric: Any,
    here: Any,
    time: Any,
    count: Any,
    home_by: Any,
) -> Any:
    """Whether some order serves the `count` dropoffs in `left` in time, and then leads home."""
    if metric:
        for k in range(count):
            if time + travel[here, left[k]] > left_due[k]:
                return False
    if _soonest_due_first(travel, stops, left, left_due, here, time, count, home_by):
        return True
    if count < 2:
        return False
    subsets = 1 << count
    for place in range(subsets * count):
        reached[place] = NEVER_THERE
    for k in range(count):
        stop = left[k]
        there = max(time + travel[here, stop], stops[stop, EARLY])
        if there <= left_due[k]:
            reached[(1 << k) * count + k] = there
    for subset in range(1, subsets):
        for last in range(count):
            done = reached[subset * count + last]
            if done == NEVER_THERE:
                continue
            stop = left[last]
            if subset == subsets - 1 and done + travel[stop, DEPOT] <= home_by:
                return True
            for k in range(count):
                if subset >> k & 1:
                    continue
                after = left[k]
                there = max(done + travel[stop, after], stops[after, EARLY])
                place = (subset | 1 << k) * count + k
                if there <= left_due[k] and there < reached[place]:
                    reached[place] = there
    return False


@noalloc_kernel
def _soonest_due_first(
    travel: Any,
    stops: Any,
    left: Any,
    left_due: Any,
    here: Any,
    time: Any,
    count: Any,
    home_by: Any,
) -> Any:
    """The usual order, which nearly always works when any does."""
    served = 0
    at = here
    for _ in range(count):
        next_k = -1
        for k in range(count):
            if not served >> k & 1 and (next_k < 0 or left_due[k] < left_due[next_k]):
                next_k = k
        stop = left[next_k]
        time = max(time + travel[at, stop], stops[stop, EARLY])
        if time > left_due[next_k]:
            return False
        served |= 1 << next_k
        at = stop
    return time + travel[at, DEPOT] <= home_by


@noalloc_kernel
def make_move(ride: Any, rules: Any, stop: Any, there: Any) -> None:
    """Drive to a stop that `list_moves` allowed, where service starts at `there`."""
    now = ride.now
    if stop == DEPOT:
        _next_vehicle(ride)
        return
    if now[AT] == DEPOT:
        leaves = there - ride.travel[DEPOT, stop]
        now[HOME_BY] = min(ride.stops[DEPOT, LATE], leaves + rules.max_route)
    now[AT] = stop
    now[TIME] = there
    now[LOAD] += ride.stops[stop, RIDERS]
    now[STOPS] += 1
    aboard = now[ABOARD]
    if stop % 2 == 1:
        ride.open[(stop - 1) >> 1] = False
        now[OPEN] -= 1
        ride.aboard[aboard] = stop + 1
        ride.due[aboard] = min(ride.stops[stop + 1, LATE], there + ride.stops[stop, MAX_RIDE])
        now[ABOARD] = aboard + 1
        return
    for slot in range(aboard):
        if ride.aboard[slot] == stop:
            # In order of boarding, so that sums over those on board repeat.
            for k in range(slot, aboard - 1):
                ride.aboard[k] = ride.aboard[k + 1]
                ride.due[k] = ride.due[k + 1]
            now[ABOARD] = aboard - 1
            return


@noalloc_kernel
def describe_state(ride: Any, rules: Any, pace: Any) -> None:
    """Write the features of the moment."""
    now, state = ride.now, ride.state
    requests = np.float32(now[REQUESTS])
    vehicles = np.float32(rules.num_vehicles)
    vehicle = np.float32(now[VEHICLE])
    state[0] = 4.0 * (now[TIME] - pace.day_start) * pace.per_day - 2.0
    state[1] = np.float32(now[LOAD]) / np.float32(rules.capacity)
    state[2] = vehicle / vehicles
    state[3] = (vehicles - vehicle) / USUAL_VEHICLES
    state[4] = np.float32(now[OPEN]) / requests
    state[5] = requests / USUAL_REQUESTS
    state[6] = min(np.float32(now[STOPS]) * vehicles / (np.float32(2.0) * requests), FAR)
    state[7] = 0.0
    if now[VEHICLE] + 1 >= rules.free_vehicles:
        state[7] = min(np.float32(rules.extra_vehicle_cost * pace.per_drive), FAR)


@noalloc_kernel
def describe_moves(ride: Any, rules: Any, pace: Any, count: Any) -> None:
    """Write the features of the first `count` moves."""
    now, stops, travel = ride.now, ride.stops, ride.travel
    here, time = now[AT], now[TIME]
    nearest = NEVER_THERE
    for k in range(count):
        if ride.choice[k] != DEPOT:
            nearest = min(nearest, travel[here, ride.choice[k]])
    for k in range(count):
        stop, there, seen = ride.choice[k], ride.arrive[k], ride.features[k]
        leg = travel[here, stop]
        is_pickup = stop % 2 == 1
        seen[0] = _drives(leg, pace)
        seen[1] = min(_drives(there - time - leg, pace), FAR)
        seen[2] = min(_drives(stops[stop, LATE] - there, pace), FAR)
        seen[3] = 1.0 if stop == DEPOT else 0.0
        seen[4] = 0.0 if is_pickup or stop == DEPOT else 1.0
        seen[5] = 1.0 if here == DEPOT else 0.0
        seen[6] = _drives(travel[stop, DEPOT], pace)
        seen[7] = _drives(leg + travel[stop, DEPOT] - travel[here, DEPOT], pace)
        seen[8] = 0.0 if here == DEPOT else min(_drives(there - time, pace), FAR)
        seen[9] = 0.0
        if is_pickup:
            due = min(stops[stop + 1, LATE], there + stops[stop, MAX_RIDE])
            seen[9] = min(_drives(due - there - travel[stop, stop + 1], pace), FAR)
        seen[10] = np.float32(now[LOAD] + stops[stop, RIDERS]) / np.float32(rules.capacity)
        seen[11] = _least_spare(travel, ride.aboard, ride.due, now[ABOARD], pace, stop, there)
        seen[12] = 0.0
        seen[13] = 0.0
        seen[14] = 0.0
        if stop != DEPOT:
            _describe_onward(travel, stops, ride.open, now[REQUESTS], pace, stop, there, seen)
        if is_pickup:
            seen[14] = _advantage(travel, stops, ride.open, now[REQUESTS], pace, stop, leg)
        seen[15] = 0.0
        if nearest != NEVER_THERE:
            seen[15] = max(-FAR, min(_drives(leg - nearest, pace), FAR))


@noalloc_kernel
def _drives(ticks: Any, pace: Any) -> Any:
    return np.float32(ticks * pace.per_drive)


@noalloc_kernel
def _least_spare(
    travel: Any, aboard: Any, due: Any, count: Any, pace: Any, stop: Any, there: Any
) -> Any:
    """Time to spare of whoever on board is tightest after this move."""
    least = FAR
    for slot in range(count):
        dropoff = aboard[slot]
        if dropoff != stop:
            spare = due[slot] - there - travel[stop, dropoff]
            least = min(least, _drives(spare, pace))
    return least


@noalloc_kernel
def _describe_onward(
    travel: Any, stops: Any, waits: Any, requests: Any, pace: Any, stop: Any, there: Any, seen: Any
) -> None:
    """The nearest and the soonest open pickup behind this move."""
    nearest, soonest = NEVER_THERE, NEVER_THERE
    for request in range(requests):
        pickup = 2 * request + 1
        if not waits[request] or pickup == stop:
            continue
        leg = travel[stop, pickup]
        if there + leg <= stops[pickup, LATE]:
            nearest = min(nearest, leg)
            soonest = min(soonest, max(there + leg, stops[pickup, EARLY]) - there)
    seen[12] = min(_drives(nearest, pace), FAR)
    seen[13] = min(_drives(soonest, pace), FAR)


@noalloc_kernel
def _advantage(
    travel: Any, stops: Any, waits: Any, requests: Any, pace: Any, pickup: Any, leg: Any
) -> Any:
    """How much farther away we are than the best of the open stops that could come before."""
    best = travel[DEPOT, pickup]
    late = stops[pickup, LATE]
    for request in range(requests):
        if not waits[request] or 2 * request + 1 == pickup:
            continue
        for stop in range(2 * request + 1, 2 * request + 3):
            drive = travel[stop, pickup]
            if drive < best and stops[stop, EARLY] + drive <= late:
                best = drive
    return max(-FAR, min(_drives(leg - best, pace), FAR))


def pace_of(mean_drive: float, day_start: float, day_length: float) -> Pace:
    """The scales as kernels take them."""
    return Pace(1.0 / mean_drive, day_start, 1.0 / day_length)


@kernel
def plans_hold(books: Any, rules: Any, routes: Any, lengths: Any) -> Any:
    """(books,) True where no stop comes twice and every route is feasible.

    Requests may be left out, with both of their stops.
    """
    num_stops = books.cell.shape[1]
    stops = np.zeros((num_stops, 4), np.int64)
    trial = np.zeros((num_stops + 1, 4), np.int64)
    seen = np.zeros(num_stops, np.bool_)
    holds = np.ones(len(books.num_requests), np.bool_)
    for book in range(len(holds)):
        stops[:, EARLY] = books.early[book]
        stops[:, LATE] = books.late[book]
        stops[:, RIDERS] = books.riders[book]
        stops[:, MAX_RIDE] = books.max_ride[book]
        seen[:] = False
        for vehicle in range(rules.num_vehicles):
            length = lengths[book, vehicle]
            if length > 0 and not (
                _in_order(books, book, rules, stops, seen, routes[book, vehicle], length)
                and _in_time(books, book, rules, stops, trial, routes[book, vehicle], length)
            ):
                holds[book] = False
                break
    return holds


@noalloc_kernel
def _in_order(
    books: Any, book: Any, rules: Any, stops: Any, seen: Any, route: Any, length: Any
) -> Any:
    """Whether every rider gets on before getting off, once, and finds a seat."""
    load, aboard = 0, 0
    for k in range(length):
        stop = route[k]
        if stop < 1 or stop > 2 * books.num_requests[book] or seen[stop]:
            return False
        seen[stop] = True
        load += stops[stop, RIDERS]
        if load > rules.capacity:
            return False
        if stop % 2 == 1:
            aboard += 1
            continue
        aboard -= 1
        before = False
        for other in range(k):
            before |= route[other] == stop - 1
        if not before:
            return False
    return aboard == 0


@noalloc_kernel
def _in_time(
    books: Any, book: Any, rules: Any, stops: Any, trial: Any, route: Any, length: Any
) -> Any:
    trial[0, TRIAL_STOP] = DEPOT
    trial[length + 1, TRIAL_STOP] = DEPOT
    for k in range(length):
        trial[k + 1, TRIAL_STOP] = route[k]
    for k in range(length + 1):
        here, after = trial[k, TRIAL_STOP], trial[k + 1, TRIAL_STOP]
        drive = books.drive[books.cell[book, here], books.cell[book, after]]
        trial[k, TRIAL_LEG] = books.service[book, here] + drive
    return schedule_exists(stops, trial, length, rules.max_route)
