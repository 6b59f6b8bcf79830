"""State transitions of route construction: feasible actions, their features, and what they change.

Vehicles are routed one after the other. An action drives to a pending pickup, to the dropoff of a
rider on board, or back to the depot. It is feasible only if all riders on board can still be
delivered (`feasibility.can_deliver_all`), so a partial route can always be completed. Under
ride-time limits a ride counts from the earliest possible pickup; delaying a pickup on purpose is
left to local search.

Inner kernels take single arrays: passing a whole `DecodeState` would cost as much as they do.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from hundredfold.core.numba_kernels import kernel, noalloc_kernel
from hundredfold.routing.neural.feasibility import UNREACHABLE, can_deliver_all
from hundredfold.routing.neural.model import NUM_ACTION_FEATURES, NUM_STEP_FEATURES
from hundredfold.routing.problem import EARLY, LATE
from hundredfold.routing.workspace import DEPOT, MAX_RIDE, RIDERS

# Requests on board at once while decoding; bounds the dynamic programme over subsets of dropoffs.
MAX_ONBOARD: Final = 8
# Entries of `DecodeState.scalars`.
(CURRENT_STOP, TIME, LOAD, NUM_ONBOARD, VEHICLE, NUM_PENDING, RETURN_BY, ROUTE_LENGTH, NUM_REQUESTS) = range(9)
# Features are clipped here, in mean drives.
FEATURE_CLIP: Final = np.float32(4.0)
REQUESTS_SCALE: Final = np.float32(30.0)
VEHICLES_SCALE: Final = np.float32(8.0)


class DecodeState(NamedTuple):
    """One instance while its routes are constructed, and scratch arrays; times in microseconds."""

    travel: Any  # (stops, stops) service at the first, then the drive to the second
    stops: Any  # (stops, 4) EARLY, LATE, RIDERS, MAX_RIDE
    pending: Any  # (requests,) True until picked up
    onboard: Any  # (MAX_ONBOARD,) dropoffs of requests on board, in order of boarding
    deadline: Any  # (MAX_ONBOARD,) latest service start at those dropoffs
    scalars: Any  # (9,) CURRENT_STOP ... NUM_REQUESTS
    action: Any  # (stops,) stops that feasible actions lead to
    service_start: Any  # (stops,) start of service there
    action_features: Any  # (stops, action features)
    step_features: Any  # (step features,)
    left: Any  # (MAX_ONBOARD + 1,) scratch: dropoffs left after an action
    left_deadline: Any  # (MAX_ONBOARD + 1,) scratch
    earliest: Any  # (subsets x last stop,) scratch: table of the dynamic programme


@kernel
def new_decode_state(max_requests: Any) -> Any:
    """Allocate the state of instances of up to `max_requests` requests."""
    stops = 2 * max_requests + 1
    return DecodeState(
        np.zeros((stops, stops), np.int64),
        np.zeros((stops, 4), np.int64),
        np.zeros(max_requests, np.bool_),
        np.zeros(MAX_ONBOARD, np.int64),
        np.zeros(MAX_ONBOARD, np.int64),
        np.zeros(9, np.int64),
        np.zeros(stops, np.int64),
        np.zeros(stops, np.int64),
        np.zeros((stops, NUM_ACTION_FEATURES), np.float32),
        np.zeros(NUM_STEP_FEATURES, np.float32),
        np.zeros(MAX_ONBOARD + 1, np.int64),
        np.zeros(MAX_ONBOARD + 1, np.int64),
        np.zeros(2**MAX_ONBOARD * MAX_ONBOARD, np.int64),
    )


@noalloc_kernel
def reset_decode_state(state: Any, instances: Any, row: Any) -> None:
    """Load an instance with all requests pending and the first vehicle in the depot."""
    requests = instances.num_requests[row]
    for stop in range(2 * requests + 1):
        state.stops[stop, EARLY] = instances.early[row, stop]
        state.stops[stop, LATE] = instances.late[row, stop]
        state.stops[stop, RIDERS] = instances.riders[row, stop]
        state.stops[stop, MAX_RIDE] = instances.max_ride[row, stop]
        cell = instances.cell[row, stop]
        service = instances.service[row, stop]
        for other in range(2 * requests + 1):
            drive = instances.drive[cell, instances.cell[row, other]]
            state.travel[stop, other] = service + drive
    state.pending[:requests] = True
    state.scalars[NUM_REQUESTS] = requests
    state.scalars[NUM_PENDING] = requests
    state.scalars[VEHICLE] = -1
    _start_next_vehicle(state)


@noalloc_kernel
def _start_next_vehicle(state: Any) -> None:
    scalars = state.scalars
    scalars[CURRENT_STOP] = DEPOT
    scalars[TIME] = state.stops[DEPOT, EARLY]
    scalars[LOAD] = 0
    scalars[NUM_ONBOARD] = 0
    scalars[VEHICLE] += 1
    scalars[RETURN_BY] = state.stops[DEPOT, LATE]
    scalars[ROUTE_LENGTH] = 0


@noalloc_kernel
def list_feasible_actions(state: Any, constraints: Any) -> Any:
    """Write the feasible actions: pickups, then dropoffs, then the depot; returns their number.

    0 means that the episode is over: every request is served, or none of the others can be.
    """
    scalars, stops, travel = state.scalars, state.stops, state.travel
    left, left_deadline = state.left, state.left_deadline
    here, time, onboard = scalars[CURRENT_STOP], scalars[TIME], scalars[NUM_ONBOARD]
    is_metric = constraints.max_shortcut == 0
    if scalars[NUM_PENDING] == 0 and onboard == 0:
        return 0
    count = 0
    for request in range(scalars[NUM_REQUESTS]):
        pickup = 2 * request + 1
        if (
            not state.pending[request]
            or onboard == MAX_ONBOARD
            or scalars[LOAD] + stops[pickup, RIDERS] > constraints.capacity
        ):
            continue
        start = max(time + travel[here, pickup], stops[pickup, EARLY])
        if start > stops[pickup, LATE]:
            continue
        return_by = scalars[RETURN_BY]
        if here == DEPOT:
            return_by = min(return_by, start - travel[here, pickup] + constraints.max_route)
        left[0] = pickup + 1
        left_deadline[0] = min(stops[pickup + 1, LATE], start + stops[pickup, MAX_RIDE])
        for k in range(onboard):
            left[k + 1] = state.onboard[k]
            left_deadline[k + 1] = state.deadline[k]
        if can_deliver_all(
            travel, stops, left, left_deadline, state.earliest, is_metric, pickup, start, onboard + 1, return_by
        ):
            state.action[count] = pickup
            state.service_start[count] = start
            count += 1
    for slot in range(onboard):
        dropoff = state.onboard[slot]
        start = max(time + travel[here, dropoff], stops[dropoff, EARLY])
        if start > state.deadline[slot]:
            continue
        others = 0
        for k in range(onboard):
            if k != slot:
                left[others] = state.onboard[k]
                left_deadline[others] = state.deadline[k]
                others += 1
        if can_deliver_all(
            travel, stops, left, left_deadline, state.earliest, is_metric, dropoff, start, others, scalars[RETURN_BY]
        ):
            state.action[count] = dropoff
            state.service_start[count] = start
            count += 1
    # The last vehicle returns only when it can serve nothing else.
    is_last = scalars[VEHICLE] + 1 >= constraints.num_vehicles
    if here != DEPOT and onboard == 0 and not (is_last and count > 0):
        state.action[count] = DEPOT
        state.service_start[count] = time + travel[here, DEPOT]
        count += 1
    return count


@noalloc_kernel
def apply_action(state: Any, constraints: Any, stop: Any, start: Any) -> None:
    """Drive to a feasible `stop`, where service starts at `start` microseconds."""
    scalars = state.scalars
    if stop == DEPOT:
        _start_next_vehicle(state)
        return
    if scalars[CURRENT_STOP] == DEPOT:
        departure = start - state.travel[DEPOT, stop]
        scalars[RETURN_BY] = min(state.stops[DEPOT, LATE], departure + constraints.max_route)
    scalars[CURRENT_STOP] = stop
    scalars[TIME] = start
    scalars[LOAD] += state.stops[stop, RIDERS]
    scalars[ROUTE_LENGTH] += 1
    onboard = scalars[NUM_ONBOARD]
    if stop % 2 == 1:
        state.pending[(stop - 1) >> 1] = False
        scalars[NUM_PENDING] -= 1
        state.onboard[onboard] = stop + 1
        latest = min(state.stops[stop + 1, LATE], start + state.stops[stop, MAX_RIDE])
        state.deadline[onboard] = latest
        scalars[NUM_ONBOARD] = onboard + 1
        return
    for slot in range(onboard):
        if state.onboard[slot] == stop:
            # Boarding order is preserved, so that floating-point sums over riders are reproducible.
            for k in range(slot, onboard - 1):
                state.onboard[k] = state.onboard[k + 1]
                state.deadline[k] = state.deadline[k + 1]
            scalars[NUM_ONBOARD] = onboard - 1
            return


@noalloc_kernel
def write_step_features(state: Any, constraints: Any, scale: Any) -> None:
    """Write the features of the current step; `scale` is a `TimeScale`."""
    scalars, features = state.scalars, state.step_features
    requests = np.float32(scalars[NUM_REQUESTS])
    vehicles = np.float32(constraints.num_vehicles)
    vehicle = np.float32(scalars[VEHICLE])
    features[0] = 4.0 * (scalars[TIME] - scale.day_start) * scale.per_day - 2.0  # time of day
    features[1] = np.float32(scalars[LOAD]) / np.float32(constraints.capacity)  # load factor
    features[2] = vehicle / vehicles  # vehicles used
    features[3] = (vehicles - vehicle) / VEHICLES_SCALE  # vehicles left
    features[4] = np.float32(scalars[NUM_PENDING]) / requests  # pending requests
    features[5] = requests / REQUESTS_SCALE  # size of the instance
    features[6] = min(np.float32(scalars[ROUTE_LENGTH]) * vehicles / (np.float32(2.0) * requests), FEATURE_CLIP)
    features[7] = 0.0  # cost of the next vehicle
    if scalars[VEHICLE] + 1 >= constraints.free_vehicles:
        open_cost = np.float32(constraints.extra_vehicle_cost * scale.per_mean_drive)
        features[7] = min(open_cost, FEATURE_CLIP)


@noalloc_kernel
def write_action_features(state: Any, constraints: Any, scale: Any, count: Any) -> None:
    """Write the features of the first `count` actions; `scale` is a `TimeScale`."""
    scalars, stops, travel = state.scalars, state.stops, state.travel
    here, time = scalars[CURRENT_STOP], scalars[TIME]
    nearest = UNREACHABLE
    for k in range(count):
        if state.action[k] != DEPOT:
            nearest = min(nearest, travel[here, state.action[k]])
    for k in range(count):
        stop, start, features = state.action[k], state.service_start[k], state.action_features[k]
        leg = travel[here, stop]
        is_pickup = stop % 2 == 1
        features[0] = _in_mean_drives(leg, scale)  # drive
        features[1] = min(_in_mean_drives(start - time - leg, scale), FEATURE_CLIP)  # waiting
        features[2] = min(_in_mean_drives(stops[stop, LATE] - start, scale), FEATURE_CLIP)  # slack
        features[3] = 1.0 if stop == DEPOT else 0.0  # is depot
        features[4] = 0.0 if is_pickup or stop == DEPOT else 1.0  # is dropoff
        features[5] = 1.0 if here == DEPOT else 0.0  # leaves depot
        features[6] = _in_mean_drives(travel[stop, DEPOT], scale)  # drive back
        detour = leg + travel[stop, DEPOT] - travel[here, DEPOT]
        features[7] = _in_mean_drives(detour, scale)
        features[8] = 0.0  # time until service
        if here != DEPOT:
            features[8] = min(_in_mean_drives(start - time, scale), FEATURE_CLIP)
        features[9] = 0.0  # slack of the ride
        if is_pickup:
            deadline = min(stops[stop + 1, LATE], start + stops[stop, MAX_RIDE])
            ride_slack = deadline - start - travel[stop, stop + 1]
            features[9] = min(_in_mean_drives(ride_slack, scale), FEATURE_CLIP)
        features[10] = np.float32(scalars[LOAD] + stops[stop, RIDERS]) / np.float32(constraints.capacity)
        features[11] = _min_onboard_slack(
            travel, state.onboard, state.deadline, scalars[NUM_ONBOARD], scale, stop, start
        )
        features[12] = 0.0  # nearest next pickup
        features[13] = 0.0  # soonest next pickup
        features[14] = 0.0  # extra leg over the best predecessor
        requests = scalars[NUM_REQUESTS]
        if stop != DEPOT:
            _write_next_pickup_features(travel, stops, state.pending, requests, scale, stop, start, features)
        if is_pickup:
            features[14] = _extra_over_best_predecessor(travel, stops, state.pending, requests, scale, stop, leg)
        features[15] = 0.0  # extra leg over the nearest action
        if nearest != UNREACHABLE:
            extra = _in_mean_drives(leg - nearest, scale)
            features[15] = max(-FEATURE_CLIP, min(extra, FEATURE_CLIP))


@noalloc_kernel
def _in_mean_drives(microseconds: Any, scale: Any) -> Any:
    return np.float32(microseconds * scale.per_mean_drive)


@noalloc_kernel
def _min_onboard_slack(travel: Any, onboard: Any, deadline: Any, count: Any, scale: Any, stop: Any, start: Any) -> Any:
    """Least slack, in mean drives, of the riders on board after this action."""
    least = FEATURE_CLIP
    for slot in range(count):
        dropoff = onboard[slot]
        if dropoff != stop:
            slack = deadline[slot] - start - travel[stop, dropoff]
            least = min(least, _in_mean_drives(slack, scale))
    return least


@noalloc_kernel
def _write_next_pickup_features(
    travel: Any, stops: Any, pending: Any, requests: Any, scale: Any, stop: Any, start: Any, features: Any
) -> None:
    """Write drive to the nearest and time to the soonest pending pickup after this action."""
    nearest, soonest = UNREACHABLE, UNREACHABLE
    for request in range(requests):
        pickup = 2 * request + 1
        if not pending[request] or pickup == stop:
            continue
        leg = travel[stop, pickup]
        if start + leg <= stops[pickup, LATE]:
            nearest = min(nearest, leg)
            soonest = min(soonest, max(start + leg, stops[pickup, EARLY]) - start)
    features[12] = min(_in_mean_drives(nearest, scale), FEATURE_CLIP)
    features[13] = min(_in_mean_drives(soonest, scale), FEATURE_CLIP)


@noalloc_kernel
def _extra_over_best_predecessor(
    travel: Any, stops: Any, pending: Any, requests: Any, scale: Any, pickup: Any, leg: Any
) -> Any:
    """Length of `leg` beyond the shortest leg to `pickup` from the depot or a pending stop."""
    best = travel[DEPOT, pickup]
    late = stops[pickup, LATE]
    for request in range(requests):
        if not pending[request] or 2 * request + 1 == pickup:
            continue
        for stop in range(2 * request + 1, 2 * request + 3):
            drive = travel[stop, pickup]
            if drive < best and stops[stop, EARLY] + drive <= late:
                best = drive
    return max(-FEATURE_CLIP, min(_in_mean_drives(leg - best, scale), FEATURE_CLIP))
