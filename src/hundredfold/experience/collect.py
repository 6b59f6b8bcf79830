"""Gathering steps: the one place where backend, policy and experience meet.

Also keeps the running return and length of every env's episode, because only here do all rewards
pass by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from hundredfold.core import streams
from hundredfold.core.batch import (
    Array,
    Arrays,
    BoolArray,
    IntArray,
    State,
    StepBatch,
    copies,
    fill,
)
from hundredfold.core.contracts import Backend
from hundredfold.experience.rollout import Choice

# The policy's own streams stand apart from the envs': they hang under another branch of the seed.
POLICY_BRANCH: Final = 0x706F6C696379


class Policy(Protocol):
    """Chooses an allowed action for each row; all its luck comes in as `uniforms`."""

    def choose(
        self, observation: Arrays, mask: BoolArray | None, uniforms: NDArray[np.float64]
    ) -> Choice: ...


class Experience(Protocol):
    """Whatever keeps steps for a learner."""

    def add_choice(self, batch: StepBatch, choice: Choice) -> None: ...

    def add_outcome(self, batch: StepBatch) -> None: ...


@dataclass(slots=True)
class Episodes:
    """The episodes that ended while collecting, in the order they ended."""

    returns: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    info: dict[str, list[Array]] = field(default_factory=dict)

    def means(self) -> dict[str, float]:
        """Averages for the metrics; empty when nothing ended."""
        if not self.returns:
            return {}
        means = {
            "avg_reward": float(np.mean(self.returns)),
            "avg_episode_steps": float(np.mean(self.lengths)),
        }
        for name, values in self.info.items():
            means[f"avg_{name}"] = float(np.mean(np.concatenate(values), dtype=np.float64))
        return means


class Collector:
    """Plays a policy on a backend. Between two calls it holds the batch that waits for actions."""

    def __init__(self, backend: Backend, seed: int) -> None:
        self.backend = backend
        rows = backend.num_envs
        branch = streams.spawn(streams.seed_key(seed), POLICY_BRANCH)
        self.policy_keys = streams.spawn(branch, np.arange(rows))
        self.num_parts = len(backend.spec.choices)
        self.choices_made = np.zeros(rows, np.int64)
        self.returns = np.zeros(rows)
        self.lengths = np.zeros(rows, np.int64)
        self.waiting: StepBatch | None = None

    def start(self, seed: int) -> None:
        """Reset every env."""
        self.backend.reset(seed)
        self.waiting = self.backend.recv()

    def collect(
        self,
        policy: Policy,
        experience: Experience,
        num_steps: int,
        tick: Callable[[], None] = lambda: None,
        listeners: Sequence[Callable[[StepBatch], None]] = (),
    ) -> Episodes:
        """Play `num_steps` steps of every env.

        After each batch `listeners` hear what came of it, then `tick` is called.
        """
        assert self.waiting is not None, "start() or restore() comes first"
        batch, episodes = self.waiting, Episodes()
        rows_left = num_steps * self.backend.num_envs
        while rows_left > 0:
            choice = policy.choose(batch.observation, batch.mask, self._uniforms(batch.env_ids))
            experience.add_choice(batch, choice)
            self.backend.send(choice.actions)
            batch = self.waiting = self.backend.recv()
            experience.add_outcome(batch)
            self._follow_episodes(batch, episodes)
            for hear in listeners:
                hear(batch)
            rows_left -= len(batch)
            tick()
        return episodes

    def state(self) -> Arrays:
        return copies(self._arrays())

    def restore(self, state: State, world: State) -> None:
        """Go on from a snapshot of the collector and of the backend's world."""
        fill(self._arrays(), state)
        self.backend.restore(world)
        self.waiting = self.backend.recv()
        if not self.backend.spec.has_snapshots:
            # These episodes could not be continued: others have begun in their place.
            self.returns[:] = 0.0
            self.lengths[:] = 0

    def _uniforms(self, env_ids: IntArray) -> NDArray[np.float64]:
        """(rows, parts) fresh numbers in [0, 1), a matter of each env's own count of choices."""
        first = self.choices_made[env_ids] * self.num_parts
        self.choices_made[env_ids] += 1
        counts = first[:, None] + np.arange(self.num_parts)
        return streams.uniforms(self.policy_keys[env_ids][:, None], counts)

    def _follow_episodes(self, batch: StepBatch, episodes: Episodes) -> None:
        ids = batch.env_ids
        self.returns[ids] += batch.reward
        self.lengths[ids] += 1
        ended = batch.ended
        if not ended.any():
            return
        over = ids[ended]
        episodes.returns.extend(self.returns[over].tolist())
        episodes.lengths.extend(self.lengths[over].tolist())
        for name, array in batch.episode_info.items():
            episodes.info.setdefault(name, []).append(array[ended])
        self.returns[over] = 0.0
        self.lengths[over] = 0

    def _arrays(self) -> Arrays:
        return {
            "choices_made": self.choices_made,
            "returns": self.returns,
            "lengths": self.lengths,
        }
