"""Gymnasium spaces: named arrays for observations, `action_nvec` or a Box for actions."""

from functools import partial

import gymnasium
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from helpers import third_party_envs as envs
from helpers.gymnasium_batches import make_batch
from hundredfold.core.action_scaling import uniform_actions
from hundredfold.core.errors import SettingsError

SEED = 5


@pytest.mark.parametrize(
    ("make_env", "shape", "dtype", "categories"),
    [
        (envs.DiceEnv, (2,), "float32", None),
        (envs.DiscreteObservation, (), "int64", (7,)),
        (envs.MultiDiscreteObservation, (2, 2), "int64", (4, 2, 9, 3)),
        (envs.MultiBinaryObservation, (2, 3), "int8", None),
        (envs.ImageObservation, (3, 2, 1), "uint8", None),
    ],
)
def test_an_observation_space_becomes_one_array(make_env, shape, dtype, categories):
    spec = make_batch(make_env, 1).spec
    (array,) = spec.observation.values()
    assert list(spec.observation) == ["observation"]
    assert (array.shape, array.dtype, array.categories) == (shape, dtype, categories)


def test_a_dict_observation_becomes_one_array_per_entry():
    arrays = make_batch(envs.DictObservation, 1).spec.observation
    assert {name: (array.shape, array.dtype) for name, array in arrays.items()} == {
        "bits": ((3,), "int8"),
        "height": ((), "float64"),
        "number": ((), "int64"),
        "parts": ((2,), "int64"),
    }
    assert arrays["parts"].categories == (4, 9)
    assert (arrays["height"].low, arrays["height"].high) == (-1.0, 1.0)


def test_equal_bounds_are_stored_as_one_number():
    image = make_batch(envs.ImageObservation, 1).spec.observation["observation"]
    assert (image.low, image.high) == (0.0, 255.0)
    cart = make_batch(partial(gymnasium.make, "CartPole-v1"), 1).spec.observation["observation"]
    assert len(cart.high) == 4
    assert cart.high[1] == np.inf
    assert cart.low[0] == pytest.approx(-4.8)


@pytest.mark.parametrize(
    ("make_env", "action_nvec", "action_shape"),
    [
        (envs.DiceEnv, (3,), ()),
        (envs.DiscreteActionsWithStart, (3,), ()),
        (envs.MultiDiscreteActions, (3, 2), (2,)),
        (envs.MultiDiscreteActionsWithStart, (2, 3), (2,)),
    ],
)
def test_a_discrete_action_space_becomes_action_nvec(make_env, action_nvec, action_shape):
    spec = make_batch(make_env, 1).spec
    assert (spec.action_nvec, spec.action_shape) == (action_nvec, action_shape)


def test_discrete_actions_are_shifted_by_the_start_of_the_space():
    env = make_batch(envs.DiscreteActionsWithStart, 3)
    env.reset(SEED)
    assert env.step(np.array([0, 1, 2])).reward.tolist() == [5.0, 6.0, 7.0]


def test_multi_discrete_actions_are_shifted_by_the_start_of_the_space():
    env = make_batch(envs.MultiDiscreteActionsWithStart, 2)
    env.reset(SEED)
    assert env.step(np.array([[0, 0], [1, 2]])).reward.tolist() == [10 - 1, 20 + 1]


@pytest.mark.parametrize(
    ("make_env", "shape", "low", "high"),
    [
        (envs.BoxActions, (2,), -1.0, 1.0),
        (envs.ScalarBoxAction, (), 0.0, 10.0),
        (envs.UnevenBoxActions, (2, 2), (-0.1, 2.0, -np.inf, -np.inf), (0.1, np.inf, -3, np.inf)),
    ],
)
def test_a_box_action_space_keeps_its_shape_and_bounds(make_env, shape, low, high):
    spec = make_batch(make_env, 1).spec
    assert (spec.action_nvec, spec.action_shape, spec.action_dtype) == ((), shape, "float32")
    assert (spec.continuous_action.low, spec.continuous_action.high) == (low, high)


@pytest.mark.parametrize("make_env", [envs.BoxActions, envs.ScalarBoxAction, envs.UnevenBoxActions])
def test_box_actions_arrive_in_the_dtype_and_bounds_of_the_space(make_env):
    env = make_batch(make_env, 3)
    box = env.spec.continuous_action
    actions = uniform_actions(box, np.array([[0.0, 0.5, 1.0, 0.25]] * 3)[:, : box.size])
    env.reset(SEED)
    # The envs refuse what their own space does not contain, doubles rounded to floats included.
    batch = env.step(actions)
    assert_array_equal(batch.reward, actions.reshape(3, -1).astype(np.float64).sum(axis=1))


@pytest.mark.parametrize(
    ("make_env", "named"),
    [
        (envs.IntegerBoxActions, ["action space Box", "of floats", "Wrap the env"]),
        (envs.MaskedBoxActions, ["MaskedBoxActions", "only discrete actions can be masked"]),
        (envs.DictActions, ["DictActions", "action space Dict", "Discrete", "Wrap the env"]),
        (envs.TupleActions, ["action space Tuple", "Wrap the env"]),
        (envs.MatrixMultiDiscreteActions, ["MatrixMultiDiscreteActions", "action space MultiDiscrete", "flat"]),
        (envs.MultiBinaryActions, ["action space MultiBinary", "Wrap the env"]),
        (envs.NestedDictObservation, ["'inner'", "Dict('deep'", "FlattenObservation"]),
        (envs.TupleObservation, ["Tuple", "FlattenObservation"]),
        (envs.TextObservation, ["Text", "wrapper"]),
        (envs.DiscreteObservationWithStart, ["Discrete(3, start=1)", "from 0"]),
        (envs.MultiDiscreteObservationWithStart, ["MultiDiscrete", "from 0"]),
        (envs.MaskOnlyObservation, ["no observation besides its action_mask"]),
    ],
)
def test_an_unsupported_space_is_refused_with_advice(make_env, named):
    with pytest.raises(SettingsError) as refusal:
        make_batch(make_env)
    for text in named:
        assert text in str(refusal.value)


def test_flatten_observation_makes_a_nested_dict_usable():
    flat = partial(gymnasium.wrappers.FlattenObservation, envs.NestedDictObservation())
    assert make_batch(flat, 1).spec.observation["observation"].shape == (3,)
