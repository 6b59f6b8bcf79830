"""Collector: steps the envs of a backend with a policy and stores the transitions in a buffer."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hundredfold.core import rng
from hundredfold.core.batch import (
    Arrays,
    BoolArray,
    Float32Array,
    IntArray,
    State,
    StepBatch,
    concat_batches,
    copies,
    fill,
)
from hundredfold.core.protocols import Backend
from hundredfold.rollout.episode_stats import EpisodeStats, RunningReturns
from hundredfold.rollout.rollout_buffer import MEMORY, ActionSample

# RNG stream of action sampling, separate from the streams of the envs.
POLICY_STREAM: Final = 0x706F6C696379

StepCallback = Callable[[StepBatch], None]


class PolicyNoise:
    """Uniform random numbers for action sampling, from one RNG stream per env.

    A number depends on the seed, the env and how many actions the env has taken, not on the batch
    in which it is drawn.

    Args:
        seed: seed of the run.
        num_envs: number of envs, with ids 0..num_envs-1 here.
        num_action_dims: numbers drawn per action.
        first: global id of env 0, where these envs are a shard of a larger batch.
    """

    def __init__(self, seed: int, num_envs: int, num_action_dims: int, first: int = 0) -> None:
        from hundredfold.rollout import kernels

        self.kernels = kernels
        stream = rng.spawn(rng.seed_key(seed), POLICY_STREAM)
        self.keys = rng.spawn(stream, first + np.arange(num_envs))
        self.num_action_dims = num_action_dims

    def draw(self, env_ids: IntArray, actions_taken: IntArray) -> NDArray[np.float64]:
        """(rows, action dims) uniforms in [0, 1); increments `actions_taken` of these envs."""
        uniforms = np.empty((len(env_ids), self.num_action_dims))
        self.kernels.draw_uniforms(self.keys, env_ids, actions_taken, uniforms)
        return uniforms


class Policy(Protocol):
    """Samples an allowed action for each row; `uniforms` is its only source of randomness."""

    def sample(self, observation: Arrays, mask: BoolArray | None, uniforms: NDArray[np.float64]) -> ActionSample: ...


@runtime_checkable
class PolicyWithMemory(Policy, Protocol):
    """A policy that may have a memory, whose states the collector keeps."""

    @property
    def memory_size(self) -> int:
        """Size of a state; 0 = no memory."""
        ...

    def sample_with_memory(
        self, observation: Arrays, mask: BoolArray | None, uniforms: NDArray[np.float64], memory: Float32Array
    ) -> ActionSample:
        """The same as `sample` from (rows, size) states; the sample has the next ones."""
        ...


class TransitionBuffer(Protocol):
    """Stores transitions in two calls: the actions when sampled, the rest after the step."""

    def add_actions(self, batch: StepBatch, sample: ActionSample) -> None: ...

    def add_transitions(self, batch: StepBatch) -> None: ...


class Collector:
    """Steps the envs of a backend with a policy and stores the transitions.

    Args:
        backend: where the envs run.
        seed: seed of action sampling.
    """

    def __init__(self, backend: Backend, seed: int) -> None:
        self.backend = backend
        num_envs = backend.num_envs
        self.noise = PolicyNoise(seed, num_envs, backend.spec.num_action_dims)
        self.actions_taken = np.zeros(num_envs, np.int64)
        self.running_returns = RunningReturns(num_envs)
        # Envs that wait for an action, and the last batch of the backend.
        self.batch: StepBatch | None = None
        self.received: StepBatch | None = None
        # (envs,) steps taken beyond those requested, and envs whose step has not returned yet.
        self.steps_ahead = np.zeros(num_envs, np.int64)
        self.in_flight = np.zeros(num_envs, bool)
        # (envs, size) states of the policy's memory; None until a policy has one.
        self.memory: Float32Array | None = None
        # Total time in the policy and in the backend.
        self.policy_seconds = self.env_seconds = 0.0

    def start(self, seed: int) -> None:
        """Reset every env."""
        self.backend.reset(seed)
        self.batch = self.received = self.backend.recv()

    def collect(
        self,
        policy: Policy,
        buffer: TransitionBuffer,
        num_steps: int,
        on_progress: Callable[[], None] = lambda: None,
        step_callbacks: Sequence[StepCallback] = (),
    ) -> EpisodeStats:
        """Take `num_steps` steps in every env.

        With a backend that returns envs as they become ready, fast envs may run ahead by up to
        `num_steps`; these steps count for the next call.

        Args:
            policy: samples the actions.
            buffer: stores the transitions.
            num_steps: steps per env.
            on_progress: called each time as many steps were taken as there are envs.
            step_callbacks: called with each batch after it was stored.

        Returns:
            The episodes that ended.
        """
        assert self.batch is not None, "call start() or restore() first"
        episodes, pending = EpisodeStats(), None
        sample_rows = self._sampler(policy)
        record = partial(self._record, buffer, episodes, step_callbacks)
        self.steps_ahead -= num_steps
        self._record_in_flight(buffer, record)
        rows_since_progress = 0
        while self.steps_ahead.min() < 0:
            begin = time.perf_counter()
            acting, held_back = self._select_rows(self.batch, num_steps)
            sample = None
            if len(acting):
                sample = sample_rows(acting)
            self.policy_seconds += time.perf_counter() - begin
            if pending is not None:
                # `pending` is a copy, so the envs can step while it is stored.
                self._send(acting, sample)
                record(pending)
            if sample is not None:
                buffer.add_actions(acting, sample)
            if pending is None:
                self._send(acting, sample)
            batch = self._recv()
            self.batch = batch if held_back is None else concat_batches(held_back, batch)
            pending = batch if batch.is_copy else None
            if pending is None:
                record(batch)
            rows_since_progress += len(batch)
            if rows_since_progress >= self.backend.num_envs:
                rows_since_progress -= self.backend.num_envs
                on_progress()
        if pending is not None:
            record(pending)
        return episodes

    def state(self) -> Arrays:
        """Snapshot of counters and running returns; the envs' own is `backend.state()`."""
        return copies(self._arrays())

    def restore(self, state: State, env: State) -> None:
        """Continue from a snapshot of the collector and one of the backend."""
        self.memory = np.array(state[MEMORY]) if MEMORY in state else None
        fill(self._arrays(), state)
        self.backend.restore(env)
        # This has every env, also those that were in flight: `collect` records them first.
        self.batch = self.received = self.backend.recv()
        if not self.backend.spec.has_snapshots:
            # These envs cannot continue their episodes: new ones have begun.
            self.running_returns.reset()
            if self.memory is not None:
                self.memory[:] = 0.0

    def _sampler(self, policy: Policy) -> Callable[[StepBatch], ActionSample]:
        """Function that samples the actions of a batch and keeps the states of the policy's memory."""

        def sample(acting: StepBatch) -> ActionSample:
            uniforms = self.noise.draw(acting.env_ids, self.actions_taken)
            return policy.sample(acting.observation, acting.mask, uniforms)

        if not isinstance(policy, PolicyWithMemory) or not policy.memory_size:
            return sample
        if self.memory is None:
            self.memory = np.zeros((self.backend.num_envs, policy.memory_size), np.float32)
        memory, sample_with_memory = self.memory, policy.sample_with_memory

        def remember(acting: StepBatch) -> ActionSample:
            uniforms = self.noise.draw(acting.env_ids, self.actions_taken)
            sampled = sample_with_memory(acting.observation, acting.mask, uniforms, memory[acting.env_ids])
            memory[acting.env_ids] = sampled.next_memory
            return sampled

        return remember

    def _select_rows(self, batch: StepBatch, num_steps: int) -> tuple[StepBatch, StepBatch | None]:
        """Split into rows that act, and rows held back because they are too far ahead."""
        steps_ahead = self.steps_ahead[batch.env_ids]
        if steps_ahead.max(initial=0) < num_steps:
            return batch, None
        # Envs of a group step together: it acts as long as one of its envs has steps to take.
        groups = self.backend.groups[batch.env_ids]
        acts = np.isin(groups, groups[steps_ahead < num_steps])
        if acts.all():
            return batch, None
        return batch.take(np.flatnonzero(acts)), batch.take(np.flatnonzero(~acts))

    def _send(self, acting: StepBatch, sample: ActionSample | None) -> None:
        """Send the actions, with env ids unless the rows are exactly those of the last `recv`."""
        begin = time.perf_counter()
        self.in_flight[acting.env_ids] = True
        if sample is None:
            self.backend.send(np.zeros(0, np.int64), acting.env_ids)
        elif acting is self.received:
            self.backend.send(sample.actions)
        else:
            self.backend.send(sample.actions, acting.env_ids)
        self.env_seconds += time.perf_counter() - begin

    def _recv(self) -> StepBatch:
        begin = time.perf_counter()
        batch = self.received = self.backend.recv()
        self.env_seconds += time.perf_counter() - begin
        self._count_steps(batch)
        return batch

    def _count_steps(self, batch: StepBatch) -> None:
        self.in_flight[batch.env_ids] = False
        self.steps_ahead[batch.env_ids] += 1
        if self.memory is not None:
            self.memory[batch.env_ids[batch.ended]] = 0.0

    def _record(
        self, buffer: TransitionBuffer, episodes: EpisodeStats, step_callbacks: Sequence[StepCallback], batch: StepBatch
    ) -> None:
        """Store the transitions of these rows, update episode statistics, call the callbacks."""
        buffer.add_transitions(batch)
        self.running_returns.step(batch.env_ids, batch.reward, batch.ended, batch.episode_info, episodes)
        for callback in step_callbacks:
            callback(batch)

    def _record_in_flight(self, buffer: TransitionBuffer, record: StepCallback) -> None:
        """Record steps that were in flight when the restored snapshot was taken."""
        assert self.batch is not None
        rows = np.flatnonzero(self.in_flight[self.batch.env_ids])
        if not len(rows):
            return
        batch = self.batch.take(rows)
        self._count_steps(batch)
        if self.backend.spec.has_snapshots:
            record(batch)
        else:
            # The restore truncated these episodes: they belong in no statistics.
            buffer.add_transitions(batch)

    def _arrays(self) -> Arrays:
        return {
            "actions_taken": self.actions_taken,
            **self.running_returns.arrays(),
            "steps_ahead": self.steps_ahead,
            "in_flight": self.in_flight,
            **({} if self.memory is None else {MEMORY: self.memory}),
        }
