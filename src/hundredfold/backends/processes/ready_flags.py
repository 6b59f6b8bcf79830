"""How ready envs come to the parent's notice without waking it for each of them.

Whoever is done raises a flag in shared memory, which stays up until the parent takes the env. A
parent that has nothing to do says how many flags it wants before it goes to sleep, and whoever
raises the last of them rings, once for each nap; a parent that is busy finds the flags up when it
looks, and nobody had to ring at all.
"""

from __future__ import annotations

import threading
from typing import Any, Final

import numpy as np

from hundredfold.core.batch import Arrays, BoolArray, IntArray

# What is in `bell`: how many flags the parent wants (0 while it does not sleep), the number of its
# nap, and the nap that it was last rung out of.
WANTED: Final = 0
NAP: Final = 1
RUNG: Final = 2

_lock = threading.Lock()


def fence() -> None:
    """Let everything written before be seen before anything written after, on any processor.

    Taking and releasing a lock orders memory. Twice, because both sides of one such pair may still
    slip into it and change places there.
    """
    with _lock:
        pass
    with _lock:
        pass


class ReadyFlags:
    """The flags of all envs, and what the parent waits for."""

    def __init__(self, arrays: Arrays) -> None:
        self.done = arrays["done"]
        # Seen as plain memory: numpy takes twice as long for a single number.
        self.done_one: Any = self.done.data
        self.bell: Any = arrays["bell"].data
        self.groups: IntArray | None = None

    def step_together(self, groups: IntArray) -> None:
        """(envs,) which group each env belongs to: a group is ready when all of it is.

        Its flags come up one by one, and the parent may look in between.
        """
        self.groups, self.sizes = groups, np.bincount(groups)

    def finish(self, first: int, last: int) -> bool:
        """Raise the flags of these envs; True when the parent sleeps and should be woken."""
        fence()
        self.done[first:last] = True
        fence()
        return self._is_enough()

    def finish_one(self, env_id: int) -> bool:
        """The same for a single env, in half the time."""
        fence()
        self.done_one[env_id] = True
        fence()
        return self._is_enough()

    def _is_enough(self) -> bool:
        bell = self.bell
        wanted = bell[WANTED]
        if wanted == 0:
            return False
        # Who is late with this, because the parent naps again, makes it wake up once too often.
        nap = bell[NAP]
        if bell[RUNG] == nap or np.count_nonzero(self.done) < wanted:
            return False
        bell[RUNG] = nap
        return True

    def has(self, wanted: int) -> bool:
        """Whether so many envs are ready."""
        count = np.count_nonzero(self.done)
        if self.groups is None or count < wanted or count == len(self.done):
            return bool(count >= wanted)
        return bool(np.count_nonzero(self._whole(self.done.copy())) >= wanted)

    def take(self) -> IntArray | None:
        """Envs that are ready, in order, None for everybody; takes their flags down."""
        up = self.done.copy()  # as it is at one moment: flags go up while we look
        if np.count_nonzero(up) == len(up):
            fence()
            self.done[:] = False
            return None
        (env_ids,) = up.nonzero() if self.groups is None else self._whole(up).nonzero()
        fence()
        self.done[env_ids] = False
        return env_ids

    def raise_all(self) -> None:
        """Everybody is ready; nobody is at work."""
        self.done[:] = True

    def lower(self, rows: slice) -> None:
        """Nobody of these is ready: their worker is gone."""
        self.done[rows] = False

    def may_sleep(self, wanted: int) -> bool:
        """Ask to be woken when so many flags are up; False when they are up already."""
        bell = self.bell
        bell[NAP] += 1
        bell[WANTED] = wanted
        fence()
        return not self.has(wanted)

    def awake(self) -> None:
        """Nobody needs to ring."""
        self.bell[WANTED] = 0

    def _whole(self, up: BoolArray) -> BoolArray:
        """(envs,) those of these whose whole group is among them."""
        assert self.groups is not None
        counts = np.bincount(self.groups[up], minlength=len(self.sizes))
        whole: BoolArray = (counts == self.sizes)[self.groups]
        return whole
