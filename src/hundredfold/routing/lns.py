"""Large neighbourhood search (Shaw 1998) over batches of dial-a-ride instances.

An iteration destroys a part of the solution by Shaw or random removal, repairs it by regret-2 or
greedy insertion, applies 2-opt*, and accepts the result below a threshold over the incumbent. The
best solution found is returned. Construction and a relocate local search come first.

Every random draw comes from a stream key and every instance is loaded into its workspace from
scratch, so a solution depends on the instance and its key: not on the batch or on threads.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import numpy as np

from hundredfold.core.batch import BoolArray, IntArray
from hundredfold.core.numba_kernels import integer, kernel, noalloc_kernel, random_bits, spawn, uniform
from hundredfold.core.rng import Keys
from hundredfold.routing.instance_arrays import FleetConstraints, InstanceArrays
from hundredfold.routing.operators import (
    UNSERVED_PENALTY,
    apply_insertion,
    best_two_insertions,
    collect_unassigned,
    greedy_insertion,
    objective,
    regret_insertion,
    remove_lowest_scores,
    score_random_removal,
    score_shaw_removal,
    shuffle_bank,
    two_opt_star,
    update_insertion,
    vehicle_open_cost,
    vehicles_used,
)
from hundredfold.routing.problem import EARLY, INFEASIBLE, LATE
from hundredfold.routing.route_kernels import remove_unassigned, update_route
from hundredfold.routing.workspace import (
    ADDED,
    ADDED_AGAIN,
    BEST,
    CURRENT,
    DEPOT,
    INSERTION_VERSION,
    LENGTH,
    REMOVAL_SAVED,
    REMOVAL_VERSION,
    STALE,
    START,
    STOP,
    TRAVEL_TIME,
    UNASSIGNED,
    VERSION,
    load_instance,
    new_workspace,
    restore_route,
    restore_solution,
    save_route,
    save_solution,
)

# Construction: in which order unassigned requests are inserted.
REGRET_ORDER, REQUEST_ORDER, RANDOM_ORDER = 0, 1, 2
# Random draws of an iteration itself, before those of its operators.
DRAWS_PER_ITERATION = np.uint64(5)
# Children of an instance's stream key.
CONSTRUCTION_CHILD, SEARCH_CHILD = np.uint64(0), np.uint64(1)
INSTANCE_SALT: Final = np.uint64(0xA0761D6478BD642F)
# Each thread takes several chunks, so that one slow instance does not hold up the rest.
CHUNKS_PER_THREAD: Final = 4


class LNSParams(NamedTuple):
    """Parameters of local search and large neighbourhood search, as plain numbers for kernels."""

    improve_passes: int  # relocate passes, at most
    iterations: int  # destroy-and-repair iterations
    max_removed: int  # requests removed in one iteration, at most
    min_removed: int = 2
    infeasible_iterations: int = 200  # further iterations, while a request is unserved
    start_threshold: float = 0.3  # acceptance threshold at the start, in mean costs of a request
    new_request_share: float = 0.0  # share of iterations whose removal seed is the newest request
    random_removal_share: float = 0.05  # share of iterations with random instead of Shaw removal
    regret_share: float = 0.5  # share of iterations with regret-2 instead of greedy insertion


class RouteArrays(NamedTuple):
    """Routes of a batch of instances and their objectives, written in place by `improve_batch`."""

    routes: IntArray  # (instances, vehicles, width) stops without the depot
    lengths: IntArray  # (instances, vehicles)
    objective: IntArray  # (instances,) microseconds, see `operators.objective`


def improve_batch(
    instances: InstanceArrays,
    constraints: FleetConstraints,
    params: LNSParams,
    order: int,
    rows: IntArray,
    keys: Keys,
    found: RouteArrays,
    threads: int,
) -> None:
    """Insert unassigned requests and improve the solutions of some instances, in place.

    Args:
        instances: the batch.
        constraints: constraints of the fleet.
        params: parameters of the search.
        order: REGRET_ORDER, REQUEST_ORDER or RANDOM_ORDER, for requests that are not routed yet.
        rows: instances to improve.
        keys: (instances,) stream keys.
        found: routes to start from; replaced where the new objective is lower than the given one.
        threads: number of threads; results do not depend on it.

    """
    parallel_ranges(
        threads,
        len(rows),
        lambda first, last: _improve_range(instances, constraints, params, order, rows, keys, found, first, last),
    )


def candidate_insertion_costs(
    instances: InstanceArrays,
    constraints: FleetConstraints,
    params: LNSParams,
    rows: IntArray,
    early: IntArray,
    late: IntArray,
    improved: BoolArray,
    keys: Keys,
    routes: IntArray,
    lengths: IntArray,
    threads: int,
) -> tuple[IntArray, IntArray]:
    """Cost of inserting the next request into each row's routes, for every candidate window.

    The request is written behind the last one that `num_requests` counts. The routes stay as they are.

    Args:
        instances: the batch.
        constraints: constraints of the fleet.
        params: parameters of the search where routes are improved.
        rows: instances to compute.
        early: (instances, candidates, 2) earliest pickup and dropoff.
        late: (instances, candidates, 2) latest pickup and dropoff.
        improved: (instances, candidates) windows for which the routes are also improved.
        keys: (instances,) stream keys of the search, which all candidates share.
        routes: (instances, vehicles, width) stops without the depot.
        lengths: (instances, vehicles).
        threads: number of threads; results do not depend on it.

    Returns:
        (instances, candidates) microseconds of the cheapest insertion, and after the search where
        `improved` (else of the insertion); INFEASIBLE where the request fits nowhere and 0 in other
        rows.

    """
    added = np.zeros(early.shape[:2], np.int64)
    added_improved = np.zeros_like(added)
    parallel_ranges(
        threads,
        len(rows),
        lambda first, last: _candidate_costs_range(
            instances,
            constraints,
            params,
            rows,
            early,
            late,
            improved,
            keys,
            routes,
            lengths,
            added,
            added_improved,
            first,
            last,
        ),
    )
    return added, added_improved


def parallel_ranges(threads: int, count: int, work: Callable[[int, int], None]) -> None:
    """Call `work(first, last)` on consecutive ranges of 0 .. count-1, in several threads.

    Plain threads: kernels release the GIL, and Numba's own thread pool would not survive a fork and
    would compile everything twice.
    """
    if threads == 1 or count < 2:
        work(0, count)
        return
    chunks = min(count, CHUNKS_PER_THREAD * threads)
    bounds = [chunk * count // chunks for chunk in range(chunks + 1)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, bounds[:-1], bounds[1:]))


@kernel
def instance_keys(instances: Any) -> Any:
    """(instances,) stream keys, each a hash of the instance's own data."""
    keys = np.empty(len(instances.num_requests), np.uint64)
    for instance in range(len(keys)):
        key = INSTANCE_SALT
        for stop in range(2 * instances.num_requests[instance] + 1):
            key = random_bits(key, np.uint64(instances.cell[instance, stop]))
            key = random_bits(key, np.uint64(instances.early[instance, stop]))
            key = random_bits(key, np.uint64(instances.late[instance, stop]))
            key = random_bits(key, np.uint64(instances.service[instance, stop]))
            key = random_bits(key, np.uint64(instances.riders[instance, stop]))
            key = random_bits(key, np.uint64(instances.max_ride[instance, stop]))
        keys[instance] = key
    return keys


@noalloc_kernel
def construct_and_improve(ws: Any, constraints: Any, params: Any, order: Any, num_requests: Any, key: Any) -> Any:
    """Insert the unassigned requests, improve the solution, and return its objective."""
    num_unassigned = collect_unassigned(ws, num_requests)
    if order == REGRET_ORDER:
        unserved = regret_insertion(ws, constraints, num_unassigned)
    else:
        if order == RANDOM_ORDER:
            shuffle_bank(ws, num_unassigned, spawn(key, CONSTRUCTION_CHILD), np.uint64(0))
        unserved = greedy_insertion(ws, constraints, num_unassigned)
    unserved = improve_solution(ws, constraints, params, num_requests, unserved, spawn(key, SEARCH_CHILD))
    return objective(ws, constraints, unserved)


@noalloc_kernel
def improve_solution(ws: Any, constraints: Any, params: Any, num_requests: Any, unserved: Any, key: Any) -> Any:
    """Relocate, 2-opt* and large neighbourhood search; returns the number of unserved requests."""
    if num_requests == 0:
        return 0
    if params.improve_passes > 0:
        relocate(ws, constraints, num_requests, params.improve_passes)
        ws.changed[:] = True
        two_opt_star(ws, constraints)
    return large_neighbourhood_search(ws, constraints, params, num_requests, unserved, key)


@noalloc_kernel
def relocate(ws: Any, constraints: Any, num_requests: Any, passes: Any) -> None:
    """Relocate local search: move each request to its cheapest position, until a local optimum."""
    for _ in range(passes):
        improved = False
        for request in range(num_requests):
            vehicle = ws.vehicle[request]
            if vehicle != UNASSIGNED and _relocate_request(ws, constraints, request, vehicle):
                improved = True
        if not improved:
            return


@noalloc_kernel
def _relocate_request(ws: Any, constraints: Any, request: Any, old_vehicle: Any) -> Any:
    """Move one request if that saves cost; returns whether it moved."""
    update_removal(ws, constraints, request, old_vehicle)
    if not _relocation_saves(ws, constraints, request, old_vehicle):
        return False
    ws.vehicle[request] = UNASSIGNED
    remove_unassigned(ws, constraints, old_vehicle)
    vehicle, _, _ = best_two_insertions(ws, constraints, request, vehicle_open_cost(ws, constraints))
    apply_insertion(ws, constraints, request, vehicle)
    return True


@noalloc_kernel
def update_removal(ws: Any, constraints: Any, request: Any, vehicle: Any) -> None:
    """Recompute the cached removal of a request from its route if the route has changed since.

    It saves -INFEASIBLE where the route is infeasible without the request.
    """
    version = ws.stats[vehicle, VERSION]
    if ws.removals[request, REMOVAL_VERSION] == version:
        return
    save_route(ws, vehicle, CURRENT)
    ws.vehicle[request] = UNASSIGNED
    saved, added = -INFEASIBLE, INFEASIBLE
    if remove_unassigned(ws, constraints, vehicle):
        saved = ws.saved_stats[CURRENT, vehicle, TRAVEL_TIME] - ws.stats[vehicle, TRAVEL_TIME]
        update_insertion(ws, constraints, request, vehicle)
        added = ws.insertions[request, vehicle, ADDED]
    restore_route(ws, vehicle, CURRENT)
    ws.vehicle[request] = vehicle
    ws.removals[request, REMOVAL_SAVED] = saved
    ws.removals[request, ADDED_AGAIN] = added
    ws.removals[request, REMOVAL_VERSION] = version


@noalloc_kernel
def _relocation_saves(ws: Any, constraints: Any, request: Any, old_vehicle: Any) -> Any:
    """Whether the cheapest insertion of a request costs less than its cached removal saves."""
    saved, added = ws.removals[request, REMOVAL_SAVED], ws.removals[request, ADDED_AGAIN]
    closes = ws.stats[old_vehicle, LENGTH] == 2
    open_cost = 0
    if constraints.extra_vehicle_cost > 0 and vehicles_used(ws, constraints) - closes >= constraints.free_vehicles:
        open_cost = constraints.extra_vehicle_cost
    if closes:
        saved += open_cost
        added += open_cost
    if added < saved:
        return True
    for vehicle in range(constraints.num_vehicles):
        if vehicle != old_vehicle:
            update_insertion(ws, constraints, request, vehicle)
            extra = open_cost if ws.stats[vehicle, LENGTH] == 0 else 0
            if ws.insertions[request, vehicle, ADDED] + extra < saved:
                return True
    return False


@noalloc_kernel
def large_neighbourhood_search(
    ws: Any, constraints: Any, params: Any, num_requests: Any, unserved: Any, key: Any
) -> Any:
    """Large neighbourhood search (Shaw 1998) with threshold accepting (Dueck and Scheuer 1990).

    A candidate is accepted if its objective is below the incumbent's plus a threshold, which decays
    linearly to 0 and is multiplied by a uniform draw. Further iterations follow while a request is
    unserved. Leaves the best solution in the workspace and returns its unserved requests.
    """
    count = np.uint64(0)
    save_solution(ws, constraints, num_requests, CURRENT)
    save_solution(ws, constraints, num_requests, BEST)
    current = objective(ws, constraints, unserved)
    best, best_unserved = current, unserved
    start_threshold = params.start_threshold * (current - unserved * UNSERVED_PENALTY) / num_requests
    for iteration in range(params.iterations + params.infeasible_iterations):
        decay = max(0.0, 1.0 - iteration / max(1, params.iterations))
        if iteration >= params.iterations and best_unserved == 0:
            break
        draw = uniform(key, count)
        unserved, feasible, count = _destroy(ws, constraints, params, num_requests, key, count)
        candidate = INFEASIBLE
        if feasible:
            unserved, count = _repair(ws, constraints, params, unserved, key, count)
            two_opt_star(ws, constraints)
            candidate = objective(ws, constraints, unserved)
        if candidate < current + start_threshold * decay * draw:
            current = candidate
            save_solution(ws, constraints, num_requests, CURRENT)
            if candidate < best:
                best, best_unserved = candidate, unserved
                save_solution(ws, constraints, num_requests, BEST)
        else:
            restore_solution(ws, constraints, num_requests, CURRENT)
    restore_solution(ws, constraints, num_requests, BEST)
    return best_unserved


@noalloc_kernel
def _destroy(ws: Any, constraints: Any, params: Any, num_requests: Any, key: Any, count: Any) -> Any:
    """Destroy operator: (size of the request bank, whether feasible, next draw count)."""
    most = min(params.max_removed, num_requests)
    least = min(params.min_removed, most)
    number = least + integer(key, count + np.uint64(1), most - least + 1)
    seed = integer(key, count + np.uint64(2), num_requests)
    if uniform(key, count + np.uint64(3)) < params.new_request_share:
        seed = num_requests - 1
    operator = uniform(key, count + np.uint64(4))
    count += DRAWS_PER_ITERATION

    ws.changed[:] = False
    num_unassigned = collect_unassigned(ws, num_requests)
    if operator < params.random_removal_share:
        count = score_random_removal(ws, num_requests, key, count)
    else:
        count = score_shaw_removal(ws, num_requests, seed, key, count)
    num_unassigned = remove_lowest_scores(ws, num_requests, number, num_unassigned)
    feasible = True
    for vehicle in range(constraints.num_vehicles):
        if ws.changed[vehicle]:
            feasible &= remove_unassigned(ws, constraints, vehicle)
    return num_unassigned, feasible, count


@noalloc_kernel
def _repair(ws: Any, constraints: Any, params: Any, num_unassigned: Any, key: Any, count: Any) -> Any:
    """Repair operator: (number of unserved requests, next draw count)."""
    operator = uniform(key, count)
    count += np.uint64(1)
    if operator < params.regret_share:
        return regret_insertion(ws, constraints, num_unassigned), count
    count = shuffle_bank(ws, num_unassigned, key, count)
    return greedy_insertion(ws, constraints, num_unassigned), count


@noalloc_kernel
def load_routes(ws: Any, constraints: Any, routes: Any, lengths: Any, row: Any) -> None:
    """Load the routes of one instance into the workspace."""
    for vehicle in range(constraints.num_vehicles):
        length = lengths[row, vehicle]
        for k in range(length):
            stop = routes[row, vehicle, k]
            ws.route[vehicle, k + 1, STOP] = stop
            ws.vehicle[(stop - 1) >> 1] = vehicle
        ws.route[vehicle, length + 1, STOP] = DEPOT
        ws.stats[vehicle, LENGTH] = length
        update_route(ws, constraints, vehicle)


@noalloc_kernel
def set_window(ws: Any, request: Any, early: Any, late: Any, row: Any, candidate: Any) -> None:
    """Give a request one of its candidate windows, for a search that starts without it; cached insertions become stale.

    Cached removals need no such mark: they hold for a version of a route with the request, which never returns.
    """
    for side in range(2):
        ws.stops[2 * request + 1 + side, EARLY] = early[row, candidate, side]
        ws.stops[2 * request + 1 + side, LATE] = late[row, candidate, side]
    ws.insertions[request, :, INSERTION_VERSION] = STALE


@noalloc_kernel
def _store_routes(ws: Any, constraints: Any, routes: Any, lengths: Any, row: Any) -> None:
    """Store the routes of the workspace as those of one instance."""
    for vehicle in range(constraints.num_vehicles):
        length = ws.stats[vehicle, LENGTH]
        lengths[row, vehicle] = length
        for k in range(routes.shape[2]):
            routes[row, vehicle, k] = ws.route[vehicle, k + 1, STOP] if k < length else DEPOT


@kernel
def _improve_range(
    instances: Any, constraints: Any, params: Any, order: Any, rows: Any, keys: Any, found: Any, first: Any, last: Any
) -> None:
    ws = new_workspace(constraints.num_vehicles, instances.cell.shape[1] // 2)
    for place in range(first, last):
        row = rows[place]
        num_requests = instances.num_requests[row]
        load_instance(ws, instances, row, num_requests)
        load_routes(ws, constraints, found.routes, found.lengths, row)
        total = construct_and_improve(ws, constraints, params, order, num_requests, keys[row])
        if total < found.objective[row]:
            found.objective[row] = total
            _store_routes(ws, constraints, found.routes, found.lengths, row)


@kernel
def _candidate_costs_range(
    instances: Any,
    constraints: Any,
    params: Any,
    rows: Any,
    early: Any,
    late: Any,
    improved: Any,
    keys: Any,
    routes: Any,
    lengths: Any,
    added: Any,
    added_improved: Any,
    first: Any,
    last: Any,
) -> None:
    ws = new_workspace(constraints.num_vehicles, instances.cell.shape[1] // 2)
    for place in range(first, last):
        row = rows[place]
        request = instances.num_requests[row]
        load_instance(ws, instances, row, request + 1)
        load_routes(ws, constraints, routes, lengths, row)
        open_cost = vehicle_open_cost(ws, constraints)
        unserved = collect_unassigned(ws, request)
        present = objective(ws, constraints, unserved)
        save_solution(ws, constraints, request + 1, START)
        for candidate in range(early.shape[1]):
            set_window(ws, request, early, late, row, candidate)
            _, insertion, _ = best_two_insertions(ws, constraints, request, open_cost)
            added[row, candidate] = added_improved[row, candidate] = insertion
            if improved[row, candidate]:
                total = construct_and_improve(ws, constraints, params, REQUEST_ORDER, request + 1, keys[row])
                # Costs compare only if as many requests are unserved as before.
                if total // UNSERVED_PENALTY == unserved:
                    added_improved[row, candidate] = total - present
                restore_solution(ws, constraints, request + 1, START)
