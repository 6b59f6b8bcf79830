"""Rollout buffer: the (steps, envs) transitions that one on-policy update learns from.

Each env has its own cursor, so rows may arrive in any order and in batches of any size. An env may
run ahead into the next rollout while others still fill this one: the arrays then grow, and the
rows ahead move to the front when the buffer is cleared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

import numpy as np
from annotated_types import Interval
from numpy.typing import NDArray

from hundredfold.core.batch import (
    Array,
    Arrays,
    EnvSpec,
    Float32Array,
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
from hundredfold.core.bounds import AtLeastOne, check_bounds

# Array of the estimated costs of all actions, for envs that have them.
ACTION_COSTS: Final = "action_costs"
# Array of the states of a policy's memory before each action.
MEMORY: Final = "memory"

Index = tuple[int | IntArray, slice | IntArray]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSettings:
    """Number of envs and steps per update."""

    num_envs: Annotated[int, Interval(ge=1, le=10_000_000)] = 64
    """Number of parallel environments."""
    num_steps: Annotated[int, Interval(ge=0, le=1_000_000_000)] = 128
    """Steps per env per epoch; 0 = one whole episode (envs with a fixed episode length only)."""
    policy_update_interval: AtLeastOne = 1
    """Epochs collected for each policy update."""

    def __post_init__(self) -> None:
        check_bounds(self)

    @property
    def samples_per_epoch(self) -> int:
        """Steps of all envs in one epoch."""
        return self.num_envs * self.num_steps


@dataclass(slots=True)
class ActionSample:
    """Actions sampled by a policy, with their log-probabilities."""

    actions: Array  # (rows,), (rows, action dims) or (rows, *shape of a Box), as sent to the envs
    log_probs: NDArray[np.float32]  # (rows,)
    # Continuous actions before clipping to the bounds: what `log_probs` is of and PPO learns from.
    unclipped: Array | None = None
    # (rows, size) states of the policy's memory before and after the action, if it has one.
    memory: Float32Array | None = None
    next_memory: Float32Array | None = None


@dataclass(slots=True)
class Truncations:
    """Truncated episodes, whose last value is bootstrapped from the final observation."""

    steps: IntArray  # (rows,) step in the rollout
    env_ids: IntArray  # (rows,)
    final_observation: Arrays  # each (rows, ...)


class RolloutBuffer:
    """Rollout buffer, filled by `add_actions` and `add_transitions` in turn.

    The first `num_steps` steps are visible as `observation`, `mask`, `actions`, `log_probs`,
    `rewards`, `terminated` and `ended`, each (steps, envs, ...); `observation` has one step more,
    the observation after the last action, and so has `observation_mask` with `last_mask`.

    Args:
        spec: arrays of the env.
        num_envs: number of envs.
        num_steps: steps per env in one rollout.
        memory_size: size of the policy's memory; 0 = none.
        last_mask: also keep the mask after the last action, for values of the actions allowed there.
    """

    def __init__(
        self, spec: EnvSpec, num_envs: int, num_steps: int, memory_size: int = 0, last_mask: bool = False
    ) -> None:
        from hundredfold.rollout import kernels

        self.kernels = kernels
        self.num_envs = num_envs
        self.num_steps = num_steps
        self.all_env_ids = np.arange(num_envs)
        self.cursor = np.zeros(num_envs, np.int64)
        # (envs,) True between `add_actions` and `add_transitions`.
        self.awaiting_transition = np.zeros(num_envs, bool)
        self.truncations: list[Truncations] = []
        self.next_truncations: list[Truncations] = []  # of the next rollout
        self.arrays: Arrays = {
            "actions": np.zeros((num_steps, num_envs, *spec.action_shape), spec.action_dtype),
            "log_probs": np.zeros((num_steps, num_envs), np.float32),
            "rewards": np.zeros((num_steps, num_envs), np.float32),
            "terminated": np.zeros((num_steps, num_envs), bool),
            "ended": np.zeros((num_steps, num_envs), bool),
        }
        self.action_costs = spec.action_costs
        if spec.action_costs is not None:
            self.arrays[ACTION_COSTS] = np.zeros((num_steps, num_envs, spec.num_logits), np.float32)
        if memory_size:
            self.arrays[MEMORY] = np.zeros((num_steps, num_envs, memory_size), np.float32)
        self.mask_rows_more = int(last_mask)
        if spec.has_mask:
            self.arrays["mask"] = np.ones((num_steps + self.mask_rows_more, num_envs, spec.num_logits), bool)
        # One step more than the rest: the last observation is needed for its value.
        self.observation_arrays: Arrays = {
            name: np.zeros((num_steps + 1, num_envs, *array.shape), array.dtype)
            for name, array in spec.observation.items()
        }
        self._set_views()

    @property
    def steps_done(self) -> int:
        """Steps that every env has completed."""
        return int(self.cursor.min())

    @property
    def full(self) -> bool:
        return self.steps_done >= self.num_steps

    def clear(self) -> None:
        """Start the next rollout with the steps that have run ahead."""
        self.cursor[:] = np.maximum(self.cursor - self.num_steps, 0)
        if self.cursor.any() or self.awaiting_transition.any():
            for array in (*self.arrays.values(), *self.observation_arrays.values()):
                ahead = array[self.num_steps : self.num_steps + int(self.cursor.max()) + 1]
                array[: len(ahead)] = ahead
        carried, self.truncations, self.next_truncations = self.next_truncations, [], []
        for one in carried:
            self._add_truncations(one.steps - self.num_steps, one.env_ids, one.final_observation)

    def add_actions(self, batch: StepBatch, sample: ActionSample) -> None:
        """Store the observations of these rows and the actions sampled for them."""
        at = self._index(batch.env_ids)
        if np.count_nonzero(at[0] >= len(self.arrays["actions"])):
            self._grow()
        for name, array in self.observation_arrays.items():
            array[at] = batch.observation[name]
        if self.mask is not None:
            self.arrays["mask"][at] = batch.mask
        actions = sample.actions if sample.unclipped is None else sample.unclipped
        self.arrays["actions"][at] = actions
        self.arrays["log_probs"][at] = sample.log_probs
        if sample.memory is not None:
            self.arrays[MEMORY][at] = sample.memory
        self.awaiting_transition[batch.env_ids] = True

    def add_transitions(self, batch: StepBatch) -> None:
        """Store what followed the last action of these rows, and advance their cursors."""
        if self.action_costs is not None:
            rows = np.flatnonzero(self.awaiting_transition[batch.env_ids])
            ids = batch.env_ids[rows]
            self.arrays[ACTION_COSTS][self.cursor[ids], ids] = batch.info[self.action_costs][rows]
        num_truncated, num_full = self.kernels.store_transitions(
            batch.env_ids,
            batch.reward,
            batch.terminated,
            batch.truncated,
            self.num_steps,
            self.cursor,
            self.awaiting_transition,
            self.arrays["rewards"],
            self.arrays["terminated"],
            self.arrays["ended"],
        )
        if num_truncated:
            rows = np.flatnonzero(batch.truncated > batch.terminated)
            ids = batch.env_ids[rows]
            final = slice_rows(batch.final_observation, rows)
            self._add_truncations(self.cursor[ids] - 1, ids, final)
        if num_full:
            is_full = self.cursor[batch.env_ids] == self.num_steps
            for name, array in self.observation_arrays.items():
                array[self.num_steps, batch.env_ids[is_full]] = batch.observation[name][is_full]
            if self.observation_mask is not None and batch.mask is not None:
                self.observation_mask[self.num_steps, batch.env_ids[is_full]] = batch.mask[is_full]

    def add_steps(self, rows: slice, arrays: State, observations: State, truncations: Truncations | None) -> None:
        """Append whole steps of neighbouring envs that were collected elsewhere.

        Args:
            rows: the envs.
            arrays: as `self.arrays`, each (steps, envs, ...).
            observations: each (steps + 1, envs, ...).
            truncations: truncated episodes, with steps counted from the first of these.
        """
        first = int(self.cursor[rows][0])
        last = first + len(arrays["actions"])
        while last > len(self.arrays["actions"]):
            self._grow()
        for name, array in self.arrays.items():
            array[first:last, rows] = arrays[name]
        for name, array in self.observation_arrays.items():
            array[first : last + 1, rows] = observations[name]
        if truncations is not None:
            self._add_truncations(truncations.steps + first, truncations.env_ids, truncations.final_observation)
        self.cursor[rows] = last

    def all_truncations(self) -> tuple[IntArray, IntArray, Arrays]:
        """Steps, env ids and final observations of all truncated episodes of this rollout."""
        return (
            np.concatenate([one.steps for one in self.truncations]),
            np.concatenate([one.env_ids for one in self.truncations]),
            concat_rows([one.final_observation for one in self.truncations]),
        )

    def truncate_here(self, batch: StepBatch) -> None:
        """Mark the episodes of these rows as truncated after their last stored step.

        For episodes that ended without a step, for example because their env was recreated.
        """
        ids = batch.env_ids
        last = self.cursor[ids] - 1
        # A transition that is still awaited will itself say that the episode was truncated.
        is_stored = (last >= 0) & ~self.awaiting_transition[ids]
        rows = np.flatnonzero(is_stored & ~self.arrays["ended"][last, ids])
        if len(rows):
            self.arrays["ended"][last[rows], ids[rows]] = True
            final = slice_rows(batch.final_observation, rows)
            self._add_truncations(last[rows], ids[rows], final)

    def state(self) -> Arrays:
        """Snapshot; without any steps, as between most epochs, only the cursors."""
        if not (self.cursor.any() or self.awaiting_transition.any()):
            return {"cursor": self.cursor.copy()}
        truncations: Arrays = {}
        for number, one in enumerate([*self.truncations, *self.next_truncations]):
            prefix = f"truncations/{number:06d}"
            truncations |= {f"{prefix}/steps": one.steps, f"{prefix}/env_ids": one.env_ids}
            truncations |= with_prefix(f"{prefix}/final", one.final_observation)
        return copies(self._state_arrays()) | truncations

    def restore(self, state: State) -> None:
        """Continue from a snapshot."""
        self.cursor[:] = 0
        self.awaiting_transition[:] = False
        self.truncations, self.next_truncations = [], []
        if state.keys() == {"cursor"}:
            return
        if len(state["actions"]) > len(self.arrays["actions"]):
            self._grow(len(state["actions"]))
        truncations = without_prefix("truncations", state)
        others = state.keys() - with_prefix("truncations", truncations).keys()
        fill(self._state_arrays(), {name: state[name] for name in others})
        for prefix in sorted({name.partition("/")[0] for name in truncations}):
            one = without_prefix(prefix, truncations)
            self._add_truncations(one["steps"], one["env_ids"], without_prefix("final", one))

    def _set_views(self) -> None:
        """Views of the first `num_steps` steps, which an update reads."""
        steps, arrays = self.num_steps, self.arrays
        self.observation = slice_rows(self.observation_arrays, slice(steps + 1))
        self.mask = arrays["mask"][:steps] if "mask" in arrays else None
        has_last = self.mask is not None and self.mask_rows_more
        self.observation_mask = arrays["mask"][: steps + 1] if has_last else None
        self.actions = arrays["actions"][:steps]
        self.log_probs = arrays["log_probs"][:steps]
        self.rewards = arrays["rewards"][:steps]
        self.terminated = arrays["terminated"][:steps]
        self.ended = arrays["ended"][:steps]

    def _grow(self, num_rows: int | None = None) -> None:
        """Make room for another rollout behind this one, or for `num_rows` steps in total."""
        rows = num_rows or len(self.arrays["actions"]) + self.num_steps
        more = {"mask": self.mask_rows_more}
        self.arrays = {name: _extended(array, rows + more.get(name, 0)) for name, array in self.arrays.items()}
        self.observation_arrays = {name: _extended(array, rows + 1) for name, array in self.observation_arrays.items()}
        self._set_views()

    def _add_truncations(self, steps: IntArray, env_ids: IntArray, final: Arrays) -> None:
        """Record truncated episodes under the rollout they belong to, this one or the next."""
        is_next = steps >= self.num_steps
        for rows, target in ((~is_next, self.truncations), (is_next, self.next_truncations)):
            if rows.all():
                target.append(Truncations(steps, env_ids, final))
            elif rows.any():
                part = Truncations(steps[rows], env_ids[rows], slice_rows(final, rows))
                target.append(part)

    def _index(self, env_ids: IntArray) -> Index:
        """Index of these envs' current step; a plain slice where all envs are at the same step."""
        cursor = self.cursor[env_ids]
        in_order = len(env_ids) == self.num_envs and np.array_equal(env_ids, self.all_env_ids)
        if in_order and cursor.min() == cursor.max():
            return int(cursor[0]), slice(None)
        return cursor, env_ids

    def _state_arrays(self) -> Arrays:
        own = {"cursor": self.cursor, "awaiting_transition": self.awaiting_transition}
        return own | self.arrays | with_prefix("observation", self.observation_arrays)


def _extended(array: Array, num_rows: int) -> Array:
    """The array with zeros appended up to this number of steps."""
    more = np.zeros((num_rows - len(array), *array.shape[1:]), array.dtype)
    return np.concatenate([array, more])
