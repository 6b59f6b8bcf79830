"""Hindsight policy: selects a whole day's offers with full information (a privileged baseline).

Where the acceptable offers are those within a tolerance and their sizes differ by no more than the
width of a window, every time between the earliest and the latest end of their windows lies in the
window of one of them. Selecting offers and routes together is therefore the same as routing with
the widest windows: the offers follow from the schedule. Large neighbourhood search solves this
problem; a policy with the same information can hardly save more,
and `routing.lower_bound` proves how much at most.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from hundredfold.core.batch import Arrays, BoolArray, FloatArray, IntArray, StepBatch
from hundredfold.envs.dvrp.offers import OfferTable
from hundredfold.envs.dvrp.population import Population
from hundredfold.envs.dvrp.route_costs import day_problems
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.routing.lns_oracle import LNSOracle, LNSSettings
from hundredfold.routing.problem import EARLY, LATE

# Scheduled minutes are rounded.
TOLERANCE_MINUTES: Final = 1e-6


class Hindsight:
    """Select every day's offers at its first request, then make them.

    Args:
        population: Customers and city of the env.
        settings: Settings of the env.
    """

    def __init__(self, population: Population, settings: DvrpSettings) -> None:
        self.population = population
        self.settings = settings
        self.oracle = LNSOracle(LNSSettings(threads=settings.oracle_threads))
        self.offers = np.zeros((0, settings.num_customers), np.int64)  # by env id

    def __call__(self, batch: StepBatch) -> IntArray:
        state, ids = batch.true_state, batch.env_ids
        missing = int(ids.max()) + 1 - len(self.offers)
        if missing > 0:
            rows = np.full((missing, self.settings.num_customers), self.population.offers.no_change)
            self.offers = np.concatenate([self.offers, rows])
        is_new = state["num_booked"] == 0
        if is_new.any():
            self.offers[ids[is_new]] = self.best_offers({name: array[is_new] for name, array in state.items()})
        offers: IntArray = self.offers[ids, state["num_booked"]]
        return offers

    def best_offers(self, state: Arrays) -> IntArray:
        """(days, customers) offers for whole days, given their `true_state`."""
        acceptable: BoolArray = state["accepts"] & state["allowed"]
        offers = self.population.offers
        windows = offers.widest_windows(state["requested_windows"], acceptable)
        riders = self.population.riders[state["trip_id"]]
        problems = day_problems(
            state["cells"], windows, state["max_ride_minutes"], self.population, self.settings, riders
        )
        scheduled = self.oracle.solve(problems).stop_minutes[:, 1:].reshape(*windows.shape[:2], 2)
        return smallest_offers(offers, state["requested_windows"], scheduled, acceptable)


def smallest_offers(offers: OfferTable, windows: FloatArray, scheduled: FloatArray, acceptable: BoolArray) -> IntArray:
    """(...) the acceptable offers with the smallest shift whose windows contain the schedule.

    Args:
        offers: Offers that may be made.
        windows: (..., 2, 2) requested time windows.
        scheduled: (..., 2) minutes of pickup and dropoff, NaN where unserved.
        acceptable: (..., offers) offers that the customer accepts.

    Returns:
        Offers; no change where none fits.
    """
    shifted = offers.windows_of_all(windows)
    minutes = scheduled[..., None, :]
    fits = (shifted[..., EARLY] <= minutes + TOLERANCE_MINUTES) & (shifted[..., LATE] >= minutes - TOLERANCE_MINUTES)
    fits = acceptable & fits.all(axis=-1)
    smallest = np.where(fits, offers.total_minutes, np.inf).argmin(axis=-1)
    return np.asarray(np.where(fits.any(axis=-1), smallest, offers.no_change), np.int64)
