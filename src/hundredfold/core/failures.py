"""Envs that fail: what is written down about it, and when enough is enough.

An env that is not ours may raise, return nonsense, hang, or take its process along. With the policy
`restart` it is made anew and its episode counts as truncated; with `stop`, or when one env fails
again and again, the run ends with an error that tells what happened.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Literal

from hundredfold.core.errors import HundredfoldError

OnEnvError = Literal["restart", "stop"]

# An env that plays on for this many steps has left its earlier failures behind, even when its
# episodes never end.
RESET_AFTER_STEPS: Final = 1000
MAX_RECENT: Final = 50
# Keeps a note about failures well below what a socket buffers, so that sending it never blocks.
MAX_TEXT: Final = 4000


@dataclass(frozen=True, slots=True)
class Failure:
    """One thing that went wrong."""

    env_id: int | None  # None: the worker's own
    message: str
    traceback: str = ""  # the env's own, where it raised
    worker: int | None = None

    def __str__(self) -> str:
        return self.message if self.worker is None else f"{self.message} [worker {self.worker}]"


class RestartPolicy:
    """Decides whether a failed env starts again or ends the run."""

    def __init__(self, on_env_error: OnEnvError = "stop", max_env_failures: int = 10) -> None:
        self.on_env_error = on_env_error
        self.max_env_failures = max_env_failures
        # Failures of each env or worker since it last did well, and those nobody asked for yet.
        self.consecutive: dict[str, list[Failure]] = {}
        self.unreported: deque[Failure] = deque()

    def record_failure(
        self,
        env_id: int | None,
        error: HundredfoldError,
        *,
        good_steps: int = 0,
        worker: int | None = None,
    ) -> None:
        """Note a failure; returns when the env (or None: the worker) may start again."""
        if self.on_env_error == "stop":
            raise error
        who = f"worker {worker}" if env_id is None else f"env {env_id}"
        if good_steps >= RESET_AFTER_STEPS:
            self.consecutive.pop(who, None)
        failure = Failure(env_id, str(error)[:MAX_TEXT], cause_traceback(error), worker)
        self.unreported.append(failure)
        history = self.consecutive.setdefault(who, [])
        history.append(failure)
        if len(history) >= self.max_env_failures:
            raise type(error)(failure_message(who, history)) from (error.__cause__ or error)

    def clear_failures(self, env_id: int) -> None:
        """Forgive an env that came to the end of an episode by itself."""
        self.consecutive.pop(f"env {env_id}", None)

    def drain(self) -> list[Failure]:
        """Failures since the last call; other threads may be adding or taking some."""
        found: list[Failure] = []
        with suppress(IndexError):
            while True:
                found.append(self.unreported.popleft())
        return found


@dataclass(slots=True)
class Health:
    """What a backend has lived through."""

    env_failures: int = 0
    env_restarts: int = 0
    worker_restarts: int = 0
    recent: deque[Failure] = field(default_factory=lambda: deque(maxlen=MAX_RECENT))

    def count_restarts(self, failures: Iterable[Failure]) -> None:
        """Envs failed and were made anew where they stood."""
        for failure in failures:
            self.env_failures += 1
            self.env_restarts += 1
            self.recent.append(failure)

    def count_worker_restart(self, failures: Iterable[Failure], num_envs: int) -> None:
        """A worker was lost and replaced, with all its envs."""
        self.worker_restarts += 1
        self.env_restarts += num_envs
        for failure in failures:
            self.env_failures += 1
            self.recent.append(failure)

    def counts(self) -> dict[str, int]:
        return {
            "env_failures": self.env_failures,
            "env_restarts": self.env_restarts,
            "worker_restarts": self.worker_restarts,
        }


def failure_message(who: str, history: list[Failure]) -> str:
    """The end of the story: everything that happened to one env, in order."""
    lines = [f"  {number}. {failure}" for number, failure in enumerate(history, 1)]
    return (
        f"{who} failed {len(history)} times in a row, without coming to the end of an episode in "
        "between, and is given up:\n" + "\n".join(lines) + "\nMend the env, or allow more with "
        "max_env_failures."
    )


def cause_traceback(error: BaseException) -> str:
    """The traceback of what the env raised; empty when nothing was raised."""
    cause = error.__cause__
    if cause is None:
        return ""
    return "".join(traceback.format_exception(cause))[-MAX_TEXT:]
