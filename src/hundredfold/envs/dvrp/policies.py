"""Rules that need no gradient: what every learned policy must beat.

A policy is called with a `StepBatch` and returns one offer per row. Those named `*_known`,
`hindsight` and `fully_flexible` look behind the curtain, at `true_state`: they are ceilings, not
competitors. The greedy ones read the observation `price_hint`; those in `BELIEVING` ask a believer,
which has to learn first. Those in `PRICED` can be told what a minute of patience costs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from hundredfold.core import rng
from hundredfold.core.batch import BoolArray, FloatArray, IntArray, StepBatch
from hundredfold.core.errors import SettingsError, suggest
from hundredfold.core.rng import Keys
from hundredfold.envs.dvrp.heuristics import (
    Believer,
    GreedyBelieved,
    LargestBelieved,
    Thompson,
    cheapest,
    hinted_minutes,
    largest,
    open_offers,
)
from hundredfold.envs.dvrp.hindsight import Hindsight
from hundredfold.envs.dvrp.lookahead import Scenario, ScenarioSettings
from hundredfold.envs.dvrp.offers import NO_CHANGE, TOTAL_MINUTES
from hundredfold.envs.dvrp.population import Population
from hundredfold.envs.dvrp.settings import DvrpSettings

OfferPolicy = Callable[[StepBatch], IntArray]

# A policy's luck stands apart from that of the envs, whose keys hang under the same seed.
POLICY_BRANCH: Final = 0x6F666665727273


def no_offer(batch: StepBatch) -> IntArray:
    """Book everybody as asked."""
    return np.full(len(batch), NO_CHANGE)


def always_max(batch: StepBatch) -> IntArray:
    """Always make the largest allowed offer, usually offer 3."""
    return largest(open_offers(batch))


def greedy_blind(batch: StepBatch) -> IntArray:
    """Make the offer that would add least to the plan, as if everybody accepted."""
    return cheapest(hinted_minutes(batch), open_offers(batch))


def greedy_known(batch: StepBatch) -> IntArray:
    """Make the offer that would add least among those the caller truly accepts."""
    return cheapest(hinted_minutes(batch), acceptable(batch))


def largest_known(batch: StepBatch) -> IntArray:
    """Make the largest offer that the caller truly accepts."""
    return largest(acceptable(batch))


class GreedyExpected:
    """Make the offer with the largest gain times how often people accept it."""

    def __init__(self, accept_rate: FloatArray, price: float = 0.0) -> None:
        self.accept_rate = accept_rate
        self.price = price

    def __call__(self, batch: StepBatch) -> IntArray:
        added = hinted_minutes(batch) + self.price * TOTAL_MINUTES
        return cheapest(added * self.accept_rate, open_offers(batch))


class RandomOffers:
    """Any allowed offer, all equally likely, from a stream per env."""

    def __init__(self, seed: int) -> None:
        self.key = policy_key(seed)
        self.calls = 0

    def __call__(self, batch: StepBatch) -> IntArray:
        mask = open_offers(batch)
        luck = rng.uniforms(rng.spawn(self.key, batch.env_ids), self.calls)
        self.calls += 1
        wanted = (luck * mask.sum(axis=1)).astype(np.int64)
        return np.asarray((mask.cumsum(axis=1) > wanted[:, None]).argmax(axis=1), np.int64)


def acceptable(batch: StepBatch) -> BoolArray:
    """(rows, offers) what may be offered to the caller and would be accepted."""
    day = batch.true_state
    accepts: BoolArray = day["accepts"][np.arange(len(batch)), day["num_booked"]]
    return accepts & open_offers(batch)


def policy_key(seed: int) -> Keys:
    """The root of everything a policy draws."""
    return rng.spawn(rng.seed_key(seed), POLICY_BRANCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleNeeds:
    """What a rule may ask for when it is made."""

    population: Population
    settings: DvrpSettings
    seed: int = 0
    believer: Believer | None = None
    """Who knows how likely people accept; the rules in `BELIEVING` need one."""
    patience_per_minute: float | None = None
    """Driving minutes that an accepted minute of shift costs, for the rules in `PRICED`. By default
    nothing, save for `scenario`, which takes the env's price."""
    scenario: ScenarioSettings | None = None

    @property
    def trusted(self) -> Believer:
        if self.believer is None:
            raise SettingsError(
                f"the rules {', '.join(BELIEVING)} need somebody who knows whom to ask; pass "
                "believer, for example a BayesianTypeModel after learn_by_asking."
            )
        return self.believer

    @property
    def price(self) -> float:
        return self.patience_per_minute or 0.0

    @property
    def key(self) -> Keys:
        return policy_key(self.seed)


def _hindsight(needs: RuleNeeds) -> OfferPolicy:
    return Hindsight(needs.population, needs.settings)


def _scenario(needs: RuleNeeds) -> OfferPolicy:
    return Scenario(
        needs.population,
        needs.settings,
        needs.trusted,
        needs.key,
        needs.scenario,
        needs.patience_per_minute,
    )


POLICIES: Final[dict[str, Callable[[RuleNeeds], OfferPolicy]]] = {
    "none": lambda needs: no_offer,
    "random": lambda needs: RandomOffers(needs.seed),
    "always_max": lambda needs: always_max,
    "greedy_blind": lambda needs: greedy_blind,
    "greedy_expected": lambda needs: GreedyExpected(needs.population.accept_rate, needs.price),
    "greedy_believed": lambda needs: GreedyBelieved(needs.population, needs.trusted, needs.price),
    "greedy_known": lambda needs: greedy_known,
    "largest_believed": lambda needs: LargestBelieved(needs.population, needs.trusted, needs.price),
    "largest_known": lambda needs: largest_known,
    "thompson": lambda needs: Thompson(needs.population, needs.trusted, needs.key),
    "scenario": _scenario,
    "hindsight": _hindsight,
    # The same in an env where everybody accepts everything; `env_settings_for` makes it so.
    "fully_flexible": _hindsight,
}
BELIEVING: Final = ("largest_believed", "thompson", "greedy_believed", "scenario")
PRICED: Final = ("scenario", "largest_believed", "greedy_believed", "greedy_expected")
# Rules that look ahead by the price hint; largest_believed does when it has a price.
HINTED: Final = ("greedy_blind", "greedy_expected", "greedy_believed", "greedy_known")
HINTED_AT_A_PRICE: Final = ("largest_believed",)


def make_policy(
    name: str,
    population: Population,
    settings: DvrpSettings,
    seed: int = 0,
    *,
    believer: Believer | None = None,
    patience_per_minute: float | None = None,
    scenario: ScenarioSettings | None = None,
) -> OfferPolicy:
    """A rule by name; see `RuleNeeds` for what some of them need."""
    if name not in POLICIES:
        raise SettingsError(f"dvrp has no rule {name!r}; {suggest(name, POLICIES)}")
    if patience_per_minute is not None and name not in PRICED:
        raise SettingsError(
            f"the rule {name} does not know prices; patience_per_minute is for {', '.join(PRICED)}."
        )
    needs = RuleNeeds(
        population=population,
        settings=settings,
        seed=seed,
        believer=believer,
        patience_per_minute=patience_per_minute,
        scenario=scenario,
    )
    return POLICIES[name](needs)
