"""Who is asked, who says yes and who is moved, and whether it is always the same people."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np

from hundredfold.core.batch import Array, FloatArray
from hundredfold.oracles.problem import PICKUP
from hundredfold.worlds.dvrp.customers import TYPE_NAMES, Population
from hundredfold.worlds.dvrp.evaluation import PlayedDays, Row
from hundredfold.worlds.dvrp.purposes import PURPOSE_NAMES

AGE_BANDS: Final = (0, 25, 45, 65)
UNKNOWN: Final = "unknown"


def fairness_rows(played: PlayedDays, population: Population) -> list[Row]:
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


def overall_row(played: PlayedDays) -> Row:
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


def groups_of_callers(played: PlayedDays, population: Population) -> dict[str, Array]:
    """(days, customers) the group of every caller, under each way of grouping."""
    people, city = population.people, population.city
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


def _shares(played: PlayedDays, chosen: Array) -> Row:
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
