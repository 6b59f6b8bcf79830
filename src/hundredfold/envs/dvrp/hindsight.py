"""Hindsight policy: optimises a whole day's offers with full information (an upper bound).

Coordinate descent: starting from the largest acceptable offers, each customer in turn gets the
offer with the lowest cost of the whole day, until no change improves it. Since it changes one
customer at a time, it is not guaranteed to find the optimum.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from hundredfold.core.batch import Arrays, BoolArray, FloatArray, IntArray, StepBatch
from hundredfold.envs.dvrp.offers import NO_CHANGE, TOTAL_MINUTES, shifted_windows
from hundredfold.envs.dvrp.population import Population
from hundredfold.envs.dvrp.route_costs import day_problems, penalised_costs
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.routing.lns_oracle import LNSOracle, LNSSettings

MAX_SWEEPS: Final = 2
# Cheap, because thousands of instances per day are compared; evaluation uses a stronger oracle.
SEARCH: Final = LNSSettings(final_restarts=1, lns_iterations=20)


class Hindsight:
    """Optimise every day's offers at its first request, then make them.

    Args:
        population: Customers and city of the env.
        settings: Settings of the env.
        max_sweeps: Passes over all customers.
    """

    def __init__(self, population: Population, settings: DvrpSettings, max_sweeps: int = MAX_SWEEPS) -> None:
        self.population = population
        self.settings = settings
        self.max_sweeps = max_sweeps
        self.oracle = LNSOracle(SEARCH)
        self.offers = np.zeros((0, settings.num_customers), np.int64)  # by env id

    def __call__(self, batch: StepBatch) -> IntArray:
        state, ids = batch.true_state, batch.env_ids
        missing = int(ids.max()) + 1 - len(self.offers)
        if missing > 0:
            rows = np.full((missing, self.settings.num_customers), NO_CHANGE)
            self.offers = np.concatenate([self.offers, rows])
        is_new = state["num_booked"] == 0
        if is_new.any():
            self.offers[ids[is_new]] = self.best_offers({name: array[is_new] for name, array in state.items()})
        offers: IntArray = self.offers[ids, state["num_booked"]]
        return offers

    def best_offers(self, state: Arrays) -> IntArray:
        """(days, customers) offers for whole days, given their `true_state`."""
        acceptable: BoolArray = state["accepts"] & state["allowed"]
        offers: IntArray = np.where(acceptable, TOTAL_MINUTES, -1.0).argmax(axis=2)
        costs = self._costs(state, offers)
        for _ in range(self.max_sweeps):
            before = costs.copy()
            for customer in range(offers.shape[1]):
                self._improve(state, acceptable[:, customer], customer, offers, costs)
            if (costs == before).all():
                break
        return offers

    def _improve(
        self, state: Arrays, acceptable: BoolArray, customer: int, offers: IntArray, costs: FloatArray
    ) -> None:
        """Give one customer of every day the cheapest offer for the day, in place."""
        alternatives = acceptable.copy()
        alternatives[np.arange(len(offers)), offers[:, customer]] = False
        days, candidates = np.nonzero(alternatives)
        if not len(days):
            return
        tried = offers[days]
        tried[:, customer] = candidates
        table = np.full(acceptable.shape, np.inf)
        table[days, candidates] = self._costs({name: array[days] for name, array in state.items()}, tried)
        best = table.argmin(axis=1)
        found = table[np.arange(len(table)), best]
        better = found < costs
        offers[better, customer] = best[better]
        costs[better] = found[better]

    def _costs(self, state: Arrays, offers: IntArray) -> FloatArray:
        windows = shifted_windows(state["requested_windows"], offers)
        problems = day_problems(state["cells"], windows, state["max_ride_minutes"], self.population, self.settings)
        return penalised_costs(self.oracle.solve(problems))
