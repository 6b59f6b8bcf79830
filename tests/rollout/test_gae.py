"""Advantages against a slow reference written straight from the definition."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from hundredfold.rollout.gae import compute_gae


def slow_advantages(rewards, values, next_values, ended, gamma, gae_lambda):
    """Sum of discounted surprises up to the end of each episode, one step at a time."""
    steps, envs = rewards.shape
    found = np.zeros((steps, envs))
    for env in range(envs):
        for start in range(steps):
            weight = 1.0
            for step in range(start, steps):
                surprise = rewards[step, env] + gamma * next_values[step, env] - values[step, env]
                found[start, env] += weight * surprise
                if ended[step, env]:
                    break
                weight *= gamma * gae_lambda
    return found


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    steps=st.integers(1, 12),
    envs=st.integers(1, 5),
    gamma=st.sampled_from([0.0, 0.9, 0.99, 1.0]),
    gae_lambda=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
)
def test_advantages_equal_the_slow_reference(seed, steps, envs, gamma, gae_lambda):
    draw = np.random.default_rng(seed)
    rewards, values, next_values = draw.normal(size=(3, steps, envs)).astype(np.float32)
    ended = draw.random((steps, envs)) < 0.3
    expected = slow_advantages(rewards, values, next_values, ended, gamma, gae_lambda)
    found = compute_gae(rewards, values, next_values, ended, gamma, gae_lambda)
    assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_with_gamma_and_lambda_one_advantages_are_what_was_earned_beyond_the_value():
    rewards = np.array([[1.0], [2.0], [3.0]], np.float32)
    values = np.array([[10.0], [20.0], [30.0]], np.float32)
    next_values = np.array([[20.0], [30.0], [0.0]], np.float32)
    ended = np.array([[False], [False], [True]])
    found = compute_gae(rewards, values, next_values, ended, 1.0, 1.0)
    assert_allclose(found[:, 0], [6 - 10, 5 - 20, 3 - 30])
