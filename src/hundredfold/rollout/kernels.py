"""What happens to every row of every step, compiled.

Imported by whoever is about to gather steps: Numba takes a moment, and settings, workers and the
command line know these classes without ever using them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hundredfold.core.numba_kernels import kernel, uniform


@kernel
def draw_uniforms(keys: Any, env_ids: Any, choices_made: Any, drawn: Any) -> None:
    """(rows, parts) numbers in [0, 1) for one more choice of each of these envs."""
    rows, parts = drawn.shape
    for row in range(rows):
        env_id = env_ids[row]
        first = choices_made[env_id] * parts
        for part in range(parts):
            drawn[row, part] = uniform(keys[env_id], np.uint64(first + part))
        choices_made[env_id] += 1


@kernel
def keep_outcomes(
    env_ids: Any,
    reward: Any,
    terminated: Any,
    truncated: Any,
    num_steps: int,
    cursor: Any,
    awaiting: Any,
    rewards: Any,
    terminations: Any,
    ends: Any,
) -> tuple[int, int]:
    """Write rows where their envs are; how many were cut off, and how many came to the end."""
    num_cut = num_full = 0
    for row in range(len(env_ids)):
        env_id = env_ids[row]
        step = cursor[env_id]
        if step >= len(rewards):
            raise IndexError("an outcome without a choice, behind the last step there is room for")
        rewards[step, env_id] = reward[row]
        terminations[step, env_id] = terminated[row]
        ends[step, env_id] = terminated[row] or truncated[row]
        num_cut += truncated[row] and not terminated[row]
        awaiting[env_id] = False
        cursor[env_id] = step + 1
        num_full += step + 1 == num_steps
    return num_cut, num_full


@kernel
def add_up(env_ids: Any, reward: Any, returns: Any, lengths: Any) -> None:
    """One more step of these envs' episodes."""
    for row in range(len(env_ids)):
        returns[env_ids[row]] += reward[row]
        lengths[env_ids[row]] += 1
