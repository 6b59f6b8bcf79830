"""CPU affinity of worker threads, and the local rank of programs that share a machine.

Threads of one interpreter take turns on the GIL. On one core they queue for that core; on several
they wake up in parallel and all but one go back to sleep until the GIL is free, which costs more
than their turn. On one core, a thread that wakes up should also not preempt the one that holds the
GIL.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from hundredfold.backends.settings import usable_cores
from hundredfold.core.errors import SettingsError

# RANK/COUNT, for example 0/2 and 1/2; inherited by the workers of a program.
LOCAL_RANK_VARIABLE: Final = "HUNDREDFOLD_LOCAL_RANK"


@dataclass(frozen=True, slots=True)
class LocalRank:
    """Rank of this program among `count` programs that share the cores of a machine."""

    rank: int
    count: int


def set_local_rank(local_rank: LocalRank | None) -> None:
    """Set the local rank of this process and of all it starts from now on; None removes it."""
    os.environ.pop(LOCAL_RANK_VARIABLE, None)
    if local_rank is not None:
        os.environ[LOCAL_RANK_VARIABLE] = f"{local_rank.rank}/{local_rank.count}"


def get_local_rank() -> LocalRank | None:
    """The local rank from the environment, if it is set."""
    value = os.environ.get(LOCAL_RANK_VARIABLE, "")
    if not value:
        return None
    match = re.fullmatch(r"([0-9]+)/([0-9]+)", value)
    local_rank = LocalRank(int(match[1]), int(match[2])) if match else None
    if local_rank is None or local_rank.rank >= local_rank.count:
        raise SettingsError(
            f"{LOCAL_RANK_VARIABLE} must be RANK/COUNT, e.g. 0/2 and 1/2 for two programs on one "
            f"machine; got {value!r}."
        )
    return local_rank


def core_for_worker(index: int, num_workers: int) -> int | None:
    """The core to pin this worker's threads to; None = not pinned.

    With fewer workers than cores the rest is left to whatever envs run outside the interpreter.
    """
    local_rank = get_local_rank()
    all_workers = num_workers if local_rank is None else num_workers * local_rank.count
    if not hasattr(os, "sched_setaffinity") or all_workers < usable_cores():
        return None
    # Without a rank, the parent's pid: another program that does the same starts elsewhere.
    first = os.getppid() if local_rank is None else num_workers * local_rank.rank
    cores = sorted(os.sched_getaffinity(0))
    return cores[(first + index) % len(cores)]


def pin_threads(core: int | None) -> None:
    """Pin this thread and those it starts to a core (None = any), without wake-up preemption.

    Does nothing where envs have started subprocesses: these would inherit both.
    """
    if has_children():
        return
    with suppress(OSError):  # forbidden, or the core is no longer ours: only speed depends on it
        if hasattr(os, "SCHED_BATCH"):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    with suppress(OSError):
        if core is not None:
            os.sched_setaffinity(0, {core})


def has_children() -> bool:
    """Whether this process has running child processes."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
