"""Beliefs about customers inside the env, and the action masks they imply.

An acceptance model broadcasts its beliefs to the envs. By `mask_mode`, `threshold`
allows offers that are probably accepted, `sampled_type` those that a customer type sampled from the
belief accepts (Thompson sampling), `soft` allows all and biases the logits, `privileged` uses the
true responses (an upper bound), `none` ignores them. No change is always allowed. With probability
`epsilon` an env ignores its mask for one request, so that beliefs about every customer keep
improving.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from hundredfold.core import rng
from hundredfold.core.batch import Array, Arrays, BoolArray, IntArray
from hundredfold.core.errors import ShapeError
from hundredfold.core.protocols import SharedParams
from hundredfold.core.rng import Keys
from hundredfold.envs.dvrp.observation import BELIEF_WIDTH
from hundredfold.envs.dvrp.offers import OfferTable
from hundredfold.envs.dvrp.population import NUM_TYPES, Population
from hundredfold.envs.dvrp.settings import MaskMode, Split
from hundredfold.envs.dvrp.trip_purposes import PURPOSE_NAMES

# Lower acceptance probabilities are clipped to this before the logarithm of the logit bias.
MIN_PROBABILITY: Final = 1e-3
# Shared parameter: shares in which the policy books each trip under each offer.
APPLIED_SHARES: Final = "applied_shares"
# Uniform random numbers per request: whether the mask is ignored, and which type is sampled.
DRAWS_PER_REQUEST: Final = 2


def type_masks(offers: OfferTable) -> BoolArray:
    """(types, offers) offers that a customer type accepts if it is perfectly strict."""
    pickup_kept, dropoff_kept = offers.minutes.T == 0
    return np.stack([pickup_kept, dropoff_kept, pickup_kept & dropoff_kept, np.ones(offers.num_offers, bool)])


class EnvBeliefs:
    """Beliefs about all customers, one copy per env so that snapshots can be split by env.

    Args:
        num_envs: Number of envs.
        population: Customers and trips.
        split: Trips that the envs sample.
        has_applied_shares: Also hold the shares in which trips are booked under each offer.
    """

    def __init__(self, num_envs: int, population: Population, split: Split, has_applied_shares: bool = False) -> None:
        self.offers = population.offers
        self.type_masks = type_masks(self.offers)
        num_offers, no_change = self.offers.num_offers, self.offers.no_change
        # Type probabilities, then the number of responses seen.
        self.customers = np.zeros((num_envs, population.size, BELIEF_WIDTH), np.float32)
        # Uninformed: all types equally likely, every offer accepted.
        self.customers[..., :NUM_TYPES] = 1.0 / NUM_TYPES
        self.accept_given_type = np.ones((num_envs, NUM_TYPES, len(PURPOSE_NAMES), num_offers), np.float32)
        # Acceptance rates of the split's trips, NaN where a trip has no responses. Half precision:
        # there may be thousands of trips. The last row stands for trips of other splits.
        self.trip_rows, num_trips = _rows_of_trips(population, split)
        self.trip_accept_rates = np.full((num_envs, num_trips + 1, num_offers), np.nan, np.float16)
        # Shares in which the policy books the trips under each offer; at first all as requested.
        self.applied_shares: Array | None = None
        if has_applied_shares:
            self.applied_shares = np.zeros((num_envs, num_trips + 1, num_offers), np.float16)
            self.applied_shares[..., no_change] = 1.0
        self.epsilon = np.zeros(num_envs, np.float32)
        self.sample_types = np.ones(num_envs, bool)

    def state_arrays(self) -> Arrays:
        """Live arrays, for a snapshot."""
        return {
            "customers": self.customers,
            "accept_given_type": self.accept_given_type,
            "trip_accept_rates": self.trip_accept_rates,
            **({} if self.applied_shares is None else {APPLIED_SHARES: self.applied_shares}),
            "epsilon": self.epsilon,
            "sample_types": self.sample_types,
        }

    def set_shared_params(self, shared_params: SharedParams) -> None:
        """Set beliefs by name; parameters that are missing stay as they are.

        Args:
            shared_params: Any of `type_probabilities` (customers, types), `response_counts`
                (customers,), `accept_given_type` (types, purposes, offers), `trip_accept_rates`
                (trips, offers) with NaN for trips without responses, `applied_shares` (trips,
                offers), `epsilon` () and `sample_types` ().
        """
        targets = {
            "type_probabilities": self.customers[..., :NUM_TYPES],
            "response_counts": self.customers[..., NUM_TYPES],
            "accept_given_type": self.accept_given_type,
            "epsilon": self.epsilon,
            "sample_types": self.sample_types,
        }
        shapes = {name: target.shape[1:] for name, target in targets.items()}
        by_trip = {"trip_accept_rates": self.trip_accept_rates}
        if self.applied_shares is not None:
            by_trip[APPLIED_SHARES] = self.applied_shares
        shapes |= dict.fromkeys(by_trip, (len(self.trip_rows), self.offers.num_offers))
        given = {name: np.asarray(shared_params[name]) for name in shapes.keys() & shared_params.keys()}
        for name, array in given.items():
            if array.shape != shapes[name]:
                raise ShapeError(
                    f"set_shared_params() got {name} of shape {array.shape}, expected {shapes[name]}; "
                    "pass one row per customer or trip of the population, unseen ones included, and one "
                    "column per offer."
                )
        for name, array in given.items():
            if name in by_trip:
                by_trip[name][:, :-1] = array[self.trip_rows >= 0]
            else:
                targets[name][...] = array

    def shares_of(self, trips: IntArray) -> Array:
        """(envs, ..., offers) shares in which trips (envs, ...) are booked under each offer."""
        assert self.applied_shares is not None
        envs = np.arange(len(trips)).reshape(-1, *(1,) * (trips.ndim - 1))
        shares: Array = self.applied_shares[envs, self.trip_rows[trips]]
        return shares

    def accept_probabilities(self, customers: IntArray, purposes: IntArray, trips: IntArray) -> Array:
        """(envs, offers) believed acceptance probabilities of each env's current customer and trip.

        Those of the trip itself if it has responses, else those of the customer's types.
        """
        envs = np.arange(len(customers))
        types = self.customers[envs, customers, :NUM_TYPES]
        given_type = self.accept_given_type[envs, :, purposes]
        probabilities: Array = np.einsum("et,eto->eo", types, given_type)
        remembered = self.trip_accept_rates[envs, self.trip_rows[trips]]
        np.copyto(probabilities, remembered, where=~np.isnan(remembered))
        probabilities[:, self.offers.no_change] = 1.0
        return probabilities

    def masks(
        self,
        mode: MaskMode,
        threshold: float,
        customers: IntArray,
        probabilities: Array,
        accepts: BoolArray,
        uniforms: Array,
    ) -> BoolArray:
        """Action masks that follow from the beliefs.

        Args:
            mode: How beliefs become masks.
            threshold: Minimum acceptance probability of `threshold`.
            customers: (envs,) current customers.
            probabilities: (envs, offers) believed acceptance probabilities.
            accepts: (envs, offers) true responses, for `privileged`.
            uniforms: (envs, 2) from `mask_uniforms`.

        Returns:
            (envs, offers), True = allowed.
        """
        if mode == "threshold":
            mask = probabilities >= threshold
        elif mode == "sampled_type":
            mask = self.type_masks[self._sampled_types(customers, uniforms[:, 1])]
        elif mode == "privileged":
            mask = accepts.copy()
        else:
            mask = np.ones(probabilities.shape, bool)
        self.offers.with_no_change(mask)
        mask[self.explores(uniforms)] = True
        return np.asarray(mask, bool)

    def logit_bias(self, strength: float, probabilities: Array, uniforms: Array) -> Array:
        """(envs, offers) logit bias of `mask_mode="soft"`."""
        bias: Array = strength * np.log(np.maximum(probabilities, MIN_PROBABILITY))
        bias[self.explores(uniforms)] = 0.0
        return bias

    def explores(self, uniforms: Array) -> BoolArray:
        """(envs,) whether the mask is ignored for this request (epsilon exploration)."""
        return np.asarray(uniforms[:, 0] < self.epsilon, bool)

    def _sampled_types(self, customers: IntArray, uniforms: Array) -> IntArray:
        """(envs,) a type sampled from the belief, or the most likely one during evaluation."""
        types = self.customers[np.arange(len(customers)), customers, :NUM_TYPES]
        cdf = types.cumsum(axis=1)
        sampled = (cdf <= (uniforms * cdf[:, -1])[:, None]).sum(axis=1)
        sampled = np.minimum(sampled, NUM_TYPES - 1)
        return np.asarray(np.where(self.sample_types, sampled, types.argmax(axis=1)), np.int64)


def _rows_of_trips(population: Population, split: Split) -> tuple[IntArray, int]:
    """(trips,) the row of each trip among those of a split, -1 for others; and how many there are."""
    _, first, count = population.split_customers(split)
    starts = np.zeros(len(population.trips.purpose) + 1, np.int64)
    np.add.at(starts, first, 1)
    np.add.at(starts, first + count, -1)
    in_split = np.cumsum(starts[:-1]) > 0
    rows = np.where(in_split, np.cumsum(in_split) - 1, -1)
    return np.asarray(rows, np.int64), int(in_split.sum())


def mask_uniforms(episode_keys: Keys, num_booked: IntArray, child: int) -> Array:
    """(envs, 2) uniform random numbers of every env's current request."""
    counts = num_booked[:, None] * DRAWS_PER_REQUEST + np.arange(DRAWS_PER_REQUEST)
    return rng.uniforms(rng.spawn(episode_keys, child)[:, None], counts)
