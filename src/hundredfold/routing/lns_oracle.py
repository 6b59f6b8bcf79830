"""The default oracle, `insertion`: construction by insertion, relocate, large neighbourhood search.

`solve` starts from scratch. Its random draws are keyed by a hash of the instance, so the same
instance has the same cost wherever and whenever it is solved. The same requests in another order
are another instance and may get another solution.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

from hundredfold.core import rng
from hundredfold.core.batch import IntArray
from hundredfold.core.bounds import AtLeastOne, NonNegativeInt, Positive, check_bounds
from hundredfold.core.rng import Keys
from hundredfold.routing.instance_arrays import FleetConstraints, InstanceArrays, to_instance_arrays
from hundredfold.routing.lns import RANDOM_ORDER, REGRET_ORDER, LNSParams, RouteArrays, improve_batch, instance_keys
from hundredfold.routing.problem import INFEASIBLE, RouteProblems, Solutions
from hundredfold.routing.solution import build_solutions

Number = TypeVar("Number", int, float)

# A time-limited search runs in cycles of many iterations. Each cycle draws the largest removal and
# the start threshold, because instances differ in what helps; one in four restarts from scratch, as
# long as there is time to improve what it finds.
FIRST_ITERATIONS: Final = 100
MIN_ITERATIONS, MAX_ITERATIONS = 10, 1000
CYCLE_SHARE: Final = 0.03  # of the time limit
RESTART_EVERY, RESTART_SHARE = 4, 0.7
MAX_REMOVED_CHOICES: Final = (6, 10, 16, 25)
START_THRESHOLD_CHOICES: Final = (0.1, 0.3, 0.6, 1.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class LNSSettings:
    """Search effort of the `insertion` oracle."""

    improve_passes: NonNegativeInt = 1
    """Relocate passes after construction."""
    lns_iterations: NonNegativeInt = 100
    """Iterations of large neighbourhood search per restart."""
    final_restarts: AtLeastOne = 6
    """Solutions constructed from scratch, the first by regret-2 and the others by greedy insertion
    in random order; the best is returned."""
    max_removed: AtLeastOne = 10
    """Requests removed in one iteration, at most."""
    threads: AtLeastOne = 1
    """Threads over instances; costs do not depend on it."""
    seconds: Positive | None = None
    """Time limit per instance, instead of `final_restarts`; costs then depend on the machine and
    are not reproducible. For benchmark instances."""

    def __post_init__(self) -> None:
        check_bounds(self)

    def lns_params(self) -> LNSParams:
        """The settings as kernels take them."""
        return LNSParams(
            improve_passes=self.improve_passes, iterations=self.lns_iterations, max_removed=self.max_removed
        )


class LNSOracle:
    """Fast routes within about a percent of the best known cost.

    Args:
        settings: search effort; the defaults solve 30 requests in a few milliseconds.
    """

    def __init__(self, settings: LNSSettings | None = None) -> None:
        self.settings = settings or LNSSettings()

    def solve(self, problems: RouteProblems) -> Solutions:
        """Return one solution per instance; its cost is inf if a request is unserved."""
        instances, constraints = to_instance_arrays(problems)
        shape = (len(problems), constraints.num_vehicles)
        best = RouteArrays(
            routes=np.zeros((*shape, max(1, 2 * problems.max_requests)), np.int64),
            lengths=np.zeros(shape, np.int64),
            objective=np.full(len(problems), INFEASIBLE),
        )
        if self.settings.seconds is None:
            self._solve_with_restarts(instances, constraints, best)
        else:
            for row in range(len(problems)):
                self._solve_for_seconds(instances, constraints, best, row, self.settings.seconds)
        return build_solutions(instances, constraints, best.routes, best.lengths)

    def _solve_with_restarts(self, instances: InstanceArrays, constraints: FleetConstraints, best: RouteArrays) -> None:
        rows, keys = np.arange(len(best.objective)), instance_keys(instances)
        params = self.settings.lns_params()
        for restart in range(self.settings.final_restarts):
            order = REGRET_ORDER if restart == 0 else RANDOM_ORDER
            drawn = rng.spawn(keys, restart)
            self._restart(instances, constraints, params, order, rows, drawn, best)

    def _solve_for_seconds(
        self, instances: InstanceArrays, constraints: FleetConstraints, best: RouteArrays, row: int, seconds: float
    ) -> None:
        """Improve the best solution of one instance in cycles, with occasional restarts."""
        rows, keys = np.array([row]), instance_keys(instances)
        iterations, cycle = FIRST_ITERATIONS, 0
        start = time.perf_counter()
        spent = last = 0.0
        while spent + last < seconds:
            drawn = rng.spawn(keys, cycle)
            params = self.settings.lns_params()._replace(
                iterations=iterations,
                max_removed=_choice(drawn[row], 0, MAX_REMOVED_CHOICES),
                start_threshold=_choice(drawn[row], 1, START_THRESHOLD_CHOICES),
            )
            if cycle % RESTART_EVERY == RESTART_EVERY - 1 and spent < RESTART_SHARE * seconds:
                self._restart(instances, constraints, params, RANDOM_ORDER, rows, drawn, best)
            else:
                improve_batch(instances, constraints, params, REGRET_ORDER, rows, drawn, best, threads=1)
            cycle += 1
            last = time.perf_counter() - start - spent
            spent += last
            if cycle == 1:
                wanted = iterations * CYCLE_SHARE * seconds / last
                iterations = int(np.clip(wanted, MIN_ITERATIONS, MAX_ITERATIONS))

    def _restart(
        self,
        instances: InstanceArrays,
        constraints: FleetConstraints,
        params: LNSParams,
        order: int,
        rows: IntArray,
        keys: Keys,
        best: RouteArrays,
    ) -> None:
        """Construct solutions from scratch, improve them, and keep those that are better."""
        found = RouteArrays(
            np.zeros_like(best.routes), np.zeros_like(best.lengths), np.full_like(best.objective, INFEASIBLE)
        )
        threads = self.settings.threads
        improve_batch(instances, constraints, params, order, rows, keys, found, threads)
        better = found.objective < best.objective
        for old, new in zip(best, found, strict=True):
            old[better] = new[better]


def _choice(key: np.uint64, count: int, choices: tuple[Number, ...]) -> Number:
    return choices[int(rng.integers(key, count, len(choices)))]
