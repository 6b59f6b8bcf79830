"""Heuristic offer policies: they map a `StepBatch` to one offer per row, without learning.

Privileged policies read hidden information in `true_state` and are upper bounds, not competitors.
Belief policies use the acceptance probabilities of an acceptance model and what an operator knows
at the time of a request. Greedy policies read the observation `cost_hint`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from hundredfold.core import rng
from hundredfold.core.batch import Array, BoolArray, FloatArray, IntArray, StepBatch
from hundredfold.core.errors import SettingsError
from hundredfold.core.rng import Keys
from hundredfold.envs.dvrp.env import COST_HINT
from hundredfold.envs.dvrp.offers import NO_CHANGE, NUM_OFFERS, OFFER_MINUTES, TOTAL_MINUTES, tolerated_offers
from hundredfold.envs.dvrp.population import Population

OfferPolicy = Callable[[StepBatch], IntArray]

# Keeps a policy's random numbers apart from those of envs with the same seed.
POLICY_BRANCH: Final = 0x6F666665727273
# An offer counts as acceptable from this probability on.
ACCEPT_THRESHOLD: Final = 0.5
# Offers by size, for breaking ties in favour of the smallest shift.
_BY_SIZE: Final = np.argsort(TOTAL_MINUTES, kind="stable")


class AcceptanceBeliefs(Protocol):
    """Beliefs about which offers customers accept, for example those of an acceptance model."""

    @property
    def accept_given_type(self) -> FloatArray:
        """(types, purposes, offers) acceptance probabilities by customer type."""
        ...

    def type_probabilities(self, customers: IntArray, /) -> FloatArray:
        """(customers, types) probabilities of the customer types."""
        ...

    def accept_probabilities(self, customers: IntArray, purposes: IntArray, trips: IntArray, /) -> FloatArray:
        """(rows, offers) acceptance probabilities of each customer on each trip.

        Args:
            customers: (rows,) customers of the population.
            purposes: (rows,) purposes of the trips.
            trips: (rows,) trips of the population; a trip without responses is known by its purpose.
        """
        ...


@dataclass(frozen=True, slots=True)
class CurrentRequests:
    """What an operator knows about the current requests, one row per env."""

    num_booked: IntArray  # (envs,)
    customer: IntArray  # (envs,)
    trip: IntArray  # (envs,)
    purpose: IntArray  # (envs,)
    cells: IntArray  # (envs, 2)
    windows: FloatArray  # (envs, 2, 2)
    max_ride_minutes: FloatArray  # (envs,)


def current_requests(batch: StepBatch, population: Population) -> CurrentRequests:
    """The current request of every env: the part of `true_state` that is not hidden."""
    state = batch.true_state
    at = (np.arange(len(batch)), state["num_booked"])
    trip = state["trip_id"][at]
    return CurrentRequests(
        num_booked=state["num_booked"],
        customer=state["customer_id"][at],
        trip=trip,
        purpose=population.trips.purpose[trip],
        cells=state["cells"][at],
        windows=state["requested_windows"][at],
        max_ride_minutes=state["max_ride_minutes"][at],
    )


def policy_key(seed: int) -> Keys:
    """Root of a policy's RNG streams."""
    return rng.spawn(rng.seed_key(seed), POLICY_BRANCH)


def request_keys(key: Keys, batch: StepBatch, requests: CurrentRequests) -> Keys:
    """(envs,) an RNG key per request, independent of batch composition and history."""
    env_keys = rng.spawn(key, batch.env_ids)
    return rng.spawn(rng.spawn(env_keys, requests.num_booked), requests.trip)


def offer_mask(batch: StepBatch) -> BoolArray:
    """(rows, offers) the action mask; all True without one."""
    return np.ones((len(batch), NUM_OFFERS), bool) if batch.mask is None else batch.mask


def accepted_offers(batch: StepBatch) -> BoolArray:
    """(rows, offers) allowed offers that the customer truly accepts (privileged)."""
    state = batch.true_state
    accepts: BoolArray = state["accepts"][np.arange(len(batch)), state["num_booked"]]
    return accepts & offer_mask(batch)


def with_no_change(allowed: BoolArray) -> BoolArray:
    """Allow offer 12 in place, and return the mask."""
    allowed[:, NO_CHANGE] = True
    return allowed


def cost_hint(batch: StepBatch) -> Array:
    """(rows, offers) insertion costs in minutes, relative to no change."""
    if COST_HINT not in batch.observation:
        raise SettingsError(
            "greedy policies and policies with a shift_penalty read the observation cost_hint; set cost_hint=True."
        )
    return batch.observation[COST_HINT]


def largest(allowed: BoolArray) -> IntArray:
    """(rows,) the allowed offer with the largest shift; the first of ties."""
    return np.asarray(np.where(allowed, TOTAL_MINUTES, -1.0).argmax(axis=1), np.int64)


def cheapest(cost: Array, allowed: BoolArray) -> IntArray:
    """(rows,) the allowed offer with the lowest cost; ties go to the smallest shift."""
    by_size = np.where(allowed, cost, np.inf)[:, _BY_SIZE]
    return np.asarray(_BY_SIZE[by_size.argmin(axis=1)], np.int64)


def no_offer(batch: StepBatch) -> IntArray:
    """Book every request unchanged."""
    return np.full(len(batch), NO_CHANGE)


def always_largest(batch: StepBatch) -> IntArray:
    """Make the largest allowed offer, usually offer 3."""
    return largest(offer_mask(batch))


def greedy_optimistic(batch: StepBatch) -> IntArray:
    """Make the offer with the lowest insertion cost, as if it were certainly accepted."""
    return cheapest(cost_hint(batch), offer_mask(batch))


def privileged_greedy(batch: StepBatch) -> IntArray:
    """Make the offer with the lowest insertion cost among those truly accepted."""
    return cheapest(cost_hint(batch), accepted_offers(batch))


def privileged_largest(batch: StepBatch) -> IntArray:
    """Make the largest offer among those truly accepted."""
    return largest(accepted_offers(batch))


class RandomOffers:
    """Make an allowed offer uniformly at random."""

    def __init__(self, seed: int) -> None:
        self.key = policy_key(seed)
        self.num_calls = 0

    def __call__(self, batch: StepBatch) -> IntArray:
        mask = offer_mask(batch)
        uniforms = rng.uniforms(rng.spawn(self.key, batch.env_ids), self.num_calls)
        self.num_calls += 1
        rank = (uniforms * mask.sum(axis=1)).astype(np.int64)
        return np.asarray((mask.cumsum(axis=1) > rank[:, None]).argmax(axis=1), np.int64)


class GreedyExpected:
    """Make the offer with the largest expected saving, under average acceptance rates.

    Args:
        accept_rate: (offers,) share of trips that accept each offer.
        shift_penalty: Driving minutes charged per minute of shift.
    """

    def __init__(self, accept_rate: FloatArray, shift_penalty: float = 0.0) -> None:
        self.accept_rate = accept_rate
        self.shift_penalty = shift_penalty

    def __call__(self, batch: StepBatch) -> IntArray:
        added = cost_hint(batch) + self.shift_penalty * TOTAL_MINUTES
        return cheapest(added * self.accept_rate, offer_mask(batch))


class BeliefGreedy:
    """Make the offer with the largest expected saving, under each customer's beliefs."""

    def __init__(self, population: Population, beliefs: AcceptanceBeliefs, shift_penalty: float = 0.0) -> None:
        self.population = population
        self.beliefs = beliefs
        self.shift_penalty = shift_penalty

    def __call__(self, batch: StepBatch) -> IntArray:
        requests = current_requests(batch, self.population)
        probabilities = self.beliefs.accept_probabilities(requests.customer, requests.purpose, requests.trip)
        added = cost_hint(batch) + self.shift_penalty * TOTAL_MINUTES
        return cheapest(probabilities * added, offer_mask(batch))


class BeliefLargest:
    """Make the largest offer that is probably accepted.

    With a shift penalty, only offers whose immediate saving exceeds it are made.
    """

    def __init__(self, population: Population, beliefs: AcceptanceBeliefs, shift_penalty: float = 0.0) -> None:
        self.population = population
        self.beliefs = beliefs
        self.shift_penalty = shift_penalty

    def __call__(self, batch: StepBatch) -> IntArray:
        requests = current_requests(batch, self.population)
        probabilities = self.beliefs.accept_probabilities(requests.customer, requests.purpose, requests.trip)
        allowed = offer_mask(batch) & (probabilities >= ACCEPT_THRESHOLD)
        if self.shift_penalty > 0.0:
            allowed &= cost_hint(batch) + self.shift_penalty * TOTAL_MINUTES <= 0.0
        return largest(with_no_change(allowed))


class Thompson:
    """Thompson sampling (Thompson 1933): sample a trip's tolerances, make the largest offer they accept.

    Trips about which little is known receive varied offers, which makes them known.
    """

    def __init__(self, population: Population, beliefs: AcceptanceBeliefs, key: Keys) -> None:
        self.population = population
        self.beliefs = beliefs
        self.key = key

    def __call__(self, batch: StepBatch) -> IntArray:
        requests = current_requests(batch, self.population)
        probabilities = self.beliefs.accept_probabilities(requests.customer, requests.purpose, requests.trip)
        cdf = largest_tolerated(probabilities).cumsum(axis=1)
        uniforms = rng.uniforms(request_keys(self.key, batch, requests), 0) * cdf[:, -1]
        sampled = np.minimum((cdf <= uniforms[:, None]).sum(axis=1), NUM_OFFERS - 1)
        return largest(with_no_change(offer_mask(batch) & tolerated_offers(OFFER_MINUTES)[sampled]))


def largest_tolerated(probabilities: FloatArray) -> FloatArray:
    """(rows, offers) probability that each offer is the largest on both sides that is accepted.

    The (rows, offers) acceptance probabilities are a survival function on the grid of minutes
    earlier and later, of which these are the mixed differences.
    """
    survival = np.zeros((len(probabilities), 5, 5))
    survival[:, 1:, :4] = probabilities.reshape(-1, 4, 4)  # 30 to 0 earlier x 0 to 30 later
    mass = survival[:, 1:, :4] - survival[:, :4, :4] - survival[:, 1:, 1:] + survival[:, :4, 1:]
    return np.maximum(mass, 0.0).reshape(len(probabilities), NUM_OFFERS)
