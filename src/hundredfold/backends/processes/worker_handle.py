"""The parent's hold on one worker: its process, its wire, its signs of life.

Whose fault it was that a worker is lost, and what to say about it.
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
from multiprocessing.context import BaseContext
from time import monotonic
from typing import Any, NoReturn

import cloudpickle  # type: ignore[import-untyped]

from hundredfold.backends.call_checks import MAIN_GUARD_HINT
from hundredfold.backends.processes.channel import SPAN, ParentChannel
from hundredfold.backends.processes.remote_errors import RemoteError
from hundredfold.backends.processes.worker_main import WorkerPlan, worker_main
from hundredfold.core.batch import IntArray
from hundredfold.core.errors import EnvError, HundredfoldError, WorkerError
from hundredfold.core.protocols import EnvFactory

# What a write meets when the worker is gone.
GONE = (BrokenPipeError, ConnectionResetError)


class WorkerProcess:
    """A worker that has been started; whether it is well shows on its wire."""

    def __init__(self, plan: WorkerPlan, context: BaseContext, memory: int | None) -> None:
        self.plan = plan
        self.size = plan.last - plan.first
        self.whole = SPAN.pack(plan.first, plan.last)
        self.ready = False
        self.is_per_env = False
        self.last_sign = monotonic()
        self.exit_code: int | None = None  # known once it is over, unless it had to be ended
        ours, theirs = socket.socketpair()
        self.wire = ParentChannel(ours, self.size, plan.settings.step_timeout)
        try:
            with signals_held():
                self.process = _start(context, theirs, plan)
            self.wire.hand_over()
            if memory is not None:
                self.wire.hand_memory(memory)
        except BaseException:
            self.wire.close()
            raise
        finally:
            theirs.close()

    def __str__(self) -> str:
        envs = f"envs {self.plan.first}..{self.plan.last - 1}"
        return f"worker {self.plan.number} ({envs}, process {self.process.pid})"

    @property
    def rows(self) -> slice:
        return slice(self.plan.first, self.plan.last)

    @property
    def patience(self) -> float:
        """Seconds without a sign of life that are still no reason to worry."""
        settings = self.plan.settings
        return settings.start_timeout if not self.ready else self.step_timeout

    @property
    def step_timeout(self) -> float:
        """Seconds a step may take. built-in envs never hang, but compile now and then."""
        settings = self.plan.settings
        if self.is_per_env:
            return settings.step_timeout
        return max(settings.step_timeout, settings.start_timeout)

    @property
    def ended_by_itself(self) -> bool:
        """Whether it is over, and no signal was needed for that."""
        return self.exit_code is not None and self.exit_code >= 0

    def has_news(self) -> bool:
        """Whether there is something on the wire that has not been read."""
        return bool(select.select([self.wire.inbox], [], [], 0)[0])

    def post(self, spans: bytes) -> None:
        """Ask for steps; if the worker is gone, that shows when it is listened to."""
        self.last_sign = monotonic()
        try:
            self.wire.post_bytes(spans)
        except GONE:
            return

    def say(self, *message: Any) -> None:
        """Give an order; if the worker is gone, that shows when it is listened to."""
        self.last_sign = monotonic()
        try:
            self.wire.say(*message)
        except TimeoutError:
            self.last_sign = -inf  # it does not read: to be ended at the next look
        except GONE:
            pass

    def ask_to_close(self) -> None:
        """Let it close its envs, if it is still there and listens."""
        self.wire.messages.settimeout(0.1)
        self.say("close", 0)

    def end(self) -> str:
        """Make sure the process is over; how it ended, in words."""
        self.process.join(0.2)
        self.exit_code = self.process.exitcode
        with suppress(ProcessLookupError, PermissionError, TypeError):
            os.killpg(self.process.pid, signal.SIGKILL)  # with whatever its envs have started
        self.process.kill()
        self.process.join(5)
        if self.exit_code is None and self.process.exitcode != -signal.SIGKILL:
            self.exit_code = self.process.exitcode  # on a busy machine it took a little longer
        self.wire.close()
        return _words(self.exit_code)

    def close(self, deadline: float) -> None:
        """Wait for it to close its envs and end by itself, until its time is up."""
        self.process.join(max(0.0, deadline - monotonic()))
        self.end()


def pickle_factory(make_envs: EnvFactory, start_method: str) -> EnvFactory | bytes:
    """The factory as it travels to a worker: a forked one simply has it."""
    if start_method == "fork":
        return make_envs
    try:
        packed: bytes = cloudpickle.dumps(make_envs)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise WorkerError(
            f"the env cannot be sent to a worker that starts by {start_method}: {error}. Let it "
            "make its parts itself rather than carry them along, or use the start method fork."
        ) from error
    return packed


@contextmanager
def signals_held() -> Iterator[None]:
    """Keep Ctrl-C and SIGTERM for later, so that a worker is born deaf to them."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def _start(context: BaseContext, theirs: socket.socket, plan: WorkerPlan) -> Any:
    process = context.Process(  # type: ignore[attr-defined]
        target=worker_main, args=(theirs, plan), name=f"hundredfold-worker-{plan.number}"
    )
    try:
        process.start()
    except (OSError, AssertionError, RuntimeError) as error:
        raise WorkerError(
            f"worker {plan.number} could not start: {error}. {MAIN_GUARD_HINT}"
        ) from error
    return process


def _words(exit_code: int | None) -> str:
    if exit_code is None:
        return "it no longer answered and was ended"
    if exit_code == -signal.SIGKILL:
        return "it was killed (SIGKILL: by hand, or because memory ran out)"
    if exit_code < 0:
        return f"it was ended by {signal.Signals(-exit_code).name}"
    return f"it ended by itself with exit code {exit_code}"


class EnvTimeoutError(EnvError):
    """An env did not return in time, and its worker was ended."""


def diagnose_exit(
    worker: WorkerProcess,
    how: str,
    report: RemoteError | None,
    hanging: IntArray | None,
    inside: IntArray,
) -> tuple[int | None, HundredfoldError]:
    """The env that is at fault, or None for the worker, and the error that tells of it.

    `hanging`: envs whose time was up, none if the worker as a whole said nothing, None if it ended
    by itself. `inside`: envs that were at work at that moment.
    """
    if report is not None:
        error = WorkerError(f"{worker} could not take its place: {report}")
        error.__cause__ = report.cause
        return None, error
    if hanging is not None and not len(hanging):
        return None, WorkerError(
            f"{worker} gave no sign of life for {worker.patience:g} seconds, as if it were "
            "stopped, and was ended. Allow more with step_timeout or start_timeout."
        )
    if hanging is not None and worker.is_per_env:
        env_id = int(hanging[0])
        return env_id, EnvTimeoutError(
            f"env {env_id} hung: it did not return from step() or reset() within "
            f"{worker.step_timeout:g} seconds, and {worker} was ended. Mend the env, or allow "
            "more with step_timeout."
        )
    if hanging is not None:
        return None, WorkerError(
            f"{worker} did not return from a step within {worker.step_timeout:g} seconds and was "
            "ended. Allow more with step_timeout."
        )
    if worker.is_per_env and len(inside) == 1:
        env_id = int(inside[0])
        return env_id, EnvError(
            f"{worker} is gone while env {env_id} was in step() or reset(): {how}."
        )
    return None, WorkerError(f"{worker} is gone: {how}.")


def refuse_start(worker: WorkerProcess, how: str) -> NoReturn:
    """A worker is gone before it had made its envs: say so.

    Only one that ended by itself is a `WorkerError`, after which the envs may be tried in this
    process. What a signal ended, or what never came to an end, would do the same here.
    """
    if worker.ended_by_itself:
        raise WorkerError(f"{worker} did not start: {how}. {MAIN_GUARD_HINT}")
    raise EnvError(
        f"{worker} did not come to the end of making its envs: {how}. They are not tried in this "
        "process, which they might take along. Mend the env; if it is the start method that it "
        "does not bear, try another one, or ask for --backend in_process."
    )
