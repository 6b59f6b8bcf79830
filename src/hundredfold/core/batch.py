"""The data that travels: what an env looks like (`EnvSpec`) and what it says (`StepBatch`).

Everything is a named numpy array whose first axis is the env. A batch is allocated once and
written in place ever after; whoever keeps rows copies them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from hundredfold.core.errors import CheckpointError

Array = NDArray[Any]
BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Arrays = dict[str, Array]
State = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """Shape and type of one named array, for one env."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    # Bounds: one number for all entries, or one per flat entry.
    low: float | tuple[float, ...] = float("-inf")
    high: float | tuple[float, ...] = float("inf")
    # Set when entries are category numbers rather than quantities: how many categories each flat
    # entry has. Networks see these one-hot.
    categories: tuple[int, ...] | None = None

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    def empty(self, rows: int) -> Array:
        """Zeros for this many envs."""
        return np.zeros((rows, *self.shape), self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSpec:
    """Everything a backend, a learner or a report needs to know about an env's arrays."""

    name: str
    observation: Mapping[str, ArraySpec]
    # Number of choices of each part of an action: (16,) for one choice of 16, (3, 2) for two parts.
    action_nvec: tuple[int, ...] = ()
    # Set instead where an action is made of numbers rather than choices: their shape and bounds.
    continuous_action: ArraySpec | None = None
    has_mask: bool = False
    # Set when every episode has the same length.
    episode_steps: int | None = None
    # Arrays that count after every step, and arrays that count in rows where an episode ended.
    info: Mapping[str, ArraySpec] = field(default_factory=dict)
    episode_info: Mapping[str, ArraySpec] = field(default_factory=dict)
    true_state: Mapping[str, ArraySpec] = field(default_factory=dict)
    # Name of an observation, (num_logits,), that is added to a policy's logits and not looked at.
    logit_bias: str | None = None
    # False for envs that are not ours: their episodes cannot be frozen and continued later.
    has_snapshots: bool = True

    @property
    def num_logits(self) -> int:
        """Width of a mask row and of a policy's output: all choices (or numbers) side by side."""
        return (
            sum(self.action_nvec) if self.continuous_action is None else self.continuous_action.size
        )

    @property
    def num_action_dims(self) -> int:
        """Choices, or numbers, that one action is made of: as many draws it takes."""
        return (
            len(self.action_nvec) if self.continuous_action is None else self.continuous_action.size
        )

    @property
    def action_shape(self) -> tuple[int, ...]:
        """() for one choice, (parts,) for several; a box has its own."""
        if self.continuous_action is not None:
            return self.continuous_action.shape
        return () if len(self.action_nvec) == 1 else (len(self.action_nvec),)

    @property
    def action_dtype(self) -> str:
        """Choices are whole numbers, the numbers of a box are not."""
        return "int64" if self.continuous_action is None else self.continuous_action.dtype

    def batch(self, env_ids: IntArray) -> StepBatch:
        """A fresh batch for these envs, all zeros, all actions allowed."""
        rows = len(env_ids)
        return StepBatch(
            env_ids=env_ids,
            observation=_empty(self.observation, rows),
            reward=np.zeros(rows),
            terminated=np.zeros(rows, bool),
            truncated=np.zeros(rows, bool),
            mask=np.ones((rows, self.num_logits), bool) if self.has_mask else None,
            final_observation=_empty(self.observation, rows),
            info=_empty(self.info, rows),
            episode_info=_empty(self.episode_info, rows),
            true_state=_empty(self.true_state, rows),
        )


@dataclass(slots=True)
class StepBatch:
    """What some envs have to say after a step. Views into live buffers, unless it `lasts`."""

    env_ids: IntArray  # (rows,)
    observation: Arrays  # each (rows, ...); where an episode ended: the next one's first
    reward: FloatArray  # (rows,)
    terminated: BoolArray  # (rows,) the episode came to its own end
    truncated: BoolArray  # (rows,) the episode was cut off; its value goes on
    mask: BoolArray | None  # (rows, num_logits), True = allowed
    final_observation: Arrays  # each (rows, ...); counts where terminated or truncated
    info: Arrays  # each (rows, ...)
    episode_info: Arrays  # each (rows, ...); counts where terminated or truncated
    true_state: Arrays  # each (rows, ...)
    # What envs of somebody else's making put into their infos, one mapping per row; None for ours.
    infos: Sequence[Mapping[str, Any]] | None = None
    # Whether these are copies, that say the same when the envs have gone on (but for the infos).
    is_copy: bool = False

    def __len__(self) -> int:
        return len(self.env_ids)

    @property
    def ended(self) -> BoolArray:
        """(rows,) True where an episode ended in this step, either way."""
        return self.terminated | self.truncated

    def rows(self, start: int, stop: int) -> StepBatch:
        """The same buffers, seen through a slice of rows."""
        rows = slice(start, stop)
        return StepBatch(
            env_ids=self.env_ids[rows],
            observation=slice_rows(self.observation, rows),
            reward=self.reward[rows],
            terminated=self.terminated[rows],
            truncated=self.truncated[rows],
            mask=None if self.mask is None else self.mask[rows],
            final_observation=slice_rows(self.final_observation, rows),
            info=slice_rows(self.info, rows),
            episode_info=slice_rows(self.episode_info, rows),
            true_state=slice_rows(self.true_state, rows),
            infos=None if self.infos is None else self.infos[rows],
        )

    def take(self, rows: IntArray) -> StepBatch:
        """Copies of these rows, in this order; infos of foreign envs stay live."""
        infos = self.infos
        return StepBatch(
            env_ids=self.env_ids.take(rows),
            observation=_taken(self.observation, rows),
            reward=self.reward.take(rows),
            terminated=self.terminated.take(rows),
            truncated=self.truncated.take(rows),
            mask=None if self.mask is None else self.mask.take(rows, axis=0),
            final_observation=_taken(self.final_observation, rows),
            info=_taken(self.info, rows),
            episode_info=_taken(self.episode_info, rows),
            true_state=_taken(self.true_state, rows),
            infos=None if infos is None else SelectedInfos(infos, rows),
            is_copy=True,
        )

    def arrays(self) -> Arrays:
        """The live arrays under flat names: `reward`, `observation/cell`, ..."""
        named: Arrays = {
            "reward": self.reward,
            "terminated": self.terminated,
            "truncated": self.truncated,
        }
        if self.mask is not None:
            named["mask"] = self.mask
        for group in ("observation", "final_observation", "info", "episode_info", "true_state"):
            named |= with_prefix(group, getattr(self, group))
        return named


class SelectedInfos(Sequence[Mapping[str, Any]]):
    """Some infos of others, looked up when they are read and not before."""

    def __init__(self, infos: Sequence[Mapping[str, Any]], rows: IntArray) -> None:
        self.infos = infos
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> SelectedInfos: ...
    def __getitem__(self, index: int | slice) -> Mapping[str, Any] | SelectedInfos:
        if isinstance(index, slice):
            return SelectedInfos(self.infos, self.rows[index])
        return self.infos[int(self.rows[index])]


def concat_batches(first: StepBatch, second: StepBatch) -> StepBatch:
    """The rows of two batches, one after the other, as copies. Infos are dropped."""
    arrays = concat_rows([first.arrays(), second.arrays()])
    return StepBatch(
        env_ids=np.concatenate([first.env_ids, second.env_ids]),
        observation=without_prefix("observation", arrays),
        reward=arrays["reward"],
        terminated=arrays["terminated"],
        truncated=arrays["truncated"],
        mask=arrays.get("mask"),
        final_observation=without_prefix("final_observation", arrays),
        info=without_prefix("info", arrays),
        episode_info=without_prefix("episode_info", arrays),
        true_state=without_prefix("true_state", arrays),
        is_copy=True,
    )


def concat_rows(parts: Sequence[State], axis: int = 0) -> Arrays:
    """Arrays of the same names, joined along an axis; the first part's names count."""
    return {name: np.concatenate([part[name] for part in parts], axis) for name in parts[0]}


def slice_rows(arrays: State, rows: slice | Array) -> Arrays:
    """These rows of every array: views for a slice, copies for indices or a boolean mask."""
    return {name: array[rows] for name, array in arrays.items()}


def copies(arrays: State) -> Arrays:
    """A snapshot of live arrays."""
    return {name: array.copy() for name, array in arrays.items()}


def fill(arrays: Arrays, state: State) -> None:
    """Write a snapshot back into live arrays: all of it, or nothing when it does not fit."""
    missing = sorted(arrays.keys() - state.keys())
    unknown = sorted(state.keys() - arrays.keys())
    if missing or unknown:
        raise CheckpointError(
            f"the snapshot does not fit: it lacks {missing or 'nothing'} and has "
            f"{unknown or 'nothing'} too many; it belongs to another env or other settings."
        )
    for name, array in arrays.items():
        saved = np.asarray(state[name])
        if saved.shape != array.shape or saved.dtype != array.dtype:
            raise CheckpointError(
                f"the snapshot's {name!r} is {saved.dtype}{list(saved.shape)} where "
                f"{array.dtype}{list(array.shape)} is wanted; resume with the settings that made "
                "it."
            )
    for name, array in arrays.items():
        array[...] = state[name]


def with_prefix(prefix: str, state: State) -> Arrays:
    """The same arrays under `prefix/name`."""
    return {f"{prefix}/{name}": array for name, array in state.items()}


def without_prefix(prefix: str, state: State) -> Arrays:
    """Only the arrays under `prefix/`, by their own names."""
    start = f"{prefix}/"
    return {name[len(start) :]: array for name, array in state.items() if name.startswith(start)}


def _empty(specs: Mapping[str, ArraySpec], rows: int) -> Arrays:
    return {name: spec.empty(rows) for name, spec in specs.items()}


def _taken(arrays: Arrays, rows: IntArray) -> Arrays:
    # For a few rows of several numbers, indexing takes three times as long.
    return {name: array.take(rows, axis=0) for name, array in arrays.items()}
