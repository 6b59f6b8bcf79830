"""Flat spaces: observations as one row of numbers and normalised actions, for other libraries.

The arrays of an observation are concatenated in the order of the spec. Continuous actions are
scaled so that -1 and 1 are the bounds, as in the policies of this package.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from gymnasium import spaces

from hundredfold.core.action_scaling import action_scale
from hundredfold.core.batch import Array, Arrays, BoolArray, EnvSpec, flatten_rows
from hundredfold.interop.gymnasium import action_space

# Stable-Baselines3 requires finite bounds of continuous actions.
MAX_BOUND: Final = np.float32(1e6)


class FlatSpaces:
    """Flat observation space and normalised action space of an env, with the conversions.

    Args:
        spec: Arrays of the env.
        dtype: Of observations; by default that of all arrays if they have one in common, else
            float32.
        with_mask: Whether rows end with the action mask, if the env has one.
    """

    def __init__(self, spec: EnvSpec, *, dtype: str | None = None, with_mask: bool = False) -> None:
        self.spec = spec
        self.with_mask = with_mask and spec.has_mask
        dtypes = {array.dtype for array in spec.observation.values()}
        common = dtypes.pop() if len(dtypes) == 1 else "float32"
        # A Box of booleans does not exist.
        self.dtype = np.dtype(dtype or ("uint8" if common == "bool" else common))
        box = spec.continuous_action
        self.scale = None if box is None else action_scale(box)

    @property
    def observation_space(self) -> spaces.Box:
        width = sum(array.size for array in self.spec.observation.values())
        width += self.spec.num_logits if self.with_mask else 0
        if self.dtype.kind == "f":
            return spaces.Box(-np.inf, np.inf, (width,), self.dtype.type)
        limits = np.iinfo(self.dtype)
        return spaces.Box(limits.min, limits.max, (width,), self.dtype.type)

    @property
    def action_space(self) -> spaces.Space[Any]:
        if self.scale is None:
            return action_space(self.spec)
        # Dimensions whose bounds are equal have no scale; any bounds do for them.
        fixed = self.scale.scale == 0
        scale = np.where(fixed, np.float32(np.inf), self.scale.scale)
        low = ((self.scale.low - self.scale.centre) / scale).clip(-MAX_BOUND, MAX_BOUND)
        high = ((self.scale.high - self.scale.centre) / scale).clip(-MAX_BOUND, MAX_BOUND)
        return spaces.Box(np.where(fixed, -1, low), np.where(fixed, 1, high), dtype=np.float32)

    def flatten(self, observation: Arrays, mask: BoolArray | None = None) -> Array:
        """Concatenate the arrays of an observation, and the mask if rows end with it.

        Args:
            observation: Arrays, each (rows, ...).
            mask: (rows, num_logits) allowed actions; None allows all.

        Returns:
            (rows, width), a copy.
        """
        arrays = [observation[name] for name in self.spec.observation]
        if self.with_mask:
            shape = (len(arrays[0]), self.spec.num_logits)
            arrays.append(np.ones(shape, bool) if mask is None else mask)
        return flatten_rows(arrays, self.dtype)

    def unflatten_action(self, actions: Array) -> Array:
        """Actions of the env from those of `action_space`, one per row."""
        if self.scale is None:
            return np.asarray(actions, np.int64)
        scale = self.scale
        clipped = np.clip(scale.centre + scale.scale * actions, scale.low, scale.high)
        env_actions: Array = clipped.astype(self.spec.action_dtype)
        return env_actions.reshape(-1, *self.spec.action_shape)


def unflatten(rows: Any, spec: EnvSpec) -> dict[str, Any]:
    """The named arrays of flat observations, each (rows, *shape).

    Args:
        rows: (rows, width) numpy array or tensor; columns behind the observation are ignored.
        spec: Arrays of the env.
    """
    arrays, first = {}, 0
    for name, array in spec.observation.items():
        arrays[name] = rows[:, first : first + array.size].reshape(-1, *array.shape)
        first += array.size
    return arrays
