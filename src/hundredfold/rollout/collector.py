"""Gathering steps: the one place where backend, policy and experience meet.

The luck of a policy: numbers in [0, 1) for the choices it makes for every env.

Each is a matter of the seed, the env and how many choices were made for it so far, whoever asks and
in whatever company.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from hundredfold.core import rng
from hundredfold.core.batch import (
    Arrays,
    BoolArray,
    IntArray,
    State,
    StepBatch,
    concat_batches,
    copies,
    fill,
)
from hundredfold.core.protocols import Backend
from hundredfold.rollout.episode_stats import EpisodeStats, RunningReturns
from hundredfold.rollout.rollout_buffer import ActionSample

# The policy's own streams stand apart from the envs': they hang under another branch of the seed.
POLICY_BRANCH: Final = 0x706F6C696379


class PolicyNoise:
    """Numbers for the choices of the envs `first..first + num_envs - 1`, counted from 0 here."""

    def __init__(self, seed: int, num_envs: int, num_action_dims: int, first: int = 0) -> None:
        from hundredfold.rollout import kernels

        self.kernels = kernels
        branch = rng.spawn(rng.seed_key(seed), POLICY_BRANCH)
        self.keys = rng.spawn(branch, first + np.arange(num_envs))
        self.num_action_dims = num_action_dims

    def take(self, env_ids: IntArray, choices_made: IntArray) -> NDArray[np.float64]:
        """(rows, parts) numbers for one more choice of each of these envs, which is counted."""
        drawn = np.empty((len(env_ids), self.num_action_dims))
        self.kernels.draw_uniforms(self.keys, env_ids, choices_made, drawn)
        return drawn


class Policy(Protocol):
    """Chooses an allowed action for each row; all its luck comes in as `uniforms`."""

    def sample(
        self, observation: Arrays, mask: BoolArray | None, uniforms: NDArray[np.float64]
    ) -> ActionSample: ...


class Experience(Protocol):
    """Whatever keeps steps for a learner."""

    def add_actions(self, batch: StepBatch, choice: ActionSample) -> None: ...

    def add_transitions(self, batch: StepBatch) -> None: ...


class Collector:
    """Plays a policy on a backend. Between two calls it holds the batch that waits for actions."""

    def __init__(self, backend: Backend, seed: int) -> None:
        self.backend = backend
        rows = backend.num_envs
        self.luck = PolicyNoise(seed, rows, backend.spec.num_action_dims)
        self.choices_made = np.zeros(rows, np.int64)
        # Followed here, because only here do all rewards pass by.
        self.unfinished = RunningReturns(rows)
        self.waiting: StepBatch | None = None
        self.received: StepBatch | None = None
        # Steps every env has played beyond those asked for, and whose last step is not heard of.
        self.ahead = np.zeros(rows, np.int64)
        self.acting = np.zeros(rows, bool)
        # Where the time of collecting went, since the beginning.
        self.policy_seconds = self.env_seconds = 0.0

    def start(self, seed: int) -> None:
        """Reset every env."""
        self.backend.reset(seed)
        self.waiting = self.received = self.backend.recv()

    def collect(
        self,
        policy: Policy,
        experience: Experience,
        num_steps: int,
        on_progress: Callable[[], None] = lambda: None,
        listeners: Sequence[Callable[[StepBatch], None]] = (),
    ) -> EpisodeStats:
        """Play `num_steps` steps of every env.

        Where the backend returns whoever is ready, fast envs may run ahead by as many steps; these
        count for the next call. After each batch `listeners` hear what came of it, and `tick` is
        called each time that as many steps were played as there are envs.
        """
        assert self.waiting is not None, "start() or restore() comes first"
        episodes, unheard = EpisodeStats(), None
        self.ahead -= num_steps
        self._hear_late_outcomes(experience, episodes, listeners)
        rows_since_tick = 0
        while self.ahead.min() < 0:
            begin = time.perf_counter()
            acting, held = self._who_acts(self.waiting, num_steps)
            choice = None
            if len(acting):
                uniforms = self.luck.take(acting.env_ids, self.choices_made)
                choice = policy.sample(acting.observation, acting.mask, uniforms)
            self.policy_seconds += time.perf_counter() - begin
            if unheard is not None:
                # These rows last: envs go on before anything of them is written down.
                self._send(acting, choice)
                self._hear(unheard, experience, episodes, listeners)
            if choice is not None:
                experience.add_actions(acting, choice)
            if unheard is None:
                self._send(acting, choice)
            batch = self._recv()
            self._count(batch)
            self.waiting = batch if held is None else concat_batches(held, batch)
            if batch.is_copy:
                unheard = batch
            else:
                unheard = None
                self._hear(batch, experience, episodes, listeners)
            rows_since_tick += len(batch)
            if rows_since_tick >= self.backend.num_envs:
                rows_since_tick -= self.backend.num_envs
                on_progress()
        if unheard is not None:
            self._hear(unheard, experience, episodes, listeners)
        return episodes

    def state(self) -> Arrays:
        return copies(self._arrays())

    def restore(self, state: State, env: State) -> None:
        """Go on from a snapshot of the collector and of the backend's env."""
        fill(self._arrays(), state)
        self.backend.restore(env)
        # Everybody, also those whose outcome was still awaited: `collect` hears of it first.
        self.waiting = self.received = self.backend.recv()
        if not self.backend.spec.has_snapshots:
            # These episodes could not be continued: others have begun in their place.
            self.unfinished.forget()

    def _who_acts(self, batch: StepBatch, num_steps: int) -> tuple[StepBatch, StepBatch | None]:
        """The rows that go on, and those that have run so far ahead that they wait for others."""
        ahead = self.ahead[batch.env_ids]
        if ahead.max(initial=0) < num_steps:
            return batch, None
        # A group goes on as long as one of its envs has steps to play.
        groups = self.backend.groups[batch.env_ids]
        goes_on = np.isin(groups, groups[ahead < num_steps])
        if goes_on.all():
            return batch, None
        return batch.take(np.flatnonzero(goes_on)), batch.take(np.flatnonzero(~goes_on))

    def _recv(self) -> StepBatch:
        begin = time.perf_counter()
        self.received = self.backend.recv()
        self.env_seconds += time.perf_counter() - begin
        return self.received

    def _send(self, acting: StepBatch, choice: ActionSample | None) -> None:
        """Give everybody who acts an action; say to whom where it is not just the last batch."""
        begin = time.perf_counter()
        self.acting[acting.env_ids] = True
        if choice is None:
            self.backend.send(np.zeros(0, np.int64), acting.env_ids)
        elif acting is self.received:
            self.backend.send(choice.actions)
        else:
            self.backend.send(choice.actions, acting.env_ids)
        self.env_seconds += time.perf_counter() - begin

    def _count(self, batch: StepBatch) -> None:
        """These rows have played a step."""
        self.acting[batch.env_ids] = False
        self.ahead[batch.env_ids] += 1

    def _hear(
        self,
        batch: StepBatch,
        experience: Experience,
        episodes: EpisodeStats,
        listeners: Sequence[Callable[[StepBatch], None]],
    ) -> None:
        """Take in what came of the last action of these rows."""
        experience.add_transitions(batch)
        self.unfinished.step(batch.env_ids, batch.reward, batch.ended, batch.episode_info, episodes)
        for hear in listeners:
            hear(batch)

    def _hear_late_outcomes(
        self,
        experience: Experience,
        episodes: EpisodeStats,
        listeners: Sequence[Callable[[StepBatch], None]],
    ) -> None:
        """After a restore: outcomes that were on their way when the snapshot was taken."""
        assert self.waiting is not None
        late = np.flatnonzero(self.acting[self.waiting.env_ids])
        if not len(late):
            return
        outcomes = self.waiting.take(late)
        self._count(outcomes)
        if self.backend.spec.has_snapshots:
            self._hear(outcomes, experience, episodes, listeners)
        else:
            # Their episodes were cut off by the restore: there is nothing to tell of them.
            experience.add_transitions(outcomes)

    def _arrays(self) -> Arrays:
        return {
            "choices_made": self.choices_made,
            **self.unfinished.arrays(),
            "ahead": self.ahead,
            "acting": self.acting,
        }
