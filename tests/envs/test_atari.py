"""Atari games with the usual preprocessing."""

import gymnasium
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hundredfold
from hundredfold.algorithms.image_encoder import image_layout
from hundredfold.config.presets import preset_settings
from hundredfold.config.toml import with_overrides
from hundredfold.core.errors import MissingExtraError, SettingsError
from hundredfold.envs import atari
from hundredfold.envs.gymnasium_factory import GymnasiumFactory, GymnasiumSettings
from hundredfold.envs.registry import env_factory
from hundredfold.training.console import announce, describe_run

PONG = "ALE/Pong-v5"

pytest.importorskip("ale_py", reason="the extra [atari] is missing")


@pytest.fixture
def game():
    env = GymnasiumFactory(PONG, {}, atari=True)(np.arange(2))
    yield env
    env.close()


def test_observations_are_the_last_four_frames_in_grey(game):
    (spec,) = game.spec.observation.values()
    assert (spec.shape, spec.dtype, game.spec.action_nvec) == ((4, 84, 84), "uint8", (6,))
    assert image_layout(spec).channels == 4
    first = game.reset(3).observation["observation"].copy()
    assert_array_equal(first[:, 0], first[:, 3])
    assert len(np.unique(first)) > 2
    second = game.step(np.array([2, 3])).observation["observation"]
    assert_array_equal(second[:, :3], first[:, 1:])
    assert (second[:, 3] != first[:, 3]).any()


def test_an_action_is_repeated_for_four_frames_and_rewards_are_scores(game):
    game.reset(3)
    before = game.envs[0].ale.getEpisodeFrameNumber()
    assert 1 <= before <= atari.MAX_NOOPS
    rewards = [game.step(np.zeros(2, np.int64)).reward.copy() for _ in range(120)]
    assert game.envs[0].ale.getEpisodeFrameNumber() == before + 4 * 120
    assert {-1.0, 0.0} <= set(np.unique(rewards))


def test_the_same_seed_gives_the_same_game():
    envs = [GymnasiumFactory(PONG, {}, atari=True)(np.arange(1)) for _ in range(2)]
    for env in envs:
        env.reset(5)
    for action in (2, 2, 3, 5, 0, 1) * 4:
        one, other = (env.step(np.array([action])).observation["observation"] for env in envs)
        assert_array_equal(one, other)


def test_a_policy_trains_on_frames(tmp_path):
    settings = {"num_envs": 2, "num_steps": 8, "epochs": 1, "eval_interval": 0, "backend": "in_process"}
    run = hundredfold.train(PONG, atari=True, save_dir=tmp_path, preset="by-device", report=False, **settings)
    assert run.metrics[-1]["total_steps"] == 16
    envs = hundredfold.make_vec(PONG, num_envs=1, backend="in_process", atari=True)
    assert envs.single_observation_space.shape == (4, 84, 84)
    envs.close()


def test_the_evaluation_of_a_short_run_is_short_and_says_so(tmp_path, capsys):
    settings = {"num_envs": 2, "num_steps": 8, "epochs": 1, "backend": "in_process"}
    run = hundredfold.train(PONG, atari=True, save_dir=tmp_path, report=False, quiet=False, **settings)
    last = run.metrics[-1]
    assert (last["eval/episodes"], last["eval/truncated"], last["eval/episode_steps"]) == (2, 2, 8)
    printed = " ".join(capsys.readouterr().err.split())
    assert "--eval-steps 16: an evaluation takes no more steps than the training before it" in printed
    assert "without --atari" not in printed
    summary = describe_run(run.path, run.metrics)
    assert "2 of these episodes were truncated" in summary
    assert f"whole ones: hundredfold evaluate {run.path}" in summary


@pytest.mark.parametrize(("flag", "hints"), [(False, 1), (True, 0)])
def test_a_run_without_the_preprocessing_says_what_it_does(flag, hints, capsys):
    announce(with_overrides(preset_settings(PONG), {"atari": flag}), quiet=False)
    printed = " ".join(capsys.readouterr().err.split())
    assert printed.count("--atari repeats every action for 4 frames and shows the last 4 of them in grey") == hints


@pytest.mark.parametrize("name", ["Pong-v5", "pong", "PongNoFrameskip-v4", "PongDeterministic-v4", "ALE/Pong-v4"])
def test_other_ids_of_a_game_are_refused_with_the_one_it_has_here(name, monkeypatch):
    # Known only where ale_py was imported before.
    monkeypatch.delitem(gymnasium.registry, name, raising=False)
    with pytest.raises(SettingsError, match=f"no env called '{name}'.*hundredfold train ALE/Pong-v5 --atari"):
        env_factory(name, GymnasiumSettings())


def test_only_atari_games_have_this_preprocessing():
    with pytest.raises(SettingsError, match="begin with ALE/; CartPole-v1 is none"):
        env_factory("CartPole-v1", GymnasiumSettings(atari=True))


def test_without_the_extra_the_error_names_it(monkeypatch):
    monkeypatch.setattr(atari, "is_installed", lambda package: False)
    with pytest.raises(MissingExtraError, match=r"hundredfold\[atari\]"):
        env_factory(PONG, GymnasiumSettings())
