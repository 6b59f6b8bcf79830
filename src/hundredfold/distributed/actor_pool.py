"""Actor pool: the actors of a backend, each with a shard of the envs, and their recovery.

Every call is a function of the shard's last snapshot (and of the few steps taken since), and the
driver holds that snapshot in its own memory. An actor that was killed, that hangs or whose node is
lost is replaced by a new one, wherever there is room: it restores the snapshot, replays the steps
and gets the same call again. Built-in envs continue bit for bit; episodes of third-party envs
cannot be restored, so they are truncated.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

from hundredfold.backends.processes.cpu_affinity import LocalRank
from hundredfold.backends.settings import RaySettings, WorkerSettings, usable_cores
from hundredfold.core.batch import Arrays, IntArray, State, concat_rows, copies
from hundredfold.core.errors import EXAMPLE, WorkerError
from hundredfold.core.failures import Failure, Health
from hundredfold.core.protocols import EnvFactory
from hundredfold.distributed.actor import ActorInfo, ActorShard, Reply, StepArrays
from hundredfold.distributed.placement import ActorPlacement, connect, disconnect, max_actors

# Interval at which timeouts are checked while waiting for results.
POLL_SECONDS: Final = 0.5
CLOSE_SECONDS: Final = 5.0


@dataclass(slots=True)
class ActorHandle:
    """An actor and its shard as the driver sees them."""

    shard: ActorShard
    actor: Any = None
    info: ActorInfo | None = None
    cpus: float = 0.0  # cores reserved for it
    node_id: str = ""  # known after its first reply
    snapshot: Arrays | None = None
    actions_log: list[IntArray] = field(default_factory=list)  # actions since the snapshot
    pending: tuple[Any, ...] = ()  # method and arguments of the call in flight
    result: Any = None  # reference to its reply
    recovery_results: list[Any] = field(default_factory=list)  # replies of a new actor before that
    deadline: float = 0.0
    health: Counter[str] = field(default_factory=Counter)
    past_health: Counter[str] = field(default_factory=Counter)  # of the actors it replaced

    @property
    def rows(self) -> slice:
        return slice(self.shard.first, self.shard.last)

    def __str__(self) -> str:
        return f"actor {self.shard.index} (envs {self.shard.first}..{self.shard.last - 1})"


class ActorPool:
    """The actors of a backend: `submit` calls a method of all actors, `results` waits for replies.

    Args:
        make_envs: Env factory.
        num_envs: Number of envs, split evenly over the actors.
        inner_backend: Backend and settings that an actor runs so many envs with.
        settings: Number of actors, timeouts, restart policy.
        ray_settings: Cluster and placement.
        collecting: Whether the actors collect rollouts with a policy, or take single steps.
    """

    placement_class: type[ActorPlacement] = ActorPlacement

    def __init__(
        self,
        make_envs: EnvFactory,
        num_envs: int,
        inner_backend: Callable[[int], tuple[str, WorkerSettings]],
        settings: WorkerSettings,
        ray_settings: RaySettings,
        *,
        collecting: bool,
    ) -> None:
        self.settings, self.ray_settings = settings, ray_settings
        self.restart_policy = settings.restart_policy()
        self.actor_health = Health()
        self.first_failure: Failure | None = None
        # Set before the first reset; later they are part of the snapshots.
        self.shared_params: Arrays = {}
        self.warned: set[str] = set()
        # Third-party episodes truncated because their actor was lost, until they are drained.
        self.truncated: list[tuple[ActorHandle, StepArrays]] = []
        self.actors: list[ActorHandle] = []
        self.closed = False
        self.ray = connect(ray_settings, min(settings.workers or usable_cores(), num_envs))
        self.placement = self.placement_class(self.ray, ray_settings)
        try:
            num_wanted = settings.workers or max_actors(self.ray, ray_settings.actor_cpus)
            num_actors = min(num_wanted, num_envs)
            backend, inner = inner_backend(-(-num_envs // num_actors))
            edges = [index * num_envs // num_actors for index in range(num_actors + 1)]
            self.actors = [
                ActorHandle(ActorShard(index, *ends, make_envs, backend, inner, collecting))
                for index, ends in enumerate(pairwise(edges))
            ]
            self._start_actors()
        except BaseException:
            self.close()
            raise

    # -- calls ----------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a call is in flight."""
        return any(handle.pending for handle in self.actors)

    @property
    def is_per_env(self) -> bool:
        """Whether these are third-party envs, whose episodes cannot be restored."""
        info = self.actors[0].info
        return info is not None and info.is_per_env

    @property
    def snapshot(self) -> Arrays | None:
        """The last snapshot of all envs; None if steps were taken since."""
        states = [one.snapshot for one in self.actors if one.snapshot and not one.actions_log]
        if len(states) < len(self.actors):
            return None
        return concat_rows(states)

    def submit(self, method: str, *args: Any, shard_args: Callable[[ActorHandle], Sequence[Any]] | None = None) -> None:
        """Call a method of every actor without waiting.

        Args:
            method: A method of `EnvActor`.
            args: Arguments for all actors.
            shard_args: Further arguments for each actor.
        """
        self.warned.clear()
        for handle in self.actors:
            assert not handle.pending, f"{handle} has a call in flight"
            more = () if shard_args is None else shard_args(handle)
            handle.pending = (method, *args, *more)
            handle.result = handle.actor.call.remote(*handle.pending)
            handle.deadline = time.monotonic() + self._timeout(method)

    def results(self) -> Iterator[tuple[ActorHandle, Reply]]:
        """Replies as they arrive; lost actors are replaced meanwhile."""
        while waiting := {one.result: one for one in self.actors if one.pending}:
            self.ray.wait(list(waiting), timeout=POLL_SECONDS)
            # All that are ready or lost by now, so that lost actors are replaced concurrently.
            ready, _ = self.ray.wait(list(waiting), num_returns=len(waiting), timeout=0)
            for result in ready:
                handle = waiting[result]
                try:
                    *recovery, reply = self.ray.get([*handle.recovery_results, result])
                except self.ray.exceptions.RayError as error:
                    if isinstance(error, self.ray.exceptions.ActorUnavailableError):
                        self.placement.suspect(handle.node_id, self._reserved_on(handle.node_id))
                    self._replace(handle, _first_lines(error))
                else:
                    yield handle, self._accept(handle, recovery, reply)
            # Only if nothing is ready: the driver may itself have been busy for long.
            for handle in () if ready else waiting.values():
                if time.monotonic() > handle.deadline:
                    limit = self._timeout(handle.pending[0])
                    self._replace(handle, f"no reply within {limit:g} seconds")

    def call(
        self, method: str, *args: Any, shard_args: Callable[[ActorHandle], Sequence[Any]] | None = None
    ) -> list[Any]:
        """Call a method of every actor and wait; the values of the replies in order of actors."""
        self.submit(method, *args, shard_args=shard_args)
        values = {handle.shard.index: reply.value for handle, reply in self.results()}
        return [values[index] for index in range(len(self.actors))]

    def discard_pending(self) -> None:
        """Ignore the replies to calls in flight, before a reset or restore."""
        for handle in self.actors:
            handle.pending, handle.result = (), None

    def drain_truncated(self) -> list[tuple[ActorHandle, StepArrays]]:
        """Third-party shards truncated since the last call, and their first steps after that."""
        truncated, self.truncated = self.truncated, []
        return truncated

    def health(self) -> dict[str, int]:
        """Failure counts, of envs inside actors and of actors."""
        inside: Counter[str] = sum((one.health + one.past_health for one in self.actors), Counter())
        counts = self.actor_health.counts()
        return {name: count + inside[name] for name, count in counts.items()}

    def close(self) -> None:
        """Close the envs and kill the actors; a cluster that was started here ends, too."""
        if self.closed:
            return
        self.closed = True
        started = [handle for handle in self.actors if handle.actor is not None]
        if self.ray.is_initialized():
            idle = [handle for handle in started if handle.info and not handle.pending]
            closing = [handle.actor.call.remote("close") for handle in idle]
            if closing:
                self.ray.wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)
            for handle in started:
                self.placement.release(handle.actor)
        disconnect()

    # -- starting and replacing actors ----------------------------------------------------------

    def _start_actors(self) -> None:
        started = self.placement.start_actors(len(self.actors))
        for handle, (actor, cpus) in zip(self.actors, started, strict=True):
            handle.actor, handle.cpus = actor, cpus
        self._assign_local_ranks()
        self.submit("open", shard_args=lambda handle: (self._pickled_shard(handle),))
        for handle, reply in self.results():
            handle.info, handle.node_id = reply.value, reply.value.node_id

    def _assign_local_ranks(self) -> None:
        """Number the actors of each machine; a replacement keeps the rank."""
        hostnames = [handle.actor.hostname.remote() for handle in self.actors]
        try:
            machines = self.ray.get(hostnames, timeout=self.settings.start_timeout)
        except self.ray.exceptions.RayError:
            return  # an actor is lost already; `open` will find out
        totals = Counter(machines)
        ranks: Counter[str] = Counter()
        for handle, machine in zip(self.actors, machines, strict=True):
            if totals[machine] > 1:
                rank = LocalRank(ranks[machine], totals[machine])
                handle.shard = replace(handle.shard, local_rank=rank)
            ranks[machine] += 1

    def _replace(self, handle: ActorHandle, reason: str) -> None:
        """Replace a lost actor and repeat the call in flight, without waiting for anything."""
        # Raises if the run has to end.
        error = WorkerError(f"{handle} was lost: {reason}")
        self.restart_policy.record_failure(None, error, worker=handle.shard.index)
        self.actor_health.count_worker_restart(self.restart_policy.drain(), handle.shard.num_envs)
        self.first_failure = self.first_failure or self.actor_health.first
        self.placement.release(handle.actor)
        handle.past_health += handle.health
        handle.health = Counter()
        handle.actor, handle.cpus = self.placement.start_replacement(len(self.actors))
        handle.node_id = ""
        method, call, num_skipped = handle.pending[0], handle.actor.call.remote, self._num_skipped(handle)
        handle.shard = replace(handle.shard, first_episode=num_skipped if method == "reset" else 0)
        handle.recovery_results = [call(*request) for request in self._recovery_calls(handle)]
        if method == "step" and self.is_per_env:
            # Its episodes are truncated by the restore, and that is the result of this step.
            handle.result = handle.recovery_results.pop()
        else:
            args = handle.pending[1:]
            if method == "restore":
                args = (_at_later_episodes(args[0], num_skipped),)
            handle.result = call(method, *args)
        handle.deadline = time.monotonic() + self.settings.start_timeout + self._timeout(method)

    def _recovery_calls(self, handle: ActorHandle) -> list[tuple[Any, ...]]:
        """Calls that bring a new actor to where the lost one began the call in flight."""
        method = handle.pending[0]
        if method == "open":
            return []
        calls: list[tuple[Any, ...]] = [("open", self._pickled_shard(handle))]
        if self.shared_params:
            calls.append(("broadcast", self.shared_params, False))
        if handle.snapshot is not None and method not in ("reset", "restore"):
            calls.append(("restore", _at_later_episodes(handle.snapshot, self._num_skipped(handle))))
            if handle.actions_log:
                calls.append(("replay_steps", handle.actions_log))
        return calls

    def _num_skipped(self, handle: ActorHandle) -> int:
        """Episodes of third-party envs to skip: none after the first loss in a row, then twice as many each time.

        It is not known which reset, and of which episode, has killed or hung the actor, if one has.
        """
        losses = len(self.restart_policy.consecutive.get(f"worker {handle.shard.index}", ()))
        return 2 ** (losses - 1) - 1 if losses and self.is_per_env else 0

    def _reserved_on(self, node_id: str) -> float:
        return sum(handle.cpus for handle in self.actors if handle.node_id == node_id)

    def _pickled_shard(self, handle: ActorHandle) -> bytes:
        pickled: bytes = self.ray.cloudpickle.dumps(handle.shard)
        return pickled

    # -- replies --------------------------------------------------------------------------------

    def _timeout(self, method: str) -> float:
        if method == "collect":
            return self.ray_settings.fragment_timeout
        return self.settings.step_timeout if method == "step" else self.settings.start_timeout

    def _accept(self, handle: ActorHandle, recovery: list[Reply], reply: Reply) -> Reply:
        """Update the handle from a reply and from those of the recovery calls before it."""
        request, handle.pending = handle.pending, ()
        handle.result, handle.recovery_results = None, []
        for one in recovery:
            self._raise_remote(handle, one)
            if isinstance(one.value, ActorInfo):
                handle.info, handle.node_id = one.value, one.value.node_id
            elif isinstance(one.value, StepArrays) and one.state is not None and self.is_per_env:
                self.truncated.append((handle, one.value))
        self._raise_remote(handle, reply)
        handle.health = Counter(reply.health)
        self.first_failure = self.first_failure or reply.first_failure
        self.restart_policy.consecutive.pop(f"worker {handle.shard.index}", None)
        if reply.state is not None:
            # A copy: an array in the object store may be lost with its node.
            handle.snapshot, handle.actions_log = copies(reply.state), []
        elif request[0] == "step":
            handle.actions_log.append(request[2])
        return reply

    def _raise_remote(self, handle: ActorHandle, reply: Reply) -> None:
        """Raise the error of a reply, or emit its warnings."""
        if reply.error is not None:
            self.discard_pending()
            reply.error.raise_here(str(handle))
        for text, category in reply.warnings:
            if (kind := text.partition(EXAMPLE)[0]) not in self.warned:
                self.warned.add(kind)
                warnings.warn(text, category, stacklevel=2)


def _at_later_episodes(state: State, skip: int) -> State:
    """A snapshot of third-party envs from which they start episodes that are later by `skip`."""
    return {**state, "env/episodes": state["env/episodes"] + skip} if skip else state


def _first_lines(error: BaseException) -> str:
    """The first two lines of a Ray error, without its advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:2])[:300]}"
