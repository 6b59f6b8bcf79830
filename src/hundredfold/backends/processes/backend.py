"""Envs in worker processes: few workers, many envs each, everything in shared memory.

`processes` waits for everybody; `first_ready` is the same backend asked for fewer, so that fast
envs never wait for slow ones. Failed envs, hanging envs and lost workers are replaced while the
others go on.
"""

from __future__ import annotations

from dataclasses import replace
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
from hundredfold.backends.processes.env_shards import pairs, shard_edges
from hundredfold.backends.processes.shared_memory import LazyInfos, batch_over
from hundredfold.backends.processes.worker_pool import InFlight, WorkerPool
from hundredfold.backends.settings import WorkerSettings
from hundredfold.core.batch import (
    Array,
    Arrays,
    BoolArray,
    IntArray,
    State,
    StepBatch,
    concat_rows,
    copies,
    slice_rows,
)
from hundredfold.core.errors import CallOrderError, ShapeError
from hundredfold.core.failures import Failure
from hundredfold.core.protocols import EnvFactory, SharedParams

# The share of envs that `first_ready` waits for when nobody says otherwise.
READY_DIVISOR: Final = 8


class ProcessBackend:
    """Slices of an env in worker processes, side by side in shared memory."""

    def __init__(
        self, make_envs: EnvFactory, num_envs: int, settings: WorkerSettings | None = None
    ) -> None:
        self.num_envs = check_num_envs(num_envs)
        self.settings = settings or WorkerSettings()
        refuse_while_importing_main("start workers")
        self.call_order = CallOrder()
        self.batch_envs = min(self.settings.batch_envs or self.num_envs, self.num_envs)
        self.traffic = InFlight(self.num_envs)
        self.pool = WorkerPool(make_envs, self.traffic, self.settings, self.batch_envs)
        # Also when nobody calls `close`: at the end of the program, or of this object.
        self.closing = Finalize(self, self.pool.close, exitpriority=10)
        self.spec = self.pool.spec
        self.arrays = self.pool.arrays
        self.groups = self._groups()
        if not self.pool.is_per_env:
            self.pool.doorbell.step_together(self.groups)
        self.batch = batch_over(self.arrays, self.spec)
        self.everyone = self.batch.env_ids
        if self.pool.is_per_env:
            self.batch.infos = LazyInfos(
                self.arrays, self.everyone, self.pool.info_of, self.pool.story.cut_off
            )
        self.received = self.everyone  # whom the last recv() was about

    def reset(self, seed: int) -> None:
        self.call_order.expect_open("reset()")
        with self.call_order.transition_to("recv"):
            self.pool.request("reset", [(seed,)] * self.num_workers)
            self.pool.story.begin_with(seed)
            self.pool.start_over()

    def recv(self) -> StepBatch:
        self.call_order.expect("recv", "recv()")
        at_work = self.traffic.num_at_work
        if not at_work:
            raise CallOrderError("recv() was called with no step in flight: call send() first.")
        with self.call_order.transition_to("send"):
            self.pool.wait_for(min(self.batch_envs, at_work))
        env_ids = self.pool.fetch()
        if env_ids is None:
            self.received, batch = self.everyone, self.batch
        else:
            self.received, batch = env_ids, self.batch.take(env_ids)
        self._follow(batch)
        return batch

    def send(self, actions: Array, env_ids: IntArray | None = None) -> None:
        self.call_order.expect("send", "send()")
        ids = self.received if env_ids is None else self._checked_ids(env_ids)
        if not len(ids):
            self.call_order.pending = "recv"
            return
        chosen = checked_actions(actions, WaitingEnvs(ids, self._mask_of(ids)), self.spec)
        self.arrays["actions"][slice(None) if ids is self.everyone else ids] = chosen
        with self.call_order.transition_to("recv"):
            if len(ids) == self.num_envs:
                self.pool.send(None)
            else:
                # What recv() returned is in order already.
                self.pool.send(ids if env_ids is None else np.sort(ids))

    def broadcast(self, shared_params: SharedParams) -> None:
        self.call_order.expect_open("broadcast()")
        self.pool.request("inform", [(dict(shared_params),)] * self.num_workers)
        self.pool.story.shared_params |= copies(shared_params)

    def state(self) -> Arrays:
        self.call_order.expect("send", "state()")
        with self.call_order.transition_to("send"):
            states = self.pool.request("state")
        return concat_rows(states)

    def restore(self, state: State) -> None:
        self.call_order.expect_open("restore()")
        check_snapshot(state, self.num_envs)
        kept = copies(state)
        with self.call_order.transition_to("recv"):
            self.pool.request(
                "restore", [(slice_rows(kept, worker.rows),) for worker in self.pool.workers]
            )
            self.pool.story.go_on_from(kept)
            self.pool.start_over()

    def timings(self) -> dict[str, float]:
        """Of the busiest worker, since they work at once; one that was replaced counts anew."""
        if self.pool.is_per_env:
            return {}
        told = self.pool.request("timings")
        return {name: max(part[name] for part in told) for name in told[0]}

    def health(self) -> dict[str, int]:
        if self.call_order.pending != "closed":
            self.pool.catch_up()
        return self.pool.health.counts()

    @property
    def recent_failures(self) -> list[Failure]:
        """The last things that went wrong, oldest first."""
        self.health()
        return list(self.pool.health.recent)

    def close(self) -> None:
        if self.call_order.close():
            self.closing()

    @property
    def num_workers(self) -> int:
        return len(self.pool.workers)

    def _follow(self, batch: StepBatch) -> None:
        """Count episodes, and forgive envs that came to the end of one by themselves."""
        story, restart_policy, ended = self.pool.story, self.pool.restart_policy, batch.ended
        if np.count_nonzero(ended):
            story.ended[batch.env_ids] += ended
        if story.any_cut_off:
            ended = ended & ~story.tell(batch.env_ids)
        if restart_policy.consecutive:
            for env_id in batch.env_ids[ended].tolist():
                restart_policy.clear_failures(env_id)

    def _mask_of(self, env_ids: IntArray) -> BoolArray | None:
        """What these envs allow, as far as it can be held against their actions."""
        if self.batch.mask is None or env_ids is self.everyone:
            return self.batch.mask
        mask: BoolArray = self.batch.mask[env_ids]
        if self.pool.story.any_cut_off:
            # Actions of episodes that are lost: they were chosen under masks that are lost, too.
            mask[self.pool.story.cut_off[env_ids]] = True
        return mask

    def _checked_ids(self, env_ids: IntArray) -> IntArray:
        """Refuse envs that do not wait, or that leave some of their group behind."""
        given = np.asarray(env_ids, np.int64).reshape(-1)
        inside = (given >= 0) & (given < self.num_envs)
        if not inside.all() or len(np.unique(given)) < len(given):
            raise ShapeError(
                f"send() got the env_ids {given.tolist()}; name each of 0..{self.num_envs - 1} at "
                "most once."
            )
        waits = self.traffic.waiting(given)
        if not waits.all():
            raise CallOrderError(
                f"send() got an action for env {given[~waits][0]}, which does not wait for one: "
                "recv() has not returned it since its last action."
            )
        if not self.pool.is_per_env:
            sizes = np.bincount(self.groups)
            named = np.bincount(self.groups[given], minlength=len(sizes))
            torn = np.flatnonzero((named > 0) & (named < sizes))
            if len(torn):
                together = np.flatnonzero(self.groups == torn[0])
                raise ShapeError(
                    f"send() got actions for some of the envs {together[0]}..{together[-1]}, which "
                    "step together; name all of them or none."
                )
        return given

    def _groups(self) -> IntArray:
        """Envs that step together: a shard of a built-in env, or each on its own."""
        if self.pool.is_per_env:
            return np.arange(self.num_envs)
        groups = np.zeros(self.num_envs, np.int64)
        for worker in self.pool.workers:
            env_ids = range(worker.plan.first, worker.plan.last)
            for first, _ in pairs(shard_edges(env_ids, self.batch_envs, self.num_envs)):
                groups[first:] += 1
        return groups - 1


class FirstReadyBackend(ProcessBackend):
    """Worker processes that are not waited for: `recv` returns whoever is ready."""

    def __init__(
        self, make_envs: EnvFactory, num_envs: int, settings: WorkerSettings | None = None
    ) -> None:
        settings = settings or WorkerSettings()
        share = max(1, check_num_envs(num_envs) // READY_DIVISOR)
        batch_envs = settings.batch_envs or share
        super().__init__(make_envs, num_envs, replace(settings, batch_envs=batch_envs))
