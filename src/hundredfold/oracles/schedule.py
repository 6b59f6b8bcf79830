"""When a route's stops are served, and whether its limits can be kept at all.

Windows alone ask for one pass forwards. Limits on ride time and route duration also look back: a
pickup may have to wait so that its dropoff does not come too late after it, and a vehicle may have
to leave later. All of it says "this stop not before that time", so the earliest schedule is found
by raising times until every rule holds, and there is none when a time passes its deadline.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hundredfold.oracles.desk import (
    DEPOT,
    MAX_RIDE,
    TRIAL_LEG,
    TRIAL_STOP,
    TRIAL_TIME,
    TRIAL_WHERE,
    bare_kernel,
)
from hundredfold.oracles.problem import EARLY, LATE


@bare_kernel
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


@bare_kernel
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


@bare_kernel
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
