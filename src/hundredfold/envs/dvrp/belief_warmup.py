"""Warm-up of belief policies: days on which an acceptance model learns from their offers.

Afterwards the model is fixed and the policy is evaluated on other days. Only known customers occur
in the warm-up; customers first met later are known by their attributes alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from hundredfold.core import rng
from hundredfold.core.batch import BoolArray, FloatArray
from hundredfold.core.bounds import AtLeastOne, Fraction, NonNegativeInt, check_bounds
from hundredfold.envs.dvrp.acceptance.metrics import predicted_responses
from hundredfold.envs.dvrp.acceptance.model import ResponseBuffer, TypeModel
from hundredfold.envs.dvrp.env import Dvrp
from hundredfold.envs.dvrp.evaluation import evaluation_env_seed
from hundredfold.envs.dvrp.heuristics import OfferPolicy, current_requests, offer_mask, policy_key, request_keys
from hundredfold.envs.dvrp.policies import PolicyOptions, env_settings_for, make_policy
from hundredfold.envs.dvrp.settings import DvrpSettings

# Keeps warm-up days apart from the days of an evaluation with the same seed.
WARM_UP_BRANCH: Final = 0x6C6561726E
# `lookahead` is slow; the much faster Thompson sampling collects equally useful responses.
WARM_UP_POLICY: Final = {"lookahead": "thompson"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUpSettings:
    """Length and exploration of the warm-up."""

    warm_up_days: NonNegativeInt = 200
    """Days of the warm-up."""
    refit_days: AtLeastOne = 10
    """Days between two refits of the acceptance model."""
    epsilon: Fraction = 0.2
    """Probability of a random offer on the first day; it decays linearly to 0."""

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, slots=True, eq=False)
class WarmUpScores:
    """Predictions of the responses on some days, by a model that knew the days before."""

    first_day: int
    end_day: int  # exclusive
    predicted: FloatArray  # (offers,) probability of acceptance
    accepted: BoolArray  # (offers,)


def warm_up(
    policy: str,
    settings: DvrpSettings,
    model: TypeModel,
    responses: ResponseBuffer,
    warm_up_settings: WarmUpSettings | None = None,
    *,
    seed: int,
    on_progress: Callable[[int], None] = lambda days: None,
) -> list[WarmUpScores]:
    """Fit an acceptance model to the responses to a policy's own offers.

    Args:
        policy: Name of a belief policy.
        settings: Settings of the env.
        model: The model, refitted in place.
        responses: Buffer that the responses are added to.
        warm_up_settings: Length and exploration; defaults if omitted.
        seed: Seed of days and policy.
        on_progress: Called with the number of finished days.
    Returns:
        How well the responses were predicted between two refits, before they were learned from.
    """
    history: list[WarmUpScores] = []
    options = warm_up_settings or WarmUpSettings()
    policy = WARM_UP_POLICY.get(policy, policy)
    settings = env_settings_for(policy, replace(settings, split="known"))
    num_days = options.warm_up_days
    for first in range(0, num_days, options.refit_days):
        env = Dvrp(np.arange(first, min(first + options.refit_days, num_days)), settings)
        act = make_policy(policy, env.population, settings, seed, PolicyOptions(beliefs=model))
        before = responses.num_added
        _collect_day(env, act, responses, options.epsilon * (1.0 - first / num_days), seed)
        new = responses.rows(since=before)
        history.append(WarmUpScores(first, first + env.num_envs, predicted_responses(model, new), new.accepted))
        model.refit(responses.rows())
        on_progress(first + env.num_envs)
    return history


def _collect_day(env: Dvrp, act: OfferPolicy, responses: ResponseBuffer, epsilon: float, seed: int) -> None:
    out = env.reset(evaluation_env_seed(seed, WARM_UP_BRANCH))
    key = rng.spawn(policy_key(seed), WARM_UP_BRANCH)
    for _ in range(env.settings.num_customers):
        keys = request_keys(key, out, current_requests(out, env.population))
        uniforms = rng.uniforms(keys[:, None], np.arange(1 + env.offers.num_offers))
        random_offers = np.where(offer_mask(out), uniforms[:, 1:], -1.0).argmax(axis=1)
        env.step(np.where(uniforms[:, 0] < epsilon, random_offers, act(out)))
        info = out.info
        responses.add(info["customer_id"], info["trip_id"], info["purpose"], info["offer"], info["accepted"])
