"""Every env on its own, one after another: the plain story all other backends must retell."""

from __future__ import annotations

import numpy as np

from hundredfold.backends.call_checks import (
    Turns,
    check_everybody,
    check_num_envs,
    check_snapshot,
    checked_actions,
)
from hundredfold.backends.settings import WorkerSettings
from hundredfold.core.batch import Array, Arrays, IntArray, State, StepBatch
from hundredfold.core.failures import Health
from hundredfold.core.protocols import ForeignWorld, Knowledge, WorldFactory


class SerialBackend:
    """One world per env, each writing into its row of a common batch."""

    def __init__(
        self, make_world: WorldFactory, num_envs: int, settings: WorkerSettings | None = None
    ) -> None:
        self.num_envs = check_num_envs(num_envs)
        self.turns = Turns()
        env_ids = np.arange(num_envs)
        self.worlds = [make_world(env_ids[row : row + 1]) for row in range(num_envs)]
        self.spec = self.worlds[0].spec
        self.groups = np.zeros(num_envs, np.int64)
        self.record = Health()
        for world in self.worlds:
            if isinstance(world, ForeignWorld):
                world.guard = (settings or WorkerSettings()).guard()
        self.batch = self.spec.batch(env_ids)
        self.rows = [self.batch.rows(row, row + 1) for row in range(num_envs)]
        for world, row in zip(self.worlds, self.rows, strict=True):
            world.bind(row)

    def reset(self, seed: int) -> None:
        self.turns.expect_open("reset()")
        with self.turns.leading_to("recv"):
            for world in self.worlds:
                world.reset(seed)
            self._gather_infos()

    def recv(self) -> StepBatch:
        self.turns.recv()
        return self.batch

    def send(self, actions: Array, env_ids: IntArray | None = None) -> None:
        self.turns.expect("send", "send()")
        check_everybody(env_ids, self.num_envs)
        chosen = checked_actions(actions, self.batch, self.spec)
        with self.turns.leading_to("recv"):
            for row, world in enumerate(self.worlds):
                world.step(chosen[row : row + 1])
            self._gather_infos()

    def broadcast(self, knowledge: Knowledge) -> None:
        self.turns.expect_open("broadcast()")
        for world in self.worlds:
            world.inform(knowledge)

    def state(self) -> Arrays:
        self.turns.expect("send", "state()")
        states = [world.state() for world in self.worlds]
        return {name: np.concatenate([state[name] for state in states]) for name in states[0]}

    def restore(self, state: State) -> None:
        self.turns.expect_open("restore()")
        check_snapshot(state, self.num_envs)
        with self.turns.leading_to("recv"):
            for row, world in enumerate(self.worlds):
                world.restore({name: array[row : row + 1] for name, array in state.items()})
            self._gather_infos()

    def health(self) -> dict[str, int]:
        for world in self.worlds:
            if isinstance(world, ForeignWorld):
                self.record.mended(world.guard.take_news())
        return self.record.counts()

    def timings(self) -> dict[str, float]:
        told = [world.timings() for world in self.worlds]
        return {name: sum(part[name] for part in told) for name in told[0]}

    def close(self) -> None:
        if self.turns.close():
            for world in self.worlds:
                world.close()

    def _gather_infos(self) -> None:
        """Infos of foreign envs are objects, not arrays: they are the one thing to collect."""
        if self.rows[0].foreign_infos is not None:
            self.batch.foreign_infos = [
                info for row in self.rows for info in row.foreign_infos or ({},)
            ]
