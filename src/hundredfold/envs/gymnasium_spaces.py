"""Gymnasium's spaces, read: observations become named arrays, actions whole numbers or a box.

Where Gymnasium envs say which actions they allow, and whether what they say can be used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any, Final, Literal

import gymnasium
import numpy as np
from gymnasium import spaces

from hundredfold.core.batch import Array, ArraySpec, IntArray
from hundredfold.core.errors import SettingsError

MASK: Final = "action_mask"
FEW: Final = 32
FINITE: Final = (
    "observations and rewards must be finite numbers, and categories within their number. Fix the "
    "env, or mend such values in a wrapper."
)


class ObservationView:
    """How the parts of an observation space become named arrays."""

    def __init__(self, space: spaces.Space[Any], env_name: str) -> None:
        self.is_dict = isinstance(space, spaces.Dict)
        parts = dict(space.spaces) if isinstance(space, spaces.Dict) else {"observation": space}
        self.mask_space = parts.pop(MASK, None) if self.is_dict else None
        if not parts:
            raise SettingsError(f"{env_name} observes nothing but its {MASK}.")
        self.specs = {name: _array_spec(part, name, env_name) for name, part in parts.items()}
        self.parts = [ObservationPart(name, spec) for name, spec in self.specs.items()]

    def stacked(self, seen: Sequence[Any]) -> list[Array] | None:
        """Observations of many envs, part by part; None when one of them is not sound."""
        found = []
        for part in self.parts:
            array = np.array([one[part.name] for one in seen] if self.is_dict else seen)
            if not part.all_look_sound(array):
                return None
            found.append(array)
        return found


class ObservationPart:
    """One part of an observation, and what can be wrong with it."""

    def __init__(self, name: str, spec: ArraySpec) -> None:
        self.name = name
        self.shape = spec.shape
        self.dtype = np.dtype(spec.dtype)
        self.is_float = self.dtype.kind == "f"
        self.counts = None if spec.categories is None else np.reshape(spec.categories, spec.shape)
        self.looks_sound = self._quick_look(spec)

    def fault_in(self, array: Array) -> str | None:
        """What is wrong with this observation, or None."""
        if array.shape != self.shape:
            return (
                f"{self.name!r} of shape {array.shape}; its observation space says {self.shape}. "
                "Make observation_space match the env."
            )
        if array.dtype.kind not in "biuf":
            return f"{self.name!r} as {array.dtype}, which does not become {self.dtype}."
        if array.dtype.kind == "f" and not self.is_float:
            return (
                f"{self.name!r} as {array.dtype} where its observation space has whole numbers "
                f"({self.dtype})."
            )
        if self.counts is not None:
            return self._bad_entry(array, (array < 0) | (array >= self.counts))
        return self._bad_entry(array, ~np.isfinite(array))

    def all_look_sound(self, arrays: Array) -> bool:
        """The same for the stacked observations of many envs."""
        if arrays.shape[1:] != self.shape or arrays.dtype != self.dtype:
            return False
        if self.counts is not None:
            return not ((arrays < 0) | (arrays >= self.counts)).any()
        return not self.is_float or isfinite(np.add.reduce(arrays, axis=None))

    def _quick_look(self, spec: ArraySpec) -> Callable[[Array], bool]:
        """Says of most observations that they are sound; of the others `fault_in` knows more.

        A sum is finite only if all its parts are. Python's own takes a fifth of numpy's time for a
        few numbers; a product of vectors would let go of the interpreter lock, for which a hundred
        other threads may be waiting.
        """
        shape, dtype = self.shape, self.dtype
        if self.counts is not None:
            return lambda array: False
        if not self.is_float:
            return lambda array: array.shape == shape and array.dtype == dtype
        if spec.size <= FEW and len(shape) == 1:
            return lambda array: (
                array.shape == shape and array.dtype == dtype and isfinite(sum(array.tolist()))
            )
        return lambda array: (
            array.shape == shape
            and array.dtype == dtype
            and isfinite(np.add.reduce(array, axis=None))
        )

    def _bad_entry(self, array: Array, bad: Array) -> str | None:
        if not np.any(bad):
            return None
        place = [int(index) for index in np.argwhere(bad)[0]]
        return f"{array[tuple(place)]} in {self.name!r}{place or ''}; {FINITE}"


class ActionView:
    """How whole numbers from 0, or the numbers of a box, become the actions an env expects."""

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
                f"{env_name} has the action space {space}; hundredfold plays Discrete, flat "
                "MultiDiscrete and Box (of floats) ones. Wrap the env to offer one of these."
            )
        self.is_single = isinstance(space, spaces.Discrete)
        self.is_shifted = bool(np.any(self.start))
        self.is_plain = self.is_single and not self.is_shifted

    def for_envs(self, actions: Array) -> list[Any]:
        """One action per env, as its space has it."""
        if self.box is not None:
            return self._in_box(actions)
        shifted = actions + self.start if self.is_shifted else actions
        return (
            shifted.tolist() if self.is_single else list(shifted.reshape(-1, len(self.action_nvec)))
        )

    def for_env(self, row: int, actions: Array) -> Any:
        """The action of one env among those of many."""
        if self.is_plain:
            return actions.item(row)
        return self.for_envs(actions[row : row + 1])[0]

    def _in_box(self, actions: Array) -> list[Any]:
        """Arrays of the env's own type, copies that it may keep."""
        # Float32 rounds a bound of doubles to either side: cut off what lies beyond it.
        inside = np.clip(actions.astype(self.low.dtype), self.low, self.high)
        return list(inside) if inside.ndim > 1 else [np.asarray(one) for one in inside]


def _array_spec(space: spaces.Space[Any], name: str, env_name: str) -> ArraySpec:
    if isinstance(space, spaces.Box):
        return ArraySpec(space.shape, str(space.dtype), _bounds(space.low), _bounds(space.high))
    if isinstance(space, spaces.Discrete) and space.start == 0:
        return ArraySpec((), "int64", 0, int(space.n) - 1, categories=(int(space.n),))
    if isinstance(space, spaces.MultiDiscrete) and not np.any(space.start):
        counts = tuple(int(n) for n in space.nvec.flat)
        high = tuple(float(count - 1) for count in counts)
        return ArraySpec(space.shape, "int64", 0, high, categories=counts)
    if isinstance(space, spaces.MultiBinary):
        return ArraySpec(space.shape, "int8", 0, 1)
    raise SettingsError(
        f"{env_name} observes {name!r} as {space}; hundredfold reads Box, Discrete and "
        "MultiDiscrete (from 0), MultiBinary, and a Dict of these. Flatten it with "
        "gymnasium.wrappers.FlattenObservation or a wrapper of your own."
    )


def _bounds(bound: Array) -> float | tuple[float, ...]:
    """One number where all entries share it (images would fill a settings file otherwise)."""
    values = [float(b) for b in bound.flat]
    return values[0] if len(set(values)) <= 1 and values else tuple(values)


Source = Literal["observation", "info", "method"]


class Masks:
    """The masks of envs that have them, all in the same place."""

    def __init__(self, source: Source, action_nvec: tuple[int, ...]) -> None:
        self.source = source
        self.action_nvec = action_nvec

    def told(self, env: gymnasium.Env[Any, Any], seen: Any, info: Mapping[str, Any]) -> Any:
        """What an env says it allows now, as it says it; a method may raise anything."""
        if self.source == "observation":
            return seen.get(MASK)
        if self.source == "info":
            return info.get(MASK)
        return env.get_wrapper_attr("action_masks")()

    def fault_in(self, mask: Any) -> str | None:
        """What is wrong with a mask, to follow the name of its env; None if nothing is."""
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
                    f"forbids all {count} actions; a mask must leave at least one. End the episode "
                    "where nothing can be done."
                )
            offset += count
        return None


def masks_of(
    env: gymnasium.Env[Any, Any],
    view: ObservationView,
    actions: ActionView,
    first_infos: Sequence[Mapping[str, Any]],
    name: str,
) -> Masks | None:
    """Find out where envs like this one say what is allowed, if anywhere."""
    source: Source
    if view.mask_space is not None:
        source = "observation"
    elif any(MASK in info for info in first_infos):
        source = "info"
    elif env.has_wrapper_attr("action_masks"):
        source = "method"
    else:
        return None
    if actions.box is not None:
        raise SettingsError(
            f"{name} has an action mask and the action space {env.action_space}; only choices can "
            f"be masked. Take {MASK} out, or wrap the env to offer choices."
        )
    return Masks(source, actions.action_nvec)
