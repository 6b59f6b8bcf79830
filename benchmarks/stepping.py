"""How fast an env steps against the number of envs, beside plain loops.

Actions are drawn beforehand and no network is involved. Two yardsticks, because a batch of one
flatters: a batch against a batch of one, and, where the env has a twin in Gymnasium, against a
plain Python loop over that one env.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any, Final

import gymnasium
import numpy as np

from benchmarks.subjects import drawn_actions
from hundredfold.backends import make_backend
from hundredfold.core.protocols import Backend
from hundredfold.envs.registry import env_factory, settings_class
from hundredfold.profiling.measure import OURS, rates_in_turns, rates_row
from hundredfold.training.evaluate import random_actor

# The same game as a plain Gymnasium env.
TWINS: Final = {"cartpole": "CartPole-v1"}
SIZES: Final = (1, 16, 100, 256, 1024)
STEPS_PER_REPEAT: Final = 100_000
MAX_CALLS: Final = 4_000


def bench_stepping(
    env: str,
    num_envs: Sequence[int] = SIZES,
    repeats: int = 5,
    on_progress: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Steps per second at each number of envs; `efficiency` is against that many times one env."""
    sizes = dict.fromkeys((1, *num_envs))
    contestants = {f"{OURS} {size}": _batch(env, size) for size in sizes}
    if env in TWINS:
        contestants["gymnasium"] = _plain_loop(TWINS[env])
    rates = rates_in_turns(contestants, repeats, on_progress)
    one = rates[f"{OURS} 1"].median
    plain = rates["gymnasium"].median if env in TWINS else None
    rows = []
    for size in sizes:
        found = rates[f"{OURS} {size}"]
        row = rates_row(OURS, found, env=env, num_envs=size)
        row["efficiency"] = found.median / (size * one)
        if plain:
            row["times_one_gymnasium_env"] = found.median / plain
        rows.append(row)
    if plain:
        rows.append(rates_row("gymnasium", rates["gymnasium"], env=TWINS[env], num_envs=1))
    return rows


def _batch(env: str, num_envs: int) -> Callable[[], int]:
    """Step one batch of envs; returns the number of env steps."""
    backend = make_backend("in_process", env_factory(env, settings_class(env)()), num_envs)
    backend.reset(0)
    if backend.spec.has_mask:
        return _masked(backend)
    actions = cycle(drawn_actions(backend.spec, num_envs))
    calls = min(-(-STEPS_PER_REPEAT // num_envs), MAX_CALLS)

    def play() -> int:
        for _ in range(calls):
            backend.recv()
            backend.send(next(actions))
        return calls * num_envs

    return play


def _masked(backend: Backend) -> Callable[[], int]:
    """The same where masks decide what may be done: choosing is part of what is measured."""
    act = random_actor(backend.spec, 0)
    calls = min(-(-STEPS_PER_REPEAT // backend.num_envs), MAX_CALLS)

    def play() -> int:
        for _ in range(calls):
            backend.send(act(backend.recv()))
        return calls * backend.num_envs

    return play


def _plain_loop(env_id: str) -> Callable[[], int]:
    """One Gymnasium env in a plain loop, without the passive checker."""
    env = gymnasium.make(env_id, disable_env_checker=True)
    env.reset(seed=0)
    actions = cycle(np.random.default_rng(0).integers(0, 2, 1_000).tolist())
    calls = 20_000

    def play() -> int:
        for _ in range(calls):
            _, _, over, cut, _ = env.step(next(actions))
            if over or cut:
                env.reset()
        return calls

    return play
