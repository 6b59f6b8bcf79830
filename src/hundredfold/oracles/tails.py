"""Two vehicles trade the rest of their day: cut both routes where nobody is on board, and swap.

Each pair of cuts is tested in constant time. Large neighbourhood search moves a handful of requests
at a time and rarely finds such trades by itself; trying them after every repair halves its gap.
Every request has riders, so an empty vehicle has no open pairs.
"""

from __future__ import annotations

from typing import Any

from hundredfold.oracles.desk import (
    DEPOT,
    EARLIEST,
    LATEST,
    LENGTH,
    LOAD,
    STOP,
    TRIAL_STOP,
    bare_kernel,
)
from hundredfold.oracles.repair import vehicles_used
from hundredfold.oracles.routes import note_change, trial_holds


@bare_kernel
def trade_tails(desk: Any, rules: Any) -> None:
    """Make the best trade of every pair with a touched route, until no trade saves anything."""
    traded = True
    while traded:
        traded = False
        for first in range(1, rules.num_vehicles):
            for second in range(first):
                if not (desk.touched[first] or desk.touched[second]):
                    continue
                if desk.head[first, LENGTH] == 0 or desk.head[second, LENGTH] == 0:
                    continue
                saved, i, j = _best_cuts(desk, rules, first, second)
                if saved > 0:
                    _swap(desk, rules, first, i, second, j)
                    traded = True


@bare_kernel
def _best_cuts(desk: Any, rules: Any, first: Any, second: Any) -> Any:
    """Behind which positions to cut the two routes, and the ticks it saves; 0 when nothing does."""
    travel, one, two = desk.travel, desk.route[first], desk.route[second]
    one_length, two_length = desk.head[first, LENGTH], desk.head[second, LENGTH]
    # Hanging a whole route behind the other sends a vehicle home, which may have a price.
    merging = 0
    if rules.vehicle_ticks > 0 and vehicles_used(desk, rules) > rules.free_vehicles:
        merging = rules.vehicle_ticks
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
                saved += merging
            if (
                saved > best
                and ready + over <= two[j + 1, LATEST]
                and two[j, EARLIEST] + back <= deadline
                and (
                    not rules.limited
                    or (
                        _joint_holds(desk, rules, first, i, second, j)
                        and _joint_holds(desk, rules, second, j, first, i)
                    )
                )
            ):
                best, best_i, best_j = saved, i, j
    return best, best_i, best_j


@bare_kernel
def _joint_holds(desk: Any, rules: Any, first: Any, i: Any, second: Any, j: Any) -> Any:
    """Whether the head of one route and the tail of the other make a route within all limits."""
    for k in range(i + 1):
        desk.trial[k, TRIAL_STOP] = desk.route[first, k, STOP]
    tail = desk.head[second, LENGTH] - j
    for k in range(tail + 1):
        desk.trial[i + 1 + k, TRIAL_STOP] = desk.route[second, j + 1 + k, STOP]
    return trial_holds(desk.travel, desk.stops, desk.trial, i + tail, rules.max_route)


@bare_kernel
def _swap(desk: Any, rules: Any, first: Any, i: Any, second: Any, j: Any) -> None:
    one, two, trial = desk.route[first], desk.route[second], desk.trial
    one_tail = desk.head[first, LENGTH] - i
    two_tail = desk.head[second, LENGTH] - j
    for k in range(one_tail):
        trial[k, TRIAL_STOP] = one[i + 1 + k, STOP]
    for k in range(two_tail):
        stop = two[j + 1 + k, STOP]
        one[i + 1 + k, STOP] = stop
        desk.vehicle[(stop - 1) >> 1] = first
    for k in range(one_tail):
        stop = trial[k, TRIAL_STOP]
        two[j + 1 + k, STOP] = stop
        desk.vehicle[(stop - 1) >> 1] = second
    one[i + 1 + two_tail, STOP] = DEPOT
    two[j + 1 + one_tail, STOP] = DEPOT
    desk.head[first, LENGTH] = i + two_tail
    desk.head[second, LENGTH] = j + one_tail
    note_change(desk, rules, first)
    note_change(desk, rules, second)
