"""Kept plans with a policy: after each booking, the better of two plans for every env.

One is the plan that was kept, with the new request put where it is cheapest; the other is the
policy's plan of the whole book, all envs in one batched call. Pricing by the policy alone would
make a price jump whenever the policy changes its mind; a kept plan is given up only for a better
one.
"""

from __future__ import annotations

import numpy as np

from hundredfold.core.batch import IntArray
from hundredfold.core.streams import Words
from hundredfold.oracles.books import Books
from hundredfold.oracles.kept_plans import KeptPlans, KeptPlanSettings
from hundredfold.oracles.neural.oracle import NeuralOracle
from hundredfold.oracles.neural.prepared import prepared_books
from hundredfold.oracles.problem import Fleet, TravelTable


class NeuralKeptPlans(KeptPlans):
    """`KeptPlans` whose plans may also come from a neural oracle."""

    def __init__(
        self,
        travel: TravelTable,
        fleet: Fleet,
        num_envs: int,
        max_requests: int,
        oracle: NeuralOracle,
    ) -> None:
        settings = KeptPlanSettings(
            improve_passes=oracle.settings.improve_passes,
            lns_iterations=0,
            threads=oracle.settings.threads,
        )
        super().__init__(travel, fleet, num_envs, max_requests, settings)
        self.oracle = oracle

    def _replan(self, chosen: IntArray, keys: Words) -> IntArray:
        ticks = super()._replan(chosen, keys)
        if not len(chosen):
            return ticks
        ready = prepared_books(self.problems.travel, chosen_rows(self.books, chosen), self.rules)
        routes, lengths, found = self.oracle.routes(ready, keys[chosen])
        better = found < ticks[chosen]
        rows = chosen[better]
        self.routes[rows], self.lengths[rows] = routes[better], lengths[better]
        ticks[rows] = found[better]
        return ticks


def chosen_rows(books: Books, chosen: IntArray) -> Books:
    """These rows as books of their own."""
    if len(chosen) == len(books.num_requests):
        return books
    parts = {
        name: np.ascontiguousarray(getattr(books, name)[chosen])
        for name in Books._fields
        if name != "drive"
    }
    return Books(drive=books.drive, **parts)
