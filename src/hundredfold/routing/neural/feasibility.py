"""Feasibility checks: of an action while decoding, and of finished routes.

Times are integer microseconds, so feasibility does not depend on rounding. `routing/verifier.py`
checks finished routes independently and more slowly.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from hundredfold.core.numba_kernels import kernel, noalloc_kernel
from hundredfold.routing.problem import EARLY, LATE
from hundredfold.routing.route_kernels import schedule_exists
from hundredfold.routing.workspace import DEPOT, MAX_RIDE, RIDERS, TRIAL_LEG, TRIAL_STOP

UNREACHABLE: Final = 2**61


@noalloc_kernel
def can_deliver_all(
    travel: Any,
    stops: Any,
    left: Any,
    left_deadline: Any,
    earliest: Any,
    is_metric: Any,
    here: Any,
    time: Any,
    count: Any,
    return_by: Any,
) -> Any:
    """Whether some order serves the first `count` dropoffs in `left` in time and then returns.

    Exact: a dynamic programme over subsets (Held and Karp 1962) of earliest service starts, tried
    after two cheap tests.
    """
    if is_metric:
        for k in range(count):
            if time + travel[here, left[k]] > left_deadline[k]:
                return False
    if _earliest_deadline_first(travel, stops, left, left_deadline, here, time, count, return_by):
        return True
    if count < 2:
        return False
    subsets = 1 << count
    for index in range(subsets * count):
        earliest[index] = UNREACHABLE
    for k in range(count):
        stop = left[k]
        start = max(time + travel[here, stop], stops[stop, EARLY])
        if start <= left_deadline[k]:
            earliest[(1 << k) * count + k] = start
    for subset in range(1, subsets):
        for last in range(count):
            served = earliest[subset * count + last]
            if served == UNREACHABLE:
                continue
            stop = left[last]
            if subset == subsets - 1 and served + travel[stop, DEPOT] <= return_by:
                return True
            for k in range(count):
                if subset >> k & 1:
                    continue
                after = left[k]
                start = max(served + travel[stop, after], stops[after, EARLY])
                index = (subset | 1 << k) * count + k
                if start <= left_deadline[k] and start < earliest[index]:
                    earliest[index] = start
    return False


@noalloc_kernel
def _earliest_deadline_first(
    travel: Any, stops: Any, left: Any, left_deadline: Any, here: Any, time: Any, count: Any, return_by: Any
) -> Any:
    """Whether serving dropoffs by deadline works: nearly always, when any order does."""
    served = 0
    current = here
    for _ in range(count):
        next_k = -1
        for k in range(count):
            if not served >> k & 1 and (next_k < 0 or left_deadline[k] < left_deadline[next_k]):
                next_k = k
        stop = left[next_k]
        time = max(time + travel[current, stop], stops[stop, EARLY])
        if time > left_deadline[next_k]:
            return False
        served |= 1 << next_k
        current = stop
    return time + travel[current, DEPOT] <= return_by


def can_deliver_all_torch(
    travel: Tensor,
    early: Tensor,
    late: Tensor,
    max_ride: Tensor,
    onboard: Tensor,
    deadline: Tensor,
    stop: Tensor,
    start: Tensor,
    return_by: Tensor,
) -> Tensor:
    """(C,) whether all riders on board can still be delivered in time and the vehicle return.

    `can_deliver_all` in tensor operations, for C actions of instances with N stops.

    Args:
        travel: (C, N, N) microseconds, the matrix of each action's instance.
        early: (C, N) microseconds.
        late: (C, N) microseconds.
        max_ride: (C, N) microseconds.
        onboard: (C, slots) dropoffs of requests on board, 0 in free slots.
        deadline: (C, slots) microseconds.
        stop: (C,) where the action leads.
        start: (C,) start of service there, in microseconds.
        return_by: (C,) latest return to the depot, in microseconds.
    """
    index = torch.arange(len(stop), device=stop.device)
    is_pickup = stop % 2 == 1
    own = torch.where(is_pickup, stop + 1, 0)
    own_deadline = torch.minimum(late[index, own], start + max_ride[index, stop])
    others = torch.where(onboard == stop[:, None], 0, onboard)
    left = torch.cat([others, own[:, None]], dim=1)
    left_deadline = torch.cat([deadline, own_deadline[:, None]], dim=1)
    # Free slots go last, and columns that are free everywhere are dropped.
    order = (left == 0).to(torch.int8).argsort(dim=1, stable=True)
    count = (left > 0).sum(dim=1)
    width = int(count.max()) if len(count) else 0
    if width == 0:
        return start + travel[index, stop, 0] <= return_by
    left = left.gather(1, order)[:, :width]
    left_deadline = left_deadline.gather(1, order)[:, :width]
    return _some_order_works(travel, early, left, left_deadline, count, stop, start, return_by)


def _some_order_works(
    travel: Tensor,
    early: Tensor,
    left: Tensor,
    left_deadline: Tensor,
    count: Tensor,
    stop: Tensor,
    start: Tensor,
    return_by: Tensor,
) -> Tensor:
    width = left.shape[1]
    index = torch.arange(len(stop), device=stop.device)[:, None]
    opens = early[index, left]
    legs = travel[index[:, :, None], left[:, :, None], left[:, None, :]]
    to_depot = travel[index, left, torch.zeros_like(left)]
    earliest = torch.full((len(stop), 1 << width, width), UNREACHABLE, device=stop.device)
    first = torch.maximum(start[:, None] + travel[index, stop[:, None], left], opens)
    for k in range(width):
        in_time = first[:, k] <= left_deadline[:, k]
        earliest[:, 1 << k, k] = torch.where(in_time, first[:, k], UNREACHABLE)
    for subset in range(1, 1 << width):
        for k in range(width):
            if subset >> k & 1:
                continue
            arrival = (earliest[:, subset] + legs[:, :, k]).amin(dim=1)
            arrival = torch.maximum(arrival, opens[:, k])
            arrival = torch.where(arrival <= left_deadline[:, k], arrival, UNREACHABLE)
            larger = subset | 1 << k
            earliest[:, larger, k] = torch.minimum(earliest[:, larger, k], arrival)
    full_set = (1 << count) - 1
    after_last = earliest[index[:, 0], full_set]
    back = (after_last + to_depot).amin(dim=1)
    back_directly = start + travel[index[:, 0], stop, 0]
    return torch.where(count > 0, back, back_directly) <= return_by


@kernel
def are_feasible(instances: Any, constraints: Any, routes: Any, lengths: Any) -> Any:
    """Feasibility of finished routes, (instances,) bool.

    Args:
        instances: `InstanceArrays`.
        constraints: `FleetConstraints`.
        routes: (instances, vehicles, width) stops.
        lengths: (instances, vehicles) stops on each route.
    Returns:
        True where no stop occurs twice and every route is feasible. Requests may be unserved, with
        both of their stops.
    """
    num_stops = instances.cell.shape[1]
    stops = np.zeros((num_stops, 4), np.int64)
    trial = np.zeros((num_stops + 1, 4), np.int64)
    visited = np.zeros(num_stops, np.bool_)
    feasible = np.ones(len(instances.num_requests), np.bool_)
    for row in range(len(feasible)):
        stops[:, EARLY] = instances.early[row]
        stops[:, LATE] = instances.late[row]
        stops[:, RIDERS] = instances.riders[row]
        stops[:, MAX_RIDE] = instances.max_ride[row]
        visited[:] = False
        for vehicle in range(constraints.num_vehicles):
            length = lengths[row, vehicle]
            route = routes[row, vehicle]
            if length > 0 and not (
                _order_and_load_hold(instances, row, constraints, stops, visited, route, length)
                and _times_hold(instances, row, constraints, stops, trial, route, length)
            ):
                feasible[row] = False
                break
    return feasible


@noalloc_kernel
def _order_and_load_hold(
    instances: Any, row: Any, constraints: Any, stops: Any, visited: Any, route: Any, length: Any
) -> Any:
    """Whether each pickup precedes its dropoff on this route, once, within capacity."""
    load, onboard = 0, 0
    for k in range(length):
        stop = route[k]
        if stop < 1 or stop > 2 * instances.num_requests[row] or visited[stop]:
            return False
        visited[stop] = True
        load += stops[stop, RIDERS]
        if load > constraints.capacity:
            return False
        if stop % 2 == 1:
            onboard += 1
            continue
        onboard -= 1
        picked_up = False
        for other in range(k):
            picked_up |= route[other] == stop - 1
        if not picked_up:
            return False
    return onboard == 0


@noalloc_kernel
def _times_hold(instances: Any, row: Any, constraints: Any, stops: Any, trial: Any, route: Any, length: Any) -> Any:
    """Whether a schedule within time windows, ride-time limits and route duration exists."""
    trial[0, TRIAL_STOP] = DEPOT
    trial[length + 1, TRIAL_STOP] = DEPOT
    for k in range(length):
        trial[k + 1, TRIAL_STOP] = route[k]
    for k in range(length + 1):
        here, after = trial[k, TRIAL_STOP], trial[k + 1, TRIAL_STOP]
        drive = instances.drive[instances.cell[row, here], instances.cell[row, after]]
        trial[k, TRIAL_LEG] = instances.service[row, here] + drive
    return schedule_exists(stops, trial, length, constraints.max_route)
