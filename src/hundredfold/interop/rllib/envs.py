"""A world as RLlib's env runners want it: flat rows, and a step of its own for every reset.

RLlib begins the next episode with the step after the one that ended the last, where our worlds
begin it at once. Rows that wait for that step stand still while the others go on: what the world
did with them meanwhile is taken back.
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
from hundredfold.core.batch import Arrays, BoolArray, IntArray, StepBatch, WorldSpec
from hundredfold.core.contracts import World, WorldFactory
from hundredfold.distributed.actor import SliceFactory
from hundredfold.interop.gymnasium import WorldEnv, action_space
from hundredfold.worlds import settings_class, world_factory

Rows = NDArray[np.float32]
Outcome = tuple[Rows, NDArray[np.float32], BoolArray, BoolArray, dict[str, Any]]


def make_env(world: str, context: Mapping[str, Any]) -> VectorEnv[Any, Any, Any] | WorldEnv:
    """What RLlib calls: a batch where it says how many envs, else a single one.

    `context` has the world's settings by name; `seed` and `make_world` are ours.
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
    return FlatVectorEnv(make_world, num_envs, runner * num_envs, int(context.get("seed", 0)))


OWN_WORDS = ("num_envs", "world", "make_world", "seed")


class FlatVectorEnv(VectorEnv[Any, Any, Any]):
    """A slice of a world; observations are rows of numbers with the mask behind them."""

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, make_world: WorldFactory, num_envs: int, first: int, seed: int) -> None:
        self.world: World = SliceFactory(make_world, first)(np.arange(num_envs))
        spec = self.spec_of_world = self.world.spec
        self.num_envs, self.seed = num_envs, seed
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (width_of(spec),), np.float32)
        self.single_action_space = action_space(spec)
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
            self._play(np.array(actions, np.int64), waiting)
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

    def _play(self, actions: IntArray, waiting: BoolArray) -> None:
        if not waiting.any():
            self.out = self.world.step(checked_actions(actions, self.out, self.spec_of_world))
            return
        before = self.world.state()
        actions[waiting] = first_allowed(self.out, self.spec_of_world)[waiting]
        self.world.step(checked_actions(actions, self.out, self.spec_of_world))
        after = self.world.state()
        for name, array in after.items():
            array[waiting] = before[name][waiting]
        self.out = self.world.restore(after)


def width_of(spec: WorldSpec) -> int:
    """Numbers in a row: all arrays side by side, then the mask."""
    return sum(array.size for array in spec.observation.values()) + spec.num_logits


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
