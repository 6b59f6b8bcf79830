"""The parent's handle on one worker: its process, its channel, its last heartbeat.

Also the diagnosis of a dead worker: which env or signal ended it, and the error that says so.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import inf
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import BaseContext
from time import monotonic
from typing import Any, NoReturn

import cloudpickle  # type: ignore[import-untyped]

from hundredfold.backends.call_checks import MAIN_GUARD_HINT
from hundredfold.backends.processes.channel import RANGE, ParentChannel
from hundredfold.backends.processes.remote_errors import RemoteError
from hundredfold.backends.processes.worker_main import ShardSpec, kill_marked, worker_main, worker_token
from hundredfold.core.batch import IntArray
from hundredfold.core.errors import EnvError, HundredfoldError, WorkerError
from hundredfold.core.protocols import EnvFactory

# What a write raises when the worker is gone.
WORKER_GONE = (BrokenPipeError, ConnectionResetError)


class EnvTimeoutError(EnvError):
    """An env did not return in time, and its worker was killed."""


class WorkerHandle:
    """A started worker process.

    Args:
        shard: the envs it owns.
        context: start method of `multiprocessing`.
        memory_fd: shared memory, if it exists already.
    """

    def __init__(self, shard: ShardSpec, context: BaseContext, memory_fd: int | None) -> None:
        self.shard = shard
        self.num_envs = shard.last - shard.first
        self.all_envs = RANGE.pack(shard.first, shard.last)
        self.is_ready = False  # has created its envs
        self.is_per_env = False
        # Heartbeat: when it last sent something, or was sent something.
        self.last_heartbeat = monotonic()
        self.exit_code: int | None = None  # None while it runs, and if it had to be killed
        parent_socket, worker_socket = socket.socketpair()
        self.channel = ParentChannel(parent_socket, self.num_envs, shard.settings.step_timeout)
        try:
            _start_helpers(context.get_start_method())
            with signals_blocked():
                self.process = _start(context, worker_socket, shard)
            self.channel.send_worker_fds()
            if memory_fd is not None:
                self.channel.send_memory_fd(memory_fd)
        except BaseException:
            self.channel.close()
            raise
        finally:
            worker_socket.close()

    def __str__(self) -> str:
        envs = f"envs {self.shard.first}..{self.shard.last - 1}"
        return f"worker {self.shard.worker} ({envs}, process {self.process.pid})"

    @property
    def index(self) -> int:
        return self.shard.worker

    @property
    def rows(self) -> slice:
        """Rows of its envs in the shared arrays."""
        return slice(self.shard.first, self.shard.last)

    @property
    def heartbeat_timeout(self) -> float:
        """Seconds without a heartbeat after which it counts as hung."""
        return self.step_timeout if self.is_ready else self.shard.settings.start_timeout

    @property
    def step_timeout(self) -> float:
        """Seconds that a step may take. Built-in envs never hang, but may compile kernels."""
        settings = self.shard.settings
        if self.is_per_env:
            return settings.step_timeout
        return max(settings.step_timeout, settings.start_timeout)

    @property
    def exited_by_itself(self) -> bool:
        """Whether it has ended without a signal."""
        return self.exit_code is not None and self.exit_code >= 0

    def has_unread_data(self) -> bool:
        """Whether it has sent something that was not read yet."""
        return bool(select.select([self.channel.read_fd], [], [], 0)[0])

    def send_ranges(self, ranges: bytes) -> None:
        """Request steps of these envs; a dead worker shows when its channel is read."""
        self.last_heartbeat = monotonic()
        try:
            self.channel.write_ranges(ranges)
        except WORKER_GONE:
            return

    def send_message(self, *message: Any) -> None:
        """Send a message; a dead worker shows when its channel is read."""
        self.last_heartbeat = monotonic()
        try:
            self.channel.send_message(*message)
        except TimeoutError:
            self.last_heartbeat = -inf  # it does not read: the next health check kills it
        except WORKER_GONE:
            pass

    def request_close(self) -> None:
        """Ask it to close its envs and end."""
        self.channel.messages.settimeout(0.1)
        self.send_message("close", 0)

    def terminate(self, *, is_closing: bool = False) -> str:
        """Make sure that the process has ended, with the subprocesses of its envs; returns how it ended.

        Args:
            is_closing: all workers end, and subprocesses in sessions of their own are killed afterwards.
        """
        self.process.join(0.2)
        self.exit_code = self.process.exitcode
        with suppress(ProcessLookupError, PermissionError, TypeError):
            os.killpg(self.process.pid, signal.SIGKILL)  # with the subprocesses of its envs
        self.process.kill()
        self.process.join(5)
        if not is_closing:
            kill_marked(worker_token(self.shard.token, self.process.pid))
        if self.exit_code is None and self.process.exitcode != -signal.SIGKILL:
            self.exit_code = self.process.exitcode  # on a busy machine it took a little longer
        self.channel.close()
        return describe_exit(self.exit_code)

    def close(self, deadline: float) -> None:
        """Wait for it to end by itself until the deadline (`time.monotonic()`), then kill it."""
        self.process.join(max(0.0, deadline - monotonic()))
        self.terminate(is_closing=True)


def pickle_factory(make_envs: EnvFactory, start_method: str) -> EnvFactory | bytes:
    """The env factory as it is sent to a worker: pickled, or as it is to a forked one."""
    if start_method == "fork":
        return make_envs
    try:
        data: bytes = cloudpickle.dumps(make_envs)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise WorkerError(
            f"the env factory cannot be pickled for the start method {start_method}: {error}. "
            "Create such objects inside the env, or use --start-method fork."
        ) from error
    return data


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Block SIGINT and SIGTERM, so that a new worker starts with them blocked."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _start_helpers(start_method: str | None) -> None:
    """Start the processes of `multiprocessing` that outlive a worker, while no signal is blocked.

    A fork server keeps the signal mask of the moment it starts, for all processes that the program asks of it. Starting
    the resource tracker unblocks signals.
    """
    if start_method != "fork":
        resource_tracker.ensure_running()
    if start_method == "forkserver":
        forkserver.ensure_running()


def _start(context: BaseContext, worker_socket: socket.socket, shard: ShardSpec) -> Any:
    process = context.Process(  # type: ignore[attr-defined]
        target=worker_main, args=(worker_socket, shard), name=f"hundredfold-worker-{shard.worker}"
    )
    try:
        process.start()
    except (OSError, AssertionError, RuntimeError) as error:
        raise WorkerError(f"worker {shard.worker} could not start: {error}. {MAIN_GUARD_HINT}") from error
    return process


def describe_exit(exit_code: int | None) -> str:
    """How a worker ended, from its exit code; None = it had to be killed."""
    if exit_code is None:
        return "it no longer responded and was killed"
    if exit_code == -signal.SIGKILL:
        return "it was killed by SIGKILL (by hand, or out of memory)"
    if exit_code < 0:
        return f"it was killed by {signal.Signals(-exit_code).name}"
    return f"it ended by itself with exit code {exit_code}"


def diagnose_exit(
    worker: WorkerHandle,
    exit_description: str,
    *,
    error: RemoteError | None,
    hung_env_ids: IntArray | None,
    busy_env_ids: IntArray,
) -> tuple[int | None, HundredfoldError]:
    """Diagnose a dead worker: the env at fault and the error to report.

    Args:
        worker: the worker, terminated.
        exit_description: how it ended.
        error: error in its recovery, if any.
        hung_env_ids: envs beyond their timeout; empty if the worker sent no heartbeat; None if it
            ended by itself.
        busy_env_ids: envs that were in step or reset when it ended.

    Returns:
        The env at fault, None if it is unknown, and the error.
    """
    if error is not None:
        failed = WorkerError(f"{worker} could not replace a dead worker: {error}")
        failed.__cause__ = error.cause
        return None, failed
    if hung_env_ids is not None and not len(hung_env_ids):
        return None, WorkerError(
            f"{worker} sent no heartbeat for {worker.heartbeat_timeout:g} seconds and was killed. "
            "Raise --step-timeout or --start-timeout if it needs longer."
        )
    if hung_env_ids is not None and worker.is_per_env:
        env_id = int(hung_env_ids[0])
        return env_id, EnvTimeoutError(
            f"env {env_id} hung: it did not return from step() or reset() within "
            f"{worker.step_timeout:g} seconds, and {worker} was killed. Fix the env or raise "
            "--step-timeout."
        )
    if hung_env_ids is not None:
        return None, WorkerError(
            f"{worker} did not return from a step within {worker.step_timeout:g} seconds and was "
            "killed. Raise --step-timeout if it needs longer."
        )
    if worker.is_per_env and len(busy_env_ids) == 1:
        env_id = int(busy_env_ids[0])
        return env_id, EnvError(f"{worker} died while env {env_id} was in step() or reset(): {exit_description}.")
    return None, WorkerError(f"{worker} died: {exit_description}.")


def raise_start_error(worker: WorkerHandle, exit_description: str) -> NoReturn:
    """Raise the error of a worker that died before it had created its envs.

    Only one that ended by itself raises a `WorkerError`, after which the envs may be tried in this
    process. Envs that crash or hang their worker would do the same here.
    """
    if worker.exited_by_itself:
        raise WorkerError(f"{worker} did not start: {exit_description}. {MAIN_GUARD_HINT}")
    raise EnvError(
        f"{worker} crashed while creating its envs ({exit_description}). They are not retried in "
        "the main process because they could crash it too. Fix the env, try another "
        "--start-method, or force --backend in_process."
    )
