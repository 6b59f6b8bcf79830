"""Worker pool: starts worker processes, sends them requests, replaces dead and hung ones.

Everything happens inside the parent's own calls; there is no background thread. A dead worker is
replaced by a new process that creates the same envs; their episodes are truncated where they were.
Requests that the dead worker had not answered are sent again, and the other workers continue while
the new one starts.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import warnings
from dataclasses import replace
from itertools import pairwise
from secrets import token_hex
from time import monotonic
from typing import Any, Final

import numpy as np

from hundredfold.backends.processes.channel import pack_ranges
from hundredfold.backends.processes.ready_flags import ReadyFlags
from hundredfold.backends.processes.recovery import RecoveryState
from hundredfold.backends.processes.remote_errors import RemoteError, RequestResult
from hundredfold.backends.processes.shared_memory import create_memory, map_arrays, memory_layout
from hundredfold.backends.processes.worker_handle import WorkerHandle, diagnose_exit, pickle_factory, raise_start_error
from hundredfold.backends.processes.worker_main import ShardSpec, kill_marked
from hundredfold.backends.settings import WorkerSettings
from hundredfold.core.batch import BoolArray, FloatArray, IntArray
from hundredfold.core.errors import EXAMPLE, WorkerError
from hundredfold.core.failures import Failure, Health
from hundredfold.core.protocols import EnvFactory

# Time for workers to close their envs before they are killed.
CLOSE_SECONDS: Final = 5.0
# Interval of health checks, at most.
HEALTH_CHECK_SECONDS: Final = 1.0
# First poll while waiting for envs. Wake-ups arrive in time; polling does not depend on them.
FIRST_POLL_SECONDS: Final = 0.02
# A parent that has not checked for this much longer was itself stopped or busy elsewhere.
PARENT_STALL_SECONDS: Final = 2.0
# Id of the one request whose result is not awaited: a new worker's recovery.
RECOVER_ID: Final = 0


class InFlight:
    """Which envs have a step in flight: an action was sent and its result not yet taken."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.in_flight = np.zeros(num_envs, bool)  # (envs,)
        self.count = 0

    def mark_sent(self, env_ids: IntArray | None) -> None:
        """Actions were sent to these envs; None = all."""
        if env_ids is None:
            self.in_flight[:] = True
            self.count = self.num_envs
        else:
            self.in_flight[env_ids] = True
            self.count += len(env_ids)

    def mark_taken(self, env_ids: IntArray | None) -> None:
        """The results of these envs were taken, and they wait for actions; None = all."""
        if env_ids is None:
            self.in_flight[:] = False
            self.count = 0
        else:
            self.in_flight[env_ids] = False
            self.count -= len(env_ids)

    def waiting(self, env_ids: IntArray) -> BoolArray:
        """(rows,) True where an env waits for an action."""
        waits: BoolArray = ~self.in_flight[env_ids]
        return waits

    def env_ids(self, rows: slice) -> IntArray:
        """Those of these envs that have a step in flight."""
        env_ids: IntArray = rows.start + np.flatnonzero(self.in_flight[rows])
        return env_ids


class WorkerPool:
    """The workers of one backend and the memory they share.

    Args:
        make_envs: creates the envs of a worker.
        in_flight: bookkeeping of steps in flight, shared with the backend.
        settings: number of workers, start method, timeouts, restart policy.
        batch_envs: envs that the backend waits for.
    """

    def __init__(self, make_envs: EnvFactory, in_flight: InFlight, settings: WorkerSettings, batch_envs: int) -> None:
        self.in_flight = in_flight
        self.recovery = RecoveryState(in_flight.num_envs)
        self.restart_policy, self.health = settings.restart_policy(), Health()
        start_method = settings.resolved_start_method()
        self.context = multiprocessing.get_context(start_method)
        self.owner_pid, self.token = os.getpid(), token_hex(8)
        self.memory_fd: int | None = None
        self.workers: list[WorkerHandle] = []
        self.alive: dict[int, WorkerHandle] = {}  # workers we read from, by their read_fd
        self.poll = select.poll()
        self.check_seconds = min(HEALTH_CHECK_SECONDS, settings.step_timeout / 4)
        self.last_check = monotonic()
        # Time before this moment counts towards no timeout: this process was not running.
        self.running_since = 0.0
        self.steps_taken = np.zeros(in_flight.num_envs, np.int64)  # (envs,) by the current worker
        self.request_id = RECOVER_ID
        self.pending: dict[int, tuple[Any, ...]] = {}  # requests without a result, by worker
        self.results: dict[int, RequestResult] = {}
        self.step_errors: list[tuple[str, RemoteError]] = []
        self.is_per_env = self.is_started = False
        num_envs, num_workers = in_flight.num_envs, settings.num_workers(in_flight.num_envs)
        self.shard_edges = np.arange(num_workers + 1) * num_envs // num_workers
        factory = pickle_factory(make_envs, start_method)
        try:
            for index, (first, last) in enumerate(pairwise(self.shard_edges.tolist())):
                self._spawn(ShardSpec(index, first, last, num_envs, batch_envs, settings, factory, self.token))
            self._share_memory()
        except BaseException:
            self.close()
            raise

    # -- every step -----------------------------------------------------------------------------

    def send(self, env_ids: IntArray | None) -> None:
        """Start a step of these envs, in ascending order; None = all."""
        self.in_flight.mark_sent(env_ids)
        if env_ids is None:
            for worker in self.workers:
                worker.send_ranges(worker.all_envs)
            return
        cuts: list[int] = env_ids.searchsorted(self.shard_edges).tolist()
        for worker, (first, last) in zip(self.workers, pairwise(cuts), strict=True):
            if first < last:
                worker.send_ranges(pack_ranges(env_ids[first:last]))

    def wait_for(self, num_envs: int) -> None:
        """Wait until so many envs are ready."""
        poll_seconds = FIRST_POLL_SECONDS
        if monotonic() - self.last_check >= self.check_seconds:
            self._poll(0.0)
        while not self.step_errors:
            if self.ready_flags.has_ready(num_envs):
                return
            if self.ready_flags.arm_wakeup(num_envs):
                self._poll(poll_seconds)
                poll_seconds = min(2 * poll_seconds, self.check_seconds)
            self.ready_flags.disarm()
        worker, error = self.step_errors[0]
        self.step_errors.clear()
        error.raise_here(worker)

    def take_ready(self) -> IntArray | None:
        """Take all ready envs, in ascending order; None = all."""
        env_ids = self.ready_flags.take_ready()
        self.steps_taken[slice(None) if env_ids is None else env_ids] += 1
        self.in_flight.mark_taken(env_ids)
        return env_ids

    def mark_all_ready(self) -> None:
        """All envs were reset or restored; steps that were in flight no longer count."""
        self.step_errors.clear()
        self.in_flight.mark_sent(None)
        self.ready_flags.set_all()

    def read_messages(self) -> None:
        """Read what workers have sent, without waiting."""
        self._poll(0.0)

    # -- requests -------------------------------------------------------------------------------

    def request(self, name: str, arguments: list[tuple[Any, ...]] | None = None) -> list[Any]:
        """Send a request to all workers and wait for the results, worker by worker.

        Args:
            name: a name in `worker_main.REQUESTS`.
            arguments: one tuple per worker; None = no arguments.
        """
        per_worker = [()] * len(self.workers) if arguments is None else arguments
        return self._request_from(self.workers, name, per_worker)

    def info_bytes(self, env_id: int) -> bytes:
        """A pickled info that is not in shared memory, from the worker that has it."""
        if not self.workers:
            raise WorkerError("the infos are gone: read them before the backend is closed.")
        index = int(np.searchsorted(self.shard_edges, env_id, side="right")) - 1
        worker = self.workers[index]
        if worker not in self.alive.values():
            raise WorkerError(f"the infos of {worker} are gone: the worker died before they were read.")
        data: bytes = self._request_from([worker], "info", [(env_id,)])[0]
        return data

    def _request_from(self, workers: list[WorkerHandle], name: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
        self.request_id += 1
        self.results.clear()
        indices = [worker.index for worker in workers]
        self.pending = {index: (name, self.request_id, *one) for index, one in zip(indices, arguments, strict=True)}
        for worker in list(workers):
            if worker in self.alive.values():
                worker.send_message(*self.pending[worker.index])
            else:  # its death stopped the run
                self._respawn(worker)
        while self.pending:
            self._poll(self.check_seconds)
        results = [self.results[index] for index in indices]
        for index, result in zip(indices, results, strict=True):
            if result.error is not None:
                result.error.raise_here(str(self.workers[index]))
        # Each distinct warning once, in order; examples differ between workers.
        distinct: dict[str, tuple[str, type[Warning]]] = {}
        for warning in (warning for result in results for warning in result.warnings):
            distinct.setdefault(warning[0].partition(EXAMPLE)[0], warning)
        for message, category in distinct.values():
            warnings.warn(message, category, stacklevel=4)
        return [result.value for result in results]

    def close(self) -> None:
        """Close all workers, and kill those that do not end in time; safe to call twice."""
        if self.owner_pid != os.getpid():
            return  # a forked copy of the pool: the workers belong to the original
        for worker in self.alive.values():
            worker.request_close()
        deadline = monotonic() + CLOSE_SECONDS
        for worker in self.alive.values():
            worker.close(deadline)
        if self.is_per_env:
            kill_marked(self.token)
        self.workers.clear()
        self.alive.clear()
        if self.memory_fd is not None:
            os.close(self.memory_fd)
            self.memory_fd = None

    # -- starting -------------------------------------------------------------------------------

    def _spawn(self, shard: ShardSpec) -> WorkerHandle:
        worker = WorkerHandle(shard, self.context, self.memory_fd)
        self.workers[worker.index : worker.index + 1] = [worker]
        self.alive[worker.channel.read_fd] = worker
        self.poll.register(worker.channel.read_fd, select.POLLIN)
        return worker

    def _share_memory(self) -> None:
        """Wait until all workers have created their envs, and share memory with them."""
        while not all(worker.is_ready for worker in self.workers):
            self._poll(self.check_seconds)
        layout = memory_layout(self.spec, self.in_flight.num_envs, is_per_env=self.is_per_env)
        self.memory_fd = create_memory(layout)
        for worker in self.workers:
            worker.channel.send_memory_fd(self.memory_fd)
        self.arrays = map_arrays(layout, self.memory_fd)
        self.ready_flags = ReadyFlags(self.arrays)
        if self.spec.has_mask:
            self.arrays["batch/mask"][:] = True
        self.is_started = True

    # -- reading channels -----------------------------------------------------------------------

    def _poll(self, seconds: float) -> None:
        """Wait so long for a wake-up or message, and check the health of all workers if due."""
        for read_fd, _ in self.poll.poll(1000 * seconds):
            if read_fd in self.alive:
                self._read_channel(self.alive[read_fd])
        now = monotonic()
        if now - self.last_check >= self.check_seconds:
            self._check_health(now)

    def _read_channel(self, worker: WorkerHandle) -> None:
        ranges = worker.channel.read_ranges()
        if ranges is None:
            self._handle_death(worker)
            return
        worker.last_heartbeat = monotonic()
        for first, _ in ranges:
            if first < 0 and not self._read_message(worker):
                return

    def _read_message(self, worker: WorkerHandle) -> bool:
        """Read one message; False when it showed that the worker is dead."""
        try:
            kind, *content = worker.channel.recv_message()
        except (EOFError, OSError):
            self._handle_death(worker)
            return False
        except BaseException:
            # Interrupted in the middle of a message: the rest of the stream makes no sense.
            self._reap(worker)
            raise
        if kind == "ready":
            worker.is_ready = True
            self.spec, self.is_per_env = content
            worker.is_per_env = self.is_per_env
        elif kind == "failures":
            self.health.count_restarts(_with_worker(content[0], worker.index))
        elif kind == "error":
            self.step_errors.append((str(worker), content[0]))
        elif kind == "not_created":
            self._handle_death(worker, error=content[0])
            return False
        else:
            request_id, result = content
            if request_id == RECOVER_ID and result.error is not None:
                self._handle_death(worker, error=result.error)
                return False
            self._store_result(worker.index, request_id, result)
        return True

    def _store_result(self, index: int, request_id: int, result: RequestResult) -> None:
        # Results of an earlier request may still arrive after another worker failed in it.
        if index in self.pending and self.pending[index][1] == request_id:
            del self.pending[index]
            self.results[index] = result

    # -- health checks, death and recovery ------------------------------------------------------

    def _check_health(self, now: float) -> None:
        """Find dead workers, hung envs and workers without a heartbeat."""
        if now - self.last_check > self.check_seconds + PARENT_STALL_SECONDS:
            self.running_since = now
        self.last_check = now
        for worker in list(self.alive.values()):
            busy_since = np.abs(self._busy_since(worker))
            is_hung = (busy_since > 0) & (now - np.maximum(busy_since, self.running_since) > worker.step_timeout)
            last_heartbeat = max(worker.last_heartbeat, self.running_since, float(busy_since.max(initial=0.0)))
            if is_hung.any():
                hung_env_ids = worker.shard.first + np.flatnonzero(is_hung)
                self._handle_death(worker, hung_env_ids=hung_env_ids)
            elif self._has_pending(worker) and now - last_heartbeat > worker.heartbeat_timeout:
                self._handle_death(worker, hung_env_ids=np.zeros(0, np.int64))
            elif not worker.process.is_alive() and not worker.has_unread_data():
                self._handle_death(worker)

    def _has_pending(self, worker: WorkerHandle) -> bool:
        """Whether the worker owes a result, a step or its envs."""
        if worker.index in self.pending or not worker.is_ready:
            return True
        if not self.is_started:
            return False
        rows = worker.rows
        return bool((self.in_flight.in_flight[rows] & ~self.arrays["ready"][rows]).any())

    def _handle_death(
        self, worker: WorkerHandle, *, error: RemoteError | None = None, hung_env_ids: IntArray | None = None
    ) -> None:
        """Reap a dead or hung worker and replace it, or raise if the restart policy says so."""
        busy_since = self._busy_since(worker)
        busy_env_ids = worker.shard.first + np.flatnonzero(busy_since)
        reset_env_ids = worker.shard.first + np.flatnonzero(busy_since < 0)
        exit_description = self._reap(worker)
        if not self.is_started:
            if error is not None:
                error.raise_here(str(worker))
            raise_start_error(worker, exit_description)
        self.arrays["busy_since"][worker.rows] = 0.0
        self.recovery.skip_episodes(reset_env_ids, starting=self._is_starting(worker))
        # Ready rows that were not taken yet are about to be overwritten.
        self.ready_flags.clear(worker.rows)
        env_id, failure = diagnose_exit(
            worker, exit_description, error=error, hung_env_ids=hung_env_ids, busy_env_ids=busy_env_ids
        )
        steps_taken = self.steps_taken[worker.rows if env_id is None else env_id].sum()
        self.steps_taken[worker.rows] = 0
        self.restart_policy.record_failure(env_id, failure, good_steps=int(steps_taken), worker=worker.index)
        self.health.count_worker_restart(self.restart_policy.drain(), worker.num_envs)
        self._respawn(worker)

    def _reap(self, worker: WorkerHandle) -> str:
        """End a worker and stop reading from it; returns how it ended."""
        self.poll.unregister(worker.channel.read_fd)
        del self.alive[worker.channel.read_fd]
        return worker.terminate()

    def _respawn(self, worker: WorkerHandle) -> None:
        """Start a new worker for the same envs, and repeat what the old one had to do."""
        new = self._spawn(worker.shard)
        if self._is_starting(new):
            new.send_message("set_shared_params", RECOVER_ID, self.recovery.shared_params)
            new.send_message(*self.pending[new.index], self.recovery.num_skipped[new.rows])
            return
        if self.recovery.has_begun:
            self.recovery.mark_truncated(new.rows)
            new.send_message("recover", RECOVER_ID, self.recovery.point_for(new.rows))
            new.send_ranges(pack_ranges(self.in_flight.env_ids(new.rows)))
        if new.index in self.pending:
            new.send_message(*self.pending[new.index])

    def _is_starting(self, worker: WorkerHandle) -> bool:
        """Whether the worker has to reset or restore all its envs."""
        return worker.index in self.pending and self.pending[worker.index][0] in ("reset", "restore")

    def _busy_since(self, worker: WorkerHandle) -> FloatArray:
        """(envs of the worker,) since when each is in step or, negative, in reset; a copy."""
        if not self.is_started:
            return np.zeros(worker.num_envs)
        return self.arrays["busy_since"][worker.rows].copy()


def _with_worker(failures: list[Failure], index: int) -> list[Failure]:
    return [replace(failure, worker=index) for failure in failures]
