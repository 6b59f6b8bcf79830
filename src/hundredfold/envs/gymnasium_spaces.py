"""Adapters from Gymnasium spaces and action masks to `EnvSpec`, with checks of what envs return."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import hypot, isfinite
from typing import Any, Final, Literal, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from hundredfold.core.batch import Array, ArraySpec, IntArray
from hundredfold.core.errors import SettingsError
from hundredfold.core.failures import raise_interrupt

# Keys and indices that lead to a space within nested Dict and Tuple spaces.
Path = tuple[str | int, ...]

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


class PrivilegedKeys(NamedTuple):
    """Keys of a Dict observation or of the info that the policy does not see."""

    names: tuple[str, ...] = ()
    # Whether the value function sees them; otherwise they are left out.
    observed: bool = False


class InvalidObservationError(ValueError):
    """What is wrong with an observation, to follow "returned"."""


def leaves(space: spaces.Space[Any], path: Path = ()) -> Iterator[tuple[Path, spaces.Space[Any]]]:
    """The spaces within nested Dict and Tuple spaces, with their keys and indices from the outside in."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            yield from leaves(part, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from leaves(part, (*path, index))
    else:
        yield path, space


class ObservationAdapter:
    """Maps an observation space to named arrays.

    A nested Dict or Tuple becomes one array per space within it, named by its keys and indices: `arm.joints`,
    `camera.0`. Any other space becomes the array `observation`.

    Args:
        space: observation space of the env.
        env_name: name of the env, for error messages.
        privileged: keys that only the value function sees; they are the last entries.
    """

    def __init__(self, space: spaces.Space[Any], env_name: str, privileged: PrivilegedKeys | None = None) -> None:
        self.env_name = env_name
        keys = space.spaces if isinstance(space, spaces.Dict) else {}
        self.mask_space = keys.get(MASK)
        names, observed = privileged or PrivilegedKeys()
        parts = [(path, part) for path, part in leaves(space) if path[:1] != (MASK,)]
        seen = [(path, part) for path, part in parts if not path or path[0] not in names]
        hidden = [(path, part) for path, part in parts if path and path[0] in names]
        if not seen:
            besides = ", ".join(
                [*([] if self.mask_space is None else [MASK]), *(_entry_name(path) for path, _ in hidden)]
            )
            raise SettingsError(f"{env_name} has no observation besides its {besides}; add one to its space.")
        self.info_keys = tuple(name for name in names if name not in keys) if observed else ()
        self.privileged = (*(_entry_name(path) for path, _ in hidden), *self.info_keys) if observed else ()
        self.entries = [_entry(path, part, env_name) for path, part in (seen + hidden if observed else seen)]
        self.specs = {entry.name: entry.spec for entry in self.entries}
        if len(self.specs) < len(self.entries):
            twice = _first_duplicate(self.entries)
            raise SettingsError(f"{env_name} has several observations called {twice}; rename a key of its space.")
        # A single array that is the observation itself.
        self.is_plain = not self.entries[0].path and not np.any(self.entries[0].start)

    def add_info_keys(self, first_infos: Sequence[Mapping[str, Any]]) -> None:
        """Add the privileged keys that are not in the observation: their specs are those of a first info."""
        for name in self.info_keys:
            array = np.asarray(first_infos[0].get(name))
            if array.dtype.kind not in "biuf":
                raise SettingsError(
                    f"{self.env_name} has no privileged key {name!r} of numbers: its observations have "
                    f"{', '.join(self.specs)}, the info of its first reset {', '.join(first_infos[0]) or 'nothing'}."
                )
            # No space says what may follow: a first 0 may be a float later. Bytes may be a picture.
            self.specs[name] = ArraySpec(array.shape, "uint8" if array.dtype == np.uint8 else "float32")
            self.entries.append(ObservationEntry(name, self.specs[name], (name,), in_info=True))

    def read(self, observation: Any, info: Mapping[str, Any]) -> list[Array]:
        """The arrays of an observation, in the order of the entries.

        Raises:
            InvalidObservationError: they do not match the observation space.
        """
        arrays = []
        for entry in self.entries:
            try:
                array = entry.array_of(info if entry.in_info else observation)
            except BaseException as error:
                raise_interrupt(error)
                raise InvalidObservationError(
                    f"an {'info' if entry.in_info else 'observation'} without a usable {entry.name!r}; expected are "
                    f"{', '.join(self.specs)}."
                ) from error
            if not entry.is_valid_fast(array):
                fault = entry.find_error(array)
                if fault is not None:
                    raise InvalidObservationError(fault)
            arrays.append(array)
        return arrays

    def stack(self, observations: Sequence[Any]) -> list[Array] | None:
        """Observations of many envs, one array per entry; None if any of them is invalid."""
        arrays = []
        for entry in self.entries:
            array = np.array([entry.part_of(one) for one in observations] if entry.path else observations)
            if entry.is_shifted:
                array = array - entry.start
            if not entry.all_valid(array):
                return None
            arrays.append(array)
        return arrays

    def find_outside(self, arrays: Sequence[Array]) -> str | None:
        """A value of an observation that is outside the bounds of the space; None if there is none."""
        values = (entry.find_outside(array) for entry, array in zip(self.entries, arrays, strict=True))
        return next((value for value in values if value is not None), None)


class ObservationEntry:
    """One named array of an observation or an info, and the checks of its values."""

    def __init__(
        self, name: str, spec: ArraySpec, path: Path = (), start: IntArray | None = None, *, in_info: bool = False
    ) -> None:
        self.name = name
        self.spec = spec
        self.path = path  # keys and indices that lead to it
        self.start = np.zeros((), np.int64) if start is None else start  # the first category
        self.is_shifted = bool(np.any(self.start))
        self.in_info = in_info
        self.shape = spec.shape
        self.dtype = np.dtype(spec.dtype)
        self.is_float = self.dtype.kind == "f"
        self.num_categories = None if spec.categories is None else np.reshape(spec.categories, spec.shape)
        self.bounds = self._usefulbounds_of(spec)
        self.is_valid_fast = self._fast_check(spec)

    def part_of(self, source: Any) -> Any:
        """The part of an observation or info that this entry stands for."""
        for key in self.path:
            source = source[key]
        return source

    def array_of(self, source: Any) -> Array:
        """The same as an array, with categories from 0."""
        array = np.asarray(self.part_of(source))
        return array - self.start if self.is_shifted and array.dtype.kind in "iu" else array

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
        value = (array + self.start if self.is_shifted else array)[tuple(index)]
        return f"{value} in {self.name!r}{index or ''}; {FINITE}"

    def _usefulbounds_of(self, spec: ArraySpec) -> tuple[Array, Array] | None:
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


def _array_spec(space: spaces.Space[Any], name: str, env_name: str) -> ArraySpec:
    if isinstance(space, spaces.Box):
        return ArraySpec(space.shape, str(space.dtype), bounds_of(space.low), bounds_of(space.high))
    if isinstance(space, spaces.Discrete):
        return ArraySpec((), "int64", 0, int(space.n) - 1, categories=(int(space.n),))
    if isinstance(space, spaces.MultiDiscrete):
        num_categories = tuple(int(n) for n in space.nvec.flat)
        high = tuple(float(count - 1) for count in num_categories)
        return ArraySpec(space.shape, "int64", 0, high, categories=num_categories)
    if isinstance(space, spaces.MultiBinary):
        return ArraySpec(space.shape, "int8", 0, 1)
    raise SettingsError(
        f"{env_name} has {space} as observation {name!r}; supported are Box, Discrete, MultiDiscrete, MultiBinary, and "
        "nested Dict and Tuple spaces of these. Observations need a fixed number of entries: encode it in a wrapper."
    )


def _entry(path: Path, space: spaces.Space[Any], env_name: str) -> ObservationEntry:
    name = _entry_name(path)
    return ObservationEntry(name, _array_spec(space, name, env_name), path, first_category(space))


def _entry_name(path: Path) -> str:
    return ".".join(map(str, path)) or "observation"


def _first_duplicate(entries: Sequence[ObservationEntry]) -> str:
    names = [entry.name for entry in entries]
    return repr(next(name for name in names if names.count(name) > 1))


def first_category(space: spaces.Space[Any]) -> IntArray | None:
    """The first category of a discrete space."""
    return np.asarray(space.start, np.int64) if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) else None


def bounds_of(bound: Array) -> float | tuple[float, ...]:
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
    action_nvec: tuple[int, ...],
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
    if not action_nvec:
        raise SettingsError(
            f"{name} has an action mask and the action space {env.action_space}; only discrete "
            f"actions can be masked. Remove {MASK}, or wrap the env to offer discrete actions."
        )
    return MaskReader(source, action_nvec)
