"""Making a plan better: relocate passes, trades of tails, and large neighbourhood search.

One round of the search takes some requests out, puts them back, trades tails, and keeps the result
if it is better or, while the search is warm, a little worse. The best plan seen is what remains.
Every draw comes from a stream key, so a plan depends on the book, the key and nothing else.

Kernels over many books: each row is laid on a desk, its plan improved and written back.

Rows share nothing, and everything a row needs is laid out anew, so a plan cannot depend on the
batch, on chunks or on threads.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import numpy as np

from hundredfold.core.batch import IntArray
from hundredfold.core.numba_kernels import (
    integer,
    kernel,
    noalloc_kernel,
    random_bits,
    spawn,
    uniform,
)
from hundredfold.core.rng import Keys
from hundredfold.routing.instance_arrays import FleetConstraints, InstanceArrays
from hundredfold.routing.operators import (
    UNSERVED_TICKS,
    accept_offer,
    collect_waiting,
    insert_in_turn,
    insert_most_regretted,
    objective,
    opening_ticks,
    remove_lowest,
    score_by_chance,
    score_by_distance,
    shuffle_pool,
    trade_tails,
    two_best_offers,
)
from hundredfold.routing.problem import EARLY, LATE, UNLIMITED
from hundredfold.routing.route_kernels import note_change, take_out_unassigned
from hundredfold.routing.workspace import (
    ACCEPTED,
    BEST,
    DEPOT,
    LENGTH,
    NOBODY,
    OFFER_STAMP,
    STOP,
    TICKS,
    fetch,
    fetch_route,
    lay_out,
    new_desk,
    shelve,
    shelve_route,
)

# Draws that every round makes, before those of the kernels it calls.
DRAWS_PER_ROUND = np.uint64(5)


class LNSParams(NamedTuple):
    """How a plan is improved; plain numbers, as kernels take them."""

    improve_passes: int  # relocate passes, at most
    iterations: int  # rounds of large neighbourhood search
    max_removed: int  # requests taken out in one round
    min_removed: int = 2
    infeasible_iterations: int = 200  # more rounds, while somebody is left out
    start_threshold: float = 0.3  # first threshold, in mean costs of a request
    new_request_share: float = 0.0  # share of rounds that start from the newest request
    random_removal_share: float = 0.05  # share of rounds that take out anybody
    regret_share: float = 0.5  # share of rounds that repair by regret rather than in turn


@noalloc_kernel
def improve(desk: Any, rules: Any, search: Any, num_requests: Any, left: Any, key: Any) -> Any:
    """Improve the plan on the desk by all means; returns how many requests are still left out."""
    if num_requests == 0:
        return 0
    if search.improve_passes > 0:
        relocate(desk, rules, num_requests, search.improve_passes)
        desk.touched[:] = True
        trade_tails(desk, rules)
    return search_neighbourhoods(desk, rules, search, num_requests, left, key)


@noalloc_kernel
def relocate(desk: Any, rules: Any, num_requests: Any, passes: Any) -> None:
    """Take each request out and put it where it is cheapest, until a pass changes nothing."""
    for _ in range(passes):
        improved = False
        for request in range(num_requests):
            home = desk.vehicle[request]
            if home != NOBODY and _moved(desk, rules, request, home):
                improved = True
        if not improved:
            return


@noalloc_kernel
def _moved(desk: Any, rules: Any, request: Any, home: Any) -> Any:
    """Move one request if that saves anything."""
    shelve_route(desk, home, ACCEPTED)
    desk.vehicle[request] = NOBODY
    if take_out_unassigned(desk, rules, home):
        opening = opening_ticks(desk, rules)
        saved = desk.shelf_head[ACCEPTED, home, TICKS] - desk.head[home, TICKS]
        if desk.head[home, LENGTH] == 0:
            saved += opening
        vehicle, added, _ = two_best_offers(desk, rules, request, opening)
        if added < saved:
            accept_offer(desk, rules, request, vehicle)
            return True
    fetch_route(desk, home, ACCEPTED)
    desk.vehicle[request] = home
    return False


@noalloc_kernel
def search_neighbourhoods(
    desk: Any, rules: Any, search: Any, num_requests: Any, left: Any, key: Any
) -> Any:
    """Leave the best plan found on the desk; returns how many requests it leaves out.

    After the given number of rounds, more follow as long as somebody is left out.
    """
    count = np.uint64(0)
    shelve(desk, rules, num_requests, ACCEPTED)
    shelve(desk, rules, num_requests, BEST)
    current = objective(desk, rules, left)
    best, best_left = current, left
    heat = search.start_threshold * (current - left * UNSERVED_TICKS) / num_requests
    for done in range(search.iterations + search.infeasible_iterations):
        cooling = max(0.0, 1.0 - done / max(1, search.iterations))
        if done >= search.iterations and best_left == 0:
            break
        luck = uniform(key, count)
        waiting, holds, count = _take_some_out(desk, rules, search, num_requests, key, count)
        found = UNLIMITED
        if holds:
            waiting, count = _put_back(desk, rules, search, waiting, key, count)
            trade_tails(desk, rules)
            found = objective(desk, rules, waiting)
        if found < current + heat * cooling * luck:
            current = found
            shelve(desk, rules, num_requests, ACCEPTED)
            if found < best:
                best, best_left = found, waiting
                shelve(desk, rules, num_requests, BEST)
        else:
            fetch(desk, rules, num_requests, ACCEPTED)
    fetch(desk, rules, num_requests, BEST)
    return best_left


@noalloc_kernel
def _take_some_out(
    desk: Any, rules: Any, search: Any, num_requests: Any, key: Any, count: Any
) -> Any:
    """Empty some places of the plan: how many wait now, whether the rest holds, the next count."""
    most = min(search.max_removed, num_requests)
    least = min(search.min_removed, most)
    number = least + integer(key, count + np.uint64(1), most - least + 1)
    seed = integer(key, count + np.uint64(2), num_requests)
    if uniform(key, count + np.uint64(3)) < search.new_request_share:
        seed = num_requests - 1
    manner = uniform(key, count + np.uint64(4))
    count += DRAWS_PER_ROUND

    desk.touched[:] = False
    waiting = collect_waiting(desk, num_requests)
    if manner < search.random_removal_share:
        count = score_by_chance(desk, num_requests, key, count)
    else:
        count = score_by_distance(desk, num_requests, seed, key, count)
    waiting = remove_lowest(desk, num_requests, number, waiting)
    holds = True
    for vehicle in range(rules.num_vehicles):
        if desk.touched[vehicle]:
            holds &= take_out_unassigned(desk, rules, vehicle)
    return waiting, holds, count


@noalloc_kernel
def _put_back(desk: Any, rules: Any, search: Any, waiting: Any, key: Any, count: Any) -> Any:
    """Repair the plan: how many are left out, and the next count."""
    manner = uniform(key, count)
    count += np.uint64(1)
    if manner < search.regret_share:
        return insert_most_regretted(desk, rules, waiting), count
    count = shuffle_pool(desk, waiting, key, count)
    return insert_in_turn(desk, rules, waiting), count


# In which order requests that wait go into the plan.
REGRET_ORDER, REQUEST_ORDER, RANDOM_ORDER = 0, 1, 2
# Each thread takes several chunks, so that one slow book does not hold up the rest.
CHUNKS_PER_THREAD: Final = 4
CONTENT_SALT: Final = np.uint64(0xA0761D6478BD642F)
BUILD_DRAWS, SEARCH_DRAWS = np.uint64(0), np.uint64(1)


def improve_batch(
    books: InstanceArrays,
    rules: FleetConstraints,
    search: LNSParams,
    order: int,
    rows: IntArray,
    keys: Keys,
    routes: IntArray,
    lengths: IntArray,
    ticks: IntArray,
    threads: int,
) -> None:
    """Improve the plans of these rows, in place.

    A row starts from the plan in `routes` and `lengths`; requests that are not in it go in first.
    What comes out replaces the plan where its objective is below the row's `ticks`.
    """
    parallel_ranges(
        threads,
        len(rows),
        lambda first, last: _improve_some(
            books, rules, search, order, rows, keys, routes, lengths, ticks, first, last
        ),
    )


def added_by_candidates(
    books: InstanceArrays,
    rules: FleetConstraints,
    rows: IntArray,
    early: IntArray,
    late: IntArray,
    routes: IntArray,
    lengths: IntArray,
    threads: int,
) -> IntArray:
    """What the next request would add to each row's plan, for every candidate window.

    The request stands behind the last one of its book, which does not count it yet; `early` and
    `late` are (books, candidates, 2). Returns (books, candidates) ticks; rows left out are 0.
    """
    added = np.zeros(early.shape[:2], np.int64)
    parallel_ranges(
        threads,
        len(rows),
        lambda first, last: _price_some(
            books, rules, rows, early, late, routes, lengths, added, first, last
        ),
    )
    return added


def parallel_ranges(threads: int, count: int, work: Callable[[int, int], None]) -> None:
    """Do rows 0 .. count-1, `work(first, last)` at a time, in several threads.

    Plain threads: kernels release the interpreter lock, and Numba's own thread pool would not
    survive a fork and would compile everything once more.
    """
    if threads == 1 or count < 2:
        work(0, count)
        return
    chunks = min(count, CHUNKS_PER_THREAD * threads)
    bounds = [chunk * count // chunks for chunk in range(chunks + 1)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, bounds[:-1], bounds[1:]))


@kernel
def instance_keys(books: Any) -> Any:
    """One stream key per book, made of what the book says and nothing else."""
    keys = np.empty(len(books.num_requests), np.uint64)
    for book in range(len(keys)):
        key = CONTENT_SALT
        for stop in range(2 * books.num_requests[book] + 1):
            key = random_bits(key, np.uint64(books.cell[book, stop]))
            key = random_bits(key, np.uint64(books.early[book, stop]))
            key = random_bits(key, np.uint64(books.late[book, stop]))
            key = random_bits(key, np.uint64(books.service[book, stop]))
            key = random_bits(key, np.uint64(books.riders[book, stop]))
            key = random_bits(key, np.uint64(books.max_ride[book, stop]))
        keys[book] = key
    return keys


@kernel
def _improve_some(
    books: Any,
    rules: Any,
    search: Any,
    order: Any,
    rows: Any,
    keys: Any,
    routes: Any,
    lengths: Any,
    ticks: Any,
    first: Any,
    last: Any,
) -> None:
    desk = new_desk(rules.num_vehicles, books.cell.shape[1] // 2)
    for place in range(first, last):
        row = rows[place]
        lay_out(desk, books, row, books.num_requests[row])
        load_plan(desk, rules, routes, lengths, row)
        found = improved_objective(desk, rules, search, order, books.num_requests[row], keys[row])
        if found < ticks[row]:
            ticks[row] = found
            store_plan(desk, rules, routes, lengths, row)


@noalloc_kernel
def improved_objective(
    desk: Any, rules: Any, search: Any, order: Any, num_requests: Any, key: Any
) -> Any:
    """Put in who waits, improve the plan, and return what it then amounts to."""
    waiting = collect_waiting(desk, num_requests)
    if order == REGRET_ORDER:
        left = insert_most_regretted(desk, rules, waiting)
    else:
        if order == RANDOM_ORDER:
            shuffle_pool(desk, waiting, spawn(key, BUILD_DRAWS), np.uint64(0))
        left = insert_in_turn(desk, rules, waiting)
    left = improve(desk, rules, search, num_requests, left, spawn(key, SEARCH_DRAWS))
    return objective(desk, rules, left)


@noalloc_kernel
def load_plan(desk: Any, rules: Any, routes: Any, lengths: Any, row: Any) -> None:
    """Put a stored plan on the desk."""
    for vehicle in range(rules.num_vehicles):
        length = lengths[row, vehicle]
        for k in range(length):
            stop = routes[row, vehicle, k]
            desk.route[vehicle, k + 1, STOP] = stop
            desk.vehicle[(stop - 1) >> 1] = vehicle
        desk.route[vehicle, length + 1, STOP] = DEPOT
        desk.head[vehicle, LENGTH] = length
        note_change(desk, rules, vehicle)


@noalloc_kernel
def store_plan(desk: Any, rules: Any, routes: Any, lengths: Any, row: Any) -> None:
    """Write the plan on the desk to where it is stored."""
    for vehicle in range(rules.num_vehicles):
        length = desk.head[vehicle, LENGTH]
        lengths[row, vehicle] = length
        for k in range(routes.shape[2]):
            routes[row, vehicle, k] = desk.route[vehicle, k + 1, STOP] if k < length else DEPOT


@kernel
def _price_some(
    books: Any,
    rules: Any,
    rows: Any,
    early: Any,
    late: Any,
    routes: Any,
    lengths: Any,
    added: Any,
    first: Any,
    last: Any,
) -> None:
    desk = new_desk(rules.num_vehicles, books.cell.shape[1] // 2)
    for place in range(first, last):
        row = rows[place]
        request = books.num_requests[row]
        lay_out(desk, books, row, request + 1)
        load_plan(desk, rules, routes, lengths, row)
        opening = opening_ticks(desk, rules)
        for candidate in range(early.shape[1]):
            for side in range(2):
                desk.stops[2 * request + 1 + side, EARLY] = early[row, candidate, side]
                desk.stops[2 * request + 1 + side, LATE] = late[row, candidate, side]
            desk.offers[request, :, OFFER_STAMP] = NOBODY
            _, added[row, candidate], _ = two_best_offers(desk, rules, request, opening)
