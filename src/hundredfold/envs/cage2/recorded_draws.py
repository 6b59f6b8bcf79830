"""Recorded draws and forced red actions: checks, and conversion to columns for the kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from hundredfold.core.batch import Array
from hundredfold.core.errors import ShapeError, suggest
from hundredfold.envs.cage2.network import NUM_HOSTS, OP_SERVER0, SUBNETS
from hundredfold.envs.cage2.random_draws import RecordedDrawError
from hundredfold.envs.cage2.red_actions import DISCOVER, IMPACT, RED_ACTIONS, SLEEP
from hundredfold.envs.cage2.state import DRAWS, NOT_DRAWN


def recorded_draw_columns(draws: Mapping[str, ArrayLike], num_envs: int) -> Array:
    """(envs, 7) uint8 recorded draws in the order of `DRAWS`; missing ones are `NOT_DRAWN`."""
    columns = np.full((num_envs, len(DRAWS)), NOT_DRAWN, np.uint8)
    for name, values in draws.items():
        if name not in DRAWS:
            raise RecordedDrawError(f"unknown draw {name!r}; {suggest(name, DRAWS)}")
        columns[:, DRAWS.index(name)] = _bytes(name, values, num_envs)
    return columns


def forced_red_columns(force_red: tuple[ArrayLike, ArrayLike], num_envs: int) -> Array:
    """(envs, 2) uint8 red action and target; raises if red has no such action."""
    columns = np.empty((num_envs, 2), np.uint8)
    for column, (name, values) in enumerate(zip(("action", "target"), force_red, strict=True)):
        per_env = np.broadcast_to(values, (num_envs,)) if np.ndim(values) == 0 else values
        columns[:, column] = _bytes(f"force_red's {name}", per_env, num_envs)
    allowed = _FORCIBLE[np.minimum(columns[:, 0], len(RED_ACTIONS)), columns[:, 1]]
    if not allowed.all():
        action, target = columns[np.flatnonzero(~allowed)[0]]
        raise RecordedDrawError(
            f"force_red=({action}, {target}) is not a red action: actions are 0..5; discoveries "
            f"(1) take a subnet 0..{len(SUBNETS) - 1}, Impact (5) host {OP_SERVER0}, the others a "
            f"host 0..{NUM_HOSTS - 1}."
        )
    return columns


def _forcible() -> Array:
    """(actions + 1, 256) True where red has such an action; the last row is for invalid ones."""
    table = np.zeros((len(RED_ACTIONS) + 1, 256), bool)
    table[: len(RED_ACTIONS), :NUM_HOSTS] = True
    table[SLEEP] = True
    table[DISCOVER, len(SUBNETS) :] = False
    table[IMPACT] = np.arange(256) == OP_SERVER0
    return table


_FORCIBLE: Final = _forcible()


def _bytes(name: str, values: ArrayLike, num_envs: int) -> Array:
    given = np.asarray(values)
    if given.shape != (num_envs,) or given.dtype.kind not in "iu":
        raise ShapeError(
            f"{name} must be integers of shape ({num_envs},), one per env; got {given.dtype}{list(given.shape)}."
        )
    if given.min() < 0 or given.max() > NOT_DRAWN:
        raise RecordedDrawError(f"{name} must be in 0..{NOT_DRAWN}, got {given.min()}..{given.max()}.")
    return given.astype(np.uint8)
