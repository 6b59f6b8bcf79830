"""The rule that plays the rest of the day in its head, many times, for every offer.

For each offer the day is brought to its end several times: the request goes into the plan as the
offer would move it, trips out of the operator's own history follow until as many have called as
will, and a short search improves what came out. The offer made is the one that lowers the expected
closing price most, counting how likely it is to be accepted and what a minute of patience costs.

History means known people and known trips: who calls next today stays hidden. Nobody calls twice a
day, so whoever has called is left out of the guesses. Guessed callers are booked as they ask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from hundredfold.core import rng
from hundredfold.core.batch import BoolArray, FloatArray, IntArray, StepBatch
from hundredfold.core.errors import SettingsError
from hundredfold.core.rng import Keys
from hundredfold.envs.dvrp.heuristics import (
    AcceptanceBeliefs,
    Calls,
    call_keys,
    calling,
    cheapest,
    open_offers,
    with_no_change,
)
from hundredfold.envs.dvrp.offers import NO_CHANGE, TOTAL_MINUTES, windows_of_all_offers
from hundredfold.envs.dvrp.population import Population
from hundredfold.envs.dvrp.route_costs import UNSERVED_PENALTY_MINUTES, TrackedRoutes
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.routing.instance_arrays import NewRequests
from hundredfold.routing.lns import LNSParams
from hundredfold.routing.scenario_costs import SampledRequests, final_costs, trip_table

# Children of the key of a call, and of the key of a guess.
GUESSES_CHILD, SEARCH_CHILD = 0, 1
PEOPLE_CHILD, TRIPS_CHILD = 0, 1
MAX_REMOVED: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LookaheadSettings:
    """How much the rule `lookahead` thinks before it speaks."""

    samples: int = 16
    """Futures that every offer is tried on."""
    least_chance: float = 0.1
    """Offers less likely to be accepted are not tried."""
    search_rounds: int = 4
    """Rounds of large neighbourhood search at the end of every future."""

    def __post_init__(self) -> None:
        if self.samples < 1 or self.search_rounds < 0 or not 0.0 <= self.least_chance <= 1.0:
            raise SettingsError(
                "lookahead needs samples >= 1, search_rounds >= 0 and least_chance in 0..1; "
                f"got {self}."
            )


class Lookahead:
    """Make the offer whose expected closing price is lowest; needs a believer."""

    def __init__(
        self,
        population: Population,
        settings: DvrpSettings,
        beliefs: AcceptanceBeliefs,
        key: Keys,
        lookahead: LookaheadSettings | None = None,
        price: float | None = None,
    ) -> None:
        self.population = population
        self.settings = settings
        self.beliefs = beliefs
        self.key = key
        self.lookahead = lookahead or LookaheadSettings()
        self.price = settings.patience if price is None else price
        self.people, self.first_trip, self.num_trips = population.split_customers("known")
        self.table = trip_table(
            population.city.travel,
            population.trips.cells,
            population.trips.windows,
            settings.service_minutes,
            population.max_ride_minutes,
        )
        self.plans = TrackedRoutes(population, settings, key)

    def __call__(self, batch: StepBatch) -> IntArray:
        calls = calling(batch, self.population)
        chance = self.beliefs.accept_probabilities(calls.person, calls.purpose)
        tried = with_no_change(open_offers(batch) & (chance >= self.lookahead.least_chance))
        prices = self.final_costs(batch, calls, tried).mean(axis=2)
        added = prices - prices[:, NO_CHANGE, None] + self.price * TOTAL_MINUTES
        # With a refusal the day goes on as asked, which is what all offers are compared with.
        return cheapest(chance * added, tried)

    def final_costs(self, batch: StepBatch, calls: Calls, tried: BoolArray) -> FloatArray:
        """(envs, offers, samples) what the day would come to if the offer were accepted."""
        self.plans.follow(batch)
        envs, samples = len(batch), self.lookahead.samples
        keys = call_keys(self.key, batch, calls)
        return final_costs(
            self.plans.kept,
            NewRequests(
                cells=calls.cells,
                riders=np.ones(envs, np.int64),
                service_minutes=np.full((envs, 2), self.settings.service_minutes),
                max_ride_minutes=calls.max_ride_minutes,
            ),
            windows_of_all_offers(calls.windows),
            tried,
            self.table,
            self.guesses(batch, calls, keys),
            self._search(),
            # Another search for every sample, so that its luck is averaged out as well.
            rng.spawn(rng.spawn(keys, SEARCH_CHILD)[:, None], np.arange(samples)),
            UNSERVED_PENALTY_MINUTES,
        )

    def guesses(self, batch: StepBatch, calls: Calls, keys: Keys) -> SampledRequests:
        """Who may still call, drawn from history without replacement, and with which trip."""
        number = self.settings.num_customers - 1 - calls.num_booked
        width = np.arange(int(number.max()))
        drawn = rng.spawn(
            rng.spawn(keys, GUESSES_CHILD)[:, None], np.arange(self.lookahead.samples)
        )
        luck = rng.uniforms(rng.spawn(drawn, PEOPLE_CHILD)[:, :, None], np.arange(len(self.people)))
        # Those who have called come last: their turn comes again only where history is too short.
        luck += self._has_called(batch, calls)[:, None, self.people]
        order = np.argsort(luck, axis=2, kind="stable")[:, :, width % len(self.people)]
        trip_keys = rng.spawn(drawn, TRIPS_CHILD)[:, :, None]
        which = rng.integers(trip_keys, width, self.num_trips[order])
        return SampledRequests(self.first_trip[order] + which, number)

    def _has_called(self, batch: StepBatch, calls: Calls) -> BoolArray:
        """(envs, people), the present caller included."""
        people = batch.true_state["customer_id"]
        env, call = np.nonzero(np.arange(people.shape[1]) <= calls.num_booked[:, None])
        called = np.zeros((len(batch), self.population.size), bool)
        called[env, people[env, call]] = True
        return called

    def _search(self) -> LNSParams:
        return LNSParams(
            improve_passes=1,
            iterations=self.lookahead.search_rounds,
            max_removed=MAX_REMOVED,
            infeasible_iterations=0,
            start_threshold=0.0,
        )
