"""How an env looks to other people's trainers: one row of numbers in, actions out.

Whatever arrays an env observes lie side by side in a flat row. Continuous actions are numbers
around 0, of which -1 and 1 are the bounds, as our own policies have them.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from gymnasium import spaces

from hundredfold.core.action_scaling import action_scale
from hundredfold.core.batch import Array, Arrays, EnvSpec
from hundredfold.interop.gymnasium import action_space

# Stable-Baselines3 wants bounds for continuous actions.
WIDEST_BOUND: Final = np.float32(1e6)


class Window:
    """Spaces of an env, and the way in and out."""

    def __init__(self, spec: EnvSpec) -> None:
        self.spec = spec
        kinds = {array.dtype for array in spec.observation.values()}
        kind = kinds.pop() if len(kinds) == 1 else "float32"
        # Its spaces have no place for truth values.
        self.dtype = np.dtype("uint8" if kind == "bool" else kind)
        self.place = (
            None if spec.continuous_action is None else action_scale(spec.continuous_action)
        )

    @property
    def observation_space(self) -> spaces.Box:
        width = sum(array.size for array in self.spec.observation.values())
        if self.dtype.kind == "f":
            return spaces.Box(-np.inf, np.inf, (width,), self.dtype.type)
        limits = np.iinfo(self.dtype)
        return spaces.Box(limits.min, limits.max, (width,), self.dtype.type)

    @property
    def action_space(self) -> spaces.Space[Any]:
        if self.place is None:
            return action_space(self.spec)
        place = self.place
        # A number that can only be what it is may be called anything.
        scale = np.where(place.scale > 0, place.scale, np.float32(np.inf))
        low = ((place.low - place.centre) / scale).clip(-WIDEST_BOUND, WIDEST_BOUND)
        high = ((place.high - place.centre) / scale).clip(-WIDEST_BOUND, WIDEST_BOUND)
        fixed = place.scale == 0
        return spaces.Box(np.where(fixed, -1, low), np.where(fixed, 1, high), dtype=np.float32)

    def seen(self, observation: Arrays) -> Array:
        """(rows, numbers) a copy of all arrays side by side."""
        flat = [
            observation[name].reshape(-1, array.size)
            for name, array in self.spec.observation.items()
        ]
        return np.concatenate(flat, axis=1, dtype=self.dtype, casting="unsafe")

    def played(self, actions: Array) -> Array:
        """One action per row as the env takes it."""
        if self.place is None:
            return np.asarray(actions, np.int64)
        place = self.place
        inside = np.clip(place.centre + place.scale * actions, place.low, place.high)
        moves: Array = inside.astype(self.spec.action_dtype)
        return moves.reshape(-1, *self.spec.action_shape)
