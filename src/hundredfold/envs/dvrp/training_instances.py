"""Books for a routing policy to learn from: days of an env, cut off after any number of calls.

Callers, trips and the order of calls are drawn as the env draws them, on streams that no env
ever meets. In half of the books customers have accepted offers, as they will once an agent makes
them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from hundredfold.core import rng
from hundredfold.core.rng import Keys
from hundredfold.envs.dvrp.demand import DemandSampler, population_for
from hundredfold.envs.dvrp.offers import NO_CHANGE, NUM_OFFERS, shifted_windows
from hundredfold.envs.dvrp.route_costs import day_problems
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.routing.instances import loose_instances, random_instances
from hundredfold.routing.problem import RouteProblems

DAYS_CHILD, OFFERS_CHILD, KIND_CHILD = range(3)
OFFERED_SHARE: Final = 0.5
# Other city seeds than the asked one, for weights that shall work in more than one city.
OTHER_CITIES: Final = 12


class PracticeBooks:
    """Draws books of one env; `variety` is the share of batches from other cities and fleets."""

    def __init__(self, settings: DvrpSettings, variety: float = 0.0) -> None:
        self.settings = settings
        self.variety = variety

    def draw(self, key: Keys, num_books: int, num_requests: int) -> RouteProblems:
        """Books of this size from one city; `key` is a single stream key."""
        kind = rng.uniforms(rng.spawn(key, KIND_CHILD), np.arange(2))
        if kind[0] >= self.variety:
            return env_instances(self.settings, key, num_books, num_requests)
        seed = int(rng.integers(rng.spawn(key, KIND_CHILD), 2, 2**31))
        if kind[1] < 0.3:
            return random_instances(num_books, num_requests, seed)
        if kind[1] < 0.5:
            return loose_instances(num_books, num_requests, seed)
        other = replace(
            self.settings,
            city_seed=1 + seed % OTHER_CITIES if self.settings.trips is None else 0,
            service="operator" if kind[1] < 0.75 else "research",
        )
        return env_instances(other, key, num_books, num_requests)


def env_instances(
    settings: DvrpSettings, key: Keys, num_books: int, num_requests: int, offered: bool = True
) -> RouteProblems:
    """The first calls of as many days; `offered` lets some customers have accepted offers."""
    population = population_for(settings)
    draw = DemandSampler(population, "all", num_requests)
    days = rng.spawn(rng.spawn(key, DAYS_CHILD), np.arange(num_books))
    _, trip = draw.draw(days)
    windows = population.trips.windows[trip]
    if offered:
        luck_keys = rng.spawn(rng.spawn(key, OFFERS_CHILD), np.arange(num_books))[:, None]
        calls = np.arange(num_requests)
        offers = rng.integers(luck_keys, calls, NUM_OFFERS)
        willing = rng.uniforms(rng.spawn(luck_keys, 0), calls + 1)
        negotiated = rng.uniforms(luck_keys, num_requests) < OFFERED_SHARE
        allowed = population.allowed[trip, offers] & negotiated & (willing < OFFERED_SHARE)
        windows = shifted_windows(windows, np.where(allowed, offers, NO_CHANGE))
    return day_problems(
        population.trips.cells[trip],
        windows,
        population.max_ride_minutes[trip],
        population,
        settings,
    )
