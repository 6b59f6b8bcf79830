"""What acceptance models share: responses, the prior over tolerances, and the type-model interface.

A trip tolerates some minutes on each side, and an offer is accepted if it stays within both. The
tolerance of a side depends on the trip's purpose and on whether the customer's type is flexible on
that side. Nothing here reads a customer's hidden type or tolerances; the prior uses only the public
rule by which synthetic customers are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from hundredfold.core.batch import Array, Arrays, BoolArray, FloatArray, IntArray, State
from hundredfold.core.errors import SettingsError, ShapeError
from hundredfold.core.protocols import SharedParams
from hundredfold.envs.dvrp.heuristics import AcceptanceBeliefs
from hundredfold.envs.dvrp.offers import DEFAULT_OFFERS, OfferTable
from hundredfold.envs.dvrp.population import (
    FLEXIBLE_MEAN,
    FLEXIBLE_SIDES,
    INFLEXIBLE_MEAN,
    NUM_TYPES,
    TOLERANCE_GRID,
    TOLERANCE_STD,
    TYPE_SHARES,
)
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.envs.dvrp.trip_purposes import TOLERANCE_FACTORS

# (types, 2) index of the tolerance curve of each type and side: 0 inflexible, 1 flexible.
SIDE_CURVES: Final[IntArray] = FLEXIBLE_SIDES.astype(np.int64)
# Probabilities stay this far from 0 and 1: one odd response must never rule a type out.
MIN_PROBABILITY: Final = 1e-6

# P(tolerance >= minutes) where the rule is unknown, linear in between. Rough guesses with so little
# weight that a day of responses replaces them.
GUESSED_MINUTES: Final = (0.0, 10.0, 20.0, 30.0, 60.0)
GUESSED_INFLEXIBLE: Final = (1.0, 0.40, 0.15, 0.05, 0.01)
GUESSED_FLEXIBLE: Final = (1.0, 0.85, 0.55, 0.30, 0.05)


@dataclass(frozen=True, slots=True, eq=False)
class Responses:
    """Responses of customers to offers, oldest first, in small types because they are saved."""

    customer: NDArray[np.int32]  # (responses,) index into the population
    trip: NDArray[np.int32]  # (responses,) index into the population's trips
    purpose: NDArray[np.int16]  # (responses,)
    offer: NDArray[np.int8]  # (responses,)
    accepted: BoolArray  # (responses,)

    def __len__(self) -> int:
        return len(self.customer)

    def arrays(self) -> Arrays:
        """The columns by name, for a checkpoint."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def counts(self, population_size: int, num_purposes: int, num_offers: int) -> FloatArray:
        """(2, customers, purposes x offers) numbers of refusals and of acceptances."""
        cells = num_purposes * num_offers
        cell = self.purpose.astype(np.int64) * num_offers + self.offer
        row = self.accepted * population_size + self.customer.astype(np.int64)
        table = np.bincount(row * cells + cell, minlength=2 * population_size * cells)
        return table.reshape(2, population_size, cells).astype(np.float64)


class ResponseBuffer:
    """Ring buffer of the last `capacity` responses.

    No change is always accepted: it carries no information and is not stored.

    Args:
        capacity: Responses stored, first in, first out.
        offers: The offers of the env.
    """

    def __init__(self, capacity: int = 64_000, *, offers: OfferTable = DEFAULT_OFFERS) -> None:
        if capacity < 1:
            raise SettingsError(f"acceptance_buffer_size must be at least 1, got {capacity}.")
        self.capacity, self.no_change = capacity, offers.no_change
        self.ring = Responses(
            np.zeros(capacity, np.int32),
            np.zeros(capacity, np.int32),
            np.zeros(capacity, np.int16),
            np.zeros(capacity, np.int8),
            np.zeros(capacity, bool),
        )
        self.num_added = 0

    def __len__(self) -> int:
        return min(self.num_added, self.capacity)

    def add(self, customer: Array, trip: Array, purpose: Array, offer: Array, accepted: Array) -> int:
        """Store responses, one row each, except those to no change; returns how many."""
        if not len(customer) == len(trip) == len(purpose) == len(offer) == len(accepted):
            raise ShapeError(
                f"add() got {len(customer)} customers, {len(trip)} trips, {len(purpose)} purposes, "
                f"{len(offer)} offers and {len(accepted)} responses; pass one of each per row."
            )
        informative = np.flatnonzero(offer != self.no_change)
        stored = informative[-self.capacity :]
        # Rows that do not fit even into an empty ring count as added and overwritten.
        first = self.num_added + len(informative) - len(stored)
        at = (first + np.arange(len(stored))) % self.capacity
        self.ring.customer[at] = customer[stored]
        self.ring.trip[at] = trip[stored]
        self.ring.purpose[at] = purpose[stored]
        self.ring.offer[at] = offer[stored]
        self.ring.accepted[at] = accepted[stored]
        self.num_added += len(informative)
        return len(informative)

    def rows(self, since: int = 0) -> Responses:
        """Copies of the stored responses, oldest first; without the first `since` ever added."""
        oldest = max(self.num_added - len(self), since)
        at = np.arange(oldest, self.num_added) % self.capacity
        return responses_from({name: column[at] for name, column in self.ring.arrays().items()})

    def state(self) -> Arrays:
        return {**self.rows().arrays(), "num_added": np.array(self.num_added)}

    def restore(self, state: State) -> None:
        """Restore a checkpoint; a smaller buffer keeps the newest rows."""
        rows = responses_from(state)
        self.num_added = int(state["num_added"]) - len(rows)
        self.add(**rows.arrays())


def responses_from(state: State) -> Responses:
    """The responses of a checkpoint, see `Responses.arrays`."""
    return Responses(**{field.name: state[field.name] for field in fields(Responses)})


class TypeModel(AcceptanceBeliefs, Protocol):
    """Learns every customer's type from responses; types are late, early, none, both."""

    @property
    def trip_accept_rates(self) -> Array:
        """(trips, offers) acceptance rates of trips with responses, NaN of others; or no rows."""
        ...

    def ready(self, responses: Responses) -> bool:
        """Whether these responses are enough to learn from."""
        ...

    def refit(self, responses: Responses, should_stop: Callable[[], bool] = ...) -> dict[str, float]:
        """Fit to these responses and return the losses; `should_stop` may end a long fit early."""
        ...

    def state(self) -> Arrays: ...

    def restore(self, state: State) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class AcceptancePrior:
    """Dirichlet priors over tolerances and over types, as mean and weight."""

    tolerance_probs: FloatArray  # (inflexible/flexible, sides, purposes, levels) P(tolerance)
    type_shares: FloatArray  # (types,) P(type)
    tolerance_weight: float  # pseudo-responses behind each tolerance curve
    type_weight: float  # pseudo-customers behind the type shares
    noise: float = 0.0  # probability that a response is the opposite of what was meant
    offers: OfferTable = DEFAULT_OFFERS  # whose sizes are the levels

    @property
    def num_purposes(self) -> int:
        return int(self.tolerance_probs.shape[2])

    @property
    def accept_given_type(self) -> FloatArray:
        """(types, purposes, offers) prior probability of acceptance."""
        return accept_rates(self.tolerance_probs, accept_likelihood(self.noise, self.offers), self.offers.no_change)


def prior_for(settings: DvrpSettings) -> AcceptancePrior:
    """The prior for an env: the synthetic customers' rule, or a guess for a user's own data."""
    own_data = settings.trips is not None
    if own_data and (settings.tolerances == "soft" or settings.recorded_responses is not None):
        return guessed_prior(len(TOLERANCE_FACTORS), settings.response_noise, settings.offer_table)
    # Type shares belong to the synthetic rule; those of a user's customers are unknown.
    return AcceptancePrior(
        tolerance_probs=_level_probs(tolerance_survival(settings)),
        type_shares=np.full(NUM_TYPES, 1.0 / NUM_TYPES) if own_data else np.array(TYPE_SHARES),
        tolerance_weight=1000.0,
        type_weight=4.0 if own_data else 100.0,
        noise=settings.response_noise,
        offers=settings.offer_table,
    )


def guessed_prior(num_purposes: int, noise: float = 0.0, offers: OfferTable = DEFAULT_OFFERS) -> AcceptancePrior:
    """A weak prior: flexible sides tolerate more than inflexible ones, alike for all purposes."""
    guesses = (GUESSED_INFLEXIBLE, GUESSED_FLEXIBLE)
    curves = np.stack([np.interp(offers.sizes, GUESSED_MINUTES, guess) for guess in guesses])[:, None, None, :]
    return AcceptancePrior(
        tolerance_probs=_level_probs(np.broadcast_to(curves, (2, 2, num_purposes, len(offers.sizes)))),
        type_shares=np.full(NUM_TYPES, 1.0 / NUM_TYPES),
        tolerance_weight=3.0,
        type_weight=4.0,
        noise=noise,
        offers=offers,
    )


def tolerance_survival(settings: DvrpSettings) -> FloatArray:
    """(inflexible/flexible, sides, purposes, levels) P(tolerance >= level) of synthetic trips."""
    levels = settings.offer_table.sizes
    shape = (2, 2, len(TOLERANCE_FACTORS), len(levels))
    if settings.tolerances == "unlimited":
        return np.ones(shape)
    if settings.tolerances == "types":
        curves = np.stack([levels == 0.0, np.ones(len(levels), bool)]).astype(np.float64)
        return np.array(np.broadcast_to(curves[:, None, None, :], shape))
    base = np.array((INFLEXIBLE_MEAN * settings.effective_softness, FLEXIBLE_MEAN))
    mean = base[:, None, None, None] * np.array(TOLERANCE_FACTORS)[:, None]
    # Tolerances are rounded to a grid, so half a step below its next point is enough to reach a level.
    on_grid = np.ceil(levels / TOLERANCE_GRID) * TOLERANCE_GRID
    reached = _normal_cdf((mean - (on_grid - TOLERANCE_GRID / 2.0)) / TOLERANCE_STD)
    reached[..., 0] = 1.0
    return np.array(np.broadcast_to(reached, shape))


def accept_likelihood(noise: float, offers: OfferTable = DEFAULT_OFFERS) -> FloatArray:
    """(offers, levels x levels) P(accept | tolerance of the pickup, tolerance of the dropoff)."""
    pairs = np.stack(np.meshgrid(offers.sizes, offers.sizes, indexing="ij"), axis=-1).reshape(-1, 2)
    likelihood = np.where(offers.tolerated(pairs).T, 1.0 - noise, noise)
    likelihood[offers.no_change] = 1.0
    return likelihood


def tolerance_pair_probs(tolerance_probs: FloatArray) -> FloatArray:
    """(types, purposes, levels x levels) P(tolerance earlier, tolerance later | type, purpose)."""
    earlier = tolerance_probs[SIDE_CURVES[:, 0], 0]
    later = tolerance_probs[SIDE_CURVES[:, 1], 1]
    pairs = earlier[..., :, None] * later[..., None, :]
    return np.asarray(pairs.reshape(*pairs.shape[:2], -1), np.float64)


def accept_rates(tolerance_probs: FloatArray, likelihood: FloatArray, no_change: int) -> FloatArray:
    """(types, purposes, offers) P(accept | type, purpose), strictly in 0..1 except for no change."""
    rates = tolerance_pair_probs(tolerance_probs) @ likelihood.T
    rates = np.clip(rates, MIN_PROBABILITY, 1.0 - MIN_PROBABILITY)
    rates[..., no_change] = 1.0
    return np.asarray(rates, np.float64)


def strict_accept_rates(num_purposes: int, offers: OfferTable = DEFAULT_OFFERS) -> FloatArray:
    """(types, purposes, offers): flexible sides accept every shift, inflexible ones none."""
    tolerance = np.where(FLEXIBLE_SIDES, offers.largest_minutes, 0.0)
    rates = np.where(offers.tolerated(tolerance), 1.0 - MIN_PROBABILITY, MIN_PROBABILITY)
    rates[:, offers.no_change] = 1.0
    return np.repeat(rates[:, None, :], num_purposes, axis=1)


def mixture_accept_rates(types: FloatArray, rates: FloatArray, purposes: IntArray) -> FloatArray:
    """(rows, offers) sum over types of P(type) P(accept | type, purpose).

    Args:
        types: (rows, types) type probabilities.
        rates: (types, purposes, offers) acceptance rates.
        purposes: (rows,) purpose of each row's trip.
    """
    by_row = np.moveaxis(rates[:, purposes], 0, 1)  # (rows, types, offers)
    return np.asarray((types[:, None, :] @ by_row)[:, 0, :], np.float64)


def believed_accept_rates(
    types: FloatArray, rates: FloatArray, purposes: IntArray, trip_rates: Array, trips: IntArray
) -> FloatArray:
    """(rows, offers) acceptance probabilities: those of the trip if it is remembered, else by type.

    Args:
        types: (rows, types) type probabilities.
        rates: (types, purposes, offers) acceptance rates.
        purposes: (rows,) purpose of each row's trip.
        trip_rates: (trips, offers) acceptance rates of remembered trips, NaN of others; may be empty.
        trips: (rows,) trip of each row.
    """
    by_type = mixture_accept_rates(types, rates, purposes)
    if len(trip_rates) == 0:
        return by_type
    remembered = trip_rates[trips]
    return np.asarray(np.where(np.isnan(remembered), by_type, remembered), np.float64)


class FixedBeliefs:
    """Acceptance beliefs from the parameters that an acceptance model exported to the envs."""

    def __init__(self, shared_params: SharedParams) -> None:
        self.types = np.asarray(shared_params["type_probabilities"], np.float64)
        self.accept_given_type = np.asarray(shared_params["accept_given_type"], np.float64)
        self.trip_accept_rates = np.asarray(shared_params.get("trip_accept_rates", ()), np.float64)

    def type_probabilities(self, customers: IntArray) -> FloatArray:
        """(customers, types)."""
        return self.types[customers]

    def accept_probabilities(self, customers: IntArray, purposes: IntArray, trips: IntArray) -> FloatArray:
        """(rows, offers) probability that each customer accepts each offer on each trip."""
        types = self.types[customers]
        return believed_accept_rates(types, self.accept_given_type, purposes, self.trip_accept_rates, trips)


def _level_probs(survival: FloatArray) -> FloatArray:
    """P(tolerance = level) from P(tolerance >= level)."""
    probs = survival.copy()
    probs[..., :-1] -= survival[..., 1:]
    probs = np.maximum(probs, MIN_PROBABILITY)
    return np.asarray(probs / probs.sum(axis=-1, keepdims=True), np.float64)


def _normal_cdf(values: FloatArray) -> FloatArray:
    flat = [0.5 * (1.0 + math.erf(value / math.sqrt(2.0))) for value in values.ravel()]
    return np.array(flat).reshape(values.shape)
