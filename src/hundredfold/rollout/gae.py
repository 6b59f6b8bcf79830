"""Looking back over a rollout: how much better each action was than expected."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hundredfold.core.batch import BoolArray

Floats = NDArray[np.float32]


def advantages_of(
    rewards: Floats,
    values: Floats,
    next_values: Floats,
    ended: BoolArray,
    gamma: float,
    gae_lambda: float,
) -> Floats:
    """Generalised advantage estimates (Schulman et al. 2016), all arrays (steps, envs).

    `next_values` is what each step leads to: the value of the next observation, of the final
    observation where the episode was truncated, and 0 where it terminated. One loop over steps;
    every env is a column of its own.
    """
    surprise = rewards + np.float32(gamma) * next_values - values
    carry = np.float32(gamma * gae_lambda) * ~ended
    advantages = np.empty_like(rewards)
    ahead = np.zeros_like(rewards[0])
    for step in range(len(rewards) - 1, -1, -1):
        ahead = surprise[step] + carry[step] * ahead
        advantages[step] = ahead
    return advantages
