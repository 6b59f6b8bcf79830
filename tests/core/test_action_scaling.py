"""Scaling of continuous actions for every kind of bounds."""

import numpy as np
from numpy.testing import assert_allclose, assert_array_equal

from hundredfold.core.action_scaling import action_scale, argmax_actions, random_actions, uniform_actions
from hundredfold.core.batch import ArraySpec, EnvSpec

INF = float("inf")


def box_of(*bounds):
    low, high = zip(*bounds, strict=True)
    return ArraySpec((len(bounds),), "float32", tuple(low), tuple(high))


def test_bounds_become_minus_one_and_one():
    scale = action_scale(box_of((-2.0, 2.0), (10.0, 14.0), (5.0, 5.0)))
    assert_allclose(scale.centre, [0, 12, 5])
    assert_allclose(scale.scale, [2, 2, 0])


def test_dimensions_without_both_bounds_are_not_scaled():
    scale = action_scale(box_of((-INF, INF), (100.0, INF), (-INF, -7.0)))
    assert_allclose(scale.centre, [0, 101, -8])
    assert_allclose(scale.scale, [1, 1, 1])
    assert_array_equal(scale.low, [-INF, 100, -INF])
    assert_array_equal(scale.high, [INF, INF, -7])


def test_the_largest_float_counts_as_unbounded():
    largest = float(np.finfo(np.float32).max)
    scale = action_scale(box_of((-largest, largest), (0.0, largest)))
    assert_allclose(scale.centre, [0, 1])
    assert_allclose(scale.scale, [1, 1])


def test_bounds_that_float32_cannot_represent_are_rounded_inwards():
    scale = action_scale(box_of((-0.1, 0.1), (0.3, 0.7)))
    assert (scale.low.astype(np.float64) >= [-0.1, 0.3]).all()
    assert (scale.high.astype(np.float64) <= [0.1, 0.7]).all()
    assert_allclose(scale.high, [0.1, 0.7], rtol=1e-6)


def test_uniform_actions_fill_the_box_and_stay_within_bounds():
    box = ArraySpec((2, 2), "float32", -0.1, 0.1)
    draw = np.random.default_rng(3)
    actions = uniform_actions(box, np.concatenate([draw.random((500, 4)), [[0, 0, 1, 1]]]))
    assert (actions.shape, actions.dtype) == ((501, 2, 2), np.float32)
    assert np.abs(actions.astype(np.float64)).max() <= 0.1
    assert actions[:500].min() < -0.099
    assert actions[:500].max() > 0.099


def test_a_continuous_action_has_one_logit_per_entry():
    spec = EnvSpec(name="w", observation={}, continuous_action=ArraySpec((3, 2), "float32", -1, 1))
    assert (spec.num_logits, spec.num_action_dims) == (6, 6)
    assert (spec.action_shape, spec.action_dtype) == ((3, 2), "float32")


MULTI_DISCRETE = EnvSpec(name="w", observation={}, action_nvec=(3, 2))


def test_argmax_actions_are_the_highest_scores_of_each_dimension():
    scores = np.array([[0.1, 0.9, 0.5, 0.3, 0.2], [0.7, 0.1, 0.0, 0.4, 0.6]])
    assert argmax_actions(MULTI_DISCRETE, scores).tolist() == [[1, 0], [0, 1]]
    discrete = EnvSpec(name="w", observation={}, action_nvec=(3,))
    assert argmax_actions(discrete, scores[:, :3]).tolist() == [1, 0]


def test_random_actions_are_uniform_over_the_allowed_ones():
    uniforms = np.random.default_rng(2).random((9000, 5))
    mask = np.tile([True, False, True, False, True], (9000, 1))
    actions = random_actions(MULTI_DISCRETE, uniforms, mask)
    counts = np.bincount(actions[:, 0], minlength=3)
    assert counts[1] == 0
    assert abs(counts[0] - 4500) < 5 * np.sqrt(9000) / 2
    assert set(actions[:, 1]) == {1}


def test_random_actions_of_a_box_are_uniform_actions():
    box = ArraySpec((2,), "float32", -1.0, 3.0)
    spec = EnvSpec(name="w", observation={}, continuous_action=box)
    uniforms = np.random.default_rng(2).random((4, 2))
    assert_array_equal(random_actions(spec, uniforms), uniform_actions(box, uniforms))
