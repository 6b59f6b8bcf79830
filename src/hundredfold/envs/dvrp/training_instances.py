"""Training instances of the neural oracle: the first requests of dvrp episodes.

Customers, trips and the order of requests are drawn as the env draws them, on RNG streams that no
env uses. In half of the instances some customers have accepted offers, as in episodes of an agent
that makes them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from hundredfold.core import rng
from hundredfold.core.rng import Keys
from hundredfold.envs.dvrp.demand import DemandSampler, population_for
from hundredfold.envs.dvrp.route_costs import day_problems
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.routing.instances import loose_instances, random_instances
from hundredfold.routing.problem import RouteProblems

DEMAND_CHILD, OFFERS_CHILD, KIND_CHILD = range(3)
# Share of instances with accepted offers, and share of their requests that accepted one.
OFFER_SHARE: Final = 0.5
# City seeds of domain randomisation, besides the env's own.
NUM_OTHER_CITIES: Final = 12


class TrainingInstances:
    """Sampler of training instances of one env, with domain randomisation."""

    def __init__(self, settings: DvrpSettings, domain_randomization: float = 0.0) -> None:
        """Sample instances like those of an env.

        Args:
            settings: Settings of the env.
            domain_randomization: Share of batches from other cities and fleets, in 0..1.
        """
        self.settings = settings
        self.domain_randomization = domain_randomization

    def sample(self, key: Keys, num_instances: int, num_requests: int) -> RouteProblems:
        """Draw a batch from one city; `key` is a single RNG stream."""
        kind = rng.uniforms(rng.spawn(key, KIND_CHILD), np.arange(2))
        if kind[0] >= self.domain_randomization:
            return env_instances(self.settings, key, num_instances, num_requests)
        seed = int(rng.integers(rng.spawn(key, KIND_CHILD), 2, 2**31))
        if kind[1] < 0.3:
            return random_instances(num_instances, num_requests, seed)
        if kind[1] < 0.5:
            return loose_instances(num_instances, num_requests, seed)
        other = replace(
            self.settings,
            city_seed=1 + seed % NUM_OTHER_CITIES if self.settings.trips is None else 0,
            service="operator" if kind[1] < 0.75 else "research",
        )
        return env_instances(other, key, num_instances, num_requests)


def env_instances(
    settings: DvrpSettings, key: Keys, num_instances: int, num_requests: int, with_offers: bool = True
) -> RouteProblems:
    """Draw the first requests of some episodes.

    Args:
        settings: Settings of the env.
        key: A single RNG stream.
        num_instances: Number of episodes.
        num_requests: Requests per instance.
        with_offers: Whether some customers have accepted offers.
    """
    population = population_for(settings)
    demand = DemandSampler(population, "all", num_requests)
    _, trip = demand.sample(rng.spawn(rng.spawn(key, DEMAND_CHILD), np.arange(num_instances)))
    windows = population.trips.windows[trip]
    if with_offers:
        keys = rng.spawn(rng.spawn(key, OFFERS_CHILD), np.arange(num_instances))[:, None]
        request = np.arange(num_requests)
        offers = rng.integers(keys, request, population.offers.num_offers)
        accepted = rng.uniforms(rng.spawn(keys, 0), request + 1) < OFFER_SHARE
        has_offers = rng.uniforms(keys, num_requests) < OFFER_SHARE
        shifted = population.allowed[trip, offers] & has_offers & accepted
        applied = np.where(shifted, offers, population.offers.no_change)
        windows = population.offers.shifted_windows(windows, applied)
    return day_problems(
        population.trips.cells[trip],
        windows,
        population.max_ride_minutes[trip],
        population,
        settings,
        population.riders[trip],
    )
