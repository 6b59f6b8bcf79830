"""Restart policy and failure counters for envs that raise, return invalid data, hang or crash.

With `restart` a failed env is recreated and its episode counts as truncated. With `stop`, or when
one env fails again and again, the run ends with an error that lists what happened.
"""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Literal, NoReturn

from hundredfold.core.errors import HundredfoldError, describe_exception

OnEnvError = Literal["restart", "stop"]

# After this many steps without a failure earlier ones no longer count, even if no episode ended.
RESET_AFTER_STEPS: Final = 1000
MAX_RECENT: Final = 50
# Keeps a message about failures well below the size of a socket buffer: sending it never blocks.
MAX_TEXT: Final = 4000


def raise_interrupt(error: BaseException) -> None:
    """Raise the user's Ctrl-C again; anything else that comes out of an env is the env's own failure.

    Where SIGINT is ignored, as in workers, and in other threads than the main one, no Ctrl-C arrives.
    """
    if not isinstance(error, KeyboardInterrupt) or signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        return
    if threading.current_thread() is threading.main_thread():
        raise error


class ForkCounter:
    """Counts the forks that lie between this process and the first one that imported the package."""

    def __init__(self) -> None:
        self.count = 0
        os.register_at_fork(after_in_child=self._increment)

    def _increment(self) -> None:
        self.count += 1


FORKS: Final = ForkCounter()


def end_forked_child(env: str, call: str) -> NoReturn:
    """End a process that an env has forked and that came back from the env: it must not go on as a second run.

    Args:
        env: the env, for the message on standard error.
        call: the call it came back from.
    """
    text = (
        f"{env} forked in {call}, and its child process {os.getpid()} returned from it; the child was ended. "
        "Let it end inside the env, with os._exit().\n"
    )
    os.write(2, text.encode(errors="replace"))
    os._exit(1)


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure of an env or of a worker."""

    env_id: int | None  # None: the worker itself
    message: str
    traceback: str = ""  # the env's own, if it raised
    worker: int | None = None

    def __str__(self) -> str:
        return self.message if self.worker is None else f"{self.message} [worker {self.worker}]"


class RestartPolicy:
    """Decides whether a failed env is restarted or ends the run.

    Args:
        on_env_error: `restart` or `stop`.
        max_env_failures: consecutive failures of one env that end the run.
    """

    def __init__(self, on_env_error: OnEnvError = "stop", max_env_failures: int = 10) -> None:
        self.on_env_error = on_env_error
        self.max_env_failures = max_env_failures
        # Failures of each env or worker since its last success, and all that were not drained yet.
        self.consecutive: dict[str, list[Failure]] = {}
        self.unreported: deque[Failure] = deque()

    def record_failure(
        self, env_id: int | None, error: HundredfoldError, *, good_steps: int = 0, worker: int | None = None
    ) -> None:
        """Count a failure; returns if the env may restart, otherwise raises `error`.

        Args:
            env_id: the env that failed; None for the worker itself.
            error: what to raise if the run has to end.
            good_steps: steps since the env's last reset or failure.
            worker: the worker the env runs in, if any.
        """
        if self.on_env_error == "stop":
            raise error
        subject = f"worker {worker}" if env_id is None else f"env {env_id}"
        if good_steps >= RESET_AFTER_STEPS:
            self.consecutive.pop(subject, None)
        failure = Failure(env_id, str(error)[:MAX_TEXT], cause_traceback(error), worker)
        self.unreported.append(failure)
        history = self.consecutive.setdefault(subject, [])
        history.append(failure)
        if len(history) >= self.max_env_failures:
            raise type(error)(failure_message(subject, history)) from (error.__cause__ or error)

    def clear_failures(self, env_id: int) -> None:
        """Forget the failures of an env that finished an episode."""
        self.consecutive.pop(f"env {env_id}", None)

    def drain(self) -> list[Failure]:
        """Failures since the last call; safe while other threads add or drain."""
        drained: list[Failure] = []
        with suppress(IndexError):
            while True:
                drained.append(self.unreported.popleft())
        return drained


@dataclass(slots=True)
class Health:
    """Counters of failures and restarts, and the most recent failures."""

    env_failures: int = 0
    env_restarts: int = 0
    worker_restarts: int = 0
    recent: deque[Failure] = field(default_factory=lambda: deque(maxlen=MAX_RECENT))
    first: Failure | None = None

    def count_restarts(self, failures: Iterable[Failure]) -> None:
        """Count envs that failed and were recreated in place."""
        for failure in failures:
            self.env_restarts += 1
            self._count_failure(failure)

    def count_worker_restart(self, failures: Iterable[Failure], num_envs: int) -> None:
        """Count a worker that was replaced together with all its envs."""
        self.worker_restarts += 1
        self.env_restarts += num_envs
        for failure in failures:
            self._count_failure(failure)

    def _count_failure(self, failure: Failure) -> None:
        self.env_failures += 1
        self.recent.append(failure)
        self.first = self.first or failure

    def counts(self) -> dict[str, int]:
        """The counters by name, as `Backend.health` returns them."""
        return {
            "env_failures": self.env_failures,
            "env_restarts": self.env_restarts,
            "worker_restarts": self.worker_restarts,
        }


def failure_message(subject: str, history: list[Failure]) -> str:
    """The message that ends a run: every consecutive failure of one env or worker, in order."""
    lines = [f"  {number}. {failure}" for number, failure in enumerate(history, 1)]
    return (
        f"{subject} failed {len(history)} times in a row without finishing an episode; giving up:\n"
        + "\n".join(lines)
        + "\nFix the env or raise --max-env-failures."
    )


def describe_env_exception(error: BaseException) -> str:
    """What an env raised, as a sentence, and what to try if it should have run in the main thread."""
    text = f"{describe_exception(error)}."
    if threading.current_thread() is threading.main_thread() or "thread" not in text.lower():
        return text
    return (
        f"{text} It ran in a thread of its own, from its creation on; if it needs the main thread of a process (as "
        "signal handlers do), use --env-threads 1 and as many --workers as envs."
    )


def cause_traceback(error: BaseException) -> str:
    """The traceback of the exception an env raised; empty if it raised none."""
    cause = error.__cause__
    if cause is None:
        return ""
    return "".join(traceback.format_exception(cause))[-MAX_TEXT:]
