"""The envs one worker owns, and how it steps them when their world is one of ours.

Such a world is a batch: it is cut into shards, and a shard steps when all its envs have their
actions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from time import monotonic

import numpy as np

from hundredfold.backends.doorbell import Doorbell
from hundredfold.backends.reports import report_of
from hundredfold.backends.shared_arrays import batch_over
from hundredfold.backends.wires import Wire
from hundredfold.core.batch import Arrays, IntArray, State, copies
from hundredfold.core.contracts import Knowledge, World


def shard_edges(env_ids: range, batch_envs: int, num_envs: int) -> list[int]:
    """Where a slice of a batch world is cut: nowhere, or near the batches that are asked for."""
    size = len(env_ids)
    shards = 1 if batch_envs >= num_envs else -(-size // min(batch_envs, size))
    return [env_ids.start + shard * size // shards for shard in range(shards + 1)]


class Slice(ABC):
    """Worlds side by side, each writing into its rows of the shared batch."""

    # Whether a snapshot has to wait until nothing is being stepped.
    rests_for_state = True

    def __init__(self, worlds: list[World], edges: list[int]) -> None:
        self.worlds = worlds
        self.edges = edges
        self.first, self.last = edges[0], edges[-1]
        self.spec = worlds[0].spec

    def bind(self, arrays: Arrays, wire: Wire) -> None:
        """Work in these shared arrays and report over this wire."""
        self.wire = wire
        self.actions = arrays["actions"]
        self.entered = arrays["entered"]
        self.entered[self.first : self.last] = 0.0
        self.doorbell = Doorbell(arrays)
        batch = batch_over(arrays, self.spec)
        self.out = batch.rows(self.first, self.last)
        # Envs whose episode was cut off when a lost worker was replaced. Their next action belongs
        # to that episode: it is not played, the end of the episode is the answer to it.
        self.lost: set[int] = set()
        for world, (first, last) in zip(self.worlds, pairs(self.edges), strict=True):
            world.bind(batch.rows(first, last))

    @abstractmethod
    def step(self, first: int, last: int) -> None:
        """Step these envs, now or soon, and post each when it is ready."""

    def post(self, first: int, last: int) -> None:
        """These envs are ready, from any thread."""
        if self.doorbell.finish(first, last):
            self.wire.ring()

    def settle(self) -> None:
        """Wait until nothing is being stepped."""

    @contextmanager
    def at_work(self, rows: slice) -> Iterator[None]:
        """Let the parent see since when these envs are at work."""
        self.entered[rows] = monotonic()
        try:
            yield
        finally:
            self.entered[rows] = 0.0

    def reset(self, seed: int) -> None:
        self.lost.clear()
        for world, rows in self._parts():
            with self.at_work(rows):
                world.reset(seed)

    def restore(self, state: State) -> None:
        self.lost.clear()
        for world, rows in self._parts():
            cut = slice(rows.start - self.first, rows.stop - self.first)
            with self.at_work(rows):
                world.restore({name: array[cut] for name, array in state.items()})

    def cut_off(self, ahead: IntArray, seed: int | None, last_seen: Arrays) -> None:
        """Cut off all episodes, with these as their last observations, and begin later ones."""
        for world, rows in self._parts():
            with self.at_work(rows):
                world.cut_off(ahead[rows.start - self.first : rows.stop - self.first], seed)
        for name, array in last_seen.items():
            self.out.final_observation[name][...] = array
        self.lost.update(range(self.first, self.last))

    def observations(self) -> Arrays:
        """What the envs last showed; zeros where a worker died before it could check them."""
        seen = copies(self.out.observation)
        for array in seen.values():
            if array.dtype.kind == "f":
                array[~np.isfinite(array)] = 0
        return seen

    def inform(self, knowledge: Knowledge) -> None:
        for world in self.worlds:
            world.inform(knowledge)

    def state(self) -> Arrays:
        states = [world.state() for world in self.worlds]
        return {name: np.concatenate([state[name] for state in states]) for name in states[0]}

    def timings(self) -> dict[str, float]:
        told = [world.timings() for world in self.worlds]
        return {name: sum(part[name] for part in told) for name in told[0]}

    def close(self) -> None:
        for world in self.worlds:
            world.close()

    def tell_failures(self) -> None:
        """Tell the parent which envs failed and were made anew."""

    def info_of(self, env_id: int) -> bytes:
        """The info of a foreign env, pickled."""
        raise KeyError(env_id)

    def _parts(self) -> list[tuple[World, slice]]:
        cuts = [slice(first, last) for first, last in pairs(self.edges)]
        return list(zip(self.worlds, cuts, strict=True))


class BatchSlice(Slice):
    """Shards of a world of ours: what belongs to one shard steps as one."""

    def bind(self, arrays: Arrays, wire: Wire) -> None:
        super().bind(arrays, wire)
        self.asked = np.zeros(self.last, bool)

    def step(self, first: int, last: int) -> None:
        self.asked[first:last] = True
        for world, rows in self._parts():
            if rows.start < last and first < rows.stop and self.asked[rows].all():
                self.asked[rows] = False
                self._step_shard(world, rows)

    def _step_shard(self, world: World, rows: slice) -> None:
        if rows.start in self.lost:
            self.lost.difference_update(range(rows.start, rows.stop))
        else:
            try:
                with self.at_work(rows):
                    world.step(self.actions[rows])
            except BaseException as error:
                self.wire.say("error", report_of("step()", error))
                return
        self.post(rows.start, rows.stop)


def pairs(edges: list[int]) -> list[tuple[int, int]]:
    """(first, last) of each piece between the edges."""
    return list(pairwise(edges))
