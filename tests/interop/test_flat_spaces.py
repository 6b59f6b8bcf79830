"""Flat spaces: observation rows and normalised actions for other libraries."""

from contextlib import closing

import numpy as np
import pytest
from gymnasium import spaces
from numpy.testing import assert_allclose, assert_array_equal

from helpers import third_party_envs
from helpers.cases import ENV_CASES
from helpers.gymnasium_batches import make_batch
from hundredfold.interop.flat_spaces import MAX_BOUND, FlatSpaces, unflatten


class FixedDimension(third_party_envs.BoxActions):
    action_space = spaces.Box(np.float32([-2, 3]), np.float32([4, 3]))


def test_bounds_of_continuous_actions_are_minus_one_and_one():
    flat = FlatSpaces(make_batch(third_party_envs.BoxActions, 1).spec)
    assert flat.action_space == spaces.Box(-1, 1, (2,), np.float32)
    uneven = FlatSpaces(make_batch(third_party_envs.UnevenBoxActions, 1).spec).action_space
    assert_allclose(uneven.low, [-1, -1, -MAX_BOUND, -MAX_BOUND])
    assert_allclose(uneven.high, [1, MAX_BOUND, 1, MAX_BOUND])


def test_dimension_with_equal_bounds_always_has_its_only_value():
    flat = FlatSpaces(make_batch(FixedDimension, 1).spec)
    assert flat.action_space == spaces.Box(-1, 1, (2,), np.float32)
    actions = flat.unflatten_action(np.float32([[-1, 0.7], [0, -5], [9, 0]]))
    assert_allclose(actions, [[-2, 3], [1, 3], [4, 3]])


@pytest.mark.parametrize("env", ["dvrp", "cage2", "third_party_masked", "third_party_image"])
def test_unflatten_inverts_flatten_and_rows_may_end_with_the_mask(env):
    with closing(ENV_CASES[env](np.arange(5))) as batch_env:
        spec, batch = batch_env.spec, batch_env.reset(3)
        plain = FlatSpaces(spec)
        masked = FlatSpaces(spec, dtype="float32", with_mask=True)
        rows = masked.flatten(batch.observation, batch.mask)
        assert masked.observation_space.contains(rows[0])
        assert plain.observation_space.contains(plain.flatten(batch.observation)[0])
        for name, array in unflatten(rows, spec).items():
            assert_array_equal(array, batch.observation[name].astype(np.float32), err_msg=name)
        if spec.has_mask:
            assert_array_equal(rows[:, -spec.num_logits :], batch.mask)
            assert masked.flatten(batch.observation)[:, -spec.num_logits :].all()
