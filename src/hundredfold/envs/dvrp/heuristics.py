"""How rules pick one of sixteen offers, and what of a batch they may look at.

Rules that ask as far as they believe a caller will go.

A believer knows how likely each person accepts each offer, for example an acceptance model that
learned it from answers (`warm_up_days` lets it). These rules see what an operator sees at a call,
and what their believer says, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from hundredfold.core import rng
from hundredfold.core.batch import Array, BoolArray, FloatArray, IntArray, StepBatch
from hundredfold.core.errors import SettingsError
from hundredfold.core.rng import Keys
from hundredfold.envs.dvrp.offers import NO_CHANGE, NUM_OFFERS, TOTAL_MINUTES
from hundredfold.envs.dvrp.population import Population

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
    if "cost_hint" not in batch.observation:
        raise SettingsError(
            "greedy rules and rules with a price look ahead by the price hint; set cost_hint=True."
        )
    return batch.observation["cost_hint"]


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
        windows=day["requested_windows"][at],
        max_ride_minutes=day["max_ride_minutes"][at],
    )


# An offer is believed acceptable when its chance is at least this.
THRESHOLD: Final = 0.5


class AcceptanceBeliefs(Protocol):
    """Knows how likely people accept offers."""

    @property
    def accept_given_type(self) -> FloatArray:
        """(types, purposes, offers) how often each kind of person accepts."""
        ...

    def type_probabilities(self, people: IntArray) -> FloatArray:
        """(people, types)."""
        ...

    def accept_probabilities(self, people: IntArray, purposes: IntArray) -> FloatArray:
        """(rows, offers) the chance that each person accepts each offer on such a trip."""
        ...


class BeliefLargest:
    """Make the largest offer believed acceptable.

    With a price, only offers that would save that much per minute at once are made.
    """

    def __init__(
        self, population: Population, beliefs: AcceptanceBeliefs, price: float = 0.0
    ) -> None:
        self.population = population
        self.beliefs = beliefs
        self.price = price

    def __call__(self, batch: StepBatch) -> IntArray:
        calls = calling(batch, self.population)
        chance = self.beliefs.accept_probabilities(calls.person, calls.purpose)
        allowed = open_offers(batch) & (chance >= THRESHOLD)
        if self.price > 0.0:
            allowed &= hinted_minutes(batch) + self.price * TOTAL_MINUTES <= 0.0
        return largest(with_no_change(allowed))


class BeliefGreedy:
    """Make the offer with the largest believed gain: what it saves at once, times its chance."""

    def __init__(
        self, population: Population, beliefs: AcceptanceBeliefs, price: float = 0.0
    ) -> None:
        self.population = population
        self.beliefs = beliefs
        self.price = price

    def __call__(self, batch: StepBatch) -> IntArray:
        calls = calling(batch, self.population)
        chance = self.beliefs.accept_probabilities(calls.person, calls.purpose)
        added = hinted_minutes(batch) + self.price * TOTAL_MINUTES
        return cheapest(chance * added, open_offers(batch))


class Thompson:
    """Draw the caller's type from the belief, and make the largest offer that type accepts.

    Whoever is not yet known hears different offers from call to call, and so becomes known.
    """

    def __init__(self, population: Population, beliefs: AcceptanceBeliefs, key: Keys) -> None:
        self.population = population
        self.beliefs = beliefs
        self.key = key

    def __call__(self, batch: StepBatch) -> IntArray:
        calls = calling(batch, self.population)
        ladder = self.beliefs.type_probabilities(calls.person).cumsum(axis=1)
        luck = rng.uniforms(call_keys(self.key, batch, calls), 0) * ladder[:, -1]
        drawn = np.minimum((ladder <= luck[:, None]).sum(axis=1), ladder.shape[1] - 1)
        chance = self.beliefs.accept_given_type[drawn, calls.purpose]
        return largest(with_no_change(open_offers(batch) & (chance >= THRESHOLD)))


def call_keys(key: Keys, batch: StepBatch, calls: Calls) -> Keys:
    """(envs,) a stream per call, the same whatever the batch and whatever was played before."""
    return rng.spawn(rng.spawn(rng.spawn(key, batch.env_ids), calls.num_booked), calls.trip)


def with_no_change(allowed: BoolArray) -> BoolArray:
    """The same, with offer 12 among them."""
    allowed[:, NO_CHANGE] = True
    return allowed
