"""Rules that ask as far as they believe a caller will go.

A believer knows how likely each person accepts each offer, for example a companion that learned it
from answers (`learning_days` lets it). These rules see what an operator sees at a call, and what
their believer says, and nothing else.
"""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np

from hundredfold.core import streams
from hundredfold.core.batch import BoolArray, FloatArray, IntArray, StepBatch
from hundredfold.core.streams import Words
from hundredfold.worlds.dvrp.choosing import (
    Calls,
    calling,
    cheapest,
    hinted_minutes,
    largest,
    open_offers,
)
from hundredfold.worlds.dvrp.customers import Population
from hundredfold.worlds.dvrp.offers import NO_CHANGE, TOTAL_MINUTES

# An offer is believed acceptable when its chance is at least this.
THRESHOLD: Final = 0.5


class Believer(Protocol):
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


class LargestBelieved:
    """Make the largest offer believed acceptable.

    With a price, only offers that would save that much per minute at once are made.
    """

    def __init__(self, population: Population, believer: Believer, price: float = 0.0) -> None:
        self.population = population
        self.believer = believer
        self.price = price

    def __call__(self, batch: StepBatch) -> IntArray:
        calls = calling(batch, self.population)
        chance = self.believer.accept_probabilities(calls.person, calls.purpose)
        allowed = open_offers(batch) & (chance >= THRESHOLD)
        if self.price > 0.0:
            allowed &= hinted_minutes(batch) + self.price * TOTAL_MINUTES <= 0.0
        return largest(with_no_change(allowed))


class GreedyBelieved:
    """Make the offer with the largest believed gain: what it saves at once, times its chance."""

    def __init__(self, population: Population, believer: Believer, price: float = 0.0) -> None:
        self.population = population
        self.believer = believer
        self.price = price

    def __call__(self, batch: StepBatch) -> IntArray:
        calls = calling(batch, self.population)
        chance = self.believer.accept_probabilities(calls.person, calls.purpose)
        added = hinted_minutes(batch) + self.price * TOTAL_MINUTES
        return cheapest(chance * added, open_offers(batch))


class Thompson:
    """Draw the caller's type from the belief, and make the largest offer that type accepts.

    Whoever is not yet known hears different offers from call to call, and so becomes known.
    """

    def __init__(self, population: Population, believer: Believer, key: Words) -> None:
        self.population = population
        self.believer = believer
        self.key = key

    def __call__(self, batch: StepBatch) -> IntArray:
        calls = calling(batch, self.population)
        ladder = self.believer.type_probabilities(calls.person).cumsum(axis=1)
        luck = streams.uniforms(call_keys(self.key, batch, calls), 0) * ladder[:, -1]
        drawn = np.minimum((ladder <= luck[:, None]).sum(axis=1), ladder.shape[1] - 1)
        chance = self.believer.accept_given_type[drawn, calls.purpose]
        return largest(with_no_change(open_offers(batch) & (chance >= THRESHOLD)))


def call_keys(key: Words, batch: StepBatch, calls: Calls) -> Words:
    """(envs,) a stream per call, the same whatever the batch and whatever was played before."""
    return streams.spawn(
        streams.spawn(streams.spawn(key, batch.env_ids), calls.num_booked), calls.trip
    )


def with_no_change(allowed: BoolArray) -> BoolArray:
    """The same, with offer 12 among them."""
    allowed[:, NO_CHANGE] = True
    return allowed
