"""Adapters from Gymnasium action spaces to the flat actions of an `EnvSpec`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from gymnasium import spaces

from hundredfold.core.batch import Array, ArraySpec
from hundredfold.core.errors import SettingsError
from hundredfold.envs.gymnasium_spaces import Path, bounds_of, first_category, leaves

# Entries of an integer Box with more choices are continuous and rounded.
MAX_CHOICES: Final = 256


class ActionPart(NamedTuple):
    """One space within an action space, and where its entries are in a flat action."""

    path: Path
    space: spaces.Space[Any]
    entries: slice


class ActionAdapter:
    """Maps actions (integers from 0, or floats) to those that the env's action space expects.

    The parts of nested Dict and Tuple spaces are the dimensions of one flat action. Integer Boxes are discrete if
    their ranges are small, otherwise continuous and rounded.
    """

    def __init__(self, space: spaces.Space[Any], env_name: str) -> None:
        self.action_nvec: tuple[int, ...] = ()
        self.box: ArraySpec | None = None
        self.space = space
        parts = list(leaves(space))
        counts = [_num_choices(part) for _, part in parts]
        if parts and all(count is not None for count in counts):
            sizes = [len(count) for count in counts if count is not None]
            self.action_nvec = tuple(int(n) for count in counts if count is not None for n in count)
            self.start = np.concatenate([np.ravel(_first_choice(part)) for _, part in parts])
        elif parts and all(isinstance(part, spaces.Box) for _, part in parts):
            boxes = [part for _, part in parts if isinstance(part, spaces.Box)]
            sizes = [int(np.prod(box.shape, dtype=np.int64)) for box in boxes]
            self.low, self.high = (
                space.low if isinstance(space, spaces.Box) else np.concatenate([np.ravel(box.low) for box in boxes]),
                space.high if isinstance(space, spaces.Box) else np.concatenate([np.ravel(box.high) for box in boxes]),
            )
            self.box = ArraySpec(self.low.shape, "float32", bounds_of(self.low), bounds_of(self.high))
            self.start = np.zeros((), np.int64)
        else:
            raise SettingsError(_unsupported_actions(space, parts, counts, env_name))
        ends = np.cumsum(sizes)
        self.parts = [
            ActionPart(path, part, slice(int(end) - size, int(end)))
            for (path, part), size, end in zip(parts, sizes, ends, strict=True)
        ]
        self.shape = space.shape or ()
        self.is_nested = bool(parts[0][0])
        self.is_single = isinstance(space, spaces.Discrete)
        self.is_shifted = bool(np.any(self.start))
        self.is_identity = self.is_single and not self.is_shifted

    def to_env_actions(self, actions: Array) -> list[Any]:
        """One action per env, in the form of its action space."""
        if self.is_nested:
            return [self._nested(row) for row in actions.reshape(len(actions), self.parts[-1].entries.stop)]
        if self.box is not None:
            return self._clipped(actions)
        shifted = actions + self.start if self.is_shifted else actions
        if self.is_single:
            return list(shifted.tolist())
        return list(shifted.reshape(-1, *self.shape).astype(self.space.dtype, copy=False))

    def to_env_action(self, row: int, actions: Array) -> Any:
        """The action of env `row`, in the form of its action space."""
        if self.is_identity:
            return actions.item(row)
        return self.to_env_actions(actions[row : row + 1])[0]

    def _clipped(self, actions: Array) -> list[Any]:
        """Actions in the env's dtype, as copies that it may keep."""
        # Float32 may round a float64 bound outwards: clip to the exact one.
        inside = _within(actions, self.low, self.high, self.low.dtype)
        return list(inside) if inside.ndim > 1 else [np.asarray(one) for one in inside]

    def _nested(self, row: Array) -> Any:
        """A flat action as the Dict or Tuple of the env."""
        whole = row + self.start if self.box is None else row
        values = {part.path: _part_action(part.space, whole[part.entries]) for part in self.parts}
        return _assembled(self.space, values)


def _num_choices(space: spaces.Space[Any]) -> list[int] | None:
    """Number of choices of each flat entry; None if the space is not discrete."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        return [int(n) for n in space.nvec.flat]
    if isinstance(space, spaces.MultiBinary):
        return [2] * int(np.prod(space.shape, dtype=np.int64))
    if isinstance(space, spaces.Box) and np.dtype(space.dtype).kind in "iu":
        counts = [int(high) - int(low) + 1 for low, high in zip(space.low.flat, space.high.flat, strict=True)]
        return counts if max(counts, default=1) <= MAX_CHOICES else None
    return None


def _first_choice(space: spaces.Space[Any]) -> Array:
    """The first choice of each entry of a discrete space."""
    if isinstance(space, spaces.Box):
        return space.low.astype(np.int64)
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(space.shape, np.int64)
    start = first_category(space)
    assert start is not None
    return start


def _within(values: Array, low: Array, high: Array, dtype: Any) -> Array:
    """Continuous actions within their bounds, rounded to the nearest integer where the dtype is one."""
    if np.dtype(dtype).kind in "iu":
        return np.asarray(np.clip(np.rint(values.astype(np.float64)), low, high)).astype(dtype)
    return np.asarray(np.clip(values.astype(dtype), low, high))


def _part_action(space: spaces.Space[Any], values: Array) -> Any:
    """The action of one space from its flat entries."""
    if isinstance(space, spaces.Discrete):
        return int(values[0])
    shaped = values.reshape(space.shape or ())
    if isinstance(space, spaces.Box):
        return _within(shaped, space.low, space.high, space.dtype)
    return shaped.astype(space.dtype)


def _assembled(space: spaces.Space[Any], values: Mapping[Path, Any], path: Path = ()) -> Any:
    """A nested Dict or Tuple from the values of the spaces within it."""
    if isinstance(space, spaces.Dict):
        return {key: _assembled(part, values, (*path, key)) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_assembled(part, values, (*path, index)) for index, part in enumerate(space.spaces))
    return values[path]


def _unsupported_actions(
    space: spaces.Space[Any],
    parts: Sequence[tuple[Path, spaces.Space[Any]]],
    counts: Sequence[list[int] | None],
    env_name: str,
) -> str:
    supported = "Discrete, MultiDiscrete, MultiBinary, Box, and nested Dict and Tuple spaces of these"
    if parts and all(
        count is not None or isinstance(part, spaces.Box) for count, (_, part) in zip(counts, parts, strict=True)
    ):
        supported += ", all of them discrete or all of them continuous"
    return f"{env_name} has the action space {space}; supported are {supported}. Wrap the env to offer one of these."
