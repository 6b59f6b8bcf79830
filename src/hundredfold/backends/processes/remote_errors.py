"""Exceptions of another process: captured there, pickled, raised here."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass, field
from typing import Any, NoReturn

from hundredfold.core.errors import EnvError, HundredfoldError, WorkerError


class RemoteTraceback(Exception):  # noqa: N818
    """Cause of an error that was raised in another process; prints the traceback it had there."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"in a worker process\n{self.text}"


@dataclass(frozen=True, slots=True)
class RemoteError:
    """An exception of another process, in a form that can be pickled."""

    call: str
    line: str  # the last line of the traceback
    traceback: str  # of the cause if there is one (the env's own error); may be empty
    error: HundredfoldError | None  # the exception itself, if it is a HundredfoldError

    def __str__(self) -> str:
        return str(self.error) if self.error is not None else self.line

    @property
    def cause(self) -> RemoteTraceback | None:
        """The exception to raise it from."""
        return RemoteTraceback(self.traceback) if self.traceback else None

    def raise_here(self, worker: str) -> NoReturn:
        """Raise it in this process: our own errors as they are, others as a `WorkerError`.

        Args:
            worker: the other process, for the message.
        """
        cause = self.cause
        if self.error is None:
            raise WorkerError(f"{worker} failed in {self.call}: {self.line}") from cause
        if isinstance(self.error, EnvError):
            raise EnvError(f"{self.error} [{worker}]") from cause
        raise self.error from cause


@dataclass(frozen=True, slots=True)
class RequestResult:
    """Result of a request to a worker."""

    value: Any = None
    error: RemoteError | None = None
    warnings: list[tuple[str, type[Warning]]] = field(default_factory=list)


def capture_error(call: str, error: BaseException) -> RemoteError:
    """Capture an exception so that it can be raised in another process.

    Args:
        call: the call that raised it, for the message.
        error: the exception.
    """
    cause = error.__cause__
    if cause is None and not isinstance(error, EnvError):
        cause = error
    # An invalid value of an env needs no traceback: it would only show our own code.
    text = "" if cause is None else "".join(traceback.format_exception(cause))
    line = traceback.format_exception_only(error)[-1].strip()
    return RemoteError(call, line, text, picklable_error(error))


def picklable_error(error: BaseException) -> HundredfoldError | None:
    """The error without its causes, if it is ours and can be pickled."""
    if not isinstance(error, HundredfoldError):
        return None
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:
        return None
    return copy if isinstance(copy, HundredfoldError) else None
