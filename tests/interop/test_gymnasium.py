"""Gymnasium interface: registered envs, `make_vec`, spaces, infos and seeds."""

import time
import warnings
from contextlib import closing
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from numpy.testing import assert_array_equal

import hundredfold
from helpers.offers import NO_CHANGE
from hundredfold.core import rng
from hundredfold.core.errors import ActionError, SettingsError
from hundredfold.envs.registry import ENVS
from hundredfold.interop.gymnasium import BuiltinEnv
from hundredfold.training.evaluate import EVALUATION_STREAM

GYMNASIUM_IDS = [entry.gymnasium_id for entry in ENVS.values()]


class UnevenWaitingEnv(gymnasium.Env):
    """Steps that wait, now and then ten times as long: `auto` prefers partial batches."""

    observation_space = gymnasium.spaces.Box(0, np.inf, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        time.sleep(0.02 if self.steps % 5 == 0 else 0.002)
        return np.full(1, self.steps, np.float32), 1.0, False, False, {}


class AllowedActions(gymnasium.ActionWrapper):
    """Replaces forbidden actions, which Gymnasium's checker samples, by allowed ones."""

    def action(self, action):
        mask = self.env.unwrapped.action_masks()
        return action if mask[action] else int(np.flatnonzero(mask)[0])


@pytest.mark.parametrize("env", ENVS)
def test_gymnasium_env_checker_passes(env):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # It warns of wrappers, of infinite bounds (as CartPole has them) and of a missing renderer.
        warnings.filterwarnings("ignore", message=".*(infinity|render|unwrapped).*")
        check_env(AllowedActions(BuiltinEnv(env)), skip_render_check=True)


@pytest.mark.parametrize("env_id", GYMNASIUM_IDS)
def test_registered_env_steps_as_a_single_env(env_id):
    env = gymnasium.make(env_id)
    observation, info = env.reset(seed=3)
    assert env.observation_space.contains(observation)
    for _ in range(200):
        mask = info.get("action_mask")
        action = env.action_space.sample(None if mask is None else mask.astype(np.int8))
        observation, reward, terminated, truncated, info = env.step(action)
        assert env.observation_space.contains(observation)
        assert np.isfinite(reward)
        if terminated or truncated:
            observation, info = env.reset()
            assert env.observation_space.contains(observation)


def test_single_env_equals_row_zero_of_a_batch():
    env = gymnasium.make("hundredfold/CartPole-v0")
    envs = gymnasium.make_vec("hundredfold/CartPole-v0", num_envs=5, autoreset_mode="SameStep")
    single, _ = env.reset(seed=11)
    batch, _ = envs.reset(seed=11)
    assert_array_equal(single, batch[0])
    num_ended = 0
    for step in range(120):
        action = step % 3 % 2
        single, reward, terminated, truncated, _ = env.step(action)
        batch, *outputs, infos = envs.step(np.full(5, action))
        assert (reward, terminated, truncated) == tuple(array[0] for array in outputs)
        if terminated or truncated:
            num_ended += 1
            assert_array_equal(single, infos["final_obs"][0])
            single, _ = env.reset()
        assert_array_equal(single, batch[0])
    assert num_ended > 2


def test_reset_within_an_episode_starts_the_next_one():
    env = gymnasium.make("hundredfold/CartPole-v0").unwrapped
    first, _ = env.reset(seed=1)
    env.step(0)
    second, _ = env.reset()
    third, _ = env.reset()
    assert not np.array_equal(first, second)
    assert not np.array_equal(second, third)
    again, _ = env.reset(seed=1)
    assert_array_equal(first, again)


@pytest.mark.parametrize("backend", ["in_process", "serial"])
def test_vector_env_follows_the_gymnasium_interface(backend):
    envs = hundredfold.make_vec("cartpole", num_envs=6, backend=backend, seed=4)
    assert isinstance(envs, gymnasium.vector.VectorEnv)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    observation, infos = envs.reset()
    assert envs.observation_space.contains(observation)
    assert envs.single_observation_space == gymnasium.make("CartPole-v1").observation_space
    observation, rewards, terminated, truncated, infos = envs.step(envs.action_space.sample())
    assert envs.observation_space.contains(observation)
    assert rewards.shape == terminated.shape == truncated.shape == (6,)
    assert isinstance(infos, dict)
    envs.close()
    envs.close()


@pytest.mark.process
@pytest.mark.parametrize("backend", ["auto", "first_ready"])
def test_every_step_of_waiting_envs_returns_all_rows(backend):
    envs = hundredfold.make_vec(UnevenWaitingEnv, 12, backend=backend, seed=0)
    with closing(envs):
        envs.reset()
        for _ in range(4):
            observation, reward, *_ = envs.step(np.zeros(12, int))
            assert len(observation) == len(reward) == 12


def test_later_resets_without_a_seed_derive_theirs_from_the_first():
    def three_resets():
        envs = hundredfold.make_vec("cartpole", 2, seed=3)
        return [envs.reset()[0] for _ in range(3)]

    one, again = three_resets(), three_resets()
    assert_array_equal(one, again)
    assert not np.array_equal(one[0], one[1])
    assert not np.array_equal(one[1], one[2])


def test_single_env_rejects_masked_actions():
    env = gymnasium.make("hundredfold/Corridor-v0", length=2)
    env.reset(seed=0)
    with pytest.raises(ActionError, match="mask forbids"):
        env.step(0)
    with pytest.raises(ActionError, match=r"has actions 0\.\.2"):
        env.step(17)


def test_largest_integers_survive_as_bounds():
    class Counter(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (1,), np.int64)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.zeros(1, np.int64), {}

    space = hundredfold.make_vec(Counter, 1).single_observation_space
    assert space.low[0] < 0 < space.high[0]


def test_arrays_are_copies_unless_copy_is_false():
    copied = hundredfold.make_vec("cartpole", 3, seed=1)
    views = hundredfold.make_vec("cartpole", 3, seed=1, copy=False)
    for envs, is_copy in ((copied, True), (views, False)):
        before, _ = envs.reset(seed=1)
        expected = before.copy()
        envs.step(np.zeros(3, int))
        assert np.array_equal(before, expected) == is_copy


def test_infos_contain_masks_and_true_state():
    envs = hundredfold.make_vec("corridor", 4, true_state_in_info=True, length=5)
    _, infos = envs.reset(seed=2)
    assert_array_equal(infos["action_mask"], envs.action_masks())
    assert_array_equal(infos["action_mask"][:, 0], envs.true_state["cell"] > 0)
    assert_array_equal(infos["true_state/cell"], envs.true_state["cell"])
    *_, infos = envs.step(np.ones(4, int))
    assert "toll_paid" in infos
    at_the_wall = hundredfold.make_vec("corridor", 1, length=2)
    at_the_wall.reset(seed=0)
    with pytest.raises(ActionError, match="mask"):
        at_the_wall.step(np.zeros(1, int))


def test_with_same_step_autoreset_final_infos_contain_episode_infos():
    envs = hundredfold.make_vec("corridor", 2, autoreset_mode=AutoresetMode.SAME_STEP, length=2)
    envs.reset(seed=0)
    for _ in range(2):
        *_, terminated, _, infos = envs.step(np.ones(2, int))
    assert terminated.all()
    assert_array_equal(infos["final_info"]["reached_exit"], [True, True])
    assert infos["final_obs"][0]["cell"].shape == (1,)


def test_make_vec_takes_any_gymnasium_id_with_its_arguments():
    envs = hundredfold.make_vec("FrozenLake-v1", 3, seed=5, is_slippery=False)
    observation, infos = envs.reset()
    assert isinstance(envs.single_observation_space, gymnasium.spaces.Discrete)
    assert observation.tolist() == [0, 0, 0]
    observation, *_, infos = envs.step(np.array([1, 2, 1]))
    assert observation.tolist() == [4, 1, 4]
    assert infos["prob"].tolist() == [1.0, 1.0, 1.0]


def test_make_vec_takes_a_function_that_creates_an_env():
    envs = hundredfold.make_vec(lambda: gymnasium.make("Acrobot-v1"), 2, seed=0)
    observation, _ = envs.reset()
    assert observation.shape == (2, 6)


def test_continuous_action_space_has_the_bounds_of_the_env():
    envs = hundredfold.make_vec("Pendulum-v1", 2, backend="serial", seed=0)
    assert envs.single_action_space == gymnasium.make("Pendulum-v1").action_space
    envs.reset()
    envs.action_space.seed(1)
    for _ in range(3):
        observation, reward, *_ = envs.step(envs.action_space.sample())
    assert observation.shape == (2, 3)
    assert (reward < 0).all()
    with pytest.raises(ActionError, match=r"got 2\.5 in the action of env 1; Pendulum-v1 takes"):
        envs.step(np.array([[0.0], [2.5]], np.float32))
    envs.close()


def test_wrong_arguments_are_rejected_with_suggestions():
    with pytest.raises(SettingsError, match=r"no setting 'lenght'; did you mean length"):
        hundredfold.make_vec("corridor", 2, lenght=4)
    with pytest.raises(SettingsError, match=r"dvrp has no setting 'num_env'; did you mean num_envs"):
        hundredfold.make_vec("dvrp", num_env=2)
    with pytest.raises(SettingsError, match=r"no setting 'zzz'; known names: length, max_episode_steps\.$"):
        hundredfold.make_vec("corridor", 2, zzz=4)
    with pytest.raises(SettingsError, match=r"did you mean cartpole"):
        hundredfold.make_vec("cartpol", 2)
    with pytest.raises(SettingsError, match=r"no backend called 'seriall'; did you mean serial"):
        hundredfold.make_vec("corridor", 2, backend="seriall")
    with pytest.raises(SettingsError, match="num_envs must be at least 1, got 0"):
        hundredfold.make_vec("corridor", 0)
    with pytest.raises(SettingsError, match="takes one integer as seed"):
        hundredfold.make_vec("corridor", 2).reset(seed=[1, 2])
    with pytest.raises(SettingsError, match="takes no options"):
        hundredfold.make_vec("corridor", 2).reset(options={"reset_mask": [True, False]})
    with pytest.raises(SettingsError, match=r"cannot create FrozenLake-v1.*slippery"):
        hundredfold.make_vec("FrozenLake-v1", 2, slippery=False)


# --- envs of runs


def played_by_hand(run, episodes, seed):
    """Returns of the first episodes of as many envs, whose actions are those of the run's policy."""
    policy = hundredfold.load(run)
    envs = hundredfold.make_vec(run=run, num_envs=episodes, backend="in_process")
    returns, running = np.zeros(episodes), np.ones(episodes, bool)
    observation, infos = envs.reset(seed=seed)
    while running.any():
        actions = policy.act(observation, mask=infos["action_mask"])
        observation, reward, terminated, truncated, infos = envs.step(actions)
        returns += np.where(running, reward, 0.0)
        running &= ~(terminated | truncated)
    return returns


def test_the_env_of_a_run_gives_its_policy_the_inputs_it_was_trained_on(tmp_path):
    settings = {"num_customers": 6, "acceptance_hint": True, "mask_mode": "threshold", "lns_iterations": 0}
    run = hundredfold.train(
        "dvrp", epochs=2, num_envs=4, acceptance_refit_interval=24, save_dir=tmp_path, report=False, **settings
    )
    evaluated = hundredfold.evaluate(run.path, episodes=5, seed=11, backend="in_process")
    env_seed = int(rng.spawn(rng.seed_key(11), EVALUATION_STREAM))
    assert_array_equal(played_by_hand(run.path, 5, env_seed), evaluated.returns)
    envs = hundredfold.make_vec(run=run.path, num_envs=5, checkpoint="last")
    hints = envs.reset(seed=11)[0]["acceptance_hint"]
    assert (np.delete(hints, NO_CHANGE, axis=1) < 1.0).any()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"acceptance_hint": True}, "acceptance_hint=True"),
        ({"observation": "offers"}, "observation=offers"),
        ({"mask_mode": "soft"}, "mask_mode=soft"),
        ({"acceptance_hint": True, "mask_mode": "threshold"}, "acceptance_hint=True, mask_mode=threshold"),
    ],
)
def test_inputs_without_a_belief_model_are_refused(settings, named):
    for make in (partial(hundredfold.make_vec, "dvrp", 2), partial(gymnasium.make, "hundredfold/DVRP-v0")):
        with pytest.raises(SettingsError, match=rf"{named} of dvrp come from the belief model.*make_vec\(run=RUN\)"):
            make(**settings)
    hundredfold.make_vec("dvrp", 2, mask_mode="privileged")


def test_an_env_or_a_run_is_needed_and_not_both(tmp_path):
    with pytest.raises(SettingsError, match="neither env nor run"):
        hundredfold.make_vec(num_envs=2)
    with pytest.raises(SettingsError, match="both run and cartpole"):
        hundredfold.make_vec("cartpole", run=tmp_path)
    with pytest.raises(SettingsError, match="both run and num_customers"):
        hundredfold.make_vec(run=tmp_path, num_customers=3)


def test_a_run_on_a_function_takes_the_function_again(tmp_path):
    def make_env():
        return gymnasium.make("CartPole-v1")

    run = hundredfold.train(
        make_env, steps=64, num_envs=2, num_steps=16, backend="in_process", save_dir=tmp_path, report=False
    )
    envs = hundredfold.make_vec(make_env, 3, run=run.path, backend="in_process")
    assert envs.reset(seed=1)[0].shape == (3, 4)
    with pytest.raises(SettingsError, match="trained on a Python function"):
        hundredfold.make_vec(run=run.path)
