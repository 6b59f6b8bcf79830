"""What a step pays, in driving minutes saved, less the price of customers' patience.

Over a whole day `marginal` sums to what the day saved against its baseline, and `step` to minus
what the day cost; both less patience. `percent` and `counterfactual` have no such meaning and are
kept for study.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from hundredfold.core.batch import FloatArray
from hundredfold.worlds.dvrp.settings import Reward

FAILURE_REWARD: Final = -5000.0


class StepPrices(NamedTuple):
    """Prices around one booking, each (envs,) in minutes."""

    before: FloatArray
    after: FloatArray
    baseline_before: FloatArray
    baseline_after: FloatArray
    # The book with this request as asked; equal to `after` unless the reward needs it.
    as_asked: FloatArray


def step_rewards(kind: Reward, prices: StepPrices, patience_cost: FloatArray) -> FloatArray:
    """(envs,) rewards of one step."""
    if kind == "marginal":
        baseline = prices.baseline_after - prices.baseline_before
        return np.asarray(baseline - (prices.after - prices.before) - patience_cost, np.float64)
    if kind == "step":
        return np.asarray(prices.before - prices.after - patience_cost, np.float64)
    if kind == "percent":
        saved = improvement_pct(prices.baseline_after, prices.after)
        return np.asarray(saved - patience_cost, np.float64)
    return np.asarray(prices.as_asked - prices.after - patience_cost, np.float64)


def improvement_pct(baseline: FloatArray, price: FloatArray) -> FloatArray:
    """How far prices lie below their baseline, in percent; 0 where there is nothing to drive."""
    with np.errstate(divide="ignore", invalid="ignore"):
        saved = 100.0 * (baseline - price) / baseline
    return np.where(baseline > 0.0, saved, 0.0)
