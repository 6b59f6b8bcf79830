"""What every env of ours shares: stream keys of its envs, output buffers, snapshots."""

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
    with_prefix,
)
from hundredfold.core.protocols import SharedParams


class ArrayBatchEnv(ABC):
    """A batch env whose envs are rows of arrays.

    A subclass starts episodes, steps, and names its arrays in `state_arrays`; keys, buffers and
    snapshots are done here. The stream of row i in its current episode is
    `rng.spawn(self.env_keys[i], self.episodes[i])`.
    """

    def __init__(self, spec: EnvSpec, env_ids: IntArray) -> None:
        self.spec = spec
        self.env_ids = np.asarray(env_ids, np.int64)
        self.num_envs = len(self.env_ids)
        self.env_keys = np.zeros(self.num_envs, np.uint64)
        self.episodes = np.zeros(self.num_envs, np.int64)
        self.out = spec.batch(self.env_ids)

    @abstractmethod
    def start(self) -> None:
        """Begin the current episode of every env and write its first observation and mask."""

    @abstractmethod
    def step(self, actions: Array) -> StepBatch:
        """Play one action per env; rows that end begin their next episode in the same step."""

    @abstractmethod
    def state_arrays(self) -> Arrays:
        """The live arrays that, with the output buffers, make up the state; first axis env."""

    def set_output_buffers(self, out: StepBatch) -> None:
        self.out = out

    def reset(self, seed: int) -> StepBatch:
        self._take_seed(seed)
        self._say_nothing(truncated=False)
        self.start()
        return self.out

    def truncate_all(self, ahead: IntArray, seed: int | None = None) -> StepBatch:
        if seed is not None:
            self._take_seed(seed)
        for name, array in self.out.observation.items():
            self.out.final_observation[name][...] = array
        for array in self.out.episode_info.values():
            array[...] = 0
        self._say_nothing(truncated=True)
        self.episodes += ahead
        self.start()
        return self.out

    def set_shared_params(self, shared_params: SharedParams) -> None:
        """Nothing to learn from belief models unless a subclass says so."""

    def state(self) -> Arrays:
        return copies(self._arrays())

    def restore(self, state: State) -> StepBatch:
        fill(self._arrays(), state)
        return self.out

    def timings(self) -> dict[str, float]:
        """Nothing is counted unless a subclass says so."""
        return {}

    def close(self) -> None:
        """Arrays need no closing."""

    def _take_seed(self, seed: int) -> None:
        self.env_keys[:] = rng.spawn(rng.seed_key(seed), self.env_ids)
        self.episodes[:] = 0

    def _say_nothing(self, *, truncated: bool) -> None:
        """No step was played: no reward, no info, and no end but the one that was forced."""
        self.out.reward[:] = 0.0
        self.out.terminated[:] = False
        self.out.truncated[:] = truncated
        for array in self.out.info.values():
            array[...] = 0

    def _arrays(self) -> Arrays:
        kept = {"env_keys": self.env_keys, "episodes": self.episodes, **self.state_arrays()}
        return kept | with_prefix("out", self.out.arrays())
