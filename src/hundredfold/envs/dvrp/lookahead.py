"""Look-ahead policy: scenario-based evaluation of every offer by sampled future requests.

In the spirit of the multiple scenario approach (Bent and Van Hentenryck 2004), each offer is
evaluated on several sampled futures: the request is inserted with the offer's windows, trips of
known customers are sampled for the rest of the day, and a short large neighbourhood search improves
the routes. The offer with the lowest expected final cost is made, given its acceptance probability
and the shift penalty.

Customers who have already requested a trip today are not sampled again; sampled customers are
booked as requested.

`PolicyLookahead` does the same for the best few offers of a trained network, and weighs what the
network predicts with what the futures show.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from hundredfold.core.batch import Array, BoolArray, FloatArray, IntArray, StepBatch
from hundredfold.core.bounds import AtLeastOne, Fraction, NonNegativeInt, check_bounds
from hundredfold.core.rng import Keys
from hundredfold.envs.dvrp.env import ACCEPTANCE_HINT, SHIFT_COST
from hundredfold.envs.dvrp.heuristics import (
    AcceptanceBeliefs,
    CurrentRequests,
    current_requests,
    offer_mask,
    request_keys,
)
from hundredfold.envs.dvrp.offers import OfferTable
from hundredfold.envs.dvrp.population import Population
from hundredfold.envs.dvrp.route_costs import TrackedRoutes
from hundredfold.envs.dvrp.sampled_futures import SampledFutures
from hundredfold.envs.dvrp.settings import DvrpSettings

# Offers of a network that are evaluated on sampled futures.
BEST_OFFERS: Final = 3
# Sampled futures that a network's prediction is worth, with the first request of the day and with the
# last, by their errors compared with 48 futures: predictions are most exact early in the day.
PREDICTION_FUTURES: Final = (100.0, 25.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LookaheadSettings:
    """Effort of the look-ahead policy."""

    samples: AtLeastOne = 16
    """Sampled futures per offer."""
    min_probability: Fraction = 0.1
    """Offers with a lower acceptance probability are not evaluated."""
    lns_iterations: NonNegativeInt = 4
    """Iterations of large neighbourhood search at the end of every sampled future."""

    def __post_init__(self) -> None:
        check_bounds(self)


class Lookahead:
    """Make the offer with the lowest expected final cost over sampled futures.

    Args:
        population: Customers and trips to sample from.
        settings: Settings of the env.
        beliefs: Acceptance probabilities.
        key: RNG key of samples and search.
        lookahead: Effort; defaults if omitted.
        shift_penalty: Driving minutes charged per minute of shift; by default the env's.
    """

    def __init__(
        self,
        population: Population,
        settings: DvrpSettings,
        beliefs: AcceptanceBeliefs,
        key: Keys,
        lookahead: LookaheadSettings | None = None,
        shift_penalty: float | None = None,
    ) -> None:
        self.population = population
        self.settings = settings
        self.beliefs = beliefs
        self.key = key
        self.lookahead = lookahead or LookaheadSettings()
        self.shift_penalty = settings.effective_shift_penalty if shift_penalty is None else shift_penalty
        self.futures = SampledFutures(population, settings, self.lookahead.samples, self.lookahead.lns_iterations)
        self.tracked = TrackedRoutes(population, settings, key)

    def __call__(self, batch: StepBatch) -> IntArray:
        requests = current_requests(batch, self.population)
        probabilities = self.beliefs.accept_probabilities(requests.customer, requests.purpose, requests.trip)
        offers = self.population.offers
        evaluated = offers.with_no_change(offer_mask(batch) & (probabilities >= self.lookahead.min_probability))
        costs = self.final_costs(batch, requests, evaluated).mean(axis=2)
        added = costs - costs[:, offers.no_change, None] + self.shift_penalty * offers.total_minutes
        # A refused offer costs as much as no change, to which all offers are compared.
        return offers.cheapest(probabilities * added, evaluated)

    def final_costs(self, batch: StepBatch, requests: CurrentRequests, evaluated: BoolArray) -> FloatArray:
        """(envs, offers, samples) final cost of the day if the offer is accepted."""
        self.tracked.sync(batch)
        keys = request_keys(self.key, batch, requests)
        return self.futures.final_costs(self.tracked.routes, batch.true_state, evaluated, keys)


class PolicyLookahead:
    """Look-ahead for the best offers of a network that predicts the cost of every offer.

    The prediction and the mean over sampled futures are averaged, weighted as if the prediction
    came from futures of its own (`prediction_futures`).

    Args:
        population: Customers and trips to sample from.
        settings: Settings of the env, with the observation layout `offers`.
        predicted_costs: From a batch to the (rows, offers) predicted cost of each offer if it is
            accepted, in minutes relative to no change.
        samples: Sampled futures per offer.
        key: RNG key of samples and search.
        applied_shares: (trips, offers) shares in which the policy books each trip under each offer;
            by default sampled trips are booked as requested.
    """

    def __init__(
        self,
        population: Population,
        settings: DvrpSettings,
        predicted_costs: Callable[[StepBatch], Array],
        samples: int,
        key: Keys,
        applied_shares: Array | None = None,
    ) -> None:
        self.population, self.key, self.predicted_costs = population, key, predicted_costs
        self.num_customers = settings.num_customers
        self.shares_of = None if applied_shares is None else applied_shares.__getitem__
        self.futures = SampledFutures(population, settings, samples, LookaheadSettings().lns_iterations)
        self.tracked = TrackedRoutes(population, settings, key)

    def __call__(self, batch: StepBatch) -> IntArray:
        requests = current_requests(batch, self.population)
        probabilities, shift_cost = batch.observation[ACCEPTANCE_HINT], batch.observation[SHIFT_COST]
        predicted, offers = self.predicted_costs(batch), self.population.offers
        candidates = best_offers(offers, probabilities * (predicted + shift_cost), offer_mask(batch), BEST_OFFERS)
        self.tracked.sync(batch)
        keys = request_keys(self.key, batch, requests)
        costs = self.futures.final_costs(self.tracked.routes, batch.true_state, candidates, keys, self.shares_of).mean(
            axis=2
        )
        sampled = costs - costs[:, offers.no_change, None]
        samples, worth = self.futures.samples, prediction_futures(batch.true_state["num_booked"], self.num_customers)
        weight = (samples / (samples + worth))[:, None]
        combined = weight * sampled + (1.0 - weight) * predicted
        return offers.cheapest(probabilities * (combined + shift_cost), candidates)


def prediction_futures(num_booked: IntArray, num_customers: int) -> FloatArray:
    """(rows,) sampled futures that a network's prediction is worth, by the requests booked so far."""
    first, last = PREDICTION_FUTURES
    return np.asarray(first + (last - first) * num_booked / max(num_customers - 1, 1), np.float64)


def best_offers(offers: OfferTable, cost: Array, allowed: BoolArray, number: int) -> BoolArray:
    """(rows, offers) the allowed offers of lowest cost, `number` of them, and no change."""
    ranked = np.argsort(np.where(allowed, cost, np.inf), axis=1, kind="stable")[:, :number]
    best = np.zeros(allowed.shape, bool)
    np.put_along_axis(best, ranked, True, axis=1)
    return offers.with_no_change(best & allowed)
