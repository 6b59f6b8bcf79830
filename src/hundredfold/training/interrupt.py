"""Ctrl-C and SIGTERM, turned into a question that is asked between two steps."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """The user wants to stop. Not an `Exception`, so that nothing swallows it by mistake."""


class Interruptible:
    """While active, the first signal is noted and `check` raises it; a second one stops at once."""

    def __init__(self) -> None:
        self.requested = False
        self.previous: dict[int, signal.Handlers | object] = {}

    def __enter__(self) -> Interruptible:
        # Signals reach Python's main thread only; elsewhere (a notebook's worker) they pass us by.
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self.previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self.previous.clear()

    def check(self) -> None:
        """Raise `Interrupted` if a signal has come."""
        if self.requested:
            raise Interrupted

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
