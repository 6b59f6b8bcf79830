"""Kernels over many books: each row is laid on a desk, its plan improved and written back.

Rows share nothing, and everything a row needs is laid out anew, so a plan cannot depend on the
batch, on chunks or on threads.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np

from hundredfold.core.batch import IntArray
from hundredfold.core.compiled import kernel, spawned, word
from hundredfold.core.streams import Words
from hundredfold.oracles.books import Books, Rules
from hundredfold.oracles.desk import (
    DEPOT,
    LENGTH,
    NOBODY,
    OFFER_STAMP,
    STOP,
    bare_kernel,
    lay_out,
    new_desk,
)
from hundredfold.oracles.problem import EARLY, LATE
from hundredfold.oracles.removal import collect_waiting
from hundredfold.oracles.repair import (
    insert_in_turn,
    insert_most_regretted,
    objective,
    opening_ticks,
    shuffle_pool,
    two_best_offers,
)
from hundredfold.oracles.routes import note_change
from hundredfold.oracles.search import Search, improve

# In which order requests that wait go into the plan.
BY_REGRET, AS_BOOKED, SHUFFLED = 0, 1, 2
# Each thread takes several chunks, so that one slow book does not hold up the rest.
CHUNKS_PER_THREAD: Final = 4
CONTENT_SALT: Final = np.uint64(0xA0761D6478BD642F)
BUILD_DRAWS, SEARCH_DRAWS = np.uint64(0), np.uint64(1)


def improve_rows(
    books: Books,
    rules: Rules,
    search: Search,
    order: int,
    rows: IntArray,
    keys: Words,
    routes: IntArray,
    lengths: IntArray,
    ticks: IntArray,
    threads: int,
) -> None:
    """Improve the plans of these rows, in place.

    A row starts from the plan in `routes` and `lengths`; requests that are not in it go in first.
    What comes out replaces the plan where its objective is below the row's `ticks`.
    """
    share_out(
        threads,
        len(rows),
        lambda first, last: _improve_some(
            books, rules, search, order, rows, keys, routes, lengths, ticks, first, last
        ),
    )


def added_by_candidates(
    books: Books,
    rules: Rules,
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
    share_out(
        threads,
        len(rows),
        lambda first, last: _price_some(
            books, rules, rows, early, late, routes, lengths, added, first, last
        ),
    )
    return added


def share_out(threads: int, count: int, work: Callable[[int, int], None]) -> None:
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
def content_keys(books: Any) -> Any:
    """One stream key per book, made of what the book says and nothing else."""
    keys = np.empty(len(books.num_requests), np.uint64)
    for book in range(len(keys)):
        key = CONTENT_SALT
        for stop in range(2 * books.num_requests[book] + 1):
            key = word(key, np.uint64(books.cell[book, stop]))
            key = word(key, np.uint64(books.early[book, stop]))
            key = word(key, np.uint64(books.late[book, stop]))
            key = word(key, np.uint64(books.service[book, stop]))
            key = word(key, np.uint64(books.riders[book, stop]))
            key = word(key, np.uint64(books.max_ride[book, stop]))
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


@bare_kernel
def improved_objective(
    desk: Any, rules: Any, search: Any, order: Any, num_requests: Any, key: Any
) -> Any:
    """Put in who waits, improve the plan, and return what it then amounts to."""
    waiting = collect_waiting(desk, num_requests)
    if order == BY_REGRET:
        left = insert_most_regretted(desk, rules, waiting)
    else:
        if order == SHUFFLED:
            shuffle_pool(desk, waiting, spawned(key, BUILD_DRAWS), np.uint64(0))
        left = insert_in_turn(desk, rules, waiting)
    left = improve(desk, rules, search, num_requests, left, spawned(key, SEARCH_DRAWS))
    return objective(desk, rules, left)


@bare_kernel
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


@bare_kernel
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
