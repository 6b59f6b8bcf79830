"""What an operator gains per minute asked of riders: minutes saved against minutes moved.

A rule that knows prices is played at several of them, which draws a curve; any other policy is a
dot. Policies are compared where they move people by the same number of minutes. Between two points
of a curve lies whoever tosses a coin each morning to decide which of the two to be today; before
its first point, whoever stays silent on some days.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from hundredfold.core.batch import FloatArray
from hundredfold.core.statistics import bootstrap_interval
from hundredfold.worlds.dvrp.evaluation import DayScores, Row

PATIENCE_PRICES: Final = (0.0, 0.002, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


@dataclass(frozen=True, slots=True)
class TradeOff:
    """One policy at one price of a minute moved; None where it knows no prices."""

    policy: str
    patience_per_minute: float | None
    scores: DayScores

    def row(self) -> Row:
        """Per day: minutes saved and moved, and the improvement in percent with its interval."""
        told = self.scores.summary()
        return {
            "policy": self.policy,
            "patience_per_minute": self.patience_per_minute,
            "saved_minutes": float(self.scores.saved_minutes.mean()),
            "shift_minutes": told["shift_minutes"],
            "offers_made": told["offers_made"],
            "mean": told["mean"],
            "ci_low": told["ci_low"],
            "ci_high": told["ci_high"],
        }


def interpolated_at(curve: Sequence[TradeOff], shift_minutes: float) -> FloatArray:
    """(days,) what the curve's policy saves on each day at this mean number of minutes moved.

    Beyond the curve's last point it is that point: asking for more is not in its power.
    """
    saved = np.stack([np.zeros(len(_days(curve)))] + [p.scores.saved_minutes for p in curve])
    moved = np.array([0.0] + [p.scores.shift_minutes.mean() for p in curve])
    order = np.argsort(moved, kind="stable")
    saved, moved = saved[order], moved[order]
    after = int(np.searchsorted(moved, shift_minutes, side="left"))
    if after == len(moved):
        return np.asarray(saved[-1], np.float64)
    if after == 0:
        return np.asarray(saved[0], np.float64)
    share = (shift_minutes - moved[after - 1]) / (moved[after] - moved[after - 1])
    return np.asarray((1.0 - share) * saved[after - 1] + share * saved[after], np.float64)


def compared_at_equal_minutes(mine: TradeOff, curve: Sequence[TradeOff]) -> Row:
    """How many more minutes a day `mine` saves than the curve where both move as many.

    The interval is a paired bootstrap over days. When `mine` moves people more than any point of
    the curve does, the curve's last point stands against it.
    """
    moved = float(mine.scores.shift_minutes.mean())
    more = mine.scores.saved_minutes - interpolated_at(curve, moved)
    low, high = bootstrap_interval(more)
    return {
        "policy": mine.policy,
        "against": curve[0].policy,
        "shift_minutes": moved,
        "against_shift_minutes": min(
            moved, max(float(point.scores.shift_minutes.mean()) for point in curve)
        ),
        "saved_minutes": float(mine.scores.saved_minutes.mean()),
        "mean": float(more.mean()),
        "ci_low": low,
        "ci_high": high,
    }


def _days(curve: Sequence[TradeOff]) -> FloatArray:
    return curve[0].scores.cost
