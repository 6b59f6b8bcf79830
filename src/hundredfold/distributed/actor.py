"""An actor: holds a slice of the env and, while training, a copy of the policy.

It does one order after another and answers each with whatever came of it, errors included, and with
a snapshot where one was taken: so whoever loses an actor goes on with another from there. Ray is
not imported here, torch only where a policy will arrive.
"""

from __future__ import annotations

import os
import pickle
import platform
import sys
import time
import warnings
from dataclasses import dataclass, field
from typing import Any

from hundredfold.backends.processes.cpu_affinity import LocalRank, set_local_rank
from hundredfold.backends.processes.remote_errors import RemoteError, capture_error
from hundredfold.backends.settings import WorkerSettings
from hundredfold.core.batch import (
    Arrays,
    EnvSpec,
    IntArray,
    State,
    StepBatch,
    with_prefix,
    without_prefix,
)
from hundredfold.core.protocols import Backend, BatchEnv, EnvFactory, PerEnvBatch, SharedParams
from hundredfold.distributed.rollout_fragment import Fragment, Notes, cut_out
from hundredfold.rollout.collector import Collector, PolicyNoise
from hundredfold.rollout.rollout_buffer import RolloutBuffer


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """Which envs an actor holds, and how."""

    number: int
    first: int
    last: int
    make_envs: EnvFactory
    backend: str
    settings: WorkerSettings
    collecting: bool
    local_rank: LocalRank | None = None  # among the actors on its machine, where there are others

    @property
    def num_envs(self) -> int:
        return self.last - self.first


@dataclass(frozen=True, slots=True)
class SliceFactory:
    """Makes a slice whose envs are numbered from 0 here and keep their own streams."""

    make_envs: EnvFactory
    first: int

    def __call__(self, env_ids: IntArray) -> BatchEnv:
        env = self.make_envs(self.first + env_ids)
        env.set_output_buffers(env.spec.batch(env_ids))
        return env


@dataclass(frozen=True, slots=True)
class Identity:
    """Who answers."""

    spec: EnvSpec
    is_per_env: bool
    pid: int
    node: str  # of the cluster


@dataclass(slots=True)
class Told:
    """What a slice's envs show, in arrays that travel."""

    arrays: Arrays
    infos: list[Any] | None  # of foreign envs


@dataclass(slots=True)
class Reply:
    """What came of an order."""

    value: Any = None
    state: Arrays | None = None  # each (envs of the slice, ...); None where no snapshot was taken
    refusal: RemoteError | None = None
    warnings: list[tuple[str, type[Warning]]] = field(default_factory=list)
    health: dict[str, int] = field(default_factory=dict)


class SliceCollector(Collector):
    """Plays a slice; its luck is what these envs would have among all the others."""

    def __init__(self, backend: Backend, first: int) -> None:
        super().__init__(backend, 0)
        self.first = first
        self.seed: int | None = None

    def take_seed(self, seed: int) -> None:
        if seed != self.seed:
            backend, self.seed = self.backend, seed
            self.noise = PolicyNoise(
                seed, backend.num_envs, backend.spec.num_action_dims, self.first
            )

    def forget(self) -> None:
        """Begin anew, as after `__init__`."""
        for array in self._arrays().values():
            array[...] = 0


class SliceActor:
    """What runs in a Ray actor."""

    def __init__(self) -> None:
        self.plan: SlicePlan | None = None
        self.rollout: RolloutBuffer | None = None

    def here(self) -> str:
        """The machine, as soon as there is a process."""
        return platform.node()

    def obey(self, order: str, *arguments: Any) -> Reply:
        """Carry out one order and answer, whatever comes of it."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            try:
                reply: Reply = getattr(self, f"do_{order}")(*arguments)
                reply.health = {} if order == "close" else self.backend.health()
            except Exception as error:
                return Reply(refusal=capture_error(f"{order}()", error))
        if order == "restore":
            reply.warnings = [(str(one.message), one.category) for one in caught]
        return reply

    def do_open(self, packed: bytes) -> Reply:
        """Make the slice; the plan comes as bytes, so that what it lacks is told like any error."""
        from hundredfold.backends import start_backend

        plan: SlicePlan = pickle.loads(packed)
        if plan.collecting:
            import torch

            from hundredfold.distributed.weight_sync import Pupil

            # Actors share a machine's cores, and two threads of torch collapse under load.
            torch.set_num_threads(1)
            self.pupil = Pupil()
        factory = SliceFactory(plan.make_envs, plan.first)
        set_local_rank(plan.local_rank)
        self.plan = plan
        self.rollout = None
        self.backend, _ = start_backend(plan.backend, factory, plan.num_envs, plan.settings)
        self.collector = SliceCollector(self.backend, plan.first)
        env = getattr(self.backend, "env", None)
        is_per_env = isinstance(env, PerEnvBatch) or not self.backend.spec.has_snapshots
        return Reply(Identity(self.backend.spec, is_per_env, os.getpid(), _node()))

    def do_reset(self, seed: int) -> Reply:
        self.collector.forget()
        self.rollout = None
        self.collector.start(seed)
        return Reply(self._told(), self._state())

    def do_restore(self, state: State) -> Reply:
        """Go on from a snapshot, which says nothing of a collector where none was at work."""
        self.rollout = None
        self.collector.forget()
        own = without_prefix("collector", state) or self.collector.state()
        self.collector.restore(own, without_prefix("env", state))
        return Reply(self._told(), self._state())

    def do_inform(self, shared_params: SharedParams, begun: bool) -> Reply:
        """Take in what a belief model learned; before the first reset there is nothing to keep."""
        self.backend.broadcast(shared_params)
        return Reply(state=self._state() if begun else None)

    def do_step(self, with_state: bool, actions: IntArray) -> Reply:
        self.backend.send(actions)
        self.collector.batch = self.backend.recv()
        return Reply(self._told(), self._state() if with_state else None)

    def do_replay(self, log: list[IntArray]) -> Reply:
        """Play again what another actor had played since its last snapshot."""
        for actions in log:
            self.backend.send(actions)
            self.collector.batch = self.backend.recv()
        return Reply(self._told())

    def do_state(self) -> Reply:
        return Reply(state=self._state())

    def do_timings(self) -> Reply:
        return Reply(self.backend.timings())

    def do_gather(
        self,
        policy: bytes,
        weights: bytes,
        seed: int,
        num_steps: int,
        with_info: bool,
        shared_params: SharedParams,
    ) -> Reply:
        """Play `num_steps` steps of every env, after passing on new belief-model parameters."""
        if shared_params:
            self.backend.broadcast(shared_params)
        collector, rollout = self.collector, self._room_for(num_steps)
        collector.take_seed(seed)
        player = self.pupil.learn(policy, weights)
        begun, policy_before = time.perf_counter(), collector.policy_seconds
        notes = Notes(rollout, with_info)
        episodes = collector.collect(player, rollout, num_steps, step_callbacks=[notes.hear])
        policy_seconds = collector.policy_seconds - policy_before
        # All that the policy did not take, writing steps down included.
        env_seconds = time.perf_counter() - begun - policy_seconds
        seconds = {"policy": policy_seconds, "env": env_seconds}
        num_ahead = int(collector.steps_ahead.sum())
        timings = self.backend.timings()
        fragment: Fragment = cut_out(rollout, notes, episodes, num_ahead, seconds, timings)
        return Reply(fragment, self._state())

    def do_close(self) -> Reply:
        self.backend.close()
        return Reply()

    def _room_for(self, num_steps: int) -> RolloutBuffer:
        """The rollout, emptied of what was sent last time; whoever ran ahead is ahead still."""
        if self.rollout is None or self.rollout.num_steps != num_steps:
            self.rollout = RolloutBuffer(self.backend.spec, self.backend.num_envs, num_steps)
        elif self.rollout.full:
            self.rollout.clear()
        return self.rollout

    def _state(self) -> Arrays:
        """A snapshot; steps that ran ahead in foreign envs are not part of it."""
        env = self.backend.state()
        own = self.collector.state()
        if not self.backend.spec.has_snapshots:
            own["steps_ahead"][:] = 0
            own["in_flight"][:] = False
        return {**with_prefix("env", env), **with_prefix("collector", own)}

    def _told(self) -> Told:
        batch: StepBatch | None = self.collector.batch
        assert batch is not None
        assert self.plan is not None
        # Nobody reads infos while collecting, and reading one has all of them written down.
        infos = None if self.plan.collecting else batch.infos
        return Told(batch.arrays(), None if infos is None else [dict(info) for info in infos])


def _node() -> str:
    """The node of the cluster that this process runs on; none where it is no actor."""
    ray = sys.modules.get("ray")
    return (
        "" if ray is None or not ray.is_initialized() else ray.get_runtime_context().get_node_id()
    )
