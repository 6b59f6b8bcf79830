"""How a worker's threads share a core.

Threads of one interpreter take turns anyway. On one core they queue for that core; on several they
wake up beside each other, and all but one go back to sleep until the interpreter lock is free,
which costs more than their turn. On one core, too, who wakes up should let the other finish rather
than take the core from the one who has the lock.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from hundredfold.backends.settings import usable_cores
from hundredfold.core.errors import SettingsError

# Where a process that sits at a table with others finds its seat; so do the workers it starts.
LOCAL_RANK_VARIABLE: Final = "HUNDREDFOLD_SEAT"


@dataclass(frozen=True, slots=True)
class LocalRank:
    """Which of so many programs on this machine that work on the same thing we are."""

    number: int
    seats: int


def set_local_rank(seat: LocalRank | None) -> None:
    """Sit down here, with all processes that are started from now on; None: by ourselves."""
    os.environ.pop(LOCAL_RANK_VARIABLE, None)
    if seat is not None:
        os.environ[LOCAL_RANK_VARIABLE] = f"{seat.number}/{seat.seats}"


def get_local_rank() -> LocalRank | None:
    """Where we sit, if somebody has said so."""
    given = os.environ.get(LOCAL_RANK_VARIABLE, "")
    if not given:
        return None
    found = re.fullmatch(r"([0-9]+)/([0-9]+)", given)
    seat = LocalRank(int(found[1]), int(found[2])) if found else None
    if seat is None or seat.number >= seat.seats:
        raise SettingsError(
            f"{LOCAL_RANK_VARIABLE} must be RANK/COUNT, e.g. 0/2 and 1/2 for two programs on one "
            f"machine; got {given!r}."
        )
    return seat


def core_for(number: int, num_workers: int) -> int | None:
    """The core of this worker, or None where it should stay free to move.

    Fewer workers than cores leave cores to whatever their envs do without the interpreter.
    """
    seat = get_local_rank()
    all_workers = num_workers if seat is None else num_workers * seat.seats
    if not hasattr(os, "sched_setaffinity") or all_workers < usable_cores():
        return None
    # Without a seat: another program that does the same probably begins elsewhere.
    first = os.getppid() if seat is None else num_workers * seat.number
    cores = sorted(os.sched_getaffinity(0))
    return cores[(first + number) % len(cores)]


def share(core: int | None) -> None:
    """Have this thread, and those it starts, share that core, or none in particular.

    Who wakes up asks for a turn and takes the core from nobody. Not where envs have started
    programs: those would inherit it as soon as one of them is started anew.
    """
    if has_children():
        return
    with suppress(OSError):  # forbidden, or the core was taken from us: nothing depends on it
        if hasattr(os, "SCHED_BATCH"):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    with suppress(OSError):
        if core is not None:
            os.sched_setaffinity(0, {core})


def has_children() -> bool:
    """Whether this process has started others that are still there."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
