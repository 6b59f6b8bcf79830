"""GAE against a slow reference written from the definition (Schulman et al. 2016)."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from hundredfold.rollout.gae import compute_gae


def reference_gae(rewards, values, next_values, ended, gamma, gae_lambda):
    """Sum of discounted TD errors up to the end of each episode."""
    steps, envs = rewards.shape
    advantages = np.zeros((steps, envs))
    for env in range(envs):
        for start in range(steps):
            weight = 1.0
            for step in range(start, steps):
                delta = rewards[step, env] + gamma * next_values[step, env] - values[step, env]
                advantages[start, env] += weight * delta
                if ended[step, env]:
                    break
                weight *= gamma * gae_lambda
    return advantages


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    steps=st.integers(1, 12),
    envs=st.integers(1, 5),
    gamma=st.sampled_from([0.0, 0.9, 0.99, 1.0]),
    gae_lambda=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
)
def test_gae_equals_the_reference(seed, steps, envs, gamma, gae_lambda):
    draw = np.random.default_rng(seed)
    rewards, values, next_values = draw.normal(size=(3, steps, envs)).astype(np.float32)
    ended = draw.random((steps, envs)) < 0.3
    expected = reference_gae(rewards, values, next_values, ended, gamma, gae_lambda)
    advantages = compute_gae(rewards, values, next_values, ended, gamma, gae_lambda)
    assert_allclose(advantages, expected, rtol=1e-4, atol=1e-4)


def test_with_gamma_and_lambda_1_advantages_are_returns_minus_values():
    rewards = np.array([[1.0], [2.0], [3.0]], np.float32)
    values = np.array([[10.0], [20.0], [30.0]], np.float32)
    next_values = np.array([[20.0], [30.0], [0.0]], np.float32)
    ended = np.array([[False], [False], [True]])
    advantages = compute_gae(rewards, values, next_values, ended, 1.0, 1.0)
    assert_allclose(advantages[:, 0], [6 - 10, 5 - 20, 3 - 30])
