"""Data that passes between envs, backends and algorithms: `EnvSpec`, `StepBatch`, named arrays.

Everything is a numpy array with a name whose first axis is the env. A batch is allocated once and
overwritten in place at every step: copy what must outlive the next step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hundredfold.core.errors import CheckpointError

Array = NDArray[Any]
BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]
Float32Array = NDArray[np.float32]
IntArray = NDArray[np.int64]
Arrays = dict[str, Array]
State = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """Shape, dtype and bounds of one named array, for one env."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    # Bounds: one for all entries, or one per flat entry.
    low: float | tuple[float, ...] = float("-inf")
    high: float | tuple[float, ...] = float("inf")
    # Set if entries are categories: the number of categories of each flat entry. Networks get these
    # one-hot encoded.
    categories: tuple[int, ...] | None = None

    @property
    def size(self) -> int:
        """Number of entries."""
        return int(np.prod(self.shape, dtype=np.int64))

    def empty(self, rows: int) -> Array:
        """(rows, *shape) zeros."""
        return np.zeros((rows, *self.shape), self.dtype)


@dataclass(frozen=True, slots=True)
class ActionInputs:
    """Names of observations that describe each action, for networks that score them one by one.

    An action takes effect with a probability; otherwise it costs nothing.
    """

    features: str  # (actions, features)
    context: str  # (width,) the same for all actions
    probability: str  # (actions,) that the action takes effect
    penalty: str  # (actions,) known cost if it takes effect, in the unit of the action costs
    reference: int  # the action to which costs are relative


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSpec:
    """Spaces and other static facts of an env: all that backends and algorithms know about it."""

    name: str
    observation: Mapping[str, ArraySpec]
    # Number of actions in each dimension: (16,) for Discrete(16), (3, 2) for MultiDiscrete([3, 2]).
    action_nvec: tuple[int, ...] = ()
    # Set instead of `action_nvec` for continuous actions: their shape and bounds.
    continuous_action: ArraySpec | None = None
    has_mask: bool = False
    # Set if every episode has the same length.
    episode_steps: int | None = None
    # Arrays that are valid after every step, and arrays that are valid where an episode ended.
    info: Mapping[str, ArraySpec] = field(default_factory=dict)
    episode_info: Mapping[str, ArraySpec] = field(default_factory=dict)
    # Hidden state, for evaluation and privileged baselines; policies do not see it.
    true_state: Mapping[str, ArraySpec] = field(default_factory=dict)
    # Names of observations that only the value function sees, while training.
    privileged: tuple[str, ...] = ()
    # Name of an observation, (num_logits,), that is added to the logits instead of being an input.
    logit_bias: str | None = None
    # Set if observations describe every action.
    action_inputs: ActionInputs | None = None
    # Name of an info, (actions,), with the estimated cost of every action if it takes effect, NaN
    # where there is no estimate; for algorithms that learn from all actions of a step.
    action_costs: str | None = None
    # False for third-party envs, whose episodes cannot be saved and continued.
    has_snapshots: bool = True

    @property
    def policy_observation(self) -> dict[str, ArraySpec]:
        """The observations that a policy sees: all but the privileged ones."""
        return {name: array for name, array in self.observation.items() if name not in self.privileged}

    @property
    def num_logits(self) -> int:
        """Width of a mask row and of a policy's output: the sum over all action dimensions."""
        return sum(self.action_nvec) if self.continuous_action is None else self.continuous_action.size

    @property
    def num_action_dims(self) -> int:
        """Dimensions of one action; sampling takes one random number for each."""
        return len(self.action_nvec) if self.continuous_action is None else self.continuous_action.size

    @property
    def action_shape(self) -> tuple[int, ...]:
        """() for Discrete, (dimensions,) for MultiDiscrete, the shape of a Box."""
        if self.continuous_action is not None:
            return self.continuous_action.shape
        return () if len(self.action_nvec) == 1 else (len(self.action_nvec),)

    @property
    def action_dtype(self) -> str:
        """Dtype of actions: int64 if discrete, else that of the Box."""
        return "int64" if self.continuous_action is None else self.continuous_action.dtype

    def batch(self, env_ids: IntArray) -> StepBatch:
        """Allocate a batch for these envs: all zeros, all actions allowed."""
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
    """Outputs of some envs after a step, as views into live buffers unless `is_copy`.

    Same-step reset: where an episode ended, `observation` is the first one of the next episode and
    `final_observation` the last one of the old.
    """

    env_ids: IntArray  # (rows,)
    observation: Arrays  # each (rows, ...)
    reward: FloatArray  # (rows,)
    terminated: BoolArray  # (rows,) the episode ended in a terminal state
    truncated: BoolArray  # (rows,) the episode was truncated: its final state has a value
    mask: BoolArray | None  # (rows, num_logits), True = allowed
    final_observation: Arrays  # each (rows, ...); valid where terminated or truncated
    info: Arrays  # each (rows, ...)
    episode_info: Arrays  # each (rows, ...); valid where terminated or truncated
    true_state: Arrays  # each (rows, ...)
    # Info dicts of third-party envs, one per row; None for built-in envs.
    infos: Sequence[Mapping[str, Any]] | None = None
    # Whether the arrays (but not the infos) are copies that outlive the next step.
    is_copy: bool = False

    def __len__(self) -> int:
        return len(self.env_ids)

    @property
    def ended(self) -> BoolArray:
        """(rows,) True where an episode ended in this step, terminated or truncated."""
        return self.terminated | self.truncated

    def rows(self, start: int, stop: int) -> StepBatch:
        """Views of rows `start..stop-1` of the same buffers."""
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
        """Copies of these rows, in this order; infos stay live."""
        infos = self.infos
        return StepBatch(
            env_ids=self.env_ids.take(rows),
            observation=_take_rows(self.observation, rows),
            reward=self.reward.take(rows),
            terminated=self.terminated.take(rows),
            truncated=self.truncated.take(rows),
            mask=None if self.mask is None else self.mask.take(rows, axis=0),
            final_observation=_take_rows(self.final_observation, rows),
            info=_take_rows(self.info, rows),
            episode_info=_take_rows(self.episode_info, rows),
            true_state=_take_rows(self.true_state, rows),
            infos=None if infos is None else SelectedInfos(infos, rows),
            is_copy=True,
        )

    def arrays(self) -> Arrays:
        """The live arrays under flat names: `reward`, `observation/cell`, ..."""
        named: Arrays = {"reward": self.reward, "terminated": self.terminated, "truncated": self.truncated}
        if self.mask is not None:
            named["mask"] = self.mask
        for group in ("observation", "final_observation", "info", "episode_info", "true_state"):
            named |= with_prefix(group, getattr(self, group))
        return named


class SelectedInfos(Sequence[Mapping[str, Any]]):
    """A selection of infos that looks each of them up when it is read."""

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


def flatten_rows(arrays: Sequence[Array], dtype: DTypeLike, *, copy: bool = True) -> Array:
    """Arrays side by side as one row of numbers per env.

    Args:
        arrays: The arrays, each (rows, ...).
        dtype: Of the result.
        copy: False if a single array that has this dtype already may be returned as a view.

    Returns:
        (rows, width) in C order.
    """
    parts = [array.reshape(len(array), prod(array.shape[1:])) for array in arrays]
    if len(parts) == 1:
        return parts[0].astype(dtype, order="C", copy=copy)
    return np.concatenate(parts, axis=1, dtype=dtype, casting="unsafe")


def slice_rows(arrays: State, rows: slice | Array) -> Arrays:
    """These rows of every array: views for a slice, copies for indices or a boolean mask."""
    return {name: array[rows] for name, array in arrays.items()}


def copies(arrays: State) -> Arrays:
    """Copies of all arrays."""
    return {name: array.copy() for name, array in arrays.items()}


def fill(arrays: Arrays, state: State) -> None:
    """Copy a snapshot into live arrays: all of it, or nothing if names, shapes or dtypes differ."""
    missing = sorted(arrays.keys() - state.keys())
    unknown = sorted(state.keys() - arrays.keys())
    if missing or unknown:
        raise CheckpointError(
            f"the snapshot does not fit: missing {missing or 'nothing'}, unexpected "
            f"{unknown or 'nothing'}; it belongs to another env or other settings."
        )
    for name, array in arrays.items():
        saved = np.asarray(state[name])
        if saved.shape != array.shape or saved.dtype != array.dtype:
            raise CheckpointError(
                f"the snapshot's {name!r} is {saved.dtype}{list(saved.shape)} where "
                f"{array.dtype}{list(array.shape)} is expected; resume with the settings it was "
                "made with."
            )
    for name, array in arrays.items():
        array[...] = state[name]


def with_prefix(prefix: str, state: State) -> Arrays:
    """The arrays under the names `prefix/name`."""
    return {f"{prefix}/{name}": array for name, array in state.items()}


def without_prefix(prefix: str, state: State) -> Arrays:
    """The arrays named `prefix/name`, under `name`."""
    start = f"{prefix}/"
    return {name[len(start) :]: array for name, array in state.items() if name.startswith(start)}


def _empty(specs: Mapping[str, ArraySpec], rows: int) -> Arrays:
    return {name: spec.empty(rows) for name, spec in specs.items()}


def _take_rows(arrays: Arrays, rows: IntArray) -> Arrays:
    # For a few small rows, indexing takes three times as long.
    return {name: array.take(rows, axis=0) for name, array in arrays.items()}
