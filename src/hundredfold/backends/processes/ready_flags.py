"""Ready flags in shared memory, with a futex-like wake-up of the parent.

A worker sets the flag of an env when its step is done; it stays set until the parent takes the
env. Before the parent sleeps it writes how many flags it wants, and the worker that sets the last
of them wakes it, once per sleep. A parent that is busy finds the flags set, and no wake-up is sent.
"""

from __future__ import annotations

import threading
from typing import Any, Final

import numpy as np

from hundredfold.core.batch import Arrays, BoolArray, IntArray

# Entries of the `wakeup` array: flags the parent wants (0 while it is awake), the id of its current
# sleep, and the id of the sleep it was last woken from.
WANTED: Final = 0
SLEEP_ID: Final = 1
WOKEN_ID: Final = 2

_lock = threading.Lock()


def memory_fence() -> None:
    """Memory barrier: writes before it become visible before writes after it, on any processor.

    Taking and releasing a lock orders memory. Twice, because accesses on both sides of one such
    pair may still move into it and change places there.
    """
    with _lock:
        pass
    with _lock:
        pass


class ReadyFlags:
    """Ready flags of all envs and the wake-up request of the parent.

    Args:
        arrays: shared arrays, of which it uses `ready` (envs,) and `wakeup` (3,).
    """

    def __init__(self, arrays: Arrays) -> None:
        self.ready = arrays["ready"]
        # Memoryviews: numpy takes twice as long for a single element.
        self.ready_view: Any = self.ready.data
        self.wakeup: Any = arrays["wakeup"].data
        self.groups: IntArray | None = None

    def set_groups(self, groups: IntArray) -> None:
        """Make envs ready by whole groups: (envs,) group of each env.

        Flags of a group are set one by one, and the parent may read them in between.
        """
        self.groups, self.group_sizes = groups, np.bincount(groups)

    # -- the workers' side ----------------------------------------------------------------------

    def set_ready(self, first: int, last: int) -> bool:
        """Set the flags of envs first..last-1; True when the parent must be woken."""
        memory_fence()
        self.ready[first:last] = True
        memory_fence()
        return self._wakeup_is_due()

    def set_one_ready(self, env_id: int) -> bool:
        """`set_ready` of a single env, in half the time."""
        memory_fence()
        self.ready_view[env_id] = True
        memory_fence()
        return self._wakeup_is_due()

    def _wakeup_is_due(self) -> bool:
        wakeup = self.wakeup
        wanted = wakeup[WANTED]
        if wanted == 0:
            return False
        # If the parent sleeps again meanwhile, it is woken once too often, which does no harm.
        sleep_id = wakeup[SLEEP_ID]
        if wakeup[WOKEN_ID] == sleep_id or np.count_nonzero(self.ready) < wanted:
            return False
        wakeup[WOKEN_ID] = sleep_id
        return True

    # -- the parent's side ----------------------------------------------------------------------

    def has_ready(self, wanted: int) -> bool:
        """Whether at least so many envs are ready."""
        count = np.count_nonzero(self.ready)
        if self.groups is None or count < wanted or count == len(self.ready):
            return bool(count >= wanted)
        return bool(np.count_nonzero(self._in_ready_groups(self.ready.copy())) >= wanted)

    def take_ready(self) -> IntArray | None:
        """Ids of the ready envs, ascending, None for all; clears their flags."""
        ready = self.ready.copy()  # one consistent view: flags are set meanwhile
        if np.count_nonzero(ready) == len(ready):
            memory_fence()
            self.ready[:] = False
            return None
        (env_ids,) = (ready if self.groups is None else self._in_ready_groups(ready)).nonzero()
        memory_fence()
        self.ready[env_ids] = False
        return env_ids

    def set_all(self) -> None:
        """Make all envs ready; no step may be in flight."""
        self.ready[:] = True

    def clear(self, rows: slice) -> None:
        """Clear the flags of a dead worker's envs."""
        self.ready[rows] = False

    def arm_wakeup(self, wanted: int) -> bool:
        """Ask to be woken when so many envs are ready; False when they are already."""
        wakeup = self.wakeup
        wakeup[SLEEP_ID] += 1
        wakeup[WANTED] = wanted
        memory_fence()
        return not self.has_ready(wanted)

    def disarm(self) -> None:
        """Ask for no wake-up."""
        self.wakeup[WANTED] = 0

    def _in_ready_groups(self, ready: BoolArray) -> BoolArray:
        """(envs,) True where all envs of the group are ready."""
        assert self.groups is not None
        counts = np.bincount(self.groups[ready], minlength=len(self.group_sizes))
        complete: BoolArray = (counts == self.group_sizes)[self.groups]
        return complete
