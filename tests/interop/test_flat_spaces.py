"""Envs as other people's trainers see them."""

import numpy as np
from gymnasium import spaces
from numpy.testing import assert_allclose

from helpers import third_party_envs
from helpers.gymnasium_batches import make_batch
from hundredfold.interop.flat_spaces import WIDEST_BOUND, Window


class Fixed(third_party_envs.BoxActions):
    action_space = spaces.Box(np.float32([-2, 3]), np.float32([4, 3]))


def test_bounds_of_continuous_actions_are_minus_one_and_one():
    window = Window(make_batch(third_party_envs.BoxActions, 1).spec)
    assert window.action_space == spaces.Box(-1, 1, (2,), np.float32)
    wide = Window(make_batch(third_party_envs.UnevenBoxActions, 1).spec).action_space
    assert_allclose(wide.low, [-1, -1, -WIDEST_BOUND, -WIDEST_BOUND])
    assert_allclose(wide.high, [1, WIDEST_BOUND, 1, WIDEST_BOUND])


def test_a_number_that_can_only_be_what_it_is_is_played_as_that():
    window = Window(make_batch(Fixed, 1).spec)
    assert window.action_space == spaces.Box(-1, 1, (2,), np.float32)
    played = window.played(np.float32([[-1, 0.7], [0, -5], [9, 0]]))
    assert_allclose(played, [[-2, 3], [1, 3], [4, 3]])
