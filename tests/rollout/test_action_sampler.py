"""The policy's luck: the same numbers whoever asks, in whatever order and company."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from hundredfold.core import rng
from hundredfold.rollout.collector import POLICY_STREAM, PolicyNoise

SEED = 11


def by_hand(env_id, actions_taken, parts):
    """The definition: consecutive draws of the env's stream under the policy's branch."""
    branch = rng.spawn(rng.seed_key(SEED), POLICY_STREAM)
    return rng.uniforms(rng.spawn(branch, env_id), actions_taken * parts + np.arange(parts))


@pytest.mark.parametrize("parts", [1, 3])
def test_numbers_are_a_matter_of_env_and_count(parts):
    luck = PolicyNoise(SEED, 5, parts)
    draw = np.random.default_rng(0)
    made = draw.integers(0, 10**12, 5)
    for _ in range(200):
        env_ids = np.flatnonzero(draw.random(5) < 0.6)
        wanted = [by_hand(env_id, made[env_id], parts) for env_id in env_ids]
        assert_array_equal(luck.draw(env_ids, made), np.reshape(wanted, (-1, parts)))


def test_every_choice_is_counted_and_no_other():
    made = np.array([4, 5, 6])
    PolicyNoise(SEED, 3, 2).draw(np.array([2, 0]), made)
    assert made.tolist() == [5, 5, 7]


def test_a_slice_has_the_luck_of_its_envs_among_all():
    everybody, some = PolicyNoise(SEED, 6, 2), PolicyNoise(SEED, 2, 2, first=3)
    counts = np.array([0, 0, 0, 7, 40, 0])
    found = some.draw(np.arange(2), counts[3:5].copy())
    assert_array_equal(found, everybody.draw(np.array([3, 4]), counts))
