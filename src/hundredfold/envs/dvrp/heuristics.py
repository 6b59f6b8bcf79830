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
from hundredfold.envs.dvrp.offers import OfferTable
from hundredfold.envs.dvrp.population import Population

OfferPolicy = Callable[[StepBatch], IntArray]

# Keeps a policy's random numbers apart from those of envs with the same seed.
POLICY_BRANCH: Final = 0x6F666665727273
# An offer counts as acceptable from this probability on.
ACCEPT_THRESHOLD: Final = 0.5


def start_episodes(act: OfferPolicy) -> None:
    """Let a policy with memory forget the last episodes."""
    reset = getattr(act, "reset", None)
    if reset is not None:
        reset()


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
    """(rows, offers) the action mask."""
    assert batch.mask is not None, "dvrp has action masks"
    return batch.mask


def accepted_offers(batch: StepBatch) -> BoolArray:
    """(rows, offers) allowed offers that the customer truly accepts (privileged)."""
    state = batch.true_state
    accepts: BoolArray = state["accepts"][np.arange(len(batch)), state["num_booked"]]
    return accepts & offer_mask(batch)


def cost_hint(batch: StepBatch) -> Array:
    """(rows, offers) insertion costs in minutes, relative to no change."""
    if COST_HINT not in batch.observation:
        raise SettingsError(
            "greedy policies and policies with a shift_penalty read the observation cost_hint; set cost_hint=True."
        )
    return batch.observation[COST_HINT]


def no_offer(offers: OfferTable) -> OfferPolicy:
    """Book every request unchanged."""
    return lambda batch: np.full(len(batch), offers.no_change)


def always_largest(offers: OfferTable) -> OfferPolicy:
    """Make the largest allowed offer."""
    return lambda batch: offers.largest(offer_mask(batch))


def greedy_optimistic(offers: OfferTable) -> OfferPolicy:
    """Make the offer with the lowest insertion cost, as if it were certainly accepted."""
    return lambda batch: offers.cheapest(cost_hint(batch), offer_mask(batch))


def privileged_greedy(offers: OfferTable) -> OfferPolicy:
    """Make the offer with the lowest insertion cost among those truly accepted."""
    return lambda batch: offers.cheapest(cost_hint(batch), accepted_offers(batch))


def privileged_largest(offers: OfferTable) -> OfferPolicy:
    """Make the largest offer among those truly accepted."""
    return lambda batch: offers.largest(accepted_offers(batch))


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
        offers: Offers that may be made.
        accept_rate: (offers,) share of trips that accept each offer.
        shift_penalty: Driving minutes charged per minute of shift.
    """

    def __init__(self, offers: OfferTable, accept_rate: FloatArray, shift_penalty: float = 0.0) -> None:
        self.offers, self.accept_rate = offers, accept_rate
        self.shift_penalty = shift_penalty

    def __call__(self, batch: StepBatch) -> IntArray:
        added = cost_hint(batch) + self.shift_penalty * self.offers.total_minutes
        return self.offers.cheapest(added * self.accept_rate, offer_mask(batch))


class BeliefGreedy:
    """Make the offer with the largest expected saving, under each customer's beliefs."""

    def __init__(self, population: Population, beliefs: AcceptanceBeliefs, shift_penalty: float = 0.0) -> None:
        self.population = population
        self.beliefs = beliefs
        self.shift_penalty = shift_penalty

    def __call__(self, batch: StepBatch) -> IntArray:
        requests = current_requests(batch, self.population)
        probabilities = self.beliefs.accept_probabilities(requests.customer, requests.purpose, requests.trip)
        offers = self.population.offers
        added = cost_hint(batch) + self.shift_penalty * offers.total_minutes
        return offers.cheapest(probabilities * added, offer_mask(batch))


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
        offers = self.population.offers
        if self.shift_penalty > 0.0:
            allowed &= cost_hint(batch) + self.shift_penalty * offers.total_minutes <= 0.0
        return offers.largest(offers.with_no_change(allowed))


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
        offers = self.population.offers
        cdf = largest_tolerated(probabilities[:, offers.outward]).cumsum(axis=1)
        uniforms = rng.uniforms(request_keys(self.key, batch, requests), 0) * cdf[:, -1]
        sampled = np.minimum((cdf <= uniforms[:, None]).sum(axis=1), cdf.shape[1] - 1)
        tolerated = offers.tolerated(offers.minutes[offers.outward.ravel()])[sampled]
        return offers.largest(offers.with_no_change(offer_mask(batch) & tolerated))


def largest_tolerated(probabilities: FloatArray) -> FloatArray:
    """(rows, sizes x sizes) probability that each outward offer is the largest on both sides that is accepted.

    The (rows, sizes, sizes) acceptance probabilities, in the order of `OfferTable.outward`, are a
    survival function on the grid of minutes earlier and later, of which these are the mixed
    differences.
    """
    rows, size, _ = probabilities.shape
    survival = np.zeros((rows, size + 1, size + 1))
    survival[:, 1:, :size] = probabilities
    mass = survival[:, 1:, :size] - survival[:, :size, :size] - survival[:, 1:, 1:] + survival[:, :size, 1:]
    return np.asarray(np.maximum(mass, 0.0).reshape(rows, size * size), np.float64)
