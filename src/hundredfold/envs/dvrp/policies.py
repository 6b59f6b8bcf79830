"""Registry of the offer policies without learning: heuristics, look-ahead and upper bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from hundredfold.core.errors import SettingsError, suggest
from hundredfold.envs.dvrp.heuristics import (
    AcceptanceBeliefs,
    BeliefGreedy,
    BeliefLargest,
    GreedyExpected,
    OfferPolicy,
    RandomOffers,
    Thompson,
    always_largest,
    greedy_optimistic,
    no_offer,
    policy_key,
    privileged_greedy,
    privileged_largest,
)
from hundredfold.envs.dvrp.hindsight import Hindsight
from hundredfold.envs.dvrp.lookahead import Lookahead, LookaheadSettings
from hundredfold.envs.dvrp.population import Population
from hundredfold.envs.dvrp.settings import DvrpSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOptions:
    """Options of policies; each policy uses those that concern it."""

    beliefs: AcceptanceBeliefs | None = None
    """Needed by `BELIEF_POLICIES`."""
    shift_penalty: float | None = None
    """Driving minutes charged per minute of shift, for `SHIFT_PENALTY_POLICIES`. None is 0, but
    the env's own penalty for `lookahead`."""
    lookahead: LookaheadSettings | None = None


NO_OPTIONS: Final = PolicyOptions()


@dataclass(frozen=True, slots=True)
class PolicyContext:
    """Everything a policy may be built from."""

    population: Population
    settings: DvrpSettings
    seed: int
    options: PolicyOptions

    @property
    def beliefs(self) -> AcceptanceBeliefs:
        if self.options.beliefs is None:
            raise SettingsError(
                f"the policies {', '.join(BELIEF_POLICIES)} need an acceptance model: pass "
                "beliefs, for example a BayesianTypeModel after warm_up()."
            )
        return self.options.beliefs

    @property
    def shift_penalty(self) -> float:
        return self.options.shift_penalty or 0.0


def _hindsight(context: PolicyContext) -> OfferPolicy:
    return Hindsight(context.population, context.settings)


def _lookahead(context: PolicyContext) -> OfferPolicy:
    return Lookahead(
        context.population,
        context.settings,
        context.beliefs,
        policy_key(context.seed),
        context.options.lookahead,
        context.options.shift_penalty,
    )


POLICIES: Final[dict[str, Callable[[PolicyContext], OfferPolicy]]] = {
    "none": lambda context: no_offer(context.population.offers),
    "random": lambda context: RandomOffers(context.seed),
    "always_largest": lambda context: always_largest(context.population.offers),
    "greedy_optimistic": lambda context: greedy_optimistic(context.population.offers),
    "greedy_expected": lambda context: GreedyExpected(
        context.population.offers, context.population.accept_rate, context.shift_penalty
    ),
    "belief_greedy": lambda context: BeliefGreedy(context.population, context.beliefs, context.shift_penalty),
    "privileged_greedy": lambda context: privileged_greedy(context.population.offers),
    "belief_largest": lambda context: BeliefLargest(context.population, context.beliefs, context.shift_penalty),
    "privileged_largest": lambda context: privileged_largest(context.population.offers),
    "thompson": lambda context: Thompson(context.population, context.beliefs, policy_key(context.seed)),
    "lookahead": _lookahead,
    "hindsight": _hindsight,
    # Hindsight in an env where every offer is accepted; see `env_settings_for`.
    "fully_flexible": _hindsight,
}
BELIEF_POLICIES: Final = ("belief_largest", "thompson", "belief_greedy", "lookahead")
SHIFT_PENALTY_POLICIES: Final = ("lookahead", "belief_largest", "belief_greedy", "greedy_expected")
PRIVILEGED_POLICIES: Final = ("privileged_greedy", "privileged_largest", "hindsight", "fully_flexible")
COST_HINT_POLICIES: Final = ("greedy_optimistic", "greedy_expected", "belief_greedy", "privileged_greedy")


def make_policy(
    name: str, population: Population, settings: DvrpSettings, seed: int = 0, options: PolicyOptions = NO_OPTIONS
) -> OfferPolicy:
    """Build a policy by name.

    Args:
        name: One of `POLICIES`.
        population: Population of the env.
        settings: Settings of the env, as returned by `env_settings_for`.
        seed: Seed of the policy's random numbers.
        options: Beliefs, shift penalty and look-ahead settings.
    """
    if name not in POLICIES:
        raise SettingsError(f"dvrp has no policy {name!r}; {suggest(name, POLICIES)}")
    if options.shift_penalty is not None and name not in SHIFT_PENALTY_POLICIES:
        raise SettingsError(f"the policy {name} takes no shift_penalty; these do: {', '.join(SHIFT_PENALTY_POLICIES)}.")
    return POLICIES[name](PolicyContext(population, settings, seed, options))


def takes_shift_penalty(policy: str | OfferPolicy, settings: DvrpSettings) -> bool:
    """Whether the trade-off between cost and shift is chosen when the policy is used.

    Args:
        policy: Name of a policy, or a trained one.
        settings: Settings of the env; a trained policy observes the shift penalty with the offers.
    """
    return policy in SHIFT_PENALTY_POLICIES if isinstance(policy, str) else settings.observation == "offers"


def env_settings_for(
    policy: str | OfferPolicy, settings: DvrpSettings, shift_penalty: float | None = None
) -> DvrpSettings:
    """Settings of the env that a policy needs; those of a trained policy stay as they are.

    Heuristics select among all offers, so belief masks are off, and none reads features of offers.
    Some need the cost hint, and `fully_flexible` needs customers who accept every offer.
    """
    if not isinstance(policy, str):
        return settings
    settings = replace(settings, mask_mode="none", observation="booking", future_samples=0)
    if policy in COST_HINT_POLICIES or (policy == "belief_largest" and shift_penalty):
        return replace(settings, cost_hint=True)
    if policy == "fully_flexible":
        return replace(settings, tolerances="unlimited", recorded_responses=None)
    return settings
