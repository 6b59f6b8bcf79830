"""How rules pick one of sixteen offers, and what of a batch they may look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from hundredfold.core.batch import Array, BoolArray, FloatArray, IntArray, StepBatch
from hundredfold.core.errors import SettingsError
from hundredfold.worlds.dvrp.customers import Population
from hundredfold.worlds.dvrp.offers import NUM_OFFERS, TOTAL_MINUTES

# Where offers are equally good, the one that asks least is made.
_BY_SIZE: Final = np.argsort(TOTAL_MINUTES, kind="stable")


def largest(allowed: BoolArray) -> IntArray:
    """(rows,) the allowed offer with most minutes; ties go to the lowest number."""
    return np.asarray(np.where(allowed, TOTAL_MINUTES, -1.0).argmax(axis=1), np.int64)


def cheapest(price: Array, allowed: BoolArray) -> IntArray:
    """(rows,) the allowed offer of the lowest price; ties go to the one that asks least."""
    shown = np.where(allowed, price, np.inf)[:, _BY_SIZE]
    return np.asarray(_BY_SIZE[shown.argmin(axis=1)], np.int64)


def open_offers(batch: StepBatch) -> BoolArray:
    """(rows, offers) what may be offered now."""
    return np.ones((len(batch), NUM_OFFERS), bool) if batch.mask is None else batch.mask


def hinted_minutes(batch: StepBatch) -> Array:
    """(rows, offers) what each offer would add to the plan, against booking as asked."""
    if "price_hint" not in batch.observation:
        raise SettingsError(
            "greedy rules and rules with a price look ahead by the price hint; set price_hint=True."
        )
    return batch.observation["price_hint"]


@dataclass(frozen=True, slots=True)
class Calls:
    """What an operator knows when somebody calls, one row per env."""

    num_booked: IntArray  # (envs,)
    person: IntArray  # (envs,)
    trip: IntArray  # (envs,)
    purpose: IntArray  # (envs,)
    cells: IntArray  # (envs, 2)
    windows: FloatArray  # (envs, 2, 2)
    max_ride_minutes: FloatArray  # (envs,)


def calling(batch: StepBatch, population: Population) -> Calls:
    """Who calls now and for what: of the day's true state, only what has just been said."""
    day = batch.true_state
    at = (np.arange(len(batch)), day["num_booked"])
    trip = day["trip_id"][at]
    return Calls(
        num_booked=day["num_booked"],
        person=day["customer_id"][at],
        trip=trip,
        purpose=population.trips.purpose[trip],
        cells=day["cells"][at],
        windows=day["asked_windows"][at],
        max_ride_minutes=day["max_ride_minutes"][at],
    )
