"""Built-in envs through `gymnasium.make` with a render mode: equal seeds give equal pictures."""

import gymnasium
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hundredfold  # noqa: F401 registers the envs
from hundredfold.envs.registry import ENVS

IDS = [entry.gymnasium_id for entry in ENVS.values()]


def frames(env_id, mode, steps, **settings):
    """Pictures of an episode with random allowed actions, the first one included."""
    env = gymnasium.make(env_id, render_mode=mode, disable_env_checker=True, **settings)
    env.reset(seed=3)
    env.action_space.seed(5)
    shown = [env.render()]
    for _ in range(steps):
        mask = env.unwrapped.action_masks().astype(np.int8)
        env.step(env.action_space.sample(mask))
        shown.append(env.render())
    env.close()
    return shown


@pytest.mark.parametrize("env_id", IDS)
def test_every_built_in_env_draws_the_same_images_for_the_same_seed(env_id):
    first, second = (frames(env_id, "rgb_array", 2) for _ in range(2))
    assert first[0].dtype == np.uint8
    assert first[0].ndim == 3
    assert first[0].shape[2] == 3
    for one, other in zip(first, second, strict=True):
        assert_array_equal(one, other)
    assert any((one != first[0]).any() for one in first[1:])


def test_the_text_of_cage2_names_hosts_access_and_actions():
    *_, text = frames("hundredfold/CAGE2-v0", "ansi", 3, red="b_line")
    lines = text.splitlines()
    assert lines[0].startswith("step 3 of 100: ")
    assert lines[1].startswith("blue: ")
    assert lines[2].startswith("red: ExploitRemoteService User")
    assert next(line for line in lines if line.startswith("User0")).split()[1:3] == ["red:", "privileged"]


def test_the_text_of_dvrp_shows_the_call_and_the_driving_minutes():
    start, *_, text = frames("hundredfold/DVRP-v0", "ansi", 4)
    assert start.startswith("call 1 of 30\ndriving 0 min")
    assert text.startswith("call 5 of 30\ndriving ")
    assert "pickup" in text


def test_after_the_last_step_the_picture_before_it_remains():
    shown = frames("hundredfold/CAGE2-v0", "ansi", 5, horizons=(5,))
    assert shown[-1] == shown[-2]
    assert shown[-1].startswith("step 4 of 5")


def test_an_unknown_render_mode_is_a_type_error_that_names_the_known_ones():
    from hundredfold.interop.gymnasium import BuiltinEnv

    with pytest.raises(TypeError, match="rgb_array and ansi"):
        BuiltinEnv("cage2", render_mode="depth_array")


def test_without_a_render_mode_nothing_is_drawn():
    env = gymnasium.make("hundredfold/CAGE2-v0", disable_env_checker=True)
    env.reset(seed=0)
    assert env.unwrapped.render() is None
