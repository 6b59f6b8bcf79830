"""All envs as one batch in this process: what a world of ours is made for."""

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


class InProcessBackend:
    """One world that holds every env; `send` steps it."""

    def __init__(
        self, make_world: WorldFactory, num_envs: int, settings: WorkerSettings | None = None
    ) -> None:
        self.num_envs = check_num_envs(num_envs)
        self.turns = Turns()
        self.world = make_world(np.arange(num_envs))
        self.spec = self.world.spec
        self.groups = np.zeros(num_envs, np.int64)
        self.record = Health()
        if isinstance(self.world, ForeignWorld):
            self.world.guard = (settings or WorkerSettings()).guard()
        self.batch = self.spec.batch(np.arange(num_envs))

    def reset(self, seed: int) -> None:
        self.turns.expect_open("reset()")
        with self.turns.leading_to("recv"):
            self.batch = self.world.reset(seed)

    def recv(self) -> StepBatch:
        self.turns.recv()
        return self.batch

    def send(self, actions: Array, env_ids: IntArray | None = None) -> None:
        self.turns.expect("send", "send()")
        check_everybody(env_ids, self.num_envs)
        chosen = checked_actions(actions, self.batch, self.spec)
        with self.turns.leading_to("recv"):
            self.batch = self.world.step(chosen)

    def broadcast(self, knowledge: Knowledge) -> None:
        self.turns.expect_open("broadcast()")
        self.world.inform(knowledge)

    def state(self) -> Arrays:
        self.turns.expect("send", "state()")
        return self.world.state()

    def restore(self, state: State) -> None:
        self.turns.expect_open("restore()")
        check_snapshot(state, self.num_envs)
        with self.turns.leading_to("recv"):
            self.batch = self.world.restore(state)

    def health(self) -> dict[str, int]:
        if isinstance(self.world, ForeignWorld):
            self.record.mended(self.world.guard.take_news())
        return self.record.counts()

    def timings(self) -> dict[str, float]:
        return self.world.timings()

    def close(self) -> None:
        if self.turns.close():
            self.world.close()
