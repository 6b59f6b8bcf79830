"""Vector envs of Stable-Baselines3: built-in envs on a backend, third-party envs one by one.

Observations and actions are those of `interop.flat_spaces`, because the n-step replay buffer of
Stable-Baselines3 takes plain arrays only; `networks` splits them again.
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
from hundredfold.interop.flat_spaces import FlatSpaces

Env = gymnasium.Env[Any, Any]

MASK_METHOD: Final = "action_masks"

# Raised when a worker of SubprocVecEnv cannot start or dies while starting.
START_ERRORS: Final = (OSError, EOFError, pickle.PicklingError, AttributeError, TypeError)


class BackendVecEnv(VecEnv):
    """The envs of a backend; it must return all envs at every step.

    Args:
        backend: Runs the envs; it is not closed with this env.
        seed: Of the envs.
    """

    def __init__(self, backend: Backend, seed: int) -> None:
        self.backend, self.env_seed = backend, seed
        self.flat = FlatSpaces(backend.spec)
        self.batch: StepBatch = backend.spec.batch(np.arange(backend.num_envs))
        super().__init__(backend.num_envs, self.flat.observation_space, self.flat.action_space)

    def reset(self) -> Array:
        """Start episode 0 of every env."""
        self.backend.reset(self.env_seed)
        self.batch = self.backend.recv()
        return self.flat.flatten(self.batch.observation)

    def step_async(self, actions: Array) -> None:
        self.backend.send(self.flat.unflatten_action(actions))

    def step_wait(self) -> tuple[Array, Array, BoolArray, list[dict[str, Any]]]:
        self.batch = batch = self.backend.recv()
        ended = batch.ended
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        rows = np.flatnonzero(ended)
        if len(rows):
            final = self.flat.flatten(batch.final_observation)
            for row in rows:
                infos[row] = {"terminal_observation": final[row], "TimeLimit.truncated": not batch.terminated[row]}
        observation = self.flat.flatten(batch.observation)
        return observation, batch.reward.astype(np.float32), ended, infos

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """Call a method of single envs; `action_masks` is the only one."""
        return [method() for method in self.get_attr(method_name, indices)]

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Attributes of single envs: `render_mode` and `action_masks`."""
        rows = self._rows(indices)
        if attr_name == "render_mode":
            return [None] * len(rows)
        if attr_name == MASK_METHOD and self.batch.mask is not None:
            return [partial(self.batch.mask.__getitem__, row) for row in rows]
        raise AttributeError(f"the envs of {self.backend.spec.name} have no attribute {attr_name!r}.")

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise AttributeError(f"{attr_name!r} cannot be set: the envs are rows of a batch.")

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Any = None) -> list[bool]:
        return [False] * len(self._rows(indices))

    def close(self) -> None:
        """Do nothing: the backend is closed by its owner."""

    def _rows(self, indices: int | Iterable[int] | None) -> list[int]:
        return list(self._get_indices(indices))


class SingleEnv(Env):
    """One third-party env, for vector envs that are made of single ones.

    Args:
        make_envs: Env factory.
        env_id: The env, whose seeds are those it has on any backend.
        seed: Of the run.
        workers: Restart policy.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self, make_envs: EnvFactory, env_id: int, seed: int, workers: WorkerSettings) -> None:
        env = make_envs(np.array([env_id]))
        assert isinstance(env, ArrayBatchEnv)
        if isinstance(env, PerEnvBatch):
            # A failed env is recreated as on the backends of this package.
            env.restart_policy = workers.restart_policy()
        self.env, self.env_seed, self.has_started = env, seed, False
        self.flat = FlatSpaces(env.spec)
        self.observation_space = self.flat.observation_space
        self.action_space = self.flat.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """The first observation of an episode; later episodes start by themselves in `step`."""
        if not self.has_started:
            self.env.reset(self.env_seed)
            self.has_started = True
        return self.flat.flatten(self.env.out.observation)[0], {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Take one action."""
        actions = self.flat.unflatten_action(np.asarray(action)[None])
        out = self.env.step(checked_actions(actions, self.env.out, self.env.spec))
        arrays = out.final_observation if out.ended[0] else out.observation
        observation = self.flat.flatten(arrays)[0]
        terminated, truncated = bool(out.terminated[0]), bool(out.truncated[0])
        return observation, float(out.reward[0]), terminated, truncated, {}

    def action_masks(self) -> BoolArray:
        """(actions,) allowed actions."""
        assert self.env.out.mask is not None
        mask: BoolArray = self.env.out.mask[0].copy()
        return mask

    def close(self) -> None:
        self.env.close()


def make_third_party_envs(make_envs: EnvFactory, settings: RunSettings, *, in_processes: bool) -> VecEnv:
    """Third-party envs, one process each, or in this process if that is not wanted or fails."""
    env_fns: list[Callable[[], Env]] = [
        partial(SingleEnv, make_envs, env_id, settings.seed, settings.processes)
        for env_id in range(settings.rollout.num_envs)
    ]
    if in_processes:
        try:
            return SubprocVecEnv(env_fns)
        except START_ERRORS as error:
            warnings.warn(
                f"SubprocVecEnv could not start ({type(error).__name__}: {error}); DummyVecEnv "
                "steps the envs one by one in this process instead.",
                stacklevel=2,
            )
    return DummyVecEnv(env_fns)
