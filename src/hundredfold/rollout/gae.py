"""Generalised advantage estimation (GAE)."""

from __future__ import annotations

import numpy as np

from hundredfold.core.batch import BoolArray, Float32Array


def compute_gae(
    rewards: Float32Array,
    values: Float32Array,
    next_values: Float32Array,
    ended: BoolArray,
    gamma: float,
    gae_lambda: float,
) -> Float32Array:
    """Generalised advantage estimation (Schulman et al. 2016).

    delta_t = r_t + gamma * V(s_t+1) - V(s_t), the TD error, and
    A_t = delta_t + gamma * lambda * A_t+1, which does not reach across the end of an episode.

    Args:
        rewards: (steps, envs) rewards.
        values: (steps, envs) value estimates of the observations acted on.
        next_values: (steps, envs) value estimates after each step: of the next observation, of
            the final observation where the episode was truncated, 0 where it terminated.
        ended: (steps, envs) True where an episode terminated or was truncated.
        gamma: discount factor.
        gae_lambda: trade-off between bias (0) and variance (1).

    Returns:
        (steps, envs) advantages.
    """
    deltas = rewards + np.float32(gamma) * next_values - values
    decay = np.float32(gamma * gae_lambda) * ~ended
    advantages = np.empty_like(rewards)
    last_gae = np.zeros_like(rewards[0])
    for step in reversed(range(len(rewards))):
        last_gae = deltas[step] + decay[step] * last_gae
        advantages[step] = last_gae
    return advantages
