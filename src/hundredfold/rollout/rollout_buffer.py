"""The steps one update learns from, kept in arrays that are allocated once.

Each env has its own cursor, so rows may arrive in any order and in batches of any size. What was
true when an action was chosen is stored as it was used: observation, mask, log-probability. An env
may run on into the next rollout while others are still on their way through this one: the arrays
grow when that happens, and what ran ahead moves to the front when the rollout is cleared.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hundredfold.core.batch import (
    Array,
    Arrays,
    EnvSpec,
    IntArray,
    State,
    StepBatch,
    concat_rows,
    copies,
    fill,
    slice_rows,
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
class ActionSample:
    """What a policy decided for some rows, and how likely that was."""

    actions: Array  # (rows,), (rows, parts) or (rows, *shape of a box)
    log_probs: NDArray[np.float32]  # (rows,)
    # What was drawn, where the env gets it cut to its bounds: this is what is learned from.
    drawn: Array | None = None


@dataclass(slots=True)
class Truncations:
    """Rows whose episode was truncated in one step: their value goes on beyond the end."""

    steps: IntArray  # (rows,) where in the rollout
    env_ids: IntArray  # (rows,)
    final_observation: Arrays  # each (rows, ...)


class RolloutBuffer:
    """Steps x envs of experience, filled by `add_actions` and `add_transitions` by turns."""

    def __init__(self, spec: EnvSpec, num_envs: int, num_steps: int) -> None:
        from hundredfold.rollout import kernels

        self.kernels = kernels
        self.num_envs = num_envs
        self.num_steps = num_steps
        self.everyone = np.arange(num_envs)
        self.cursor = np.zeros(num_envs, np.int64)
        # Envs whose last choice has had no outcome yet.
        self.awaiting = np.zeros(num_envs, bool)
        self.cut_off: list[Truncations] = []
        # Truncated episodes of the next rollout.
        self.cut_off_ahead: list[Truncations] = []
        self.stored: Arrays = {
            "actions": np.zeros((num_steps, num_envs, *spec.action_shape), spec.action_dtype),
            "log_probs": np.zeros((num_steps, num_envs), np.float32),
            "rewards": np.zeros((num_steps, num_envs), np.float32),
            "terminated": np.zeros((num_steps, num_envs), bool),
            "ended": np.zeros((num_steps, num_envs), bool),
        }
        if spec.has_mask:
            self.stored["mask"] = np.ones((num_steps, num_envs, spec.num_logits), bool)
        # One step more than the rest: what was seen after the last action, for its value.
        self.seen: Arrays = {
            name: np.zeros((num_steps + 1, num_envs, *array.shape), array.dtype)
            for name, array in spec.observation.items()
        }
        self._show()

    @property
    def steps_done(self) -> int:
        """Steps that every env has completed."""
        return int(self.cursor.min())

    @property
    def full(self) -> bool:
        return self.steps_done >= self.num_steps

    def clear(self) -> None:
        """Start over with what has run ahead; arrays are written anew as steps come in."""
        self.cursor[:] = np.maximum(self.cursor - self.num_steps, 0)
        if self.cursor.any() or self.awaiting.any():
            for array in (*self.stored.values(), *self.seen.values()):
                moved = array[self.num_steps : self.num_steps + int(self.cursor.max()) + 1]
                array[: len(moved)] = moved
        ahead, self.cut_off, self.cut_off_ahead = self.cut_off_ahead, [], []
        for cut in ahead:
            self._note_cut_off(cut.steps - self.num_steps, cut.env_ids, cut.final_observation)

    def add_actions(self, batch: StepBatch, choice: ActionSample) -> None:
        """Keep what these rows saw and what was decided for them."""
        at = self._place(batch.env_ids)
        if np.count_nonzero(at[0] >= len(self.stored["actions"])):
            self._grow()
        for name, array in self.seen.items():
            array[at] = batch.observation[name]
        if self.mask is not None:
            self.stored["mask"][at] = batch.mask
        self.stored["actions"][at] = choice.actions if choice.drawn is None else choice.drawn
        self.stored["log_probs"][at] = choice.log_probs
        self.awaiting[batch.env_ids] = True

    def add_transitions(self, batch: StepBatch) -> None:
        """Keep what came of the last choice of these rows, and move their cursors on."""
        num_cut, num_full = self.kernels.keep_outcomes(
            batch.env_ids,
            batch.reward,
            batch.terminated,
            batch.truncated,
            self.num_steps,
            self.cursor,
            self.awaiting,
            self.stored["rewards"],
            self.stored["terminated"],
            self.stored["ended"],
        )
        if num_cut:
            cut = np.flatnonzero(batch.truncated > batch.terminated)
            ids = batch.env_ids[cut]
            final = slice_rows(batch.final_observation, cut)
            self._note_cut_off(self.cursor[ids] - 1, ids, final)
        if num_full:
            rows = self.cursor[batch.env_ids] == self.num_steps
            for name, array in self.seen.items():
                array[self.num_steps, batch.env_ids[rows]] = batch.observation[name][rows]

    def add_steps(self, rows: slice, stored: State, seen: State, cut: Truncations | None) -> None:
        """Keep whole steps of neighbouring envs that were gathered elsewhere, behind their last.

        Arrays are named as here, each (steps, envs, ...), with one more step of what was seen; the
        steps of `cut` count from the first of these.
        """
        first = int(self.cursor[rows][0])
        last = first + len(stored["actions"])
        while last > len(self.stored["actions"]):
            self._grow()
        for name, array in self.stored.items():
            array[first:last, rows] = stored[name]
        for name, array in self.seen.items():
            array[first : last + 1, rows] = seen[name]
        if cut is not None:
            self._note_cut_off(cut.steps + first, cut.env_ids, cut.final_observation)
        self.cursor[rows] = last

    def all_cut_off(self) -> tuple[IntArray, IntArray, Arrays]:
        """Steps, env ids and final observations of every truncated episode, in one piece."""
        return (
            np.concatenate([cut.steps for cut in self.cut_off]),
            np.concatenate([cut.env_ids for cut in self.cut_off]),
            concat_rows([cut.final_observation for cut in self.cut_off]),
        )

    def truncate_here(self, batch: StepBatch) -> None:
        """Note that the episodes of these rows ended after their last step, unseen by us."""
        ids = batch.env_ids
        last = self.cursor[ids] - 1
        # Where an outcome is awaited it will say by itself that the episode was cut off.
        known = (last >= 0) & ~self.awaiting[ids]
        rows = np.flatnonzero(known & ~self.stored["ended"][last, ids])
        if len(rows):
            self.stored["ended"][last[rows], ids[rows]] = True
            final = slice_rows(batch.final_observation, rows)
            self._note_cut_off(last[rows], ids[rows], final)

    def state(self) -> Arrays:
        """What has been gathered so far: nothing, unless an update spans several epochs."""
        if not (self.cursor.any() or self.awaiting.any()):
            return {"cursor": self.cursor.copy()}
        cut_off: Arrays = {}
        for number, cut in enumerate([*self.cut_off, *self.cut_off_ahead]):
            start = f"cut_off/{number:06d}"
            cut_off |= {f"{start}/steps": cut.steps, f"{start}/env_ids": cut.env_ids}
            cut_off |= with_prefix(f"{start}/final", cut.final_observation)
        return copies(self._arrays()) | cut_off

    def restore(self, state: State) -> None:
        self.cursor[:] = 0
        self.awaiting[:] = False
        self.cut_off, self.cut_off_ahead = [], []
        if state.keys() == {"cursor"}:
            return
        if len(state["actions"]) > len(self.stored["actions"]):
            self._grow(len(state["actions"]))
        cut_off = without_prefix("cut_off", state)
        fill(self._arrays(), {name: state[name] for name in state.keys() - _prefixed(cut_off)})
        for start in sorted({name.partition("/")[0] for name in cut_off}):
            part = without_prefix(start, cut_off)
            self._note_cut_off(part["steps"], part["env_ids"], without_prefix("final", part))

    def _show(self) -> None:
        """What an update reads: the first `num_steps` steps of every env, without copying."""
        steps = self.num_steps
        self.observation = {name: array[: steps + 1] for name, array in self.seen.items()}
        self.mask = self.stored["mask"][:steps] if "mask" in self.stored else None
        self.actions = self.stored["actions"][:steps]
        self.log_probs = self.stored["log_probs"][:steps]
        self.rewards = self.stored["rewards"][:steps]
        self.terminated = self.stored["terminated"][:steps]
        self.ended = self.stored["ended"][:steps]

    def _grow(self, rows: int | None = None) -> None:
        """Make room for another rollout behind this one, or for so many steps in all."""
        room = rows or len(self.stored["actions"]) + self.num_steps
        self.stored = {name: _longer(array, room) for name, array in self.stored.items()}
        self.seen = {name: _longer(array, room + 1) for name, array in self.seen.items()}
        self._show()

    def _note_cut_off(self, steps: IntArray, env_ids: IntArray, final: Arrays) -> None:
        """Note truncated episodes, apart by the rollout they belong to."""
        ahead = steps >= self.num_steps
        for rows, noted in ((~ahead, self.cut_off), (ahead, self.cut_off_ahead)):
            if rows.all():
                noted.append(Truncations(steps, env_ids, final))
            elif rows.any():
                part = slice_rows(final, rows)
                noted.append(Truncations(steps[rows], env_ids[rows], part))

    def _place(self, env_ids: IntArray) -> Index:
        """Where these rows' current step lives; one slice when the whole batch moves in step."""
        cursor = self.cursor[env_ids]
        in_order = len(env_ids) == self.num_envs and np.array_equal(env_ids, self.everyone)
        if in_order and cursor.min() == cursor.max():
            return int(cursor[0]), slice(None)
        return cursor, env_ids

    def _arrays(self) -> Arrays:
        own = {"cursor": self.cursor, "awaiting": self.awaiting}
        return own | self.stored | with_prefix("observation", self.seen)


def _longer(array: Array, rows: int) -> Array:
    """The same array with more steps, zeros where there is nothing yet."""
    more = np.zeros((rows - len(array), *array.shape[1:]), array.dtype)
    return np.concatenate([array, more])


def _prefixed(cut_off: Arrays) -> set[str]:
    return set(with_prefix("cut_off", cut_off))
