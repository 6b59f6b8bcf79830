"""The default oracle: insertion, relocation and large neighbourhood search, compiled.

`solve` prices books from nothing. Its random draws are keyed by a book's content, so the same book
has the same price wherever and whenever it is asked. Booking the same requests in another order is
another book, and may find another plan.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

import numpy as np

from hundredfold.core import rng
from hundredfold.core.batch import IntArray
from hundredfold.core.errors import SettingsError
from hundredfold.core.rng import Keys
from hundredfold.routing.instance_arrays import FleetConstraints, InstanceArrays, to_instance_arrays
from hundredfold.routing.lns import (
    RANDOM_ORDER,
    REGRET_ORDER,
    LNSParams,
    improve_batch,
    instance_keys,
)
from hundredfold.routing.problem import UNLIMITED, RouteProblems, Solutions
from hundredfold.routing.solution import build_solutions

Number = TypeVar("Number", int, float)

# Searching against the clock goes in cycles of many rounds. A cycle draws how many requests a round
# takes out and how warm it starts, because instances differ in what helps; one in four starts from
# nothing, as long as there is time to improve what it finds.
FIRST_ROUNDS: Final = 100
FEWEST_ROUNDS, MOST_ROUNDS = 10, 1000
CYCLE_SHARE: Final = 0.03
AFRESH_EVERY, AFRESH_SHARE = 4, 0.7
REMOVED_CHOICES: Final = (6, 10, 16, 25)
WARMTH_CHOICES: Final = (0.1, 0.3, 0.6, 1.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class LNSSettings:
    """How hard the insertion oracle tries."""

    improve_passes: int = 1
    """Relocate passes after building a plan."""
    lns_iterations: int = 100
    """Rounds of large neighbourhood search per restart."""
    final_restarts: int = 6
    """Plans built from nothing, the first by regret and the others in random order; best kept."""
    max_removed: int = 10
    """Requests that one round takes out, at most."""
    threads: int = 1
    """Threads over books; prices do not depend on it."""
    seconds: float | None = None
    """Search each book for this long instead of `final_restarts` times; prices then depend on the
    machine and do not repeat. For benchmark instances."""

    def __post_init__(self) -> None:
        counts = (self.improve_passes, self.lns_iterations)
        if min(counts) < 0 or min(self.final_restarts, self.max_removed, self.threads) < 1:
            raise SettingsError(
                "the insertion oracle needs improve_passes and lns_iterations >= 0, and "
                f"final_restarts, max_removed and threads >= 1; got {self}."
            )
        if self.seconds is not None and self.seconds <= 0.0:
            raise SettingsError(f"seconds must be above 0, got {self.seconds}.")

    def search(self) -> LNSParams:
        """The same as kernels take it."""
        return LNSParams(
            improve_passes=self.improve_passes,
            iterations=self.lns_iterations,
            max_removed=self.max_removed,
        )


class LNSOracle:
    """Fast prices within about a percent of the best known."""

    def __init__(self, settings: LNSSettings | None = None) -> None:
        self.settings = settings or LNSSettings()

    def solve(self, problems: RouteProblems) -> Solutions:
        """One plan per book; priced inf where somebody is left out."""
        books, rules = to_instance_arrays(problems)
        shape = (len(problems), rules.num_vehicles)
        found = _Found(
            routes=np.zeros((*shape, max(1, 2 * problems.max_requests)), np.int64),
            lengths=np.zeros(shape, np.int64),
            objective=np.full(len(problems), UNLIMITED),
        )
        if self.settings.seconds is None:
            self._restart(books, rules, found)
        else:
            for book in range(len(problems)):
                self._search_for_seconds(books, rules, found, book, self.settings.seconds)
        return build_solutions(books, rules, found.routes, found.lengths)

    def _restart(self, books: InstanceArrays, rules: FleetConstraints, best: _Found) -> None:
        rows, keys = np.arange(len(best.objective)), instance_keys(books)
        for restart in range(self.settings.final_restarts):
            order = REGRET_ORDER if restart == 0 else RANDOM_ORDER
            self._try_afresh(
                books,
                rules,
                self.settings.search(),
                order,
                rows,
                rng.spawn(keys, restart),
                best,
            )

    def _search_for_seconds(
        self,
        books: InstanceArrays,
        rules: FleetConstraints,
        best: _Found,
        book: int,
        seconds: float,
    ) -> None:
        """Improve the best plan cycle by cycle, and now and then try another one from nothing."""
        rows, keys = np.array([book]), instance_keys(books)
        rounds, cycle = FIRST_ROUNDS, 0
        start = time.perf_counter()
        spent = last = 0.0
        while spent + last < seconds:
            drawn = rng.spawn(keys, cycle)
            search = self.settings.search()._replace(
                iterations=rounds,
                max_removed=_choice(drawn[book], 0, REMOVED_CHOICES),
                start_threshold=_choice(drawn[book], 1, WARMTH_CHOICES),
            )
            if cycle % AFRESH_EVERY == AFRESH_EVERY - 1 and spent < AFRESH_SHARE * seconds:
                self._try_afresh(books, rules, search, RANDOM_ORDER, rows, drawn, best)
            else:
                improve_batch(books, rules, search, REGRET_ORDER, rows, drawn, *best, threads=1)
            cycle += 1
            last = time.perf_counter() - start - spent
            spent += last
            if cycle == 1:
                wanted = rounds * CYCLE_SHARE * seconds / last
                rounds = int(np.clip(wanted, FEWEST_ROUNDS, MOST_ROUNDS))

    def _try_afresh(
        self,
        books: InstanceArrays,
        rules: FleetConstraints,
        search: LNSParams,
        order: int,
        rows: IntArray,
        keys: Keys,
        best: _Found,
    ) -> None:
        """Build plans from nothing, and keep those that are better."""
        found = _Found(
            np.zeros_like(best.routes),
            np.zeros_like(best.lengths),
            np.full_like(best.objective, UNLIMITED),
        )
        improve_batch(books, rules, search, order, rows, keys, *found, self.settings.threads)
        better = found.objective < best.objective
        for mine, new in zip(best, found, strict=True):
            mine[better] = new[better]


class _Found(NamedTuple):
    """Plans while they are being searched for."""

    routes: IntArray  # (books, vehicles, width)
    lengths: IntArray  # (books, vehicles)
    objective: IntArray  # (books,) objective


def _choice(key: np.uint64, count: int, choices: tuple[Number, ...]) -> Number:
    return choices[int(rng.integers(key, count, len(choices)))]
