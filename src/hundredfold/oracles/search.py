"""Making a plan better: relocate passes, trades of tails, and large neighbourhood search.

One round of the search takes some requests out, puts them back, trades tails, and keeps the result
if it is better or, while the search is warm, a little worse. The best plan seen is what remains.
Every draw comes from a stream key, so a plan depends on the book, the key and nothing else.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hundredfold.core.compiled import integer, uniform
from hundredfold.oracles.desk import ACCEPTED, BEST, LENGTH, NOBODY, TICKS, bare_kernel
from hundredfold.oracles.removal import (
    collect_waiting,
    remove_lowest,
    score_by_chance,
    score_by_distance,
)
from hundredfold.oracles.repair import (
    UNSERVED_TICKS,
    accept_offer,
    insert_in_turn,
    insert_most_regretted,
    objective,
    opening_ticks,
    shuffle_pool,
    two_best_offers,
)
from hundredfold.oracles.routes import take_out_unassigned
from hundredfold.oracles.shelf import fetch, fetch_route, shelve, shelve_route
from hundredfold.oracles.tails import trade_tails
from hundredfold.oracles.ticks import FOREVER

# Draws that every round makes, before those of the kernels it calls.
DRAWS_PER_ROUND = np.uint64(5)


class Search(NamedTuple):
    """How a plan is improved; plain numbers, as kernels take them."""

    improve_passes: int  # relocate passes, at most
    iterations: int  # rounds of large neighbourhood search
    max_removed: int  # requests taken out in one round
    min_removed: int = 2
    rescue_iterations: int = 200  # more rounds, while somebody is left out
    warmth: float = 0.3  # how much worse a plan may be at the start, in mean prices of a request
    focus: float = 0.0  # share of rounds that start from the newest request
    chance_share: float = 0.05  # share of rounds that take out anybody
    regret_share: float = 0.5  # share of rounds that repair by regret rather than in turn


@bare_kernel
def improve(desk: Any, rules: Any, search: Any, num_requests: Any, left: Any, key: Any) -> Any:
    """Improve the plan on the desk by all means; returns how many requests are still left out."""
    if num_requests == 0:
        return 0
    if search.improve_passes > 0:
        relocate(desk, rules, num_requests, search.improve_passes)
        desk.touched[:] = True
        trade_tails(desk, rules)
    return search_neighbourhoods(desk, rules, search, num_requests, left, key)


@bare_kernel
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


@bare_kernel
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


@bare_kernel
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
    heat = search.warmth * (current - left * UNSERVED_TICKS) / num_requests
    for done in range(search.iterations + search.rescue_iterations):
        cooling = max(0.0, 1.0 - done / max(1, search.iterations))
        if done >= search.iterations and best_left == 0:
            break
        luck = uniform(key, count)
        waiting, holds, count = _take_some_out(desk, rules, search, num_requests, key, count)
        found = FOREVER
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


@bare_kernel
def _take_some_out(
    desk: Any, rules: Any, search: Any, num_requests: Any, key: Any, count: Any
) -> Any:
    """Empty some places of the plan: how many wait now, whether the rest holds, the next count."""
    most = min(search.max_removed, num_requests)
    least = min(search.min_removed, most)
    number = least + integer(key, count + np.uint64(1), most - least + 1)
    seed = integer(key, count + np.uint64(2), num_requests)
    if uniform(key, count + np.uint64(3)) < search.focus:
        seed = num_requests - 1
    manner = uniform(key, count + np.uint64(4))
    count += DRAWS_PER_ROUND

    desk.touched[:] = False
    waiting = collect_waiting(desk, num_requests)
    if manner < search.chance_share:
        count = score_by_chance(desk, num_requests, key, count)
    else:
        count = score_by_distance(desk, num_requests, seed, key, count)
    waiting = remove_lowest(desk, num_requests, number, waiting)
    holds = True
    for vehicle in range(rules.num_vehicles):
        if desk.touched[vehicle]:
            holds &= take_out_unassigned(desk, rules, vehicle)
    return waiting, holds, count


@bare_kernel
def _put_back(desk: Any, rules: Any, search: Any, waiting: Any, key: Any, count: Any) -> Any:
    """Repair the plan: how many are left out, and the next count."""
    manner = uniform(key, count)
    count += np.uint64(1)
    if manner < search.regret_share:
        return insert_most_regretted(desk, rules, waiting), count
    count = shuffle_pool(desk, waiting, key, count)
    return insert_in_turn(desk, rules, waiting), count
