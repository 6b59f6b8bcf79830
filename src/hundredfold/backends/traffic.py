"""Who is where: every env waits for an action, or is at work."""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from hundredfold.backends.wires import SPAN
from hundredfold.core.batch import BoolArray, IntArray

# So few env ids are looked through one by one: numpy takes longer to begin.
FEW: Final = 24


class Traffic:
    """The whereabouts of every env, as the parent knows them."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        # (envs,) True from the moment an env gets its action until what came of it is fetched.
        self.at_work = np.zeros(num_envs, bool)
        self.num_at_work = 0

    def sent(self, env_ids: IntArray | None) -> None:
        """These got their action; None for everybody."""
        if env_ids is None:
            self.at_work[:] = True
            self.num_at_work = self.num_envs
        else:
            self.at_work[env_ids] = True
            self.num_at_work += len(env_ids)

    def fetched(self, env_ids: IntArray | None) -> None:
        """These wait for their next action; None for everybody."""
        if env_ids is None:
            self.at_work[:] = False
            self.num_at_work = 0
        else:
            self.at_work[env_ids] = False
            self.num_at_work -= len(env_ids)

    def waiting(self, env_ids: IntArray) -> BoolArray:
        waits: BoolArray = ~self.at_work[env_ids]
        return waits

    def working(self, first: int, last: int) -> IntArray:
        """Those of these who are at work."""
        return first + np.flatnonzero(self.at_work[first:last])


def spans_of(env_ids: IntArray) -> bytes:
    """Rising env ids as spans for the wire."""
    if len(env_ids) <= FEW:
        return _few_spans(env_ids.tolist())
    (breaks,) = (env_ids[1:] - env_ids[:-1] != 1).nonzero()
    if not len(breaks):
        return SPAN.pack(int(env_ids[0]), int(env_ids[-1]) + 1)
    spans = np.empty((len(breaks) + 1, 2), np.int32)
    spans[0, 0] = env_ids[0]
    spans[1:, 0] = env_ids[breaks + 1]
    spans[:-1, 1] = env_ids[breaks] + 1
    spans[-1, 1] = env_ids[-1] + 1
    return spans.tobytes()


def _few_spans(env_ids: list[int]) -> bytes:
    found: list[int] = []
    for env_id in env_ids:
        if found and found[-1] == env_id:
            found[-1] += 1
        else:
            found += (env_id, env_id + 1)
    return struct.pack(f"={len(found)}i", *found)
