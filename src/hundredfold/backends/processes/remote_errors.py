"""How errors travel from a worker to the parent."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass, field
from typing import Any, NoReturn

from hundredfold.core.errors import EnvError, HundredfoldError, WorkerError


class RemoteTraceback(Exception):  # noqa: N818
    """Stands in for what was raised in a worker; prints the traceback it had there."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"in a worker process\n{self.text}"


@dataclass(frozen=True, slots=True)
class RemoteError:
    """Something that was raised in a worker."""

    call: str
    line: str  # the last line of the traceback
    traceback: str  # of the cause, where there is one: the env's own; empty where it has none
    error: HundredfoldError | None  # itself, if it is one of ours

    def __str__(self) -> str:
        return str(self.error) if self.error is not None else self.line

    @property
    def cause(self) -> RemoteTraceback | None:
        """What to raise it from."""
        return RemoteTraceback(self.traceback) if self.traceback else None

    def raise_here(self, worker: str) -> NoReturn:
        """Raise it here: our own errors as they are, anything else as a `WorkerError`."""
        cause = self.cause
        if self.error is None:
            raise WorkerError(f"{worker} failed in {self.call}: {self.line}") from cause
        if isinstance(self.error, EnvError):
            raise EnvError(f"{self.error} [{worker}]") from cause
        raise self.error from cause


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of an order."""

    value: Any = None
    refusal: RemoteError | None = None
    warnings: list[tuple[str, type[Warning]]] = field(default_factory=list)


def capture_error(call: str, error: BaseException) -> RemoteError:
    """What there is to say about an error, in a form that can be pickled."""
    cause = error.__cause__
    if cause is None and not isinstance(error, EnvError):
        cause = error
    # What we found wrong with an env needs no traceback: it would show nothing but our own code.
    text = "" if cause is None else "".join(traceback.format_exception(cause))
    line = traceback.format_exception_only(error)[-1].strip()
    return RemoteError(call, line, text, _bare(error))


def _bare(error: BaseException) -> HundredfoldError | None:
    """The error without its causes, if it is ours and survives the journey."""
    try:
        found = pickle.loads(pickle.dumps(error))
    except Exception:
        return None
    return found if isinstance(found, HundredfoldError) else None
