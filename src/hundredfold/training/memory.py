"""Memory of envs, measured on a few: built-in envs by their arrays, third-party envs by the growth of their process."""

from __future__ import annotations

import time
import tracemalloc
from typing import Final

import numpy as np
import psutil

from hundredfold.core.batch import Arrays, EnvSpec, State
from hundredfold.core.protocols import BatchEnv, EnvFactory
from hundredfold.envs.registry import ENVS
from hundredfold.training.evaluate import random_actor

# Third-party envs that are created to measure their memory, while it takes less than some seconds.
MEMORY_ENVS: Final = 32
MEMORY_SECONDS: Final = 1.0


def env_bytes(name: str, factory: EnvFactory) -> int:
    """Bytes of one env.

    Args:
        name: Name of the env.
        factory: Creates envs.
    """
    return size_of(state_of(factory)) if name in ENVS else measured_env_bytes(factory)


def state_of(factory: EnvFactory) -> State:
    """All arrays of one built-in env, of which one is created for a moment."""
    env = factory(np.arange(1))
    try:
        env.reset(0)
        return env.state()
    finally:
        env.close()


def measured_env_bytes(factory: EnvFactory) -> int:
    """Bytes of a third-party env: growth of this process when more of them are created and stepped.

    The first env is not counted, because it also loads libraries. Memory that allocators had left over does
    not show as growth, so that Python objects are traced as well.
    """
    process = psutil.Process()
    batches = [_played(factory, 0, 1)]
    resident, num_envs, begun = process.memory_info().rss, 0, time.perf_counter()
    tracemalloc.start()
    try:
        while num_envs < MEMORY_ENVS and (not num_envs or time.perf_counter() - begun < MEMORY_SECONDS):
            size = max(1, num_envs)
            batches.append(_played(factory, 1 + num_envs, size))
            num_envs += size
        traced = tracemalloc.get_traced_memory()[0]
        grown = process.memory_info().rss - resident
    finally:
        tracemalloc.stop()
        for batch in batches:
            batch.close()
    return int(max(traced, grown)) // num_envs


def _played(factory: EnvFactory, first: int, num_envs: int) -> BatchEnv:
    """Envs after their first step, which often allocates."""
    env = factory(np.arange(first, first + num_envs))
    try:
        env.step(random_actor(env.spec, 0)(env.reset(0)))
    except BaseException:
        env.close()
        raise
    return env


def spec_of(factory: EnvFactory) -> EnvSpec:
    """Observation and action spec of an env, of which one is created for a moment."""
    env = factory(np.arange(1))
    try:
        return env.spec
    finally:
        env.close()


def size_of(arrays: State | Arrays) -> int:
    """Bytes of all arrays."""
    return sum(array.nbytes for array in arrays.values())
