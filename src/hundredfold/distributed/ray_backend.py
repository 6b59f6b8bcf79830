"""Backend `ray`: shards of the envs in Ray actors, on one machine or many.

As a step backend it makes a round trip to all actors at every step, for evaluation and for other
trainers. For training, `ray_collector` collects whole rollout fragments in the same actors. Ray is
imported when the first backend is created.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from hundredfold.backends.auto_select import choose_backend
from hundredfold.backends.call_checks import CallOrder, check_all_envs, check_num_envs, check_snapshot, checked_actions
from hundredfold.backends.settings import RaySettings, WorkerSettings
from hundredfold.core.batch import Arrays, IntArray, State, StepBatch, copies, slice_rows, with_prefix, without_prefix
from hundredfold.core.failures import Failure
from hundredfold.core.protocols import EnvFactory, SharedParams
from hundredfold.distributed.actor import StepArrays
from hundredfold.distributed.actor_pool import ActorHandle, ActorPool

# Steps between two snapshots of built-in envs: at most so many are replayed after a loss.
SNAPSHOT_STEPS: Final = 64


class RayBackend:
    """Envs in Ray actors; all envs step together.

    Args:
        make_envs: Env factory.
        num_envs: Number of envs, split evenly over the actors.
        settings: `workers` is the number of actors; 0 = as many as the cluster has cores for.
        ray: Cluster and actors.
        collecting: Whether the actors collect rollouts for a `RayCollector`.
    """

    pool_class: type[ActorPool] = ActorPool

    def __init__(
        self,
        make_envs: EnvFactory,
        num_envs: int,
        settings: WorkerSettings | None = None,
        ray: RaySettings | None = None,
        *,
        collecting: bool = False,
    ) -> None:
        self.num_envs = check_num_envs(num_envs)
        self.settings = settings or WorkerSettings()
        self.ray_settings = ray or RaySettings()
        self.make_envs, self.collecting = make_envs, collecting
        self.call_order = CallOrder()
        self.pool = self.pool_class(
            make_envs, self.num_envs, self._inner_backend, self.settings, self.ray_settings, collecting=collecting
        )
        info = self.pool.actors[0].info
        assert info is not None
        self.spec, self.is_per_env = info.spec, info.is_per_env
        self.groups = np.zeros(self.num_envs, np.int64)
        self.batch = self.spec.batch(np.arange(self.num_envs))
        self.infos: list[object] = [{} for _ in range(self.num_envs)]
        self.steps_since_snapshot = 0
        # Broadcast while fragments are in flight: sent with the next request.
        self.pending_params: Arrays = {}
        self.last_timings: list[dict[str, float]] = [{} for _ in self.pool.actors]
        self.total_timings: dict[str, float] = {}

    def reset(self, seed: int) -> None:
        self.call_order.expect_open("reset()")
        self.pool.discard_pending()
        with self.call_order.transition_to("recv"):
            self._store_all(self.pool.call("reset", seed))

    def recv(self) -> StepBatch:
        self.call_order.expect("recv", "recv()")
        with self.call_order.transition_to("send"):
            for handle, reply in self.pool.results():
                self._store(handle, reply.value)
            # The batch already shows the episodes of lost actors as truncated.
            self.pool.drain_truncated()
        return self.batch

    def send(self, actions: IntArray, env_ids: IntArray | None = None) -> None:
        self.call_order.expect("send", "send()")
        check_all_envs(env_ids, self.num_envs)
        checked = checked_actions(actions, self.batch, self.spec).copy()
        self.steps_since_snapshot += 1
        with_state = self.is_per_env or self.steps_since_snapshot >= SNAPSHOT_STEPS
        if with_state:
            self.steps_since_snapshot = 0
        with self.call_order.transition_to("recv"):
            self.pool.submit("step", with_state, shard_args=lambda handle: (checked[handle.rows],))

    def broadcast(self, shared_params: SharedParams) -> None:
        self.call_order.expect_open("broadcast()")
        if self.collecting and self.pool.busy:
            self.pending_params = copies(shared_params)
            return
        in_flight = list(self.pool.results())
        is_reset = self.call_order.pending != "reset"
        self.pool.call("broadcast", self.pool.ray.put(dict(shared_params)), is_reset)
        for handle, reply in in_flight:
            self._store(handle, reply.value)
        self.pool.shared_params |= copies(shared_params)

    def state(self) -> Arrays:
        self.call_order.expect("send", "state()")
        snapshot = self.pool.snapshot
        if snapshot is None:
            self.pool.call("snapshot")
            snapshot = self.pool.snapshot
            assert snapshot is not None
        return without_prefix("env", snapshot)

    def restore(self, state: State) -> None:
        self.restore_with_collector(state, {})

    def restore_with_collector(self, state: State, collector: State) -> None:
        """Continue from a snapshot of the envs and one of the actors' collectors."""
        self.call_order.expect_open("restore()")
        check_snapshot(state, self.num_envs)
        whole = {**with_prefix("env", state), **with_prefix("collector", collector)}
        self.pool.discard_pending()
        with self.call_order.transition_to("recv"):
            self._store_all(self.pool.call("restore", shard_args=lambda one: (slice_rows(whole, one.rows),)))

    def health(self) -> dict[str, int]:
        return self.pool.health()

    @property
    def first_failure(self) -> Failure | None:
        return self.pool.first_failure

    def timings(self) -> dict[str, float]:
        """Timings of the slowest actor, since actors work concurrently."""
        if self.collecting or self.is_per_env or self.call_order.pending == "closed":
            return dict(self.total_timings)
        if self.pool.busy:
            return {}
        timings = self.pool.call("timings")
        return {name: max(one[name] for one in timings) for name in timings[0]}

    def close(self) -> None:
        if self.call_order.close():
            self.pool.close()

    # -- for collectors -------------------------------------------------------------------------

    def drain_params(self) -> Arrays:
        """Shared parameters to send with the next request."""
        params, self.pending_params = self.pending_params, {}
        return params

    def add_timings(self, timings: Sequence[dict[str, float]], fraction: float) -> None:
        """Add the env timings of the last fragments.

        Args:
            timings: Timings of each actor since it was started.
            fraction: The fraction of them that the driver waited for.
        """
        longest: dict[str, float] = {}
        for index, actor_timings in enumerate(timings):
            before, self.last_timings[index] = self.last_timings[index], actor_timings
            for name, seconds in actor_timings.items():
                # A replaced actor counts from 0.
                added = seconds - before.get(name, 0.0)
                longest[name] = max(longest.get(name, 0.0), seconds if added < 0 else added)
        for name, seconds in longest.items():
            self.total_timings[name] = self.total_timings.get(name, 0.0) + fraction * seconds

    def shard_batch(self, handle: ActorHandle, step: StepArrays) -> StepBatch:
        """A step of a shard as a batch with global env ids."""
        self._store(handle, step)
        return self.batch.rows(handle.shard.first, handle.shard.last)

    # -- parts ----------------------------------------------------------------------------------

    def _inner_backend(self, num_envs: int) -> tuple[str, WorkerSettings]:
        """Backend and settings of an actor: those of a machine with a single core."""
        # Actor processes have many threads, so they must not fork.
        start = "spawn" if self.settings.start_method == "auto" else self.settings.start_method
        inner = replace(self.settings, workers=1, start_method=start)
        name: str = self.ray_settings.actor_backend
        if name == "auto":
            choice = choose_backend(self.make_envs, num_envs, inner)
            name, inner = choice.backend, choice.settings
        if name == "first_ready" and not self.collecting:
            name, inner = "processes", replace(inner, batch_envs=0)
        return name, inner

    def _store_all(self, steps: Sequence[StepArrays]) -> None:
        for handle, step in zip(self.pool.actors, steps, strict=True):
            self._store(handle, step)
        self.pool.drain_truncated()
        self.steps_since_snapshot = 0

    def _store(self, handle: ActorHandle, step: StepArrays) -> None:
        """Write a step of a shard into its rows of the batch."""
        for name, array in self.batch.rows(handle.shard.first, handle.shard.last).arrays().items():
            array[...] = step.arrays[name]
        if step.infos is not None:
            self.infos[handle.rows] = step.infos
            self.batch.infos = self.infos  # type: ignore[assignment]
