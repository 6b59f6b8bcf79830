"""built-in envs, and other people's envs, as the vector envs of Stable-Baselines3.

Observations and actions are those of `interop.window`: flat rows, so that its replay of several
steps, which takes plain arrays only, works everywhere; `networks` knows what lies where in them.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import gymnasium
import numpy as np
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

from hundredfold.backends.call_checks import checked_actions
from hundredfold.backends.settings import WorkerSettings
from hundredfold.config.run import RunSettings
from hundredfold.core.batch import Array, BoolArray, StepBatch
from hundredfold.core.protocols import Backend, EnvFactory, PerEnvBatch
from hundredfold.envs.batch_env import ArrayBatchEnv
from hundredfold.interop.flat_spaces import Window

Env = gymnasium.Env[Any, Any]

MASKS: Final = "action_masks"

# How a worker of SubprocVecEnv that could not start, or has gone, makes itself felt.
WORKER_TROUBLE: Final = (OSError, EOFError, pickle.PicklingError, AttributeError, TypeError)


class BackendVecEnv(VecEnv):
    """A batch of envs on any backend of ours that returns everybody."""

    def __init__(self, backend: Backend, seed: int) -> None:
        self.backend, self.first_seed = backend, seed
        self.window = Window(backend.spec)
        self.batch: StepBatch = backend.spec.batch(np.arange(backend.num_envs))
        super().__init__(backend.num_envs, self.window.observation_space, self.window.action_space)

    def reset(self) -> Array:
        """Start episode 0 of every env."""
        self.backend.reset(self.first_seed)
        self.batch = self.backend.recv()
        return self.window.seen(self.batch.observation)

    def step_async(self, actions: Array) -> None:
        self.backend.send(self.window.played(actions))

    def step_wait(self) -> tuple[Array, Array, BoolArray, list[dict[str, Any]]]:
        self.batch = batch = self.backend.recv()
        ended = batch.ended
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        rows = np.flatnonzero(ended)
        if len(rows):
            last = self.window.seen(batch.final_observation)
            for row in rows:
                infos[row] = {
                    "terminal_observation": last[row],
                    "TimeLimit.truncated": not batch.terminated[row],
                }
        seen = self.window.seen(batch.observation)
        return seen, batch.reward.astype(np.float32), ended, infos

    def env_method(
        self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any
    ) -> list[Any]:
        """Only masks can be asked for."""
        return [mask_of_env() for mask_of_env in self.get_attr(method_name, indices)]

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Whatever somebody asks of a single env."""
        rows = self._rows(indices)
        if attr_name == "render_mode":
            return [None] * len(rows)
        if attr_name == MASKS and self.batch.mask is not None:
            return [partial(self.batch.mask.__getitem__, row) for row in rows]
        raise AttributeError(f"the envs of {self.backend.spec.name} have no {attr_name!r}.")

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise AttributeError(f"{attr_name!r} cannot be set on rows of a batch.")

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Any = None) -> list[bool]:
        return [False] * len(self._rows(indices))

    def close(self) -> None:
        """The backend is closed by whoever made it."""

    def _rows(self, indices: int | Iterable[int] | None) -> list[int]:
        return list(self._get_indices(indices))


class OneEnv(Env):
    """One env of an env that holds nothing else, for vector envs that are made of single ones."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(
        self, make_envs: EnvFactory, env_id: int, seed: int, workers: WorkerSettings
    ) -> None:
        env = make_envs(np.array([env_id]))
        assert isinstance(env, ArrayBatchEnv)
        if isinstance(env, PerEnvBatch):
            # An env that fails is made anew here as it is with our own backends.
            env.restart_policy = workers.restart_policy()
        self.env, self.first_seed, self.has_begun = env, seed, False
        self.window = Window(env.spec)
        self.observation_space = self.window.observation_space
        self.action_space = self.window.action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """The first observation of an episode that the env itself has begun, save the first."""
        if not self.has_begun:
            self.env.reset(self.first_seed)
            self.has_begun = True
        return self.window.seen(self.env.out.observation)[0], {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Play one action."""
        moves = self.window.played(np.asarray(action)[None])
        out = self.env.step(checked_actions(moves, self.env.out, self.env.spec))
        shown = out.final_observation if out.ended[0] else out.observation
        seen = self.window.seen(shown)[0]
        return seen, float(out.reward[0]), bool(out.terminated[0]), bool(out.truncated[0]), {}

    def action_masks(self) -> BoolArray:
        """(actions,) what may be done now."""
        assert self.env.out.mask is not None
        mask: BoolArray = self.env.out.mask[0].copy()
        return mask

    def close(self) -> None:
        self.env.close()


def single_envs(make_envs: EnvFactory, settings: RunSettings, *, apart: bool) -> VecEnv:
    """Envs that are not ours: a process each, or one after another where that is not to be."""
    makers: list[Callable[[], Env]] = [
        partial(OneEnv, make_envs, env_id, settings.seed, settings.processes)
        for env_id in range(settings.rollout.num_envs)
    ]
    if apart:
        try:
            return SubprocVecEnv(makers)
        except WORKER_TROUBLE as error:
            warnings.warn(
                f"SubprocVecEnv could not start ({type(error).__name__}: {error}); DummyVecEnv "
                "steps the envs one after another in this process instead.",
                stacklevel=2,
            )
    return DummyVecEnv(makers)
