"""Who is where: every env waits for an action, is at work, or has arrived with news."""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from hundredfold.backends.wires import SPAN
from hundredfold.core.batch import BoolArray, IntArray

WAITING: Final = 0  # in the learner's hands
RUNNING: Final = 1  # has its action
ARRIVED: Final = 2  # done, and not fetched yet

# So few env ids are looked through one by one: numpy takes longer to begin.
FEW: Final = 8


class Traffic:
    """The whereabouts of every env, as the parent knows them."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.phase = np.full(num_envs, WAITING, np.int8)
        self.num_running = 0
        self.num_arrived = 0

    def sent(self, env_ids: IntArray | None) -> None:
        """These got their action; None for everybody."""
        if env_ids is None:
            self.phase[:] = RUNNING
            self.num_running = self.num_envs
        else:
            self.phase[env_ids] = RUNNING
            self.num_running += len(env_ids)

    def arrived(self, env_ids: IntArray) -> None:
        """These are done."""
        self.phase[env_ids] = ARRIVED
        self.num_running -= len(env_ids)
        self.num_arrived += len(env_ids)

    def all_arrived(self) -> None:
        """A new start: everybody has news, whatever was before."""
        self.phase[:] = ARRIVED
        self.num_running, self.num_arrived = 0, self.num_envs

    def fetch(self) -> IntArray | None:
        """Take all who have arrived, in order; None for everybody."""
        everybody = self.num_arrived == self.num_envs
        self.num_arrived = 0
        if everybody:
            self.phase[:] = WAITING
            return None
        env_ids: IntArray = (self.phase == ARRIVED).nonzero()[0]
        self.phase[env_ids] = WAITING
        return env_ids

    def waiting(self, env_ids: IntArray) -> BoolArray:
        waits: BoolArray = self.phase[env_ids] == WAITING
        return waits

    def call_back(self, first: int, last: int) -> None:
        """Their worker is lost: whoever of these has arrived counts as still at work."""
        arrived = first + np.flatnonzero(self.phase[first:last] == ARRIVED)
        self.phase[arrived] = RUNNING
        self.num_arrived -= len(arrived)
        self.num_running += len(arrived)

    def running(self, first: int, last: int) -> IntArray:
        """Those of these who are at work."""
        return first + np.flatnonzero(self.phase[first:last] == RUNNING)


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
