"""The steps one update learns from, kept in arrays that are allocated once.

Each env has its own cursor, so rows may arrive in any order and in batches of any size. What was
true when an action was chosen is stored as it was used: observation, mask, log-probability.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hundredfold.core.batch import (
    Arrays,
    IntArray,
    State,
    StepBatch,
    WorldSpec,
    copies,
    fill,
    with_prefix,
    without_prefix,
)
from hundredfold.core.errors import SettingsError

Index = tuple[int | IntArray, slice | IntArray]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSettings:
    """How much experience one update sees."""

    num_envs: int = 64
    """Environments that run in parallel."""
    num_steps: int = 128
    """Steps of every env in one epoch; 0: one whole episode, where all have the same length."""
    policy_update_interval: int = 1
    """Epochs that are gathered and learned from together."""

    def __post_init__(self) -> None:
        for name, least in (("num_envs", 1), ("num_steps", 0), ("policy_update_interval", 1)):
            if getattr(self, name) < least:
                raise SettingsError(f"{name} must be at least {least}, got {getattr(self, name)}.")

    @property
    def samples_per_epoch(self) -> int:
        """Steps of all envs in one epoch."""
        return self.num_envs * self.num_steps


@dataclass(slots=True)
class Choice:
    """What a policy decided for some rows, and how likely that was."""

    actions: IntArray  # (rows,) or (rows, parts)
    log_probs: NDArray[np.float32]  # (rows,)


@dataclass(slots=True)
class CutOff:
    """Rows whose episode was truncated in one step: their value goes on beyond the end."""

    steps: IntArray  # (rows,) where in the rollout
    env_ids: IntArray  # (rows,)
    final_observation: Arrays  # each (rows, ...)


class Rollout:
    """Steps x envs of experience, filled by `add_choice` and `add_outcome` by turns."""

    def __init__(self, spec: WorldSpec, num_envs: int, num_steps: int) -> None:
        self.num_envs = num_envs
        self.num_steps = num_steps
        grid = (num_steps, num_envs)
        # One step more than the rest: what was seen after the last action, for its value.
        self.observation = {
            name: np.zeros((num_steps + 1, num_envs, *array.shape), array.dtype)
            for name, array in spec.observation.items()
        }
        self.mask = np.ones((*grid, spec.num_logits), bool) if spec.has_mask else None
        self.actions = np.zeros((*grid, *spec.action_shape), np.int64)
        self.log_probs = np.zeros(grid, np.float32)
        self.rewards = np.zeros(grid, np.float32)
        self.terminated = np.zeros(grid, bool)
        self.ended = np.zeros(grid, bool)
        self.everyone = np.arange(num_envs)
        self.cursor = np.zeros(num_envs, np.int64)
        self.cut_off: list[CutOff] = []

    @property
    def steps_done(self) -> int:
        """Steps that every env has completed."""
        return int(self.cursor.min())

    @property
    def full(self) -> bool:
        return self.steps_done == self.num_steps

    def clear(self) -> None:
        """Start over; arrays are written anew as steps come in."""
        self.cursor[:] = 0
        self.cut_off.clear()

    def add_choice(self, batch: StepBatch, choice: Choice) -> None:
        """Keep what these rows saw and what was decided for them."""
        at = self._place(batch.env_ids)
        for name, array in self.observation.items():
            array[at] = batch.observation[name]
        if self.mask is not None:
            self.mask[at] = batch.mask
        self.actions[at] = choice.actions
        self.log_probs[at] = choice.log_probs

    def add_outcome(self, batch: StepBatch) -> None:
        """Keep what came of the last choice of these rows, and move their cursors on."""
        at = self._place(batch.env_ids)
        ended = batch.ended
        self.rewards[at] = batch.reward
        self.terminated[at] = batch.terminated
        self.ended[at] = ended
        cut = np.flatnonzero(batch.truncated & ~batch.terminated)
        if len(cut):
            ids = batch.env_ids[cut]
            final = {name: array[cut] for name, array in batch.final_observation.items()}
            self.cut_off.append(CutOff(self.cursor[ids], ids, final))
        self.cursor[batch.env_ids] += 1
        if self.cursor[batch.env_ids].max() == self.num_steps:
            rows = self.cursor[batch.env_ids] == self.num_steps
            for name, array in self.observation.items():
                array[-1, batch.env_ids[rows]] = batch.observation[name][rows]

    def all_cut_off(self) -> tuple[IntArray, IntArray, Arrays]:
        """Steps, env ids and final observations of every truncated episode, in one piece."""
        return (
            np.concatenate([cut.steps for cut in self.cut_off]),
            np.concatenate([cut.env_ids for cut in self.cut_off]),
            {
                name: np.concatenate([cut.final_observation[name] for cut in self.cut_off])
                for name in self.observation
            },
        )

    def cut_off_here(self, batch: StepBatch) -> None:
        """Note that the episodes of these rows ended after their last step, unseen by us."""
        ids = batch.env_ids
        last = self.cursor[ids] - 1
        rows = np.flatnonzero((last >= 0) & ~self.ended[last, ids])
        if len(rows):
            self.ended[last[rows], ids[rows]] = True
            final = {name: array[rows] for name, array in batch.final_observation.items()}
            self.cut_off.append(CutOff(last[rows], ids[rows], final))

    def state(self) -> Arrays:
        """What has been gathered so far: nothing, unless an update spans several epochs."""
        if not self.steps_done:
            return {"cursor": self.cursor.copy()}
        cut_off: Arrays = {}
        for number, cut in enumerate(self.cut_off):
            start = f"cut_off/{number:06d}"
            cut_off |= {f"{start}/steps": cut.steps, f"{start}/env_ids": cut.env_ids}
            cut_off |= with_prefix(f"{start}/final", cut.final_observation)
        return copies(self._arrays()) | cut_off

    def restore(self, state: State) -> None:
        self.clear()
        if state.keys() == {"cursor"}:
            return
        cut_off = without_prefix("cut_off", state)
        fill(self._arrays(), {name: state[name] for name in state.keys() - _prefixed(cut_off)})
        for start in sorted({name.partition("/")[0] for name in cut_off}):
            part = without_prefix(start, cut_off)
            final = without_prefix("final", part)
            self.cut_off.append(CutOff(part["steps"], part["env_ids"], final))

    def _place(self, env_ids: IntArray) -> Index:
        """Where these rows' current step lives; one slice when the whole batch moves in step."""
        cursor = self.cursor[env_ids]
        in_order = np.array_equal(env_ids, self.everyone)
        if in_order and cursor.min() == cursor.max():
            return int(cursor[0]), slice(None)
        return cursor, env_ids

    def _arrays(self) -> Arrays:
        arrays: Arrays = {
            "cursor": self.cursor,
            "actions": self.actions,
            "log_probs": self.log_probs,
            "rewards": self.rewards,
            "terminated": self.terminated,
            "ended": self.ended,
        }
        if self.mask is not None:
            arrays["mask"] = self.mask
        return arrays | {f"observation/{name}": array for name, array in self.observation.items()}


def _prefixed(cut_off: Arrays) -> set[str]:
    return set(with_prefix("cut_off", cut_off))
