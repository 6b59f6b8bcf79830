"""Batches of Gymnasium envs: equal to the single envs, and checked for invalid results."""

import re
import warnings
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from numpy.testing import assert_array_equal

from helpers import third_party_envs as envs
from helpers.gymnasium_batches import make_batch
from helpers.trajectories import assert_same_trajectory, fixed_actions, record_env_trajectory
from hundredfold.core import rng
from hundredfold.core.batch import copies
from hundredfold.core.errors import CheckpointError, EnvError
from hundredfold.envs.cartpole import CartPole
from hundredfold.envs.gymnasium_env import GymnasiumBatchEnv
from hundredfold.envs.gymnasium_spaces import ObservationAdapter

SEED = 5


# --- a batch equals its single envs


def plain_tale(env, env_id, actions):
    """What one env says, played the way Gymnasium's own examples do it."""

    def begin(episode):
        seed = int(rng.stream_keys(SEED, env_id, episode)) >> 33
        return env.reset(seed=seed)[0]

    episode, recorded = 0, [(begin(0), 0.0, False, False, None)]
    for action in actions:
        seen, reward, over, cut, _ = env.step(action)
        last = seen if over or cut else None
        if over or cut:
            episode += 1
            seen = begin(episode)
        recorded.append((seen, reward, over, cut, last))
    return recorded


PLAYED = {
    "CartPole-v1": partial(gymnasium.make, "CartPole-v1"),
    "FrozenLake-v1": partial(gymnasium.make, "FrozenLake-v1"),
    "Taxi-v3": partial(gymnasium.make, "Taxi-v3", max_episode_steps=20),
    "DiceEnv": envs.DiceEnv,
    "DiscreteObservation": envs.DiscreteObservation,
    "MultiDiscreteObservation": envs.MultiDiscreteObservation,
    "MultiBinaryObservation": envs.MultiBinaryObservation,
    "ImageObservation": envs.ImageObservation,
    "DictObservation": envs.DictObservation,
    "ObservationNamedReward": envs.ObservationNamedReward,
    "MaskInObservation": envs.MaskInObservation,
    "MaskInInfo": envs.MaskInInfo,
    "MaskFromMethod": envs.MaskFromMethod,
    "MultiDiscreteActions": envs.MultiDiscreteActions,
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", PLAYED)
def test_a_batch_equals_its_single_envs(name):
    env, steps = make_batch(PLAYED[name], 3), 45
    batch = env.reset(SEED)
    trajectory, played = [copies(batch.arrays())], []
    for step in range(steps):
        actions = fixed_actions(batch, env.spec, np.full(3, step))
        batch = env.step(actions)
        trajectory.append(copies(batch.arrays()))
        played.append(actions.tolist())
    assert any(said["terminated"].any() or said["truncated"].any() for said in trajectory)
    for env_id in range(3):
        actions = [np.array(row[env_id]) for row in played]
        actions = [int(action) if action.ndim == 0 else action for action in actions]
        tale = plain_tale(PLAYED[name](), env_id, actions)
        for said, expected in zip(trajectory, tale, strict=True):
            assert_says(said, env_id, expected)


def assert_says(said, row, expected):
    seen, reward, over, cut, last = expected
    assert (said["reward"][row], said["terminated"][row], said["truncated"][row]) == (reward, over, cut)
    for group, wanted in (("observation", seen), ("final_observation", last)):
        if wanted is None:
            continue
        parts = wanted if isinstance(wanted, dict) else {"observation": wanted}
        for key in parts.keys() - {"action_mask"}:
            assert_array_equal(said[f"{group}/{key}"][row], parts[key])


def test_infos_carry_the_final_info_of_an_ended_episode():
    env = make_batch(envs.DiceEnv, 2)
    batch = env.reset(SEED)
    assert [info.keys() for info in batch.infos] == [{"total"}, {"total"}]
    for _ in range(20):
        batch = env.step(np.zeros(2, np.int64))
        for row, info in enumerate(batch.infos):
            assert info["total"] == batch.observation["observation"][row, 1]
            assert ("final_info" in info) == batch.ended[row]
            if batch.ended[row]:
                last = batch.final_observation["observation"][row, 1]
                assert info["final_info"]["total"] == last


# --- invalid results


def step_with_faulty(faulty, good=envs.FaultyEnv, number=2, num_envs=4):
    """Play envs of which one is faulty, until something happens."""
    step_until_error(make_batch(envs.OneFaulty(faulty, number, good), num_envs))


def step_until_error(env):
    batch = env.reset(SEED)
    for step in range(6):
        batch = env.step(fixed_actions(batch, env.spec, np.full(len(batch), step)))


INVALID = {
    "nan": (envs.NanObservation, envs.FaultyEnv, ["nan", "'observation'[1]", "finite"]),
    "inf": (envs.InfReward, envs.FaultyEnv, ["inf", "'reward'", "finite"]),
    "shape": (envs.WrongObservationShape, envs.FaultyEnv, ["(3,)", "(2,)", "observation_space"]),
    "raises": (envs.RaisesInStep, envs.FaultyEnv, ["step()", "ZeroDivisionError", "the env failed in step"]),
    "old": (envs.StepReturnsFourValues, envs.FaultyEnv, ["step()", "ValueError"]),
    "base": (envs.RaisesUnreadable, envs.FaultyEnv, ["step()", "UnreadableError: (its __str__ raised KeyError)"]),
    "generator": (envs.RaisesGeneratorExit, envs.FaultyEnv, ["step()", "GeneratorExit"]),
    "large": (envs.TooLargeFloat64, envs.Float64Env, ["1e+39 in 'observation'[0]", "finite as float32"]),
    "large_cast": (envs.TooLargeForFloat32, envs.FaultyEnv, ["1e+39 in 'observation'[1]", "finite as float32"]),
    "large_wide": (envs.TooLargeWideFloat64, envs.WideFloat64Env, ["1e+39 in 'observation'[3, 0]", "as float32"]),
    "large_reward": (envs.TooLargeReward, envs.FaultyEnv, ["1e+39 in 'reward'", "finite as float32"]),
    "text": (envs.TerminatedIsText, envs.FaultyEnv, ["'False' in 'terminated'", "True or False"]),
    "none": (envs.TerminatedIsNone, envs.FaultyEnv, ["None in 'terminated'", "True or False"]),
    "two": (envs.TerminatedIsTwo, envs.FaultyEnv, ["2 in 'terminated'", "True or False"]),
    "forbids": (envs.EmptyMask, envs.ValidInfoMask, ["forbids all 3 actions", "at least one"]),
    "forgets": (envs.MissingInfoMask, envs.ValidInfoMask, ["mask None", "3 bools"]),
    "omits": (envs.MissingObservationMask, envs.ValidObservationMask, ["gave the action mask None", "3 bools"]),
    "short": (envs.ShortMask, envs.ValidInfoMask, ["action mask", "3 bools"]),
}


@pytest.mark.parametrize("number", [0, 2, 3])
@pytest.mark.parametrize("case", INVALID)
def test_an_invalid_result_names_env_and_step(case, number):
    faulty, good, words = INVALID[case]
    with pytest.raises(EnvError) as refusal:
        step_with_faulty(faulty, good, number)
    assert f"env {number} of " in str(refusal.value)
    assert "(step 3 of its episode 0)" in str(refusal.value)
    for word in words:
        assert word in str(refusal.value)


@pytest.mark.parametrize("case", ["large", "large_wide", "large_reward", "text", "none"])
def test_rows_that_step_alone_are_checked_as_well(case):
    faulty, good, words = INVALID[case]
    env = make_batch(envs.OneFaulty(faulty, 0, good))
    env.reset(SEED)
    actions = np.zeros(4, np.int64)
    for _ in range(2):
        env.step_row(0, actions)
    with pytest.raises(EnvError, match=r"\(step 3 of its episode 0\)") as refusal:
        env.step_row(0, actions)
    for word in words:
        assert word in str(refusal.value)


def test_ctrl_c_is_no_failure_of_an_env():
    with pytest.raises(KeyboardInterrupt):
        step_with_faulty(envs.RaisesKeyboardInterrupt)


def test_observations_outside_their_bounds_are_reported_once():
    env = make_batch(envs.OutsideBox)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        record_env_trajectory(env, SEED, 3 * envs.OutsideBox.max_steps)
    (warning,) = caught
    assert re.search(r"OutsideBox returns observations outside.*For example: \d+\.0 in", str(warning.message))


@pytest.mark.parametrize(
    ("space", "value", "is_outside"),
    [
        (spaces.Box(0, 1, (1,), np.float32), [1 + 1e-6], False),
        (spaces.Box(0, 1, (1,), np.float32), [1.1], True),
        (spaces.Box(np.array([0, -np.inf]), np.array([np.inf, 5]), dtype=np.float64), [-1.0, 0.0], True),
        (spaces.Box(np.array([0, -np.inf]), np.array([np.inf, 5]), dtype=np.float64), [1e9, -1e9], False),
        (spaces.Box(0, 255, (1,), np.uint8), [255], False),
        (spaces.Box(0, 9, (1,), np.uint8), [10], True),
        (spaces.MultiBinary(1), [2], True),
    ],
)
def test_bounds_of_a_space(space, value, is_outside):
    (entry,) = ObservationAdapter(space, "env").entries
    assert (entry.find_outside(np.array(value, space.dtype)) is not None) == is_outside


def test_errors_name_the_env_id_not_the_row():
    env = GymnasiumBatchEnv(np.arange(8, 12), envs.OneFaulty(envs.NanObservation, 2))
    with pytest.raises(EnvError, match=r"env 10 of .*step 3"):
        step_until_error(env)


def test_a_dimension_without_allowed_actions_is_refused():
    env = make_batch(partial(envs.EmptyMaskInOneDim, fault_seed=seed_of(1)), 2)
    with pytest.raises(EnvError, match=r"env 1 of .*step 3.*forbids all 2 actions"):
        step_until_error(env)


def seed_of(env_id, episode=0):
    return int(rng.stream_keys(SEED, env_id, episode)) >> 33


def test_an_error_in_reset_names_the_episode():
    with pytest.raises(EnvError, match=r"env 2 of .*\(step 0 of its episode 1\) raised in reset\(\): OSError"):
        step_with_faulty(envs.RaisesInSecondReset)


def test_the_original_exception_is_the_cause():
    with pytest.raises(EnvError) as refusal:
        step_with_faulty(envs.RaisesInStep)
    assert isinstance(refusal.value.__cause__, ZeroDivisionError)


def test_valid_envs_raise_nothing():
    for good in (
        envs.FaultyEnv,
        envs.ValidInfoMask,
        envs.ValidDict,
        envs.ValidDiscrete,
        envs.TerminatedIsZero,
        envs.Float64Env,
    ):
        step_with_faulty(good, good)


def test_a_wrong_shape_in_the_final_observation_is_refused():
    with pytest.raises(EnvError, match=r"env 2 of .*step 3 of its episode 0\).*\(3,\)"):
        step_with_faulty(envs.WrongFinalObservationShape)


def test_a_nan_in_the_final_observation_is_refused():
    with pytest.raises(EnvError, match=r"env 2 of .*step 3 of its episode 0\).*nan"):
        step_with_faulty(envs.NanFinalObservation)


def test_an_invalid_final_reward_names_its_step():
    with pytest.raises(EnvError, match=r"env 2 of .*step 3 of its episode 0\).*inf"):
        step_with_faulty(envs.InfFinalReward)


def test_a_failing_first_reset_names_the_env():
    with pytest.raises(EnvError, match=r"env 0 of RaisesInFirstReset .*reset\(\): OSError"):
        make_batch(envs.RaisesInFirstReset).reset(SEED)


@pytest.mark.parametrize(
    ("faulty", "good", "words"),
    [
        (envs.MaskMethodRaises, envs.ValidMaskMethod, "the mask could not be computed"),
        (envs.MissingDictKey, envs.ValidDict, "total"),
        (envs.NotADict, envs.ValidDict, "step_count"),
        (envs.DiscreteOutOfRange, envs.ValidDiscrete, "9"),
    ],
)
def test_other_invalid_results_are_named(faulty, good, words):
    with pytest.raises(EnvError, match=rf"env 2 of .*step 3.*{words}"):
        step_with_faulty(faulty, good)


def test_an_env_that_counts_its_resets_is_the_same_in_any_batch():
    both = record_env_trajectory(make_batch(envs.CountsResets, 2), SEED, 20)
    alone = record_env_trajectory(GymnasiumBatchEnv(np.array([1]), envs.CountsResets), SEED, 20)
    assert_same_trajectory(alone, both.select_envs([1]))


# --- snapshots


@pytest.mark.filterwarnings("ignore:.*truncated")
def test_a_snapshot_of_the_built_in_cartpole_is_refused():
    built_in = CartPole(np.arange(3))
    built_in.reset(SEED)
    with pytest.raises(CheckpointError):
        make_batch(partial(gymnasium.make, "CartPole-v1"), 3).restore(built_in.state())


def test_a_restore_warns_once_and_names_the_env():
    env = make_batch(partial(gymnasium.make, "CartPole-v1"), 5)
    env.reset(SEED)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        env.restore(env.state())
    assert [str(one.message).split()[0] for one in caught] == ["CartPole-v1"]


def test_close_closes_every_env(tmp_path):
    env = make_batch(partial(envs.RecordsClose, tmp_path), 3)
    assert not list(tmp_path.iterdir())
    env.close()
    assert len(list(tmp_path.iterdir())) == 3
