"""Stepping speed of the dial-a-ride env with random offers, and where the time goes.

Whole days are simulated, so that sampling demand and the baseline are included. The time is split
into `oracle` (routes of agent and baseline), `policy` (sampling offers) and `env` (everything else,
observations included). One thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from benchmarks.measure import summarise
from hundredfold.envs.dvrp.env import Dvrp
from hundredfold.envs.dvrp.heuristics import RandomOffers
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.profiling.scaling import HUNDREDFOLD

Row = dict[str, Any]

SIZES: Final = (1, 16, 64, 256)
# Minimum number of days in one measurement, over all envs.
DAYS_PER_REPEAT: Final = 64


@dataclass(slots=True)
class Subject:
    """A batch of envs and its measurements."""

    env: Dvrp
    policy: RandomOffers
    rates: list[float] = field(default_factory=list)  # samples per second, by repeat
    seconds: dict[str, float] = field(default_factory=lambda: {"oracle": 0.0, "env": 0.0, "policy": 0.0})

    @property
    def steps_per_repeat(self) -> int:
        """Steps of every env in one measurement; whole days."""
        days = -(-DAYS_PER_REPEAT // self.env.num_envs)
        return days * self.env.settings.num_customers

    def measure(self) -> None:
        """Simulate whole days; record the rate and the split of the time."""
        env, policy_seconds = self.env, 0.0
        oracle_before = env.oracle_seconds
        start = time.perf_counter()
        for _ in range(self.steps_per_repeat):
            policy_start = time.perf_counter()
            offers = self.policy(env.out)
            policy_seconds += time.perf_counter() - policy_start
            env.step(offers)
        seconds = time.perf_counter() - start
        oracle_seconds = env.oracle_seconds - oracle_before
        self.rates.append(self.steps_per_repeat * env.num_envs / seconds)
        self.seconds["oracle"] += oracle_seconds
        self.seconds["policy"] += policy_seconds
        self.seconds["env"] += seconds - oracle_seconds - policy_seconds


def bench_stepping(
    num_envs: Sequence[int] = SIZES,
    repeats: int = 5,
    settings: DvrpSettings | None = None,
    on_progress: Callable[[str], None] = lambda name: None,
) -> list[Row]:
    """Samples per second and split of the time for each number of envs; repeats are interleaved."""
    subjects = [_subject(size, settings or DvrpSettings()) for size in num_envs]
    for subject in subjects:
        on_progress(f"{HUNDREDFOLD} {subject.env.num_envs}")
        subject.env.step(subject.policy(subject.env.out))  # compiles
        subject.env.reset(0)
    for _ in range(repeats):
        for subject in subjects:
            on_progress(f"{HUNDREDFOLD} {subject.env.num_envs}")
            subject.measure()
    return [_row(subject) for subject in subjects]


def _subject(num_envs: int, settings: DvrpSettings) -> Subject:
    env = Dvrp(np.arange(num_envs), settings)
    env.reset(0)
    return Subject(env, RandomOffers(0))


def _row(subject: Subject) -> Row:
    rate = summarise(subject.rates)
    settings = subject.env.settings
    total = sum(subject.seconds.values())
    samples = subject.steps_per_repeat * subject.env.num_envs * rate.repeats
    return {
        "system": HUNDREDFOLD,
        "num_envs": subject.env.num_envs,
        "threads": 1,
        "num_customers": settings.num_customers,
        "observation": settings.observation,
        "samples_per_second": rate.median,
        "low": rate.low,
        "high": rate.high,
        "repeats": rate.repeats,
        "episodes_per_second": rate.median / settings.num_customers,
        **{f"{part}_share": seconds / total for part, seconds in subject.seconds.items()},
        "oracle_microseconds": 1e6 * subject.seconds["oracle"] / samples,
    }
