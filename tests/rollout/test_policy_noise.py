"""Policy noise: uniforms depend on seed, env and action count, not on the batch."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from hundredfold.core import rng
from hundredfold.rollout.collector import POLICY_STREAM, PolicyNoise

SEED = 11


def reference_uniforms(env_id, actions_taken, num_action_dims):
    """The definition: consecutive draws of the env's stream below the policy stream."""
    stream = rng.spawn(rng.seed_key(SEED), POLICY_STREAM)
    return rng.uniforms(rng.spawn(stream, env_id), actions_taken * num_action_dims + np.arange(num_action_dims))


@pytest.mark.parametrize("num_action_dims", [1, 3])
def test_uniforms_depend_on_env_and_action_count(num_action_dims):
    noise = PolicyNoise(SEED, 5, num_action_dims)
    draw = np.random.default_rng(0)
    actions_taken = draw.integers(0, 10**12, 5)
    for _ in range(200):
        env_ids = np.flatnonzero(draw.random(5) < 0.6)
        expected = [reference_uniforms(env_id, actions_taken[env_id], num_action_dims) for env_id in env_ids]
        assert_array_equal(noise.draw(env_ids, actions_taken), np.reshape(expected, (-1, num_action_dims)))


def test_only_envs_that_act_are_counted():
    actions_taken = np.array([4, 5, 6])
    PolicyNoise(SEED, 3, 2).draw(np.array([2, 0]), actions_taken)
    assert actions_taken.tolist() == [5, 5, 7]


def test_a_shard_draws_the_uniforms_of_its_envs_in_the_whole_batch():
    all_envs, shard = PolicyNoise(SEED, 6, 2), PolicyNoise(SEED, 2, 2, first=3)
    counts = np.array([0, 0, 0, 7, 40, 0])
    found = shard.draw(np.arange(2), counts[3:5].copy())
    assert_array_equal(found, all_envs.draw(np.array([3, 4]), counts))
