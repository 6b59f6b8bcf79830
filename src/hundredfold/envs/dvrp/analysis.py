"""What an operator gains per minute asked of riders: minutes saved against minutes moved.

A rule that knows prices is played at several of them, which draws a curve; any other policy is a
dot. Policies are compared where they move people by the same number of minutes. Between two points
of a curve lies whoever tosses a coin each morning to decide which of the two to be today; before
its first point, whoever stays silent on some days.

Who is asked, who says yes and who is moved, and whether it is always the same people.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from hundredfold.core.batch import Array, FloatArray
from hundredfold.core.statistics import bootstrap_interval
from hundredfold.envs.dvrp.evaluation import DayScores, Row, SimulatedDays
from hundredfold.envs.dvrp.population import TYPE_NAMES, Population
from hundredfold.envs.dvrp.trip_purposes import PURPOSE_NAMES
from hundredfold.routing.problem import PICKUP

SHIFT_PENALTIES: Final = (0.0, 0.002, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


@dataclass(frozen=True, slots=True)
class TradeOffPoint:
    """One policy at one price of a minute moved; None where it knows no prices."""

    policy: str
    shift_penalty: float | None
    scores: DayScores

    def row(self) -> Row:
        """Per day: minutes saved and moved, and the improvement in percent with its interval."""
        told = self.scores.summary()
        return {
            "policy": self.policy,
            "shift_penalty": self.shift_penalty,
            "saved_minutes": float(self.scores.saved_minutes.mean()),
            "shift_minutes": told["shift_minutes"],
            "offers_made": told["offers_made"],
            "mean": told["mean"],
            "ci_low": told["ci_low"],
            "ci_high": told["ci_high"],
        }


def interpolated_at(curve: Sequence[TradeOffPoint], shift_minutes: float) -> FloatArray:
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


def compare_at_equal_shift(mine: TradeOffPoint, curve: Sequence[TradeOffPoint]) -> Row:
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


def _days(curve: Sequence[TradeOffPoint]) -> FloatArray:
    return curve[0].scores.cost


AGE_BANDS: Final = (0, 25, 45, 65)
UNKNOWN: Final = "unknown"


def fairness_rows(played: SimulatedDays, population: Population) -> list[Row]:
    """Everybody together, then by type, purpose, neighbourhood of the pickup, age and occupation.

    Groups of no caller are left out. Of a failed day, only the calls before it failed count as
    asked.
    """
    rows = [overall_row(played)]
    for name, groups in groups_of_callers(played, population).items():
        rows += [
            {"by": name, "group": str(group), **_shares(played, groups == group)}
            for group in np.unique(groups)
        ]
    return rows


def overall_row(played: SimulatedDays) -> Row:
    """All callers, and how unevenly the burden lies on people.

    `gini` is 0 where everybody is moved by as many minutes in all, and near 1 where one person
    bears everything; `max_asks` counts the offers one person heard over all days.
    """
    everybody = np.ones(played.customer_id.shape, bool)
    people, place = np.unique(played.customer_id, return_inverse=True)
    place = place.reshape(played.customer_id.shape)
    moved = np.zeros(len(people))
    np.add.at(moved, place, played.shift_minutes)
    asks = np.bincount(place[played.made], minlength=len(people))
    return {
        "by": "all",
        "group": "everybody",
        **_shares(played, everybody),
        "people": len(people),
        "gini": gini(moved),
        "max_asks": int(asks.max()),
        "mean_asks": float(asks.mean()),
    }


def groups_of_callers(played: SimulatedDays, population: Population) -> dict[str, Array]:
    """(days, customers) the group of every caller, under each way of grouping."""
    people, city = population.customers, population.city
    person = played.customer_id
    ages = people.ages[person]
    band = np.searchsorted(AGE_BANDS, ages, side="right") - 1
    occupations = np.array([occupation or UNKNOWN for occupation in people.occupations])
    return {
        "type": np.array(TYPE_NAMES)[people.types[person]],
        "purpose": np.array(PURPOSE_NAMES)[population.trips.purpose[played.trip_id]],
        "neighbourhood": np.array(city.names)[played.cells[..., PICKUP]],
        "age": np.where(ages < 0, UNKNOWN, _band_names()[np.maximum(band, 0)]),
        "occupation": occupations[person],
    }


def gini(values: FloatArray) -> float:
    """How unevenly a total is shared out: 0 equally, towards 1 all to one; 0 for a total of 0."""
    total = float(values.sum())
    if total == 0.0:
        return 0.0
    ranked = np.sort(values)
    number = len(ranked)
    weights = 2.0 * np.arange(1, number + 1) - number - 1.0
    return float(weights @ ranked / (number * total))


def _shares(played: SimulatedDays, chosen: Array) -> Row:
    made = played.made[chosen]
    yes = played.accepted[chosen] & made
    return {
        "callers": len(made),
        "asked_pct": 100.0 * float(made.mean()),
        "accepted_pct": 100.0 * float(yes.sum() / made.sum()) if made.any() else None,
        "moved_pct": 100.0 * float(yes.mean()),
        "shift_minutes": float(played.shift_minutes[chosen].mean()),
    }


def _band_names() -> Array:
    ends = [f"{low} to {high - 1}" for low, high in pairwise(AGE_BANDS)]
    return np.array([*ends, f"{AGE_BANDS[-1]} and over"])
