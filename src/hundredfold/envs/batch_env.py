"""Base class of built-in envs: RNG keys, output buffers, snapshots."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from hundredfold.core import rng
from hundredfold.core.batch import (
    Array,
    Arrays,
    EnvSpec,
    IntArray,
    State,
    StepBatch,
    copies,
    fill,
    slice_rows,
    with_prefix,
)
from hundredfold.core.protocols import SharedParams


class ArrayBatchEnv(ABC):
    """A batch of envs that are rows of arrays.

    A subclass implements `start`, `step` and `state_arrays`. The RNG key of row i in its current
    episode is `rng.spawn(self.env_keys[i], self.episodes[i])`.

    Args:
        spec: the env's spec.
        env_ids: (envs,) ids of these envs; the randomness of an env depends on its id.
    """

    def __init__(self, spec: EnvSpec, env_ids: IntArray) -> None:
        self.spec = spec
        self.env_ids = np.asarray(env_ids, np.int64)
        self.num_envs = len(self.env_ids)
        self.env_keys = np.zeros(self.num_envs, np.uint64)
        self.episodes = np.zeros(self.num_envs, np.int64)
        self.first_episode = 0  # number of the episode that `reset` starts
        self.out = spec.batch(self.env_ids)

    @abstractmethod
    def start(self) -> None:
        """Start the current episode of every env: write first observations and masks to `out`."""

    @abstractmethod
    def step(self, actions: Array) -> StepBatch:
        """Take one action per env; rows that end start their next episode in the same step."""

    @abstractmethod
    def state_arrays(self) -> Arrays:
        """The live arrays that, with the output buffers, are the state; first axis env."""

    def set_output_buffers(self, out: StepBatch) -> None:
        self.out = out

    def reset(self, seed: int) -> StepBatch:
        self._seed(seed)
        self._clear_outputs(truncated=False)
        self.start()
        return self.out

    def truncate_all(self, skip: IntArray, seed: int | None = None) -> StepBatch:
        if seed is not None:
            self._seed(seed)
        for name, array in self.out.observation.items():
            self.out.final_observation[name][...] = array
        for array in self.out.episode_info.values():
            array[...] = 0
        self._clear_outputs(truncated=True)
        self.episodes += skip
        self.start()
        return self.out

    def set_shared_params(self, shared_params: SharedParams) -> None:
        """Ignored unless a subclass overrides it."""

    def state(self) -> Arrays:
        return copies(self._arrays())

    def restore(self, state: State) -> StepBatch:
        fill(self._arrays(), state)
        self.refresh()
        return self.out

    def refresh(self) -> None:
        """Recompute what is derived from the state, after it was written; nothing by default."""

    def step_except(self, rows: IntArray, actions: Array) -> StepBatch:
        """Step all rows but these, which stay as they are, without reward, end or info.

        Not for third-party envs, whose state is not in arrays: `next_step.PerEnvNextStep`.

        Args:
            rows: (rows left out,) their numbers.
            actions: one action per env; those of the rows left out are not used, but allowed.
        """
        out = self.out
        if len(rows) == 0:
            return self.step(actions)
        if len(rows) < self.num_envs:
            saved = slice_rows(self._arrays(), rows)
            self.step(actions)
            for name, array in self._arrays().items():
                array[rows] = saved[name]
            self.refresh()
        out.reward[rows], out.terminated[rows], out.truncated[rows] = 0.0, False, False
        for array in out.info.values():
            array[rows] = 0
        return out

    def timings(self) -> dict[str, float]:
        """Empty unless a subclass overrides it."""
        return {}

    def close(self) -> None:
        """Nothing to release."""

    def _seed(self, seed: int) -> None:
        self.env_keys[:] = rng.spawn(rng.seed_key(seed), self.env_ids)
        self.episodes[:] = self.first_episode

    def _clear_outputs(self, *, truncated: bool) -> None:
        """Write outputs without a step: no reward, no info, truncated or not."""
        self.out.reward[:] = 0.0
        self.out.terminated[:] = False
        self.out.truncated[:] = truncated
        for array in self.out.info.values():
            array[...] = 0

    def _arrays(self) -> Arrays:
        arrays = {"env_keys": self.env_keys, "episodes": self.episodes, **self.state_arrays()}
        return arrays | with_prefix("out", self.out.arrays())
