"""Adapters from Gymnasium spaces and action masks to `EnvSpec`, with checks of what envs return."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import hypot, isfinite
from typing import Any, Final, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

from hundredfold.core.batch import Array, ArraySpec, IntArray
from hundredfold.core.errors import SettingsError

MASK: Final = "action_mask"
MAX_PYTHON_SUM: Final = 32
# Above so many numbers OpenBLAS starts threads for a dot product.
MAX_DOT_SIZE: Final = 10_000
# Networks and rollouts are float32: a larger float64 would become infinite.
MAX_FLOAT32: Final = float(np.finfo(np.float32).max)
FINITE: Final = (
    "observations and rewards must be finite as float32, and categories within their range. Fix the env, or "
    "replace such values in a wrapper."
)
# Bounds of a Box may be exceeded by this share, for rounding.
BOUNDS_TOLERANCE: Final = 1e-5


class ObservationAdapter:
    """Maps an observation space to named arrays; a space that is no Dict becomes one entry."""

    def __init__(self, space: spaces.Space[Any], env_name: str) -> None:
        self.is_dict = isinstance(space, spaces.Dict)
        subspaces = dict(space.spaces) if isinstance(space, spaces.Dict) else {"observation": space}
        self.mask_space = subspaces.pop(MASK, None) if self.is_dict else None
        if not subspaces:
            raise SettingsError(f"{env_name} has no observation besides its {MASK}; add one to its space.")
        self.specs = {name: _array_spec(subspace, name, env_name) for name, subspace in subspaces.items()}
        self.entries = [ObservationEntry(name, spec) for name, spec in self.specs.items()]

    def stack(self, observations: Sequence[Any]) -> list[Array] | None:
        """Observations of many envs, one array per entry; None if any of them is invalid."""
        arrays = []
        for entry in self.entries:
            name = entry.name
            array = np.array([one[name] for one in observations] if self.is_dict else observations)
            if not entry.all_valid(array):
                return None
            arrays.append(array)
        return arrays

    def find_outside(self, arrays: Sequence[Array]) -> str | None:
        """A value of an observation that is outside the bounds of the space; None if there is none."""
        values = (entry.find_outside(array) for entry, array in zip(self.entries, arrays, strict=True))
        return next((value for value in values if value is not None), None)


class ObservationEntry:
    """One named array of an observation, and the checks of its values."""

    def __init__(self, name: str, spec: ArraySpec) -> None:
        self.name = name
        self.shape = spec.shape
        self.dtype = np.dtype(spec.dtype)
        self.is_float = self.dtype.kind == "f"
        self.num_categories = None if spec.categories is None else np.reshape(spec.categories, spec.shape)
        self.bounds = self._useful_bounds(spec)
        self.is_valid_fast = self._fast_check(spec)

    def find_error(self, array: Array) -> str | None:
        """What is wrong with this array, to follow "returned"; None if it is valid."""
        if array.shape != self.shape:
            return (
                f"{self.name!r} of shape {array.shape}; its observation space has {self.shape}. "
                "Make observation_space match the env."
            )
        if array.dtype.kind not in "biuf":
            return f"{self.name!r} as {array.dtype}, which cannot be converted to {self.dtype}."
        if array.dtype.kind == "f" and not self.is_float:
            return f"{self.name!r} as {array.dtype} where its observation space has integers ({self.dtype})."
        if self.num_categories is not None:
            return self._describe_bad_entry(array, (array < 0) | (array >= self.num_categories))
        return self._describe_bad_entry(array, ~np.isfinite(as_float32(array, self.dtype)))

    def find_outside(self, array: Array) -> str | None:
        """A value outside the bounds of the space; None if there is none."""
        if self.bounds is None:
            return None
        low, high = self.bounds
        outside = (array < low) | (array > high)
        if not outside.any():
            return None
        index = [int(i) for i in np.argwhere(outside)[0]]
        return f"{array[tuple(index)]} in {self.name!r}{index or ''}"

    def all_valid(self, arrays: Array) -> bool:
        """Whether the stacked arrays of many envs are all valid."""
        if arrays.shape[1:] != self.shape or arrays.dtype != self.dtype:
            return False
        if self.num_categories is not None:
            return not ((arrays < 0) | (arrays >= self.num_categories)).any()
        return not self.is_float or all_finite(arrays)

    def _fast_check(self, spec: ArraySpec) -> Callable[[Array], bool]:
        """A fast check that is True for most valid arrays; `find_error` decides about the others.

        A sum is finite only if all its terms are. Python's sum takes a fifth of numpy's time for a
        few numbers; a dot product would release the GIL, for which a hundred other threads may be
        waiting. A float64 must also be finite as float32, and the terms of a sum may cancel.
        """
        shape, dtype = self.shape, self.dtype
        if self.num_categories is not None:
            return lambda array: False
        if not self.is_float:
            return lambda array: array.shape == shape and array.dtype == dtype
        if dtype.itemsize > 4:
            if spec.size <= MAX_PYTHON_SUM and len(shape) == 1:
                return lambda array: (
                    array.shape == shape and array.dtype == dtype and hypot(*array.tolist()) <= MAX_FLOAT32
                )
            return lambda array: array.shape == shape and array.dtype == dtype and within_float32(array)
        if spec.size <= MAX_PYTHON_SUM and len(shape) == 1:
            return lambda array: array.shape == shape and array.dtype == dtype and isfinite(sum(array.tolist()))
        return lambda array: array.shape == shape and array.dtype == dtype and isfinite(np.add.reduce(array, axis=None))

    def _describe_bad_entry(self, array: Array, bad: Array) -> str | None:
        if not np.any(bad):
            return None
        index = [int(i) for i in np.argwhere(bad)[0]]
        return f"{array[tuple(index)]} in {self.name!r}{index or ''}; {FINITE}"

    def _useful_bounds(self, spec: ArraySpec) -> tuple[Array, Array] | None:
        """Lower and upper bounds, each () or of the shape of the space; None if every value is within them."""
        if spec.categories is not None or spec.size == 0:
            return None
        low, high = (np.asarray(bound, np.float64) for bound in (spec.low, spec.high))
        if not self.is_float:
            limits = np.iinfo(self.dtype)
            if self.dtype.kind == "b" or (np.all(low <= limits.min) and np.all(high >= limits.max)):
                return None
        elif np.all(np.isneginf(low)) and np.all(np.isposinf(high)):
            return None
        low, high = low - BOUNDS_TOLERANCE * np.maximum(1, abs(low)), high + BOUNDS_TOLERANCE * np.maximum(1, abs(high))
        low, high = (bound if bound.ndim == 0 else bound.reshape(self.shape) for bound in (low, high))
        return low, high


def as_float32(array: Array, dtype: np.dtype[Any] | None = None) -> Array:
    """The array as networks get it, after it was stored as `dtype`; what does not fit becomes infinite."""
    with np.errstate(over="ignore"):
        return array.astype(dtype or array.dtype, copy=False).astype(np.float32, copy=False)


def all_finite(array: Array) -> bool:
    """Whether all numbers are finite as float32; a contiguous array, which is not copied.

    A dot product with itself takes half the time of a sum; very large numbers are looked at once more.
    """
    if array.size <= MAX_DOT_SIZE:
        flat = array.reshape(-1)
        if flat.dot(flat) <= MAX_FLOAT32:
            return True
    return within_float32(array)


def within_float32(array: Array) -> bool:
    """Whether no number is NaN or too large for a float32."""
    return bool(
        np.maximum.reduce(array, axis=None) <= MAX_FLOAT32 and np.minimum.reduce(array, axis=None) >= -MAX_FLOAT32
    )


def all_flags(values: Sequence[Any]) -> bool:
    """Whether all values are booleans, or equal to one."""
    count = values.count(False)
    return count == len(values) or count + values.count(True) == len(values)


def find_flag_error(terminated: Any, truncated: Any) -> str | None:
    """What is wrong with the ends of an episode, to follow "returned"; 0 and 1 count as booleans."""
    for name, value in (("terminated", terminated), ("truncated", truncated)):
        array = np.asarray(value)
        if array.size != 1 or array.dtype.kind not in "biuf" or array.item() not in (0, 1):
            return f"{value!r} in {name!r}; it must be True or False."
    return None


def find_reward_error(reward: float) -> str | None:
    """What is wrong with a reward, to follow "returned"; None if it is valid."""
    return None if isfinite(as_float32(np.array(reward))) else f"{reward} in 'reward'; {FINITE}"


class ActionAdapter:
    """Maps actions (integers from 0, or floats) to those that the env's action space expects."""

    def __init__(self, space: spaces.Space[Any], env_name: str) -> None:
        self.action_nvec: tuple[int, ...] = ()
        self.box: ArraySpec | None = None
        if isinstance(space, spaces.Discrete):
            self.action_nvec = (int(space.n),)
            self.start: IntArray = np.asarray(space.start, np.int64)
        elif isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
            self.action_nvec = tuple(int(n) for n in space.nvec)
            self.start = np.asarray(space.start, np.int64)
        elif isinstance(space, spaces.Box) and np.dtype(space.dtype).kind == "f":
            self.box = ArraySpec(space.shape, "float32", _bounds(space.low), _bounds(space.high))
            self.low, self.high, self.start = space.low, space.high, np.zeros((), np.int64)
        else:
            raise SettingsError(
                f"{env_name} has the action space {space}; supported are Discrete, flat "
                "MultiDiscrete and Box (of floats). Wrap the env to offer one of these."
            )
        self.is_single = isinstance(space, spaces.Discrete)
        self.is_shifted = bool(np.any(self.start))
        self.is_identity = self.is_single and not self.is_shifted

    def to_env_actions(self, actions: Array) -> list[Any]:
        """One action per env, in the form of its action space."""
        if self.box is not None:
            return self._clipped(actions)
        shifted = actions + self.start if self.is_shifted else actions
        return shifted.tolist() if self.is_single else list(shifted.reshape(-1, len(self.action_nvec)))

    def to_env_action(self, row: int, actions: Array) -> Any:
        """The action of env `row`, in the form of its action space."""
        if self.is_identity:
            return actions.item(row)
        return self.to_env_actions(actions[row : row + 1])[0]

    def _clipped(self, actions: Array) -> list[Any]:
        """Actions in the env's dtype, as copies that it may keep."""
        # Float32 may round a float64 bound outwards: clip to the exact one.
        inside = np.clip(actions.astype(self.low.dtype), self.low, self.high)
        return list(inside) if inside.ndim > 1 else [np.asarray(one) for one in inside]


def _array_spec(space: spaces.Space[Any], name: str, env_name: str) -> ArraySpec:
    if isinstance(space, spaces.Box):
        return ArraySpec(space.shape, str(space.dtype), _bounds(space.low), _bounds(space.high))
    if isinstance(space, spaces.Discrete) and space.start == 0:
        return ArraySpec((), "int64", 0, int(space.n) - 1, categories=(int(space.n),))
    if isinstance(space, spaces.MultiDiscrete) and not np.any(space.start):
        num_categories = tuple(int(n) for n in space.nvec.flat)
        high = tuple(float(count - 1) for count in num_categories)
        return ArraySpec(space.shape, "int64", 0, high, categories=num_categories)
    if isinstance(space, spaces.MultiBinary):
        return ArraySpec(space.shape, "int8", 0, 1)
    raise SettingsError(
        f"{env_name} has {space} as observation {name!r}; supported are Box, Discrete and "
        "MultiDiscrete (from 0), MultiBinary, and a Dict of these. Flatten it with "
        "gymnasium.wrappers.FlattenObservation or a wrapper of your own."
    )


def _bounds(bound: Array) -> float | tuple[float, ...]:
    """One number if all entries are equal (images would fill a settings file otherwise)."""
    values = [float(b) for b in bound.flat]
    return values[0] if len(set(values)) <= 1 and values else tuple(values)


Source = Literal["observation", "info", "method"]


class MaskReader:
    """Reads and checks the action masks of envs: from the observation, the info or a method."""

    def __init__(self, source: Source, action_nvec: tuple[int, ...]) -> None:
        self.source = source
        self.action_nvec = action_nvec

    def read(self, env: gymnasium.Env[Any, Any], observation: Any, info: Mapping[str, Any]) -> Any:
        """The env's current mask, unchecked; the env's method may raise anything."""
        if self.source == "observation":
            return observation.get(MASK)
        if self.source == "info":
            return info.get(MASK)
        return env.get_wrapper_attr("action_masks")()

    def find_error(self, mask: Any) -> str | None:
        """What is wrong with a mask, to follow the name of its env; None if it is valid."""
        size = sum(self.action_nvec)
        if mask is None or np.shape(mask) != (size,):
            return (
                f"gave the action mask {mask!r}; expected {size} bools at every step and reset "
                "(True = allowed), one per action."
            )
        allowed, offset = np.asarray(mask, bool), 0
        for count in self.action_nvec:
            if not allowed[offset : offset + count].any():
                return (
                    f"forbids all {count} actions; a mask must allow at least one. End the episode "
                    "if no action is possible."
                )
            offset += count
        return None


def find_masks(
    env: gymnasium.Env[Any, Any],
    observations: ObservationAdapter,
    actions: ActionAdapter,
    first_infos: Sequence[Mapping[str, Any]],
    name: str,
) -> MaskReader | None:
    """Find where this env provides its action masks; None if it has none."""
    source: Source
    if observations.mask_space is not None:
        source = "observation"
    elif any(MASK in info for info in first_infos):
        source = "info"
    elif env.has_wrapper_attr("action_masks"):
        source = "method"
    else:
        return None
    if actions.box is not None:
        raise SettingsError(
            f"{name} has an action mask and the action space {env.action_space}; only discrete "
            f"actions can be masked. Remove {MASK}, or wrap the env to offer discrete actions."
        )
    return MaskReader(source, actions.action_nvec)
