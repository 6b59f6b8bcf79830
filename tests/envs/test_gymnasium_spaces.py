"""Gymnasium spaces: named arrays for observations, `action_nvec` or a Box for actions."""

from functools import partial

import gymnasium
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hundredfold
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
        (envs.MaskedBoxActions, ["MaskedBoxActions", "only discrete actions can be masked"]),
        (envs.MixedDictActions, ["MixedDictActions", "action space Dict", "all of them discrete", "Wrap the env"]),
        (envs.MixedTupleActions, ["action space Tuple", "all of them discrete", "Wrap the env"]),
        (envs.TextObservation, ["Text", "wrapper"]),
        (envs.SequenceObservation, ["Sequence", "'1'", "wrapper"]),
        (envs.AmbiguousObservation, ["several observations called 'a.b'"]),
        (envs.MaskOnlyObservation, ["no observation besides its action_mask"]),
    ],
)
def test_an_unsupported_space_is_refused_with_advice(make_env, named):
    with pytest.raises(SettingsError) as refusal:
        make_batch(make_env)
    for text in named:
        assert text in str(refusal.value)


def test_nested_observations_become_one_array_per_space():
    env = make_batch(envs.NestedObservation, 2)
    assert {name: (array.shape, array.categories) for name, array in env.spec.observation.items()} == {
        "arm.joints": ((2,), None),
        "arm.mode": ((), (3,)),
        "cameras.0": ((2, 2), None),
        "cameras.1": ((2,), None),
        "dice": ((2,), (3, 3)),
    }
    env.reset(SEED)
    batch = env.step(np.zeros(2, np.int64))
    totals, steps = [one.total for one in env.envs], [one.step_count for one in env.envs]
    assert batch.observation["arm.mode"].tolist() == [total % 3 for total in totals]
    assert batch.observation["cameras.0"][:, 1, 1].tolist() == totals
    assert batch.observation["dice"].tolist() == [[total % 3, step] for total, step in zip(totals, steps, strict=True)]


@pytest.mark.parametrize("make_env", [envs.NestedObservation, envs.TupleObservation, envs.DiscreteObservationWithStart])
def test_nested_observations_are_the_same_one_by_one_and_in_a_batch(make_env):
    many, single = make_batch(make_env, 12), make_batch(make_env, 12)
    for env in (many, single):
        env.reset(SEED)
    actions = np.arange(12) % 3
    for _ in range(10):
        batch = many.step(actions)
        for row in range(12):
            single.step_rows(row, row + 1, actions[row : row + 1])
        for name, array in batch.observation.items():
            assert_array_equal(array, single.out.observation[name])


def test_a_category_outside_its_space_is_named_as_the_env_returned_it():
    env = make_batch(envs.DiscreteObservationWithStart, 1)
    entry = env.observation_adapter.entries[0]
    assert "0 in 'observation'" in entry.find_error(entry.array_of(0))
    assert entry.find_error(entry.array_of(3)) is None


@pytest.mark.parametrize(
    ("make_env", "nvec", "flat", "expected"),
    [
        (envs.MultiBinaryActions, (2, 2, 2, 2), [0, 1, 1, 0], [[0, 1], [1, 0]]),
        (envs.MatrixMultiDiscreteActions, (2, 2, 3, 4), [1, 1, 2, 3], [[1, 2], [2, 1]]),
        (envs.IntegerBoxActions, (3, 4), [0, 3], [-1, 6]),
        (envs.TupleActions, (3, 2, 2), [2, 0, 1], (3, [0, 1])),
        (envs.NestedActions, (3, 3, 2, 4), [0, 2, 1, 3], {"move": (1, 3), "level": [0, 2]}),
    ],
)
def test_discrete_actions_of_every_shape_arrive_as_their_space_has_them(make_env, nvec, flat, expected):
    env = make_batch(make_env, 2)
    assert env.spec.action_nvec == nvec
    env.reset(SEED)
    env.step(np.array([flat, flat]))
    np.testing.assert_equal(as_lists(env.envs[1].actions[-1]), expected)
    # A call without rows measures the overhead of a batch.
    env.step_rows(0, 0, np.zeros((0, *env.spec.action_shape), env.spec.action_dtype))


@pytest.mark.parametrize(
    ("make_env", "shape", "flat", "expected"),
    [
        (envs.WideIntegerBoxActions, (2,), [-999.6, 12.4], [-1000, 12]),
        (envs.NestedBoxActions, (5,), [0, 1, -1, 0.5, 7], {"arm": [[0, 1], [-1, 0.5]], "grip": (5.0,)}),
    ],
)
def test_continuous_actions_of_every_shape_arrive_as_their_space_has_them(make_env, shape, flat, expected):
    env = make_batch(make_env, 1)
    assert env.spec.action_shape == shape
    env.reset(SEED)
    env.step(np.array([flat], np.float32))
    np.testing.assert_equal(as_lists(env.envs[0].actions[-1]), expected)


def as_lists(action):
    """An action with lists in place of arrays."""
    if isinstance(action, dict):
        return {key: as_lists(value) for key, value in action.items()}
    if isinstance(action, tuple):
        return tuple(as_lists(value) for value in action)
    return action.tolist() if isinstance(action, np.ndarray) else action


@pytest.mark.parametrize("make_env", [envs.NestedActions, envs.NestedBoxActions, envs.WideIntegerBoxActions])
def test_policies_train_on_nested_spaces(make_env, tmp_path):
    class Both(make_env):
        observation_space = envs.NestedObservation.observation_space
        observation = envs.NestedObservation.observation

    settings = {"backend": "in_process", "num_envs": 4, "num_steps": 8, "epochs": 2, "eval_episodes": 2}
    run = hundredfold.train(Both, save_dir=tmp_path, preset="by-device", **settings)
    assert run.metrics[-1]["total_steps"] == 64
