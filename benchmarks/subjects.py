"""Systems under measurement: backends of hundredfold and vector envs of other libraries.

All are stepped batch by batch with actions drawn beforehand, without a policy.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from itertools import cycle
from typing import Any, Final, Protocol

import gymnasium
import numpy as np

from hundredfold.backends import make_backend
from hundredfold.backends.settings import WorkerSettings, usable_cores
from hundredfold.core.action_scaling import random_actions
from hundredfold.core.batch import Array, EnvSpec
from hundredfold.core.errors import is_installed
from hundredfold.core.protocols import EnvFactory

EnvMaker = Callable[[], gymnasium.Env[Any, Any]]
VectorEnvMaker = Callable[[EnvMaker, int], Any]

# Batches of actions that are drawn beforehand and used over and over.
NUM_PREDRAWN: Final = 64


def predrawn_actions(spec: EnvSpec, num_envs: int) -> Array:
    """(NUM_PREDRAWN, envs, ...) random actions, without regard to masks."""
    uniforms = np.random.default_rng(0).random((NUM_PREDRAWN * num_envs, spec.num_logits))
    return random_actions(spec, uniforms).reshape(NUM_PREDRAWN, num_envs, *spec.action_shape)


class Subject(Protocol):
    """Envs that are stepped batch by batch."""

    def step_batch(self) -> tuple[int, float]:
        """Step one batch; returns the number of env steps and the sum of their rewards."""
        ...

    def wait_until_idle(self) -> None:
        """Wait until no env is stepping, so that the next subject has the machine for itself."""
        ...

    def close(self) -> None: ...


class BackendSubject:
    """A backend of hundredfold; with first_ready a batch is the envs that are ready."""

    def __init__(
        self,
        backend: str,
        make_envs: EnvFactory,
        num_envs: int,
        settings: WorkerSettings | None = None,
        *,
        read_infos: bool = False,
    ) -> None:
        self.backend = make_backend(backend, make_envs, num_envs, settings)
        self.read_infos = read_infos
        self.actions = cycle(predrawn_actions(self.backend.spec, num_envs))
        self.backend.reset(0)
        # Envs that wait for an action: those of the last recv, or all envs when idle.
        self.ready_ids = self.backend.recv().env_ids
        self.is_idle = False

    def step_batch(self) -> tuple[int, float]:
        actions = next(self.actions)[: len(self.ready_ids)]
        self.backend.send(actions, self.ready_ids if self.is_idle else None)
        batch = self.backend.recv()
        self.ready_ids, self.is_idle = batch.env_ids, False
        if self.read_infos and batch.infos is not None:
            for info in batch.infos:
                len(info)
        return len(batch), float(batch.reward.sum())

    def wait_until_idle(self) -> None:
        none = np.zeros(0, np.int64)
        while len(self.ready_ids) < self.backend.num_envs:
            self.backend.send(none, none)
            self.ready_ids = np.concatenate([self.ready_ids, self.backend.recv().env_ids])
        self.is_idle = True

    def close(self) -> None:
        self.backend.close()


class VectorEnvSubject:
    """A vector env of another library: all its envs step at once."""

    def __init__(self, envs: Any, num_envs: int, num_actions: int) -> None:
        self.envs, self.num_envs = envs, num_envs
        rng = np.random.default_rng(0)
        self.actions = cycle(rng.integers(0, num_actions, (NUM_PREDRAWN, num_envs)))
        envs.reset()

    def step_batch(self) -> tuple[int, float]:
        # In Gymnasium, Stable-Baselines3 and EnvPool alike, rewards are the second result.
        rewards = self.envs.step(next(self.actions))[1]
        return self.num_envs, float(rewards.sum())

    def wait_until_idle(self) -> None:
        """Always idle between two steps."""

    def close(self) -> None:
        self.envs.close()


def gymnasium_envs(kind: str, make_env: EnvMaker, num_envs: int) -> Any:
    """Gymnasium's vector envs, sync or async."""
    makers: dict[str, Any] = {"sync": gymnasium.vector.SyncVectorEnv, "async": gymnasium.vector.AsyncVectorEnv}
    return makers[kind]([make_env] * num_envs)


def stable_baselines_envs(kind: str, make_env: EnvMaker, num_envs: int) -> Any:
    """Vector envs of Stable-Baselines3; forked, else every process would import torch."""
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    if kind == "dummy":
        return DummyVecEnv([make_env] * num_envs)
    return SubprocVecEnv([make_env] * num_envs, start_method="fork")


def envpool_envs(env_id: str, num_envs: int) -> Any:
    """EnvPool's own C++ envs, which have the ids of Gymnasium's."""
    threads = min(usable_cores(), num_envs)
    return import_module("envpool").make_gymnasium(env_id, num_envs=num_envs, num_threads=threads)


def vector_env_makers() -> dict[tuple[str, str], VectorEnvMaker]:
    """Installed vector envs that take any env, by (library, kind)."""
    makers: dict[tuple[str, str], VectorEnvMaker] = {
        ("gymnasium", kind): partial(gymnasium_envs, kind) for kind in ("sync", "async")
    }
    if is_installed("stable_baselines3"):
        for kind in ("dummy", "subproc"):
            makers["stable-baselines3", kind] = partial(stable_baselines_envs, kind)
    return makers
