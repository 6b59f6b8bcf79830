"""How ready envs come to the parent's notice without waking it for each of them.

Whoever is done raises a flag in shared memory. A parent that has nothing to do says how many flags
it wants before it goes to sleep, and the worker that raises the last of them rings; a parent that
is busy finds the flags up when it looks, and nobody had to ring at all.
"""

from __future__ import annotations

import threading
from typing import Any, Final

import numpy as np

from hundredfold.core.batch import Arrays, IntArray

NOBODY: Final = np.zeros(0, np.int64)

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


class Doorbell:
    """The flags of all envs and the number the parent waits for; 0 while it does not sleep."""

    def __init__(self, arrays: Arrays) -> None:
        self.done = arrays["done"]
        self.wanted = arrays["wanted"]
        # The same as plain memory: numpy takes twice as long for a single number.
        self.done_one: Any = self.done.data
        self.wanted_one: Any = self.wanted.data

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
        wanted: int = self.wanted_one[0]
        return wanted > 0 and bool(np.count_nonzero(self.done) >= wanted)

    def take(self) -> IntArray | None:
        """Envs whose flags are up, in order, None for everybody; takes the flags down."""
        count = np.count_nonzero(self.done)
        if count == 0:
            return NOBODY
        if count == len(self.done):
            fence()
            self.done[:] = False
            return None
        (env_ids,) = self.done.nonzero()
        fence()
        self.done[env_ids] = False
        return env_ids

    def may_sleep(self, wanted: int) -> bool:
        """Ask to be woken when so many flags are up; False when they are up already."""
        self.wanted[0] = wanted
        fence()
        return bool(np.count_nonzero(self.done) < wanted)

    def awake(self) -> None:
        """Nobody needs to ring."""
        self.wanted[0] = 0
