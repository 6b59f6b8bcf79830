"""Final costs of a day over sampled futures, for every offer to the current customer.

All offers of a request are evaluated on the same sampled requests and the same random numbers of
the search (common random numbers), so that their differences have little noise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from hundredfold.core import rng
from hundredfold.core.batch import Array, Arrays, BoolArray, FloatArray, IntArray
from hundredfold.core.rng import Keys
from hundredfold.envs.dvrp.population import Population
from hundredfold.envs.dvrp.route_costs import UNSERVED_PENALTY_MINUTES
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.routing.incremental import IncrementalRoutes
from hundredfold.routing.instance_arrays import NewRequests
from hundredfold.routing.lns import LNSParams
from hundredfold.routing.scenario_costs import SampledRequests, final_costs, trip_table

# Children of a request's RNG key, and of a sample's.
SAMPLES_CHILD, SEARCH_CHILD = 0, 1
CUSTOMERS_CHILD, TRIPS_CHILD, SHIFTS_CHILD = 0, 1, 2
MAX_REMOVED: Final = 8

# From (envs, samples, requests) trips to the (..., offers) shares in which they are booked.
SharesOf = Callable[[IntArray], Array]


class SampledFutures:
    """Samples the rest of a day and solves it, once per offer.

    Future requests come from known customers who have not called today.

    Args:
        population: Customers and trips to sample from.
        settings: Fleet, service times and requests per day.
        samples: Sampled futures per offer.
        lns_iterations: Iterations of large neighbourhood search at the end of every future.
    """

    def __init__(self, population: Population, settings: DvrpSettings, samples: int, lns_iterations: int) -> None:
        self.population, self.settings, self.samples = population, settings, samples
        self.customers, self.first_trip, self.num_trips = population.split_customers("known")
        # Every trip under every offer: row trip * num_offers + offer.
        trips, self.offers = population.trips, population.offers
        self.table = trip_table(
            population.city.travel,
            np.repeat(trips.cells, self.offers.num_offers, axis=0),
            self.offers.windows_of_all(trips.windows).reshape(-1, 2, 2),
            settings.service_minutes,
            np.repeat(population.max_ride_minutes, self.offers.num_offers),
            np.repeat(population.riders, self.offers.num_offers),
        )
        self.search = LNSParams(
            improve_passes=1,
            iterations=lns_iterations,
            max_removed=MAX_REMOVED,
            infeasible_iterations=0,
            start_threshold=0.0,
        )

    def final_costs(
        self,
        routes: IncrementalRoutes,
        state: Arrays,
        evaluated: BoolArray,
        keys: Keys,
        shares_of: SharesOf | None = None,
    ) -> FloatArray:
        """Final cost of the day if an offer is accepted, in minutes.

        Args:
            routes: Routes of the bookings so far.
            state: The `true_state` arrays; only what an operator knows is read.
            evaluated: (envs, offers) offers to evaluate; the others get 0.
            keys: (envs,) RNG keys of the current requests.
            shares_of: Shares in which sampled trips are booked under each offer; by default all are
                booked as requested.

        Returns:
            (envs, offers, samples).
        """
        envs = len(keys)
        at = (np.arange(envs), state["num_booked"])
        return final_costs(
            routes,
            NewRequests(
                cells=state["cells"][at],
                riders=self.population.riders[state["trip_id"][at]],
                service_minutes=np.full((envs, 2), self.settings.service_minutes),
                max_ride_minutes=state["max_ride_minutes"][at],
            ),
            self.offers.windows_of_all(state["requested_windows"][at]),
            evaluated,
            self.table,
            self.sample_requests(state, keys, shares_of),
            self.search,
            # A search key per sample, which averages out the noise of the search as well.
            rng.spawn(rng.spawn(keys, SEARCH_CHILD)[:, None], np.arange(self.samples)),
            UNSERVED_PENALTY_MINUTES,
        )

    def sample_requests(self, state: Arrays, keys: Keys, shares_of: SharesOf | None = None) -> SampledRequests:
        """Future requests: known customers, sampled without replacement, and a trip of each."""
        number = self.settings.num_customers - 1 - state["num_booked"]
        width = np.arange(int(number.max()))
        sample_keys = rng.spawn(rng.spawn(keys, SAMPLES_CHILD)[:, None], np.arange(self.samples))
        uniforms = rng.uniforms(rng.spawn(sample_keys, CUSTOMERS_CHILD)[:, :, None], np.arange(len(self.customers)))
        # Customers with a request today come last: used again only if there are too few others.
        uniforms += self._has_request(state)[:, None, self.customers]
        order = np.argsort(uniforms, axis=2, kind="stable")[:, :, width % len(self.customers)]
        trip_keys = rng.spawn(sample_keys, TRIPS_CHILD)[:, :, None]
        trips = self.first_trip[order] + rng.integers(trip_keys, width, self.num_trips[order])
        offers: IntArray | int = self.offers.no_change
        if shares_of is not None:
            uniforms = rng.uniforms(rng.spawn(sample_keys, SHIFTS_CHILD)[:, :, None], width)
            offers = _sampled_offers(shares_of(trips), uniforms)
        return SampledRequests(trips * self.offers.num_offers + offers, number)

    def _has_request(self, state: Arrays) -> BoolArray:
        """(envs, customers) whether each has requested a trip today, the current one included."""
        customers = state["customer_id"]
        is_past = np.arange(customers.shape[1]) <= state["num_booked"][:, None]
        env, number = np.nonzero(is_past)
        has_request = np.zeros((len(customers), self.population.size), bool)
        has_request[env, customers[env, number]] = True
        return has_request


def _sampled_offers(shares: Array, uniforms: FloatArray) -> IntArray:
    """Offers (...) drawn by inversion from shares (..., offers)."""
    cdf = shares.astype(np.float64).cumsum(axis=-1)
    sampled: IntArray = (cdf <= uniforms[..., None] * cdf[..., -1:]).sum(axis=-1)
    return np.asarray(np.minimum(sampled, shares.shape[-1] - 1), np.int64)
