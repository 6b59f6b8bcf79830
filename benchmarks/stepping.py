"""Stepping speed of an env against the number of envs, compared with plain loops.

Actions are drawn beforehand and no network is involved. Two references, because a batch of one env
is slow: a batch of one env, and, where Gymnasium has the same env, a plain Python loop over it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any, Final

import gymnasium
import numpy as np

from benchmarks.measure import interleaved_rates, rate_row
from benchmarks.subjects import predrawn_actions
from hundredfold.backends import make_backend
from hundredfold.core.protocols import Backend
from hundredfold.envs.registry import env_factory, settings_class
from hundredfold.profiling.scaling import HUNDREDFOLD
from hundredfold.training.evaluate import random_actor

# The same env in Gymnasium.
GYMNASIUM_IDS: Final = {"cartpole": "CartPole-v1"}
SIZES: Final = (1, 16, 100, 256, 1024)
STEPS_PER_REPEAT: Final = 100_000
MAX_CALLS: Final = 4_000


def bench_stepping(
    env: str, num_envs: Sequence[int] = SIZES, repeats: int = 5, on_progress: Callable[[str], None] = print
) -> list[dict[str, Any]]:
    """Steps per second by number of envs; `efficiency` is relative to N batches of one env."""
    sizes = dict.fromkeys((1, *num_envs))
    subjects = {f"{HUNDREDFOLD} {size}": _batch(env, size) for size in sizes}
    if env in GYMNASIUM_IDS:
        subjects["gymnasium"] = _plain_loop(GYMNASIUM_IDS[env])
    rates = interleaved_rates(subjects, repeats, on_progress)
    one = rates[f"{HUNDREDFOLD} 1"].median
    plain = rates["gymnasium"].median if env in GYMNASIUM_IDS else None
    rows = []
    for size in sizes:
        rate = rates[f"{HUNDREDFOLD} {size}"]
        row = rate_row(HUNDREDFOLD, rate, env=env, num_envs=size)
        row["efficiency"] = rate.median / (size * one)
        if plain:
            row["times_one_gymnasium_env"] = rate.median / plain
        rows.append(row)
    if plain:
        rows.append(rate_row("gymnasium", rates["gymnasium"], env=GYMNASIUM_IDS[env], num_envs=1))
    return rows


def _batch(env: str, num_envs: int) -> Callable[[], int]:
    """A function that steps a batch and returns its number of env steps."""
    backend = make_backend("in_process", env_factory(env, settings_class(env)()), num_envs)
    backend.reset(0)
    if backend.spec.has_mask:
        return _masked(backend)
    actions = cycle(predrawn_actions(backend.spec, num_envs))
    calls = min(-(-STEPS_PER_REPEAT // num_envs), MAX_CALLS)

    def work() -> int:
        for _ in range(calls):
            backend.recv()
            backend.send(next(actions))
        return calls * num_envs

    return work


def _masked(backend: Backend) -> Callable[[], int]:
    """The same with action masks: sampling allowed actions is part of the measurement."""
    act = random_actor(backend.spec, 0)
    calls = min(-(-STEPS_PER_REPEAT // backend.num_envs), MAX_CALLS)

    def work() -> int:
        for _ in range(calls):
            backend.send(act(backend.recv()))
        return calls * backend.num_envs

    return work


def _plain_loop(env_id: str) -> Callable[[], int]:
    """One Gymnasium env in a Python loop, without the passive checker."""
    env = gymnasium.make(env_id, disable_env_checker=True)
    env.reset(seed=0)
    actions = cycle(np.random.default_rng(0).integers(0, 2, 1_000).tolist())
    calls = 20_000

    def work() -> int:
        for _ in range(calls):
            _, _, terminated, truncated, _ = env.step(next(actions))
            if terminated or truncated:
                env.reset()
        return calls

    return work
