"""Taking requests out of a plan, for repair to put them back better.

Most of the time they are alike: near each other in place and time, so that they can trade places.
Now and then it is anybody.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from hundredfold.core.compiled import uniform
from hundredfold.oracles.desk import NOBODY, bare_kernel
from hundredfold.oracles.problem import EARLY, LATE

# A request's distance from the seed is multiplied by a number between these, afresh each time.
LEAST_BLUR, MOST_BLUR = 0.5, 1.5
# Minutes apart in time count half as much as minutes apart in space.
TIME_WEIGHT: Final = 0.5


@bare_kernel
def collect_waiting(desk: Any, num_requests: Any) -> Any:
    """Write the requests nobody serves into the pool; returns how many."""
    waiting = 0
    for request in range(num_requests):
        if desk.vehicle[request] == NOBODY:
            desk.pool[waiting] = request
            waiting += 1
    return waiting


@bare_kernel
def score_by_distance(desk: Any, num_requests: Any, seed: Any, key: Any, count: Any) -> Any:
    """Score requests by how far they are from the seed, blurred; returns the next count."""
    travel, stops = desk.travel, desk.stops
    seed_pickup, seed_dropoff = 2 * seed + 1, 2 * seed + 2
    for request in range(num_requests):
        pickup, dropoff = 2 * request + 1, 2 * request + 2
        apart = travel[seed_pickup, pickup] + travel[seed_dropoff, dropoff]
        apart_in_time = abs(stops[seed_pickup, EARLY] - stops[pickup, EARLY]) + abs(
            stops[seed_dropoff, LATE] - stops[dropoff, LATE]
        )
        blur = LEAST_BLUR + (MOST_BLUR - LEAST_BLUR) * uniform(key, count)
        desk.score[request] = (apart + TIME_WEIGHT * apart_in_time) * blur
        count += np.uint64(1)
    desk.score[seed] = -1.0
    return count


@bare_kernel
def score_by_chance(desk: Any, num_requests: Any, key: Any, count: Any) -> Any:
    """Score requests at random; returns the next count."""
    for request in range(num_requests):
        desk.score[request] = uniform(key, count)
        count += np.uint64(1)
    return count


@bare_kernel
def remove_lowest(desk: Any, num_requests: Any, number: Any, waiting: Any) -> Any:
    """Move the served requests with the lowest scores into the pool; returns how many wait."""
    for _ in range(number):
        chosen, lowest = -1, np.inf
        for request in range(num_requests):
            if desk.vehicle[request] != NOBODY and desk.score[request] < lowest:
                chosen, lowest = request, desk.score[request]
        if chosen < 0:
            break
        desk.touched[desk.vehicle[chosen]] = True
        desk.vehicle[chosen] = NOBODY
        desk.pool[waiting] = chosen
        waiting += 1
    return waiting
