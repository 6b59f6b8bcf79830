"""Ours and the peers behind one handle: a call plays one batch of steps, without a policy."""

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
from hundredfold.core.action_scaling import uniform_actions
from hundredfold.core.batch import Array, EnvSpec
from hundredfold.core.errors import is_installed
from hundredfold.core.protocols import EnvFactory

EnvMaker = Callable[[], gymnasium.Env[Any, Any]]

# Batches of actions that are drawn beforehand and played over and over.
DRAWN: Final = 64


def drawn_actions(spec: EnvSpec, num_envs: int) -> Array:
    """(turns, envs, ...) any actions, drawn beforehand."""
    draw = np.random.default_rng(0)
    if spec.continuous_action is not None:
        luck = draw.random((DRAWN * num_envs, spec.num_action_dims))
        return uniform_actions(spec.continuous_action, luck).reshape(
            DRAWN, num_envs, *spec.action_shape
        )
    choices = spec.action_nvec if spec.action_shape else spec.action_nvec[0]
    return draw.integers(0, choices, (DRAWN, num_envs, *spec.action_shape))


class Player(Protocol):
    """Envs that are played batch by batch."""

    def advance(self) -> tuple[int, float]:
        """Play a batch; how many steps that were, and the sum of their rewards."""
        ...

    def rest(self) -> None:
        """Wait until no env is at work, so that the next player has the machine for itself."""
        ...

    def close(self) -> None: ...


class OurPlayer:
    """A backend of ours; in first_ready a batch is whoever is ready."""

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
        spec = self.backend.spec
        self.actions = cycle(drawn_actions(spec, num_envs))
        self.backend.reset(0)
        # Who waits for an action. After a rest these are more than came with the last recv.
        self.waiting = self.backend.recv().env_ids
        self.rested = False

    def advance(self) -> tuple[int, float]:
        actions = next(self.actions)[: len(self.waiting)]
        self.backend.send(actions, self.waiting if self.rested else None)
        batch = self.backend.recv()
        self.waiting, self.rested = batch.env_ids, False
        if self.read_infos and batch.infos is not None:
            for info in batch.infos:
                len(info)
        return len(batch), float(batch.reward.sum())

    def rest(self) -> None:
        nobody = np.zeros(0, np.int64)
        while len(self.waiting) < self.backend.num_envs:
            self.backend.send(nobody, nobody)
            self.waiting = np.concatenate([self.waiting, self.backend.recv().env_ids])
        self.rested = True

    def close(self) -> None:
        self.backend.close()


class PeerPlayer:
    """A vector env of somebody else's: all its envs step at once."""

    def __init__(self, envs: Any, num_envs: int, choices: int) -> None:
        self.envs, self.num_envs = envs, num_envs
        draw = np.random.default_rng(0)
        self.actions = cycle(draw.integers(0, choices, (DRAWN, num_envs)))
        envs.reset()

    def advance(self) -> tuple[int, float]:
        # Gymnasium, Stable-Baselines3 and EnvPool agree on what comes second.
        rewards = self.envs.step(next(self.actions))[1]
        return self.num_envs, float(rewards.sum())

    def rest(self) -> None:
        """Nobody is at work between two steps."""

    def close(self) -> None:
        self.envs.close()


PeerMaker = Callable[[EnvMaker, int], Any]


def gymnasium_envs(kind: str, make_env: EnvMaker, num_envs: int) -> Any:
    """Gymnasium's own vector envs."""
    makers: dict[str, Any] = {
        "sync": gymnasium.vector.SyncVectorEnv,
        "async": gymnasium.vector.AsyncVectorEnv,
    }
    return makers[kind]([make_env] * num_envs)


def stable_baselines_envs(kind: str, make_env: EnvMaker, num_envs: int) -> Any:
    """Those of Stable-Baselines3; forked, because anything else loads torch in every process."""
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    if kind == "dummy":
        return DummyVecEnv([make_env] * num_envs)
    return SubprocVecEnv([make_env] * num_envs, start_method="fork")


def envpool_envs(env_id: str, num_envs: int) -> Any:
    """EnvPool has envs of its own, in C++, known by the ids of Gymnasium's."""
    threads = min(usable_cores(), num_envs)
    return import_module("envpool").make_gymnasium(env_id, num_envs=num_envs, num_threads=threads)


def peers() -> dict[tuple[str, str], PeerMaker]:
    """(system, its backend) of every peer that is installed and takes any env."""
    found: dict[tuple[str, str], PeerMaker] = {
        ("gymnasium", kind): partial(gymnasium_envs, kind) for kind in ("sync", "async")
    }
    if is_installed("stable_baselines3"):
        for kind in ("dummy", "subproc"):
            found["stable-baselines3", kind] = partial(stable_baselines_envs, kind)
    return found
