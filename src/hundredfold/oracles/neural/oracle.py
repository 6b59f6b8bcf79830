"""The `neural` oracle: a policy routes all books at once, and cheap passes finish its plans.

Whoever the policy left out is inserted where it is cheapest, relocation improves the plan, and of
several samples the cheapest is kept. Every random draw is keyed by a book's content: the same book
has the same price alone and in any batch.
"""

from __future__ import annotations

import numpy as np

from hundredfold.core import streams
from hundredfold.core.batch import IntArray
from hundredfold.core.streams import Words
from hundredfold.oracles.neural.holds import plans_hold
from hundredfold.oracles.neural.model import RoutingPolicy
from hundredfold.oracles.neural.prepared import Prepared, finish_plans, prepared
from hundredfold.oracles.neural.router import Router
from hundredfold.oracles.neural.settings import NeuralSettings
from hundredfold.oracles.neural.weights import load_policy
from hundredfold.oracles.plans import finished_plans, plans_of_lists
from hundredfold.oracles.problem import RoutePlans, RouteProblems
from hundredfold.oracles.rows import content_keys


class NeuralOracle:
    """Prices by an attention policy; weights come with the package."""

    def __init__(
        self, settings: NeuralSettings | None = None, policy: RoutingPolicy | None = None
    ) -> None:
        self.settings = settings or NeuralSettings()
        loaded = policy or load_policy(self.settings.weights)
        self.router = Router(loaded, self.settings)

    def solve(self, problems: RouteProblems) -> RoutePlans:
        """One plan per book; priced inf where somebody is left out."""
        if len(problems) == 0:
            return plans_of_lists(problems, [])
        ready = prepared(problems)
        routes, lengths, _ = self.routes(ready, content_keys(ready.books))
        return finished_plans(ready.books, ready.rules, routes, lengths)

    def routes(self, ready: Prepared, keys: Words) -> tuple[IntArray, IntArray, IntArray]:
        """Finished routes (books, vehicles, width), their lengths and objectives in ticks."""
        samples = np.arange(self.settings.oracle_samples)
        sample_keys = streams.spawn(keys[None], samples[:, None])
        routes, lengths = self.router.routes(ready, sample_keys)
        for sample in samples:
            drop_impossible(ready, routes[sample], lengths[sample])
        ticks = np.stack(
            [
                finish_plans(
                    ready,
                    sample_keys[sample],
                    routes[sample],
                    lengths[sample],
                    self.settings.improve_passes,
                    self.settings.threads,
                )
                for sample in samples
            ]
        )
        best = ticks.argmin(axis=0)
        every = np.arange(len(keys))
        return routes[best, every], lengths[best, every], ticks[best, every]


def drop_impossible(ready: Prepared, routes: IntArray, lengths: IntArray) -> int:
    """Empty plans that break a promise, to be built by insertion; returns how many."""
    broken = ~plans_hold(ready.books, ready.rules, routes, lengths)
    routes[broken], lengths[broken] = 0, 0
    return int(broken.sum())
