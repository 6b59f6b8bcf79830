"""Rules that need no gradient: what every learned policy must beat.

A policy is called with a `StepBatch` and returns one offer per row. Those named `*_known`,
`hindsight` and `fully_flexible` look behind the curtain, at `true_state`: they are ceilings, not
competitors. The greedy ones read the observation `cost_hint`; those in `BELIEF_POLICIES` need
beliefs, which have to be learned first. Those in `SHIFT_PENALTY_POLICIES` take a shift penalty.
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
    AcceptanceBeliefs,
    BeliefGreedy,
    BeliefLargest,
    Thompson,
    cheapest,
    hinted_minutes,
    largest,
    open_offers,
)
from hundredfold.envs.dvrp.hindsight import Hindsight
from hundredfold.envs.dvrp.lookahead import Lookahead, LookaheadSettings
from hundredfold.envs.dvrp.offers import NO_CHANGE, TOTAL_MINUTES
from hundredfold.envs.dvrp.population import Population
from hundredfold.envs.dvrp.settings import DvrpSettings

OfferPolicy = Callable[[StepBatch], IntArray]

# A policy's luck stands apart from that of the envs, whose keys hang under the same seed.
POLICY_BRANCH: Final = 0x6F666665727273


def no_offer(batch: StepBatch) -> IntArray:
    """Book everybody as asked."""
    return np.full(len(batch), NO_CHANGE)


def always_largest(batch: StepBatch) -> IntArray:
    """Always make the largest allowed offer, usually offer 3."""
    return largest(open_offers(batch))


def greedy_optimistic(batch: StepBatch) -> IntArray:
    """Make the offer that would add least to the plan, as if everybody accepted."""
    return cheapest(hinted_minutes(batch), open_offers(batch))


def privileged_greedy(batch: StepBatch) -> IntArray:
    """Make the offer that would add least among those the caller truly accepts."""
    return cheapest(hinted_minutes(batch), acceptable(batch))


def privileged_largest(batch: StepBatch) -> IntArray:
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
class PolicyContext:
    """What a rule may ask for when it is made."""

    population: Population
    settings: DvrpSettings
    seed: int = 0
    beliefs: AcceptanceBeliefs | None = None
    """Who knows how likely people accept; the rules in `BELIEF_POLICIES` need one."""
    shift_penalty: float | None = None
    """Driving minutes per accepted minute of shift, for `SHIFT_PENALTY_POLICIES`. By default
    nothing, save for `lookahead`, which takes the env's price."""
    lookahead: LookaheadSettings | None = None

    @property
    def trusted(self) -> AcceptanceBeliefs:
        if self.beliefs is None:
            raise SettingsError(
                f"the rules {', '.join(BELIEF_POLICIES)} need somebody who knows whom to ask; pass "
                "beliefs, for example a BayesianTypeModel after warm_up."
            )
        return self.beliefs

    @property
    def price(self) -> float:
        return self.shift_penalty or 0.0

    @property
    def key(self) -> Keys:
        return policy_key(self.seed)


def _hindsight(needs: PolicyContext) -> OfferPolicy:
    return Hindsight(needs.population, needs.settings)


def _lookahead(needs: PolicyContext) -> OfferPolicy:
    return Lookahead(
        needs.population,
        needs.settings,
        needs.trusted,
        needs.key,
        needs.lookahead,
        needs.shift_penalty,
    )


POLICIES: Final[dict[str, Callable[[PolicyContext], OfferPolicy]]] = {
    "none": lambda needs: no_offer,
    "random": lambda needs: RandomOffers(needs.seed),
    "always_largest": lambda needs: always_largest,
    "greedy_optimistic": lambda needs: greedy_optimistic,
    "greedy_expected": lambda needs: GreedyExpected(needs.population.accept_rate, needs.price),
    "belief_greedy": lambda needs: BeliefGreedy(needs.population, needs.trusted, needs.price),
    "privileged_greedy": lambda needs: privileged_greedy,
    "belief_largest": lambda needs: BeliefLargest(needs.population, needs.trusted, needs.price),
    "privileged_largest": lambda needs: privileged_largest,
    "thompson": lambda needs: Thompson(needs.population, needs.trusted, needs.key),
    "lookahead": _lookahead,
    "hindsight": _hindsight,
    # The same in an env where everybody accepts everything; `env_settings_for` makes it so.
    "fully_flexible": _hindsight,
}
BELIEF_POLICIES: Final = ("belief_largest", "thompson", "belief_greedy", "lookahead")
SHIFT_PENALTY_POLICIES: Final = ("lookahead", "belief_largest", "belief_greedy", "greedy_expected")
# Rules that look ahead by the price hint; belief_largest does when it has a price.
COST_HINT_POLICIES: Final = (
    "greedy_optimistic",
    "greedy_expected",
    "belief_greedy",
    "privileged_greedy",
)
HINTED_AT_A_PRICE: Final = ("belief_largest",)


def make_policy(
    name: str,
    population: Population,
    settings: DvrpSettings,
    seed: int = 0,
    *,
    beliefs: AcceptanceBeliefs | None = None,
    shift_penalty: float | None = None,
    lookahead: LookaheadSettings | None = None,
) -> OfferPolicy:
    """A rule by name; see `PolicyContext` for what some of them need."""
    if name not in POLICIES:
        raise SettingsError(f"dvrp has no rule {name!r}; {suggest(name, POLICIES)}")
    if shift_penalty is not None and name not in SHIFT_PENALTY_POLICIES:
        raise SettingsError(
            f"the policy {name} takes no shift_penalty; these do: "
            f"{', '.join(SHIFT_PENALTY_POLICIES)}."
        )
    needs = PolicyContext(
        population=population,
        settings=settings,
        seed=seed,
        beliefs=beliefs,
        shift_penalty=shift_penalty,
        lookahead=lookahead,
    )
    return POLICIES[name](needs)
