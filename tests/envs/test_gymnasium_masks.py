"""Masks of Gymnasium envs: found wherever they are."""

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
def test_masks_are_found_wherever_they_are(make_env):
    env = make_batch(make_env)
    assert env.spec.has_mask
    assert "action_mask" not in env.spec.observation
    batch = env.reset(SEED)
    for step in range(30):
        (total,) = (array[:, 1] for array in batch.observation.values())
        allowed = (np.arange(3) + total[:, None]) % 3 != 0
        assert_array_equal(batch.mask, allowed)
        batch = env.step(fixed_actions(batch, env.spec, np.full(4, step)))


def test_all_three_sources_tell_one_story():
    trajectories = [record_env_trajectory(make_batch(make_env), SEED, 40) for make_env in MASKED]
    for trajectory in trajectories[1:]:
        assert_array_equal(trajectory["mask"], trajectories[0]["mask"])
        assert_array_equal(trajectory["reward"], trajectories[0]["reward"])


def test_a_method_behind_a_wrapper_is_found():
    env = make_batch(lambda: gymnasium.wrappers.TimeLimit(envs.MaskFromMethod(), 4))
    assert env.spec.has_mask
    assert not env.reset(SEED).mask.all()


def test_an_env_without_masks_has_none():
    assert make_batch(envs.DiceEnv).reset(SEED).mask is None


def test_a_mask_of_several_parts_lies_side_by_side():
    env = make_batch(envs.MultiDiscreteActions)
    total = env.reset(SEED).observation["observation"][:, 1]
    assert_array_equal(env.out.mask[:, 1], total % 2 == 0)
    assert_array_equal(env.out.mask[:, 3], total % 3 != 0)
