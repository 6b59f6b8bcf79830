"""The ecosystem's door: built-in envs as Gymnasium envs and vector envs."""

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from numpy.testing import assert_array_equal

import hundredfold
from hundredfold.core.errors import ActionError, SettingsError
from hundredfold.envs.registry import ENVS
from hundredfold.interop.gymnasium import BuiltinEnv

OUR_IDS = [entry.gymnasium_id for entry in ENVS.values()]


class Obliging(gymnasium.ActionWrapper):
    """Gymnasium's checker knows nothing of masks: a forbidden sample becomes an allowed one."""

    def action(self, action):
        mask = self.env.unwrapped.action_masks()
        return action if mask[action] else int(np.flatnonzero(mask)[0])


@pytest.mark.parametrize("env", ENVS)
def test_gymnasiums_own_checker_is_content(env):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # It remarks on wrappers, on infinite bounds (CartPole's own are) and on having no renderer.
        warnings.filterwarnings("ignore", message=".*(infinity|render|unwrapped).*")
        check_env(Obliging(BuiltinEnv(env)), skip_render_check=True)


@pytest.mark.parametrize("env_id", OUR_IDS)
def test_a_registered_env_steps_as_a_plain_env(env_id):
    env = gymnasium.make(env_id)
    seen, info = env.reset(seed=3)
    assert env.observation_space.contains(seen)
    for _ in range(200):
        mask = info.get("action_mask")
        action = env.action_space.sample(None if mask is None else mask.astype(np.int8))
        seen, reward, over, cut, info = env.step(action)
        assert env.observation_space.contains(seen)
        assert np.isfinite(reward)
        if over or cut:
            seen, info = env.reset()
            assert env.observation_space.contains(seen)


def test_the_single_env_tells_the_story_of_row_zero_of_a_batch():
    env = gymnasium.make("hundredfold/CartPole-v0")
    envs = gymnasium.make_vec("hundredfold/CartPole-v0", num_envs=5)
    one, _ = env.reset(seed=11)
    many, _ = envs.reset(seed=11)
    assert_array_equal(one, many[0])
    ended = 0
    for step in range(120):
        action = step % 3 % 2
        one, reward, over, cut, _ = env.step(action)
        many, rewards, overs, cuts, infos = envs.step(np.full(5, action))
        assert (reward, over, cut) == (rewards[0], overs[0], cuts[0])
        if over or cut:
            ended += 1
            assert_array_equal(one, infos["final_obs"][0])
            one, _ = env.reset()
        assert_array_equal(one, many[0])
    assert ended > 2


def test_a_reset_in_the_middle_of_an_episode_begins_another():
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
def test_a_vector_env_has_gymnasiums_shape(backend):
    envs = hundredfold.make_vec("cartpole", num_envs=6, backend=backend, seed=4)
    assert isinstance(envs, gymnasium.vector.VectorEnv)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    seen, infos = envs.reset()
    assert envs.observation_space.contains(seen)
    assert envs.single_observation_space == gymnasium.make("CartPole-v1").observation_space
    seen, rewards, over, cut, infos = envs.step(envs.action_space.sample())
    assert envs.observation_space.contains(seen)
    assert rewards.shape == over.shape == cut.shape == (6,)
    assert isinstance(infos, dict)
    envs.close()
    envs.close()


def test_resets_without_a_seed_go_on_from_the_one_that_was_given():
    def three_resets():
        envs = hundredfold.make_vec("cartpole", 2, seed=3)
        return [envs.reset()[0] for _ in range(3)]

    one, again = three_resets(), three_resets()
    assert_array_equal(one, again)
    assert not np.array_equal(one[0], one[1])
    assert not np.array_equal(one[1], one[2])


def test_a_single_env_refuses_what_its_mask_forbids():
    env = gymnasium.make("hundredfold/Corridor-v0", length=2)
    env.reset(seed=0)
    with pytest.raises(ActionError, match="mask forbids"):
        env.step(0)
    with pytest.raises(ActionError, match=r"has actions 0\.\.2"):
        env.step(17)


def test_the_largest_whole_numbers_survive_as_bounds():
    class Counter(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(
            np.iinfo(np.int64).min, np.iinfo(np.int64).max, (1,), np.int64
        )
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.zeros(1, np.int64), {}

    space = hundredfold.make_vec(Counter, 1).single_observation_space
    assert space.low[0] < 0 < space.high[0]


def test_arrays_are_copies_unless_live_views_are_asked_for():
    kept = hundredfold.make_vec("cartpole", 3, seed=1)
    live = hundredfold.make_vec("cartpole", 3, seed=1, copy=False)
    for envs, is_copy in ((kept, True), (live, False)):
        before, _ = envs.reset(seed=1)
        words = before.copy()
        envs.step(np.zeros(3, int))
        assert np.array_equal(before, words) == is_copy


def test_masks_and_true_state_come_along():
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


def test_final_infos_say_how_the_episode_ended():
    envs = hundredfold.make_vec("corridor", 2, length=2)
    envs.reset(seed=0)
    for _ in range(2):
        *_, over, _cut, infos = envs.step(np.ones(2, int))
    assert over.all()
    assert_array_equal(infos["final_info"]["reached_exit"], [True, True])
    assert infos["final_obs"][0]["cell"].shape == (1,)


def test_any_gymnasium_id_gets_a_vector_env_with_its_own_arguments():
    envs = hundredfold.make_vec("FrozenLake-v1", 3, seed=5, is_slippery=False)
    seen, infos = envs.reset()
    assert isinstance(envs.single_observation_space, gymnasium.spaces.Discrete)
    assert seen.tolist() == [0, 0, 0]
    seen, *_, infos = envs.step(np.array([1, 2, 1]))
    assert seen.tolist() == [4, 1, 4]
    assert infos["prob"].tolist() == [1.0, 1.0, 1.0]


def test_a_function_that_makes_an_env_works_too():
    envs = hundredfold.make_vec(lambda: gymnasium.make("Acrobot-v1"), 2, seed=0)
    seen, _ = envs.reset()
    assert seen.shape == (2, 6)


def test_continuous_actions_have_a_box_with_the_envs_own_bounds():
    envs = hundredfold.make_vec("Pendulum-v1", 2, backend="serial", seed=0)
    assert envs.single_action_space == gymnasium.make("Pendulum-v1").action_space
    envs.reset()
    envs.action_space.seed(1)
    for _ in range(3):
        seen, reward, *_ = envs.step(envs.action_space.sample())
    assert seen.shape == (2, 3)
    assert (reward < 0).all()
    with pytest.raises(ActionError, match=r"got 2\.5 in the action of env 1; Pendulum-v1 takes"):
        envs.step(np.array([[0.0], [2.5]], np.float32))
    envs.close()


def test_wrong_words_are_answered():
    with pytest.raises(SettingsError, match=r"no setting 'lenght'; did you mean length"):
        hundredfold.make_vec("corridor", 2, lenght=4)
    with pytest.raises(SettingsError, match=r"did you mean cartpole"):
        hundredfold.make_vec("cartpol", 2)
    with pytest.raises(SettingsError, match=r"no backend called 'seriall'; did you mean serial"):
        hundredfold.make_vec("corridor", 2, backend="seriall")
    with pytest.raises(SettingsError, match="num_envs must be at least 1, got 0"):
        hundredfold.make_vec("corridor", 0)
    with pytest.raises(SettingsError, match="pass one number"):
        hundredfold.make_vec("corridor", 2).reset(seed=[1, 2])
    with pytest.raises(SettingsError, match="without options"):
        hundredfold.make_vec("corridor", 2).reset(options={"reset_mask": [True, False]})
    with pytest.raises(SettingsError, match=r"cannot make FrozenLake-v1.*slippery"):
        hundredfold.make_vec("FrozenLake-v1", 2, slippery=False)
