"""Numba kernels that run on every row of every step.

Imported when a buffer or collector is created, because importing Numba takes a moment and the
settings, the workers and the command line use these modules without it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hundredfold.core.numba_kernels import kernel, uniform


@kernel
def draw_uniforms(keys: Any, env_ids: Any, actions_taken: Any, uniforms: Any) -> None:
    """Fill (rows, action dims) uniforms in [0, 1) for one more action of these envs."""
    rows, num_action_dims = uniforms.shape
    for row in range(rows):
        env_id = env_ids[row]
        first = actions_taken[env_id] * num_action_dims
        for dim in range(num_action_dims):
            uniforms[row, dim] = uniform(keys[env_id], np.uint64(first + dim))
        actions_taken[env_id] += 1


@kernel
def store_transitions(
    env_ids: Any,
    reward: Any,
    terminated: Any,
    truncated: Any,
    num_steps: int,
    cursor: Any,
    awaiting_transition: Any,
    rewards: Any,
    terminations: Any,
    ends: Any,
) -> tuple[int, int]:
    """Write rows at their envs' cursors; returns how many were truncated and how many are full."""
    num_truncated = num_full = 0
    for row in range(len(env_ids)):
        env_id = env_ids[row]
        step = cursor[env_id]
        if step >= len(rewards):
            raise IndexError("add_transitions() without add_actions(): no row is left for it")
        rewards[step, env_id] = reward[row]
        terminations[step, env_id] = terminated[row]
        ends[step, env_id] = terminated[row] or truncated[row]
        num_truncated += truncated[row] and not terminated[row]
        awaiting_transition[env_id] = False
        cursor[env_id] = step + 1
        num_full += step + 1 == num_steps
    return num_truncated, num_full


@kernel
def add_rewards(env_ids: Any, reward: Any, returns: Any, lengths: Any) -> None:
    """Add one step to the running return and length of these envs' episodes."""
    for row in range(len(env_ids)):
        returns[env_ids[row]] += reward[row]
        lengths[env_ids[row]] += 1
