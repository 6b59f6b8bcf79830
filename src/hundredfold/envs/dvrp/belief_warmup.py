"""Days on which a rule gets to know people: it asks, they answer, and an acceptance model learns.

Afterwards the acceptance model is left as it is, and the rule is evaluated on other days. Only
known people call here, so somebody met later for the first time is whoever people are on average.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from hundredfold.core import rng
from hundredfold.core.errors import SettingsError
from hundredfold.envs.dvrp.acceptance.model import ResponseBuffer, TypeModel
from hundredfold.envs.dvrp.env import Dvrp
from hundredfold.envs.dvrp.evaluation import env_settings_for, evaluation_env_seed
from hundredfold.envs.dvrp.heuristics import call_keys, calling, open_offers
from hundredfold.envs.dvrp.policies import OfferPolicy, make_policy, policy_key
from hundredfold.envs.dvrp.settings import DvrpSettings

# Learning days hang under another branch of the seed than the days of an evaluation.
LEARNING_BRANCH: Final = 0x6C6561726E
# `lookahead` would take as long to learn as to play; Thompson sampling finds the same.
WARM_UP_POLICY: Final = {"lookahead": "thompson"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUpSettings:
    """How a rule gets to know people before it is evaluated."""

    warm_up_days: int = 200
    """Days of asking before the first day that counts."""
    refit_days: int = 10
    """Days between two times of learning from the responses."""
    explore: float = 0.2
    """Share of calls that get a random offer on the first day; it falls to 0 on the last."""

    def __post_init__(self) -> None:
        if self.warm_up_days < 0 or self.refit_days < 1 or not 0.0 <= self.explore <= 1.0:
            raise SettingsError(
                "learning needs warm_up_days >= 0, refit_days >= 1 and explore in 0..1; "
                f"got {self}."
            )


def warm_up(
    rule: str,
    settings: DvrpSettings,
    belief_model: TypeModel,
    responses: ResponseBuffer,
    learning: WarmUpSettings | None = None,
    *,
    seed: int,
    on_progress: Callable[[int], None] = lambda done: None,
) -> None:
    """Let the acceptance model of a rule learn, by the questions the rule itself would ask."""
    learning = learning or WarmUpSettings()
    rule = WARM_UP_POLICY.get(rule, rule)
    settings = env_settings_for(rule, replace(settings, split="known"))
    days = learning.warm_up_days
    for first in range(0, days, learning.refit_days):
        env = Dvrp(np.arange(first, min(first + learning.refit_days, days)), settings)
        ask = make_policy(rule, env.population, settings, seed, beliefs=belief_model)
        _ask_for_a_day(env, ask, responses, learning.explore * (1.0 - first / days), seed)
        belief_model.refit(responses.rows())
        on_progress(min(first + learning.refit_days, days))


def _ask_for_a_day(
    env: Dvrp, ask: OfferPolicy, responses: ResponseBuffer, explore: float, seed: int
) -> None:
    out = env.reset(evaluation_env_seed(seed, LEARNING_BRANCH))
    key = rng.spawn(policy_key(seed), LEARNING_BRANCH)
    for _ in range(env.settings.num_customers):
        luck = rng.uniforms(
            call_keys(key, out, calling(out, env.population))[:, None], np.arange(17)
        )
        anything = np.where(open_offers(out), luck[:, 1:], -1.0).argmax(axis=1)
        env.step(np.where(luck[:, 0] < explore, anything, ask(out)))
        info = out.info
        responses.add(info["customer_id"], info["purpose"], info["offer"], info["accepted"])
