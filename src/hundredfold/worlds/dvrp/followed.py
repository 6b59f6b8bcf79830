"""Plans that a rule keeps for itself, booking by booking, from what it sees of the day.

A rule that looks further ahead than the price hint needs a plan to look ahead in. This one grows
with the bookings, takes up any day wherever it stands, and asks nothing of the world.
"""

from __future__ import annotations

import numpy as np

from hundredfold.core import streams
from hundredfold.core.batch import BoolArray, StepBatch
from hundredfold.core.streams import Words
from hundredfold.oracles.kept_plans import KeptPlans
from hundredfold.worlds.dvrp.customers import Population
from hundredfold.worlds.dvrp.pricing import DayPlans
from hundredfold.worlds.dvrp.settings import DvrpSettings


class FollowedPlans:
    """One kept plan per env of whatever batch comes."""

    def __init__(self, population: Population, settings: DvrpSettings, key: Words) -> None:
        self.population = population
        self.settings = settings
        self.key = key
        self.env_ids = np.zeros(0, np.int64)
        self.plans = DayPlans(0, population, settings)

    @property
    def kept(self) -> KeptPlans:
        """The plans themselves."""
        return self.plans.kept

    def follow(self, batch: StepBatch) -> None:
        """Bring every plan to where its day stands; a plan of another day begins anew."""
        if not np.array_equal(self.env_ids, batch.env_ids):
            self.env_ids = batch.env_ids.copy()
            self.plans = DayPlans(len(batch), self.population, self.settings)
        day, kept = batch.true_state, self.kept
        kept.clear(self._of_another_day(batch))
        keys = streams.spawn(self.key, batch.env_ids)
        while (behind := kept.num_requests < day["num_booked"]).any():
            at = (np.arange(len(batch)), np.where(behind, kept.num_requests, 0))
            kept.add(
                day["cells"][at],
                day["booked_windows"][at],
                keys,
                service_minutes=self.settings.service_minutes,
                max_ride_minutes=day["max_ride_minutes"][at],
                rows=behind,
            )

    def _of_another_day(self, batch: StepBatch) -> BoolArray:
        """(envs,) whose plan holds something that was not booked."""
        day, problems = batch.true_state, self.kept.problems
        places = np.arange(self.settings.num_customers)
        planned = places < problems.num_requests[:, None]
        differs = (problems.cells != day["cells"]).any(axis=2)
        differs |= (problems.windows != day["booked_windows"]).any(axis=(2, 3))
        too_many = problems.num_requests > day["num_booked"]
        return np.asarray(too_many | (planned & differs).any(axis=1), bool)
