"""Env actor: runs a shard of the envs in a Ray actor and, during training, a copy of the policy.

It handles one call after another and replies to each with a value or an error, and with a snapshot
of the envs where one was taken, so that a lost actor can be replaced by one that continues from
there. Ray is not imported here, torch only if a policy is to be run.
"""

from __future__ import annotations

import os
import pickle
import platform
import signal
import sys
import threading
import time
import warnings
from dataclasses import dataclass, field
from typing import Any

from hundredfold.backends.processes.cpu_affinity import LocalRank, set_local_rank
from hundredfold.backends.processes.remote_errors import RemoteError, capture_error
from hundredfold.backends.settings import WorkerSettings
from hundredfold.core.batch import Arrays, EnvSpec, IntArray, State, StepBatch, with_prefix, without_prefix
from hundredfold.core.failures import Failure
from hundredfold.core.protocols import Backend, BatchEnv, EnvFactory, PerEnvBatch, SharedParams
from hundredfold.distributed.rollout_fragment import EpisodeLog, Fragment, extract
from hundredfold.envs.batch_env import ArrayBatchEnv
from hundredfold.envs.next_step import NextStepEnv
from hundredfold.rollout.collector import Collector, PolicyNoise
from hundredfold.rollout.rollout_buffer import RolloutBuffer


@dataclass(frozen=True, slots=True)
class ActorShard:
    """The envs of one actor, and how it runs them."""

    index: int  # of the actor
    first: int  # env ids first..last-1
    last: int
    make_envs: EnvFactory
    backend: str
    settings: WorkerSettings
    collecting: bool  # whether it collects rollouts with a policy, or takes single steps
    local_rank: LocalRank | None = None  # among the actors of its machine, if there are others
    first_episode: int = 0  # above 0 if resets of earlier episodes of third-party envs killed the actor

    @property
    def num_envs(self) -> int:
        return self.last - self.first


@dataclass(frozen=True, slots=True)
class ShardFactory:
    """Env factory of a shard: env ids count from 0 here, RNG streams are those of the batch."""

    make_envs: EnvFactory
    first: int
    first_episode: int = 0

    def __call__(self, env_ids: IntArray) -> BatchEnv:
        env = self.make_envs(self.first + env_ids)
        if isinstance(env, ArrayBatchEnv | NextStepEnv):
            env.first_episode = self.first_episode
        env.set_output_buffers(env.spec.batch(env_ids))
        return env


@dataclass(frozen=True, slots=True)
class ActorInfo:
    """What an actor reports once its envs are created."""

    spec: EnvSpec
    is_per_env: bool  # third-party envs, whose episodes cannot be restored
    pid: int
    node_id: str  # of the Ray cluster


@dataclass(slots=True)
class StepArrays:
    """A step batch of a shard in a form that can be pickled."""

    arrays: Arrays
    infos: list[Any] | None  # of third-party envs


@dataclass(slots=True)
class Reply:
    """The result of a call."""

    value: Any = None
    state: Arrays | None = None  # snapshot, each (envs of the shard, ...); None if none was taken
    error: RemoteError | None = None
    warnings: list[tuple[str, type[Warning]]] = field(default_factory=list)
    health: dict[str, int] = field(default_factory=dict)
    first_failure: Failure | None = None  # of the actor's envs


class ShardCollector(Collector):
    """Collector of a shard; action noise is that of these envs in the whole batch."""

    def __init__(self, backend: Backend, first: int) -> None:
        super().__init__(backend, 0)
        self.first = first
        self.seed: int | None = None

    def set_seed(self, seed: int) -> None:
        if seed != self.seed:
            backend, self.seed = self.backend, seed
            self.noise = PolicyNoise(seed, backend.num_envs, backend.spec.num_action_dims, self.first)

    def clear(self) -> None:
        """Set counters and running returns to 0."""
        for array in self._arrays().values():
            array[...] = 0


class EnvActor:
    """The class that runs as a Ray actor. Its methods are called through `call`."""

    def __init__(self) -> None:
        self.shard: ActorShard | None = None
        self.buffer: RolloutBuffer | None = None

    def hostname(self) -> str:
        return platform.node()

    def call(self, method: str, *args: Any) -> Reply:
        """Call a method; errors are part of the reply."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            try:
                reply: Reply = getattr(self, method)(*args)
                if method != "close":
                    reply.health, reply.first_failure = self.backend.health(), self.backend.first_failure
            except Exception as error:
                return Reply(error=capture_error(f"{method}()", error))
        if method in ("reset", "restore"):
            reply.warnings = [(str(one.message), one.category) for one in caught]
        return reply

    def open(self, pickled_shard: bytes) -> Reply:
        """Create the envs; the spec comes pickled, so that an import error becomes a reply."""
        from hundredfold.backends import start_backend

        # As in workers: Ctrl-C is the driver's business, and a KeyboardInterrupt here comes from an env.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        shard: ActorShard = pickle.loads(pickled_shard)
        if shard.collecting:
            import torch

            from hundredfold.distributed.weight_sync import WeightReceiver

            # Actors share a machine's cores, and two torch threads each are far slower under load.
            torch.set_num_threads(1)
            self.receiver = WeightReceiver()
        factory = ShardFactory(shard.make_envs, shard.first, shard.first_episode)
        set_local_rank(shard.local_rank)
        self.shard = shard
        self.buffer = None
        self.backend, _ = start_backend(shard.backend, factory, shard.num_envs, shard.settings)
        self.collector = ShardCollector(self.backend, shard.first)
        env = getattr(self.backend, "env", None)
        is_per_env = isinstance(env, PerEnvBatch) or not self.backend.spec.has_snapshots
        return Reply(ActorInfo(self.backend.spec, is_per_env, os.getpid(), _node_id()))

    def reset(self, seed: int) -> Reply:
        self.collector.clear()
        self.buffer = None
        self.collector.start(seed)
        return Reply(self._step_arrays(), self._state())

    def restore(self, state: State) -> Reply:
        """Continue from a snapshot; it may come from a backend without a collector."""
        self.buffer = None
        self.collector.clear()
        collector_state = without_prefix("collector", state) or self.collector.state()
        self.collector.restore(collector_state, without_prefix("env", state))
        return Reply(self._step_arrays(), self._state())

    def broadcast(self, shared_params: SharedParams, with_state: bool) -> Reply:
        """Set shared parameters; before the first reset there is no snapshot to return."""
        self.backend.broadcast(shared_params)
        return Reply(state=self._state() if with_state else None)

    def step(self, with_state: bool, actions: IntArray) -> Reply:
        self._step(actions)
        return Reply(self._step_arrays(), self._state() if with_state else None)

    def replay_steps(self, actions_log: list[IntArray]) -> Reply:
        """Repeat the steps that a lost actor took since its last snapshot."""
        for actions in actions_log:
            self._step(actions)
        return Reply(self._step_arrays())

    def snapshot(self) -> Reply:
        return Reply(state=self._state())

    def timings(self) -> Reply:
        return Reply(self.backend.timings())

    def collect(
        self,
        packed_policy: bytes,
        packed_weights: bytes,
        seed: int,
        num_steps: int,
        with_info: bool,
        shared_params: SharedParams,
    ) -> Reply:
        """Collect a fragment.

        Args:
            packed_policy: With `packed_weights` the payload of a `WeightPublisher`.
            packed_weights: See above.
            seed: Seed of action sampling, for the whole batch.
            num_steps: Steps per env.
            with_info: Whether the fragment needs the infos of every step.
            shared_params: New parameters of a belief model, set before the first step.
        """
        if shared_params:
            self.backend.broadcast(shared_params)
        policy = self.receiver.load(packed_policy, packed_weights)
        collector, buffer = self.collector, self._empty_buffer(num_steps, policy.memory_size)
        collector.set_seed(seed)
        begin, policy_before = time.perf_counter(), collector.policy_seconds
        log = EpisodeLog(buffer, with_info)
        episodes = collector.collect(policy, buffer, num_steps, step_callbacks=[log.record])
        policy_seconds = collector.policy_seconds - policy_before
        # All other time counts as env time, storing transitions included.
        env_seconds = time.perf_counter() - begin - policy_seconds
        seconds = {"policy": policy_seconds, "env": env_seconds}
        steps_ahead = int(collector.steps_ahead.sum())
        timings = self.backend.timings()
        fragment: Fragment = extract(buffer, log, episodes, steps_ahead, seconds, timings)
        return Reply(fragment, self._state())

    def close(self) -> Reply:
        self.backend.close()
        return Reply()

    def _step(self, actions: IntArray) -> None:
        self.backend.send(actions)
        self.collector.batch = self.backend.recv()

    def _empty_buffer(self, num_steps: int, memory_size: int) -> RolloutBuffer:
        """The rollout buffer without the last fragment; steps that ran ahead stay in it."""
        if self.buffer is None or self.buffer.num_steps != num_steps:
            self.buffer = RolloutBuffer(self.backend.spec, self.backend.num_envs, num_steps, memory_size)
        elif self.buffer.full:
            self.buffer.clear()
        return self.buffer

    def _state(self) -> Arrays:
        """A snapshot; it does not contain steps that third-party envs have run ahead."""
        env = self.backend.state()
        collector = self.collector.state()
        if not self.backend.spec.has_snapshots:
            collector["steps_ahead"][:] = 0
            collector["in_flight"][:] = False
        return {**with_prefix("env", env), **with_prefix("collector", collector)}

    def _step_arrays(self) -> StepArrays:
        batch: StepBatch | None = self.collector.batch
        assert batch is not None
        assert self.shard is not None
        # Infos are not used while collecting, and reading one makes the worker write them all.
        infos = None if self.shard.collecting else batch.infos
        return StepArrays(batch.arrays(), None if infos is None else [dict(info) for info in infos])


def _node_id() -> str:
    """The Ray node of this process; empty outside a Ray actor."""
    ray = sys.modules.get("ray")
    return "" if ray is None or not ray.is_initialized() else ray.get_runtime_context().get_node_id()
