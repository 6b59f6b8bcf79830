"""How fast dial-a-ride days are collected with random offers, and where the time goes.

Whole days are played, so each sample pays its share of drawing the day and pricing its baseline.
The split: `oracle` keeps and prices plans (agent and baseline), `policy` chooses offers, `env` is
everything else, observations included. One thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from hundredfold.envs.dvrp.env import Dvrp
from hundredfold.envs.dvrp.heuristics import RandomOffers
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.profiling.measure import HUNDREDFOLD, summarise

Row = dict[str, Any]

SIZES: Final = (1, 16, 64, 256)
# Days that one measurement plays at least, over all envs.
DAYS_PER_REPEAT: Final = 64


@dataclass(slots=True)
class EvaluatedPolicy:
    """A batch of days, and how fast it was played, repeat by repeat."""

    env: Dvrp
    policy: RandomOffers
    rates: list[float] = field(default_factory=list)  # samples per second
    seconds: dict[str, float] = field(
        default_factory=lambda: {"oracle": 0.0, "env": 0.0, "policy": 0.0}
    )

    @property
    def steps_per_repeat(self) -> int:
        """Steps of every env: whole days, so that baselines are paid for."""
        rounds = -(-DAYS_PER_REPEAT // self.env.num_envs)
        return rounds * self.env.settings.num_customers

    def measure(self) -> None:
        """Play some whole days and note the rate and where the time went."""
        env, policy_seconds = self.env, 0.0
        priced_before = env.oracle_seconds
        began = time.perf_counter()
        for _ in range(self.steps_per_repeat):
            chosen_at = time.perf_counter()
            offers = self.policy(env.out)
            policy_seconds += time.perf_counter() - chosen_at
            env.step(offers)
        spent = time.perf_counter() - began
        priced = env.oracle_seconds - priced_before
        self.rates.append(self.steps_per_repeat * env.num_envs / spent)
        self.seconds["oracle"] += priced
        self.seconds["policy"] += policy_seconds
        self.seconds["env"] += spent - priced - policy_seconds


def bench_stepping(
    num_envs: Sequence[int] = SIZES,
    repeats: int = 5,
    settings: DvrpSettings | None = None,
    on_progress: Callable[[str], None] = lambda name: None,
) -> list[Row]:
    """Samples per second and their split at each number of envs; repeats go round all sizes."""
    contenders = [_contender(size, settings or DvrpSettings()) for size in num_envs]
    for contender in contenders:
        on_progress(f"{HUNDREDFOLD} {contender.env.num_envs}")
        contender.env.step(contender.policy(contender.env.out))  # compiles
        contender.env.reset(0)
    for _ in range(repeats):
        for contender in contenders:
            on_progress(f"{HUNDREDFOLD} {contender.env.num_envs}")
            contender.measure()
    return [_row(contender) for contender in contenders]


def _contender(num_envs: int, settings: DvrpSettings) -> EvaluatedPolicy:
    env = Dvrp(np.arange(num_envs), settings)
    env.reset(0)
    return EvaluatedPolicy(env, RandomOffers(0))


def _row(contender: EvaluatedPolicy) -> Row:
    found = summarise(contender.rates)
    settings = contender.env.settings
    whole = sum(contender.seconds.values())
    samples = contender.steps_per_repeat * contender.env.num_envs * found.repeats
    return {
        "system": HUNDREDFOLD,
        "num_envs": contender.env.num_envs,
        "threads": 1,
        "num_customers": settings.num_customers,
        "observation": settings.observation,
        "samples_per_second": found.median,
        "low": found.low,
        "high": found.high,
        "repeats": found.repeats,
        "episodes_per_second": found.median / settings.num_customers,
        **{f"{part}_share": spent / whole for part, spent in contender.seconds.items()},
        "oracle_microseconds": 1e6 * contender.seconds["oracle"] / samples,
    }
