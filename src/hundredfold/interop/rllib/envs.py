"""A world as RLlib's env runners want it: flat rows, and a step of its own for every reset.

RLlib begins the next episode with the step after the one that ended the last, where our worlds
begin it at once. Rows that wait for that step stand still while the others go on: somebody else's
envs are stepped one by one, and what a world of ours did with them meanwhile is taken back.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from hundredfold.backends.door import checked_actions
from hundredfold.core.batch import Array, Arrays, BoolArray, IntArray, StepBatch, WorldSpec
from hundredfold.core.contracts import ForeignWorld, World, WorldFactory
from hundredfold.core.faults import Guard
from hundredfold.distributed.actor import SliceFactory
from hundredfold.interop.gymnasium import WorldEnv
from hundredfold.interop.window import Window
from hundredfold.worlds import settings_class, world_factory

Rows = NDArray[np.float32]
Outcome = tuple[Rows, NDArray[np.float32], BoolArray, BoolArray, dict[str, Any]]


def make_env(world: str, context: Mapping[str, Any]) -> VectorEnv[Any, Any, Any] | WorldEnv:
    """What RLlib calls: a batch where it says how many envs, else a single one.

    `context` has the world's settings by name; the rest of it is for our own engine.
    """
    settings = {name: value for name, value in context.items() if name not in OWN_WORDS}
    if "num_envs" not in context:
        return WorldEnv(world, **settings)
    make_world: WorldFactory | None = context.get("make_world")
    if make_world is None:
        make_world = world_factory(world, settings_class(world)(**settings))
    # Runners count from 1; 0 is the algorithm's own, which only looks.
    runner = max(getattr(context, "worker_index", 1) - 1, 0)
    num_envs = int(context["num_envs"])
    seed, guard = int(context.get("seed", 0)), context.get("guard")
    return FlatVectorEnv(make_world, num_envs, runner * num_envs, seed, guard)


OWN_WORDS = ("num_envs", "world", "make_world", "seed", "guard")


class FlatVectorEnv(VectorEnv[Any, Any, Any]):
    """A slice of a world; observations are rows of numbers, with the mask behind them if any."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(
        self,
        make_world: WorldFactory,
        num_envs: int,
        first: int,
        seed: int,
        guard: Guard | None = None,
    ) -> None:
        self.world: World = SliceFactory(make_world, first)(np.arange(num_envs))
        if guard is not None and isinstance(self.world, ForeignWorld):
            # An env that fails is made anew here as it is with our own backends.
            self.world.guard = guard
        spec = self.spec_of_world = self.world.spec
        self.num_envs, self.seed = num_envs, seed
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (width_of(spec),), np.float32)
        self.window = Window(spec)
        self.single_action_space = self.window.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.out: StepBatch = spec.batch(np.arange(num_envs))
        self.over = np.zeros(num_envs, bool)  # rows whose next step is a reset

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Rows, dict[str, Any]]:
        """Start episode 0 of every env; seeds of env and runner are in the world's own streams."""
        self.out = self.world.reset(self.seed)
        self.over[:] = False
        return flat_rows(self.out.observation, self.out.mask, self.spec_of_world), {}

    def step(self, actions: Any) -> Outcome:
        """Play one action per env; rows that ended last time show their next episode instead."""
        waiting = self.over
        if not waiting.all():
            self._play(self.window.played(actions), waiting)
        out = self.out
        moved = ~waiting
        terminated, truncated = out.terminated & moved, out.truncated & moved
        reward = np.where(moved, out.reward, 0.0).astype(np.float32)
        rows = flat_rows(out.observation, out.mask, self.spec_of_world)
        self.over = terminated | truncated
        if self.over.any():
            # Nobody acts on these: what would have been allowed does not matter.
            last = flat_rows(out.final_observation, None, self.spec_of_world)
            rows[self.over] = last[self.over]
        return rows, reward, terminated, truncated, {}

    def close_extras(self, **kwargs: Any) -> None:
        self.world.close()

    def _play(self, moves: Array, waiting: BoolArray) -> None:
        if not waiting.any():
            self.out = self.world.step(checked_actions(moves, self.out, self.spec_of_world))
            return
        moves = np.where(_along(waiting, moves), self._any_move(), moves)
        moves = checked_actions(moves, self.out, self.spec_of_world)
        if isinstance(self.world, ForeignWorld):
            for row in np.flatnonzero(~waiting).tolist():
                self.world.step_row(row, moves)
            return
        before = self.world.state()
        self.world.step(moves)
        after = self.world.state()
        for name, array in after.items():
            array[waiting] = before[name][waiting]
        self.out = self.world.restore(after)

    def _any_move(self) -> Array:
        """Some allowed action of every row."""
        if self.spec_of_world.action_box is not None:
            return self.window.played(np.zeros((self.num_envs, self.spec_of_world.num_logits)))
        return first_allowed(self.out, self.spec_of_world)


def width_of(spec: WorldSpec) -> int:
    """Numbers in a row: all arrays side by side, then the mask where there is one."""
    seen = sum(array.size for array in spec.observation.values())
    return seen + spec.num_logits if spec.has_mask else seen


def flat_rows(observation: Arrays, mask: BoolArray | None, spec: WorldSpec) -> Rows:
    """(envs, width) fresh rows; without a mask everything is allowed."""
    rows = np.ones((len(next(iter(observation.values()))), width_of(spec)), np.float32)
    first = 0
    for name, array in spec.observation.items():
        rows[:, first : first + array.size] = observation[name].reshape(len(rows), -1)
        first += array.size
    if mask is not None:
        rows[:, first:] = mask
    return rows


def first_allowed(batch: StepBatch, spec: WorldSpec) -> IntArray:
    """Some allowed action of every row."""
    if batch.mask is None:
        return np.zeros((len(batch), *spec.action_shape), np.int64)
    edges = np.cumsum((0, *spec.choices))
    parts = [batch.mask[:, first:last].argmax(axis=1) for first, last in pairwise(edges)]
    return np.stack(parts, axis=1).reshape(len(batch), *spec.action_shape)


def _along(rows: BoolArray, moves: Array) -> BoolArray:
    """The flags of rows in a shape that goes with their actions."""
    return rows.reshape(-1, *[1] * (moves.ndim - 1))
