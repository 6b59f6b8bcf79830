"""Action masks of Gymnasium envs, from observation, info or method."""

import gymnasium
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from helpers import third_party_envs as envs
from helpers.gymnasium_batches import make_batch
from helpers.trajectories import fixed_actions, record_env_trajectory

SEED = 5


MASKED = [envs.MaskInObservation, envs.MaskInInfo, envs.MaskFromMethod]


@pytest.mark.parametrize("make_env", MASKED)
def test_masks_are_found_in_observation_info_and_method(make_env):
    env = make_batch(make_env)
    assert env.spec.has_mask
    assert "action_mask" not in env.spec.observation
    batch = env.reset(SEED)
    for step in range(30):
        (total,) = (array[:, 1] for array in batch.observation.values())
        allowed = (np.arange(3) + total[:, None]) % 3 != 0
        assert_array_equal(batch.mask, allowed)
        batch = env.step(fixed_actions(batch, env.spec, np.full(4, step)))


def test_all_mask_sources_give_the_same_trajectory():
    trajectories = [record_env_trajectory(make_batch(make_env), SEED, 40) for make_env in MASKED]
    for trajectory in trajectories[1:]:
        assert_array_equal(trajectory["mask"], trajectories[0]["mask"])
        assert_array_equal(trajectory["reward"], trajectories[0]["reward"])


def test_a_mask_method_behind_a_wrapper_is_found():
    env = make_batch(lambda: gymnasium.wrappers.TimeLimit(envs.MaskFromMethod(), 4))
    assert env.spec.has_mask
    assert not env.reset(SEED).mask.all()


def test_an_env_without_masks_has_none():
    assert make_batch(envs.DiceEnv).reset(SEED).mask is None


def test_masks_of_multi_discrete_actions_are_concatenated():
    env = make_batch(envs.MultiDiscreteActions)
    total = env.reset(SEED).observation["observation"][:, 1]
    assert_array_equal(env.out.mask[:, 1], total % 2 == 0)
    assert_array_equal(env.out.mask[:, 3], total % 3 != 0)
