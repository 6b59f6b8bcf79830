"""Look-ahead policy: scenario-based evaluation of every offer by sampled future requests.

In the spirit of the multiple scenario approach (Bent and Van Hentenryck 2004), each offer is
evaluated on several sampled futures: the request is inserted with the offer's windows, trips of
known customers are sampled for the rest of the day, and a short large neighbourhood search improves
the routes. The offer with the lowest expected final cost is made, given its acceptance probability
and the shift penalty.

Customers who have already requested a trip today are not sampled again; sampled customers are
booked as requested.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from hundredfold.core import rng
from hundredfold.core.batch import BoolArray, FloatArray, IntArray, StepBatch
from hundredfold.core.bounds import AtLeastOne, Fraction, NonNegativeInt, check_bounds
from hundredfold.core.rng import Keys
from hundredfold.envs.dvrp.heuristics import (
    AcceptanceBeliefs,
    CurrentRequests,
    cheapest,
    current_requests,
    offer_mask,
    request_keys,
    with_no_change,
)
from hundredfold.envs.dvrp.offers import NO_CHANGE, TOTAL_MINUTES, windows_of_all_offers
from hundredfold.envs.dvrp.population import Population
from hundredfold.envs.dvrp.route_costs import UNSERVED_PENALTY_MINUTES, TrackedRoutes
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.routing.instance_arrays import NewRequests
from hundredfold.routing.lns import LNSParams
from hundredfold.routing.scenario_costs import SampledRequests, final_costs, trip_table

# Children of a request's RNG key, and of a sample's.
SAMPLES_CHILD, SEARCH_CHILD = 0, 1
CUSTOMERS_CHILD, TRIPS_CHILD = 0, 1
MAX_REMOVED: Final = 8


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
        self.customers, self.first_trip, self.num_trips = population.split_customers("known")
        self.table = trip_table(
            population.city.travel,
            population.trips.cells,
            population.trips.windows,
            settings.service_minutes,
            population.max_ride_minutes,
        )
        self.tracked = TrackedRoutes(population, settings, key)

    def __call__(self, batch: StepBatch) -> IntArray:
        requests = current_requests(batch, self.population)
        probabilities = self.beliefs.accept_probabilities(requests.customer, requests.purpose, requests.trip)
        evaluated = with_no_change(offer_mask(batch) & (probabilities >= self.lookahead.min_probability))
        costs = self.final_costs(batch, requests, evaluated).mean(axis=2)
        added = costs - costs[:, NO_CHANGE, None] + self.shift_penalty * TOTAL_MINUTES
        # A refused offer costs as much as no change, to which all offers are compared.
        return cheapest(probabilities * added, evaluated)

    def final_costs(self, batch: StepBatch, requests: CurrentRequests, evaluated: BoolArray) -> FloatArray:
        """(envs, offers, samples) final cost of the day if the offer is accepted."""
        self.tracked.sync(batch)
        envs, samples = len(batch), self.lookahead.samples
        keys = request_keys(self.key, batch, requests)
        return final_costs(
            self.tracked.routes,
            NewRequests(
                cells=requests.cells,
                riders=np.ones(envs, np.int64),
                service_minutes=np.full((envs, 2), self.settings.service_minutes),
                max_ride_minutes=requests.max_ride_minutes,
            ),
            windows_of_all_offers(requests.windows),
            evaluated,
            self.table,
            self.sample_requests(batch, requests, keys),
            LNSParams(
                improve_passes=1,
                iterations=self.lookahead.lns_iterations,
                max_removed=MAX_REMOVED,
                infeasible_iterations=0,
                start_threshold=0.0,
            ),
            # A search key per sample, which averages out the noise of the search as well.
            rng.spawn(rng.spawn(keys, SEARCH_CHILD)[:, None], np.arange(samples)),
            UNSERVED_PENALTY_MINUTES,
        )

    def sample_requests(self, batch: StepBatch, requests: CurrentRequests, keys: Keys) -> SampledRequests:
        """Future requests: known customers, sampled without replacement, and a trip of each."""
        number = self.settings.num_customers - 1 - requests.num_booked
        width = np.arange(int(number.max()))
        sample_keys = rng.spawn(rng.spawn(keys, SAMPLES_CHILD)[:, None], np.arange(self.lookahead.samples))
        uniforms = rng.uniforms(rng.spawn(sample_keys, CUSTOMERS_CHILD)[:, :, None], np.arange(len(self.customers)))
        # Customers with a request today come last: used again only if there are too few others.
        uniforms += self._has_request(batch, requests)[:, None, self.customers]
        order = np.argsort(uniforms, axis=2, kind="stable")[:, :, width % len(self.customers)]
        trip_keys = rng.spawn(sample_keys, TRIPS_CHILD)[:, :, None]
        which = rng.integers(trip_keys, width, self.num_trips[order])
        return SampledRequests(self.first_trip[order] + which, number)

    def _has_request(self, batch: StepBatch, requests: CurrentRequests) -> BoolArray:
        """(envs, customers) whether each has requested a trip today, the current one included."""
        customers = batch.true_state["customer_id"]
        is_past = np.arange(customers.shape[1]) <= requests.num_booked[:, None]
        env, number = np.nonzero(is_past)
        has_request = np.zeros((len(batch), self.population.size), bool)
        has_request[env, customers[env, number]] = True
        return has_request
