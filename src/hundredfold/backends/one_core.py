"""Keeping a worker's threads together on one core.

Threads of one interpreter take turns anyway. On one core they queue for that core; on several they
wake up beside each other, and all but one go back to sleep until the interpreter lock is free,
which costs more than their turn.
"""

from __future__ import annotations

import os
from contextlib import suppress

from hundredfold.backends.settings import usable_cores


def core_for(number: int, num_workers: int) -> int | None:
    """The core of this worker, or None where it should stay free to move.

    Fewer workers than cores leave cores to whatever their envs do without the interpreter.
    """
    if not hasattr(os, "sched_setaffinity") or num_workers < usable_cores():
        return None
    cores = sorted(os.sched_getaffinity(0))
    # Another program that does the same begins elsewhere.
    return cores[(os.getppid() + number) % len(cores)]


def stay_on(core: int | None) -> None:
    """Keep this thread, and those it starts, on that core; not with programs that envs started.

    They would have to stay there, too, as soon as one of them is started anew.
    """
    if core is None or has_children():
        return
    with suppress(OSError):  # the core was taken from us meanwhile: nothing depends on it
        os.sched_setaffinity(0, {core})


def has_children() -> bool:
    """Whether this process has started others that are still there."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
