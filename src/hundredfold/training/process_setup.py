"""Process-wide set-up of a training: signal handling, glibc malloc tuning, number of threads."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Final

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """Raised to stop a training. Not an `Exception`, so that nothing catches it by mistake."""


class Interruptible:
    """Defers SIGINT and SIGTERM to the next `check`; a second signal interrupts at once.

    A SIGINT that is ignored stays ignored: shells start background jobs of a script so.
    """

    def __init__(self) -> None:
        self.requested = False
        self.previous: dict[int, signal.Handlers | object] = {}

    def __enter__(self) -> Interruptible:
        # Only the main thread may handle signals; elsewhere nothing is changed.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM,) if ignores_sigint() else SIGNALS:
                self.previous[number] = signal.signal(number, self._request)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self.previous.clear()

    def check(self) -> None:
        """Raise `Interrupted` if a signal has arrived."""
        if self.requested:
            raise Interrupted

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


def ignores_sigint() -> bool:
    """Whether this process was started with SIGINT ignored."""
    return signal.getsignal(signal.SIGINT) == signal.SIG_IGN


def signal_note() -> str | None:
    """How to stop a training on which Ctrl-C has no effect; None where it has."""
    if not ignores_sigint():
        return None
    return (
        "SIGINT (Ctrl-C) is ignored, as in every background job of a script; stop and save with SIGTERM: "
        f"kill {os.getpid()}"
    )


# Options of glibc's `mallopt`.
TRIM_THRESHOLD: Final = -1
MMAP_THRESHOLD: Final = -3
# Larger blocks are mapped and unmapped one by one. glibc before 2.35 accepts only the second.
MMAP_THRESHOLD_BYTES: Final = (64 * 2**20, 32 * 2**20)
# Free memory that is kept before it is returned to the system.
TRIM_THRESHOLD_BYTES: Final = 512 * 2**20


def tune_malloc() -> bool:
    """Make glibc keep freed memory; False where the C library has no `mallopt`.

    Every gradient step frees some megabytes, which glibc would return to the system and fault in
    again page by page: an eighth of the time of a small network's update.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        return False
    large = any(library.mallopt(MMAP_THRESHOLD, size) for size in MMAP_THRESHOLD_BYTES)
    return bool(library.mallopt(TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)) and large


# A number of threads is chosen if it takes at most this share of the time of one thread.
WORTHWHILE_SHARE: Final = 0.85
MEASURED_PASSES: Final = 5
# More threads that take this many times as long as one are not measured again: threads that wait for each other on busy
# cores may take fifty times as long.
HOPELESS_RATIO: Final = 3.0


def choose_threads(work: Callable[[], object], set_threads: Callable[[int], object], cores: int) -> tuple[int, str]:
    """Number of threads that does some work fastest, from interleaved measurements.

    Args:
        work: The work, done several times.
        set_threads: Sets the number of threads; it is left at the number chosen.
        cores: Most threads.

    Returns:
        The number and the measured times, for display.
    """
    candidates = [1, *(2**power for power in range(1, cores.bit_length()) if 2**power < cores), cores]
    times: dict[int, list[float]] = {threads: [] for threads in candidates}
    for _ in range(MEASURED_PASSES + 1):
        for threads, passes in times.items():
            if passes and min(passes) > HOPELESS_RATIO * min(times[1]):
                continue
            set_threads(threads)
            begin = time.perf_counter()
            work()
            passes.append(time.perf_counter() - begin)
    # The first pass starts the threads; the least is the time without other programs.
    least = {threads: min(passes[1:] or passes) for threads, passes in times.items()}
    best = min(least, key=lambda threads: least[threads])
    chosen = best if least[best] < WORTHWHILE_SHARE * least[1] else 1
    set_threads(chosen)
    return chosen, ", ".join(f"{1e3 * seconds:.0f} ms with {threads}" for threads, seconds in least.items())
