"""Ctrl-C and SIGTERM, turned into a question that is asked between two steps.

Memory that learning frees and asks for again thousands of times.
"""

from __future__ import annotations

import ctypes
import signal
import threading
from types import FrameType, TracebackType
from typing import Final

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


# Options of glibc's `mallopt`.
TRIM_THRESHOLD: Final = -1
MMAP_THRESHOLD: Final = -3
# Larger pieces come from the system one by one and go back to it at once. Before its version 2.35
# glibc takes no more than the second.
LARGE_BYTES: Final = (64 * 2**20, 32 * 2**20)
# So much may lie free before it goes back.
KEPT_BYTES: Final = 512 * 2**20


def tune_malloc() -> bool:
    """Let this process keep what it frees; False where the C library knows no such thing.

    Every gradient step frees some megabytes, which the C library would give back to the system and
    get again for the next, page by page: an eighth of the time of a small network's update.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return False
    large = any(library.mallopt(MMAP_THRESHOLD, size) for size in LARGE_BYTES)
    return bool(library.mallopt(TRIM_THRESHOLD, KEPT_BYTES)) and large
