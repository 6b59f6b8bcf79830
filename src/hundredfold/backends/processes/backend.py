"""Backends with worker processes: few workers, many envs each, all arrays in shared memory.

`processes` waits for all envs; `first_ready` returns partial batches, so that fast envs never wait
for slow ones. Failed envs, hung envs and dead workers are replaced while the others continue.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from multiprocessing.util import Finalize
from typing import Final

import numpy as np

from hundredfold.backends.call_checks import (
    CallOrder,
    WaitingEnvs,
    check_num_envs,
    check_snapshot,
    checked_actions,
    refuse_while_importing_main,
)
from hundredfold.backends.processes.env_shards import group_edges
from hundredfold.backends.processes.profile import with_env_threads
from hundredfold.backends.processes.shared_memory import LazyInfos, shared_batch
from hundredfold.backends.processes.worker_pool import InFlight, WorkerPool
from hundredfold.backends.settings import WorkerSettings
from hundredfold.core.batch import Array, Arrays, BoolArray, IntArray, State, StepBatch, concat_rows, copies, slice_rows
from hundredfold.core.errors import CallOrderError, ShapeError
from hundredfold.core.failures import Failure
from hundredfold.core.protocols import EnvFactory, SharedParams

# `first_ready` waits by default for 1 / READY_DIVISOR of the envs.
READY_DIVISOR: Final = 8


class ProcessBackend:
    """Backend that shards the envs over worker processes; `recv` waits for all envs.

    Args:
        make_envs: creates the envs of a worker.
        num_envs: number of envs in total.
        settings: number of workers, batch size, timeouts, restart policy.
    """

    def __init__(self, make_envs: EnvFactory, num_envs: int, settings: WorkerSettings | None = None) -> None:
        self.num_envs = check_num_envs(num_envs)
        refuse_while_importing_main("start workers")
        self.settings = with_env_threads(settings or WorkerSettings(), make_envs, self.num_envs)
        self.call_order = CallOrder()
        self.batch_envs = min(self.settings.batch_envs or self.num_envs, self.num_envs)
        self.in_flight = InFlight(self.num_envs)
        self.pool = WorkerPool(make_envs, self.in_flight, self.settings, self.batch_envs)
        # Also without a call of `close`: when the program ends or this object is collected.
        self.finalizer = Finalize(self, self.pool.close, exitpriority=10)
        self.spec = self.pool.spec
        self.arrays = self.pool.arrays
        self.groups = self._groups()
        if not self.pool.is_per_env:
            self.pool.ready_flags.set_groups(self.groups)
        self.batch = shared_batch(self.arrays, self.spec)
        self.all_env_ids = self.batch.env_ids
        if self.pool.is_per_env:
            pending_truncation = self.pool.recovery.pending_truncation
            self.batch.infos = LazyInfos(self.arrays, self.all_env_ids, self.pool.info_bytes, pending_truncation)
        self.received = self.all_env_ids  # env ids of the last recv()

    def reset(self, seed: int) -> None:
        self.call_order.expect_open("reset()")
        with self.call_order.transition_to("recv"):
            self.pool.recovery.begin_start()
            self.pool.request("reset", [(seed,)] * self.num_workers)
            self.pool.recovery.reset_with(seed)
            self.pool.mark_all_ready()

    def recv(self) -> StepBatch:
        self.call_order.expect("recv", "recv()")
        in_flight = self.in_flight.count
        if not in_flight:
            raise CallOrderError("recv() was called with no step in flight: call send() first.")
        with self.call_order.transition_to("send"):
            self.pool.wait_for(min(self.batch_envs, in_flight))
        env_ids = self.pool.take_ready()
        if env_ids is None:
            self.received, batch = self.all_env_ids, self.batch
        else:
            self.received, batch = env_ids, self.batch.take(env_ids)
        self._count_episodes(batch)
        return batch

    def send(self, actions: Array, env_ids: IntArray | None = None) -> None:
        self.call_order.expect("send", "send()")
        ids = self.received if env_ids is None else self._checked_ids(env_ids)
        if not len(ids):
            self.call_order.pending = "recv"
            return
        checked = checked_actions(actions, WaitingEnvs(ids, self._mask_of(ids)), self.spec)
        self.arrays["actions"][slice(None) if ids is self.all_env_ids else ids] = checked
        with self.call_order.transition_to("recv"):
            if len(ids) == self.num_envs:
                self.pool.send(None)
            else:
                # Env ids of recv() are sorted already.
                self.pool.send(ids if env_ids is None else np.sort(ids))

    def broadcast(self, shared_params: SharedParams) -> None:
        self.call_order.expect_open("broadcast()")
        self.pool.request("set_shared_params", [(dict(shared_params),)] * self.num_workers)
        self.pool.recovery.shared_params |= copies(shared_params)

    def state(self) -> Arrays:
        self.call_order.expect("send", "state()")
        with self.call_order.transition_to("send"):
            states = self.pool.request("state")
        return concat_rows(states)

    def restore(self, state: State) -> None:
        self.call_order.expect_open("restore()")
        check_snapshot(state, self.num_envs)
        saved = copies(state)
        with self.call_order.transition_to("recv"):
            self.pool.recovery.begin_start()
            shards = [(slice_rows(saved, worker.rows),) for worker in self.pool.workers]
            self.pool.request("restore", shards)
            self.pool.recovery.restored_from(saved)
            self.pool.mark_all_ready()

    def timings(self) -> dict[str, float]:
        """Timings of the busiest worker, since workers run in parallel.

        A replaced worker starts at 0.
        """
        if self.pool.is_per_env:
            return {}
        timings = self.pool.request("timings")
        return {name: max(part[name] for part in timings) for name in timings[0]}

    def health(self) -> dict[str, int]:
        if self.call_order.pending != "closed":
            self.pool.read_messages()
        return self.pool.health.counts()

    @property
    def recent_failures(self) -> list[Failure]:
        """The last failures, oldest first."""
        self.health()
        return list(self.pool.health.recent)

    @property
    def first_failure(self) -> Failure | None:
        return self.pool.health.first

    def close(self) -> None:
        if self.call_order.close():
            self.finalizer()

    @property
    def num_workers(self) -> int:
        return len(self.pool.workers)

    def _count_episodes(self, batch: StepBatch) -> None:
        """Count ended episodes, and clear the failures of envs that ended one themselves."""
        recovery, restart_policy, ended = self.pool.recovery, self.pool.restart_policy, batch.ended
        if np.count_nonzero(ended):
            recovery.num_ended[batch.env_ids] += ended
        if recovery.any_pending:
            ended = ended & ~recovery.take_truncated(batch.env_ids)
        if restart_policy.consecutive:
            for env_id in batch.env_ids[ended].tolist():
                restart_policy.clear_failures(env_id)

    def _mask_of(self, env_ids: IntArray) -> BoolArray | None:
        """Masks to check the actions of these envs against."""
        if self.batch.mask is None or env_ids is self.all_env_ids:
            return self.batch.mask
        mask: BoolArray = self.batch.mask[env_ids]
        if self.pool.recovery.any_pending:
            # Their worker died: the actions belong to old episodes, whose masks are gone.
            mask[self.pool.recovery.pending_truncation[env_ids]] = True
        return mask

    def _checked_ids(self, env_ids: IntArray) -> IntArray:
        """Check that these envs wait for an action and are whole groups."""
        ids = np.asarray(env_ids, np.int64).reshape(-1)
        is_valid = (ids >= 0) & (ids < self.num_envs)
        if not is_valid.all() or len(np.unique(ids)) < len(ids):
            raise ShapeError(
                f"send() got the env_ids {ids.tolist()}; name each of 0..{self.num_envs - 1} at most once."
            )
        waits = self.in_flight.waiting(ids)
        if not waits.all():
            raise CallOrderError(
                f"send() got an action for env {ids[~waits][0]}, which does not wait for one: "
                "recv() has not returned it since its last action."
            )
        if not self.pool.is_per_env:
            sizes = np.bincount(self.groups)
            counts = np.bincount(self.groups[ids], minlength=len(sizes))
            partial_groups = np.flatnonzero((counts > 0) & (counts < sizes))
            if len(partial_groups):
                group = np.flatnonzero(self.groups == partial_groups[0])
                raise ShapeError(
                    f"send() got actions for some of the envs {group[0]}..{group[-1]}, which "
                    "step together; name all of them or none."
                )
        return ids

    def _groups(self) -> IntArray:
        """(envs,) group of each env: built-in envs step in groups, third-party ones alone."""
        if self.pool.is_per_env:
            return np.arange(self.num_envs)
        groups = np.zeros(self.num_envs, np.int64)
        for worker in self.pool.workers:
            env_ids = range(worker.shard.first, worker.shard.last)
            for first, _ in pairwise(group_edges(env_ids, self.batch_envs, self.num_envs)):
                groups[first:] += 1
        return groups - 1


class FirstReadyBackend(ProcessBackend):
    """Process backend with partial batches: `recv` returns the envs that are ready first.

    Args:
        make_envs: creates the envs of a worker.
        num_envs: number of envs in total.
        settings: as of `ProcessBackend`; `batch_envs` 0 = an eighth of the envs.
    """

    def __init__(self, make_envs: EnvFactory, num_envs: int, settings: WorkerSettings | None = None) -> None:
        settings = settings or WorkerSettings()
        default = max(1, check_num_envs(num_envs) // READY_DIVISOR)
        batch_envs = settings.batch_envs or default
        super().__init__(make_envs, num_envs, replace(settings, batch_envs=batch_envs))
