"""The rule that knows the whole day before the first call: a bound on what offers can save.

It starts from the largest acceptable offer for everybody and goes through the customers again and
again, giving each the offer under which the whole day is cheapest, until nothing improves. What it
finds is a lower bound of the best possible, since it changes one customer at a time.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from hundredfold.core.batch import Arrays, BoolArray, FloatArray, IntArray, StepBatch, slice_rows
from hundredfold.envs.dvrp.offers import NO_CHANGE, TOTAL_MINUTES, shifted_windows
from hundredfold.envs.dvrp.population import Population
from hundredfold.envs.dvrp.route_costs import day_problems, penalised_costs
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.routing.lns_oracle import LNSOracle, LNSSettings

MAX_SWEEPS: Final = 2
# Thousands of books per day are compared; the closing price is found by a more patient oracle.
SEARCH: Final = LNSSettings(final_restarts=1, lns_iterations=20)


class Hindsight:
    """Plans every day at its first call and then plays what it planned."""

    def __init__(
        self, population: Population, settings: DvrpSettings, max_sweeps: int = MAX_SWEEPS
    ) -> None:
        self.population = population
        self.settings = settings
        self.max_sweeps = max_sweeps
        self.oracle = LNSOracle(SEARCH)
        self.planned = np.zeros((0, settings.num_customers), np.int64)  # by env id

    def __call__(self, batch: StepBatch) -> IntArray:
        day, ids = batch.true_state, batch.env_ids
        missing = int(ids.max()) + 1 - len(self.planned)
        if missing > 0:
            rows = np.full((missing, self.settings.num_customers), NO_CHANGE)
            self.planned = np.concatenate([self.planned, rows])
        fresh = day["num_booked"] == 0
        if fresh.any():
            self.planned[ids[fresh]] = self.best_offers(slice_rows(day, fresh))
        chosen: IntArray = self.planned[ids, day["num_booked"]]
        return chosen

    def best_offers(self, day: Arrays) -> IntArray:
        """(days, customers) offers for whole days."""
        acceptable: BoolArray = day["accepts"] & day["allowed"]
        offers: IntArray = np.where(acceptable, TOTAL_MINUTES, -1.0).argmax(axis=2)
        prices = self._prices(day, offers)
        for _ in range(self.max_sweeps):
            before = prices.copy()
            for customer in range(offers.shape[1]):
                self._choose(day, acceptable[:, customer], customer, offers, prices)
            if (prices == before).all():
                break
        return offers

    def _choose(
        self,
        day: Arrays,
        acceptable: BoolArray,
        customer: int,
        offers: IntArray,
        prices: FloatArray,
    ) -> None:
        """Give one customer of every day the offer that is cheapest for the day, in place."""
        others = acceptable.copy()
        others[np.arange(len(offers)), offers[:, customer]] = False
        days, candidates = np.nonzero(others)
        if not len(days):
            return
        tried = offers[days]
        tried[:, customer] = candidates
        table = np.full(acceptable.shape, np.inf)
        table[days, candidates] = self._prices(slice_rows(day, days), tried)
        best = table.argmin(axis=1)
        found = table[np.arange(len(table)), best]
        better = found < prices
        offers[better, customer] = best[better]
        prices[better] = found[better]

    def _prices(self, day: Arrays, offers: IntArray) -> FloatArray:
        windows = shifted_windows(day["requested_windows"], offers)
        problems = day_problems(
            day["cells"], windows, day["max_ride_minutes"], self.population, self.settings
        )
        return penalised_costs(self.oracle.solve(problems))
