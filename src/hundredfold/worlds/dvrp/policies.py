"""Policies that need no learning: the rules every learned policy must beat.

A policy is called with a `StepBatch` and returns one offer per row. Those named `*_known`,
`hindsight` and `fully_flexible` look behind the curtain, at `true_state`: they are ceilings, not
competitors. The greedy ones read the observation `price_hint`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from hundredfold.core import streams
from hundredfold.core.batch import Array, BoolArray, FloatArray, IntArray, StepBatch
from hundredfold.core.errors import SettingsError, near_names
from hundredfold.worlds.dvrp.customers import Population
from hundredfold.worlds.dvrp.hindsight import Hindsight
from hundredfold.worlds.dvrp.offers import NO_CHANGE, NUM_OFFERS, TOTAL_MINUTES
from hundredfold.worlds.dvrp.settings import DvrpSettings

OfferPolicy = Callable[[StepBatch], IntArray]

# A policy's luck stands apart from that of the envs, whose keys hang under the same seed.
POLICY_BRANCH: Final = 0x6F666665727273
# Where offers are equally good, the one that asks least is made.
_BY_SIZE: Final = np.argsort(TOTAL_MINUTES, kind="stable")


def no_offer(batch: StepBatch) -> IntArray:
    """Book everybody as asked."""
    return np.full(len(batch), NO_CHANGE)


def always_max(batch: StepBatch) -> IntArray:
    """Always make the largest allowed offer, usually offer 3."""
    return largest(_mask(batch))


def greedy_blind(batch: StepBatch) -> IntArray:
    """Make the offer that would add least to the plan, as if everybody accepted."""
    return cheapest(_hint(batch), _mask(batch))


def greedy_known(batch: StepBatch) -> IntArray:
    """Make the offer that would add least among those the caller truly accepts."""
    return cheapest(_hint(batch), acceptable(batch))


def largest_known(batch: StepBatch) -> IntArray:
    """Make the largest offer that the caller truly accepts."""
    return largest(acceptable(batch))


class GreedyExpected:
    """Make the offer with the largest gain times how often people accept it."""

    def __init__(self, accept_rate: FloatArray) -> None:
        self.accept_rate = accept_rate

    def __call__(self, batch: StepBatch) -> IntArray:
        return cheapest(_hint(batch) * self.accept_rate, _mask(batch))


class RandomOffers:
    """Any allowed offer, all equally likely, from a stream per env."""

    def __init__(self, seed: int) -> None:
        self.key = streams.spawn(streams.seed_key(seed), POLICY_BRANCH)
        self.calls = 0

    def __call__(self, batch: StepBatch) -> IntArray:
        mask = _mask(batch)
        luck = streams.uniforms(streams.spawn(self.key, batch.env_ids), self.calls)
        self.calls += 1
        wanted = (luck * mask.sum(axis=1)).astype(np.int64)
        return np.asarray((mask.cumsum(axis=1) > wanted[:, None]).argmax(axis=1), np.int64)


def largest(allowed: BoolArray) -> IntArray:
    """(rows,) the allowed offer with most minutes; ties go to the lowest number."""
    return np.asarray(np.where(allowed, TOTAL_MINUTES, -1.0).argmax(axis=1), np.int64)


def cheapest(price: Array, allowed: BoolArray) -> IntArray:
    """(rows,) the allowed offer of the lowest price; ties go to the one that asks least."""
    shown = np.where(allowed, price, np.inf)[:, _BY_SIZE]
    return np.asarray(_BY_SIZE[shown.argmin(axis=1)], np.int64)


def acceptable(batch: StepBatch) -> BoolArray:
    """(rows, offers) what may be offered to the caller and would be accepted."""
    day = batch.true_state
    accepts: BoolArray = day["accepts"][np.arange(len(batch)), day["num_booked"]]
    return accepts & _mask(batch)


def _mask(batch: StepBatch) -> BoolArray:
    return np.ones((len(batch), NUM_OFFERS), bool) if batch.mask is None else batch.mask


def _hint(batch: StepBatch) -> Array:
    if "price_hint" not in batch.observation:
        raise SettingsError("greedy policies look ahead by the price hint; set price_hint=True.")
    return batch.observation["price_hint"]


Maker = Callable[[Population, DvrpSettings, int], OfferPolicy]

POLICIES: Final[dict[str, Maker]] = {
    "none": lambda population, settings, seed: no_offer,
    "random": lambda population, settings, seed: RandomOffers(seed),
    "always_max": lambda population, settings, seed: always_max,
    "greedy_blind": lambda population, settings, seed: greedy_blind,
    "greedy_expected": lambda population, settings, seed: GreedyExpected(population.accept_rate),
    "greedy_known": lambda population, settings, seed: greedy_known,
    "largest_known": lambda population, settings, seed: largest_known,
    "hindsight": lambda population, settings, seed: Hindsight(population, settings),
    # The same in a world where everybody accepts everything; `world_settings_for` makes it so.
    "fully_flexible": lambda population, settings, seed: Hindsight(population, settings),
}
HINTED: Final = ("greedy_blind", "greedy_expected", "greedy_known")


def make_policy(
    name: str, population: Population, settings: DvrpSettings, seed: int = 0
) -> OfferPolicy:
    """A rule by name."""
    if name not in POLICIES:
        raise SettingsError(f"dvrp has no rule {name!r}; {near_names(name, POLICIES)}")
    return POLICIES[name](population, settings, seed)
