"""Videos: frames of whole episodes, equal for equal seeds, recorded beside a training that they do not change."""

import json

import gymnasium
import imageio.v3 as iio
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import hundredfold
from hundredfold.core.errors import EnvError, MissingExtraError, SettingsError
from hundredfold.envs.registry import ENVS
from hundredfold.training import video
from hundredfold.training.checkpoint import load_checkpoint
from hundredfold.training.run_folder import RunFolder

TINY = {"num_envs": 2, "num_steps": 8, "epochs": 2, "eval_episodes": 2, "backend": "in_process", "report": False}


class Squares(gymnasium.Env):
    """Three steps; frame k of an episode has the brightness 10 k, so that frames can be counted."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode=None, picture=True):
        self.render_mode, self.picture = render_mode, picture

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), 1.0, self.steps == 3, False, {}

    def render(self):
        if self.picture == "fails":
            raise gymnasium.error.DependencyNotInstalled("no pencil")
        return np.full((31, 45, 3), 10 * self.steps, np.uint8) if self.picture else None


def test_a_video_has_every_state_of_an_episode_and_none_of_the_next():
    recorded = hundredfold.record_video(
        "CartPole-v1", policy="random", make_env=lambda: Squares("rgb_array"), episodes=2
    )
    assert [int(frame[0, 0, 0]) for frame in recorded.frames] == [0, 10, 20, 30] * 2
    assert recorded.returns == [3.0, 3.0]
    assert recorded.fps == 10


def test_equal_seeds_give_equal_frames_and_files(tmp_path):
    first, second, other = (hundredfold.record_video("CartPole-v1", policy="random", seed=seed) for seed in (1, 1, 2))
    assert len(first.frames) == len(second.frames) == int(first.returns[0]) + 1
    for one, same in zip(first.frames, second.frames, strict=True):
        assert_array_equal(one, same)
    assert len(other.frames) != len(first.frames) or (other.frames[0] != first.frames[0]).any()
    for one, same in zip(first.write(tmp_path / "first"), second.write(tmp_path / "second"), strict=True):
        assert one.read_bytes() == same.read_bytes()


def test_files_have_the_frames_of_the_video(tmp_path):
    mp4, gif = hundredfold.record_video("CartPole-v1", policy="random", make_env=lambda: Squares("rgb_array")).write(
        str(tmp_path / "squares")
    )
    assert (mp4.name, gif.name) == ("squares.mp4", "squares.gif")
    # Odd sizes are cut to even ones; the codec changes colours a little.
    shown = iio.imread(mp4, plugin="FFMPEG")
    assert shown.shape == (4, 30, 44, 3)
    assert np.abs(shown.mean(axis=(1, 2, 3)) - [0, 10, 20, 30]).max() < 6
    assert iio.imread(gif).shape[:3] == (4, 31, 45)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["squares.gif", "squares.mp4"]


@pytest.mark.parametrize("env", [*ENVS, "Acrobot-v1"])
def test_built_in_envs_and_gymnasiums_own_are_recorded(env):
    recorded = hundredfold.record_video(env, policy="random", max_steps=3)
    assert 2 <= len(recorded.frames) <= 4
    assert recorded.frames[0].dtype == np.uint8
    assert recorded.frames[0].std() > 0
    assert any((frame != recorded.frames[0]).any() for frame in recorded.frames[1:])


def test_an_env_without_pictures_is_an_error_that_says_what_to_do():
    with pytest.raises(SettingsError, match="render_mode='rgb_array'"):
        hundredfold.record_video("CartPole-v1", policy="random", make_env=Squares)
    with pytest.raises(EnvError, match="returned NoneType; a video needs an image"):
        hundredfold.record_video("CartPole-v1", policy="random", make_env=lambda: Squares("rgb_array", picture=False))
    with pytest.raises(EnvError, match=r"render\(\) of CartPole-v1 failed: DependencyNotInstalled: no pencil"):
        hundredfold.record_video("CartPole-v1", policy="random", make_env=lambda: Squares("rgb_array", picture="fails"))


def test_without_the_extra_the_message_names_it(monkeypatch):
    monkeypatch.setattr(video, "is_installed", lambda module: False)
    with pytest.raises(MissingExtraError, match=r"hundredfold\[video\]"):
        video.require_video()


def test_videos_during_a_training_change_nothing_else(tmp_path):
    runs = [
        hundredfold.train("CartPole-v1", save_dir=tmp_path, name=name, **TINY, **options)
        for name, options in (("plain", {}), ("filmed", {"video_interval": 1}))
    ]
    plain, filmed = ([_results(row) for row in run.metrics] for run in runs)
    assert plain == filmed
    states = [load_checkpoint(RunFolder.open(run.path), "last").parts for run in runs]
    assert states[0].keys() == states[1].keys()
    for part, arrays in states[0].items():
        for name, array in arrays.items():
            assert_array_equal(array, states[1][part][name], err_msg=f"{part} {name}")
    assert not (tmp_path / "plain" / "videos").exists()
    names = sorted(path.name for path in (tmp_path / "filmed" / "videos").iterdir())
    assert names == ["epoch000001.gif", "epoch000001.mp4", "epoch000002.gif", "epoch000002.mp4"]
    events = EventAccumulator(str(tmp_path / "filmed"))
    events.Reload()
    assert [image.step for image in events.Images("episode")] == [16, 32]
    assert events.Images("episode")[0].encoded_image_string.startswith(b"GIF8")
    page = hundredfold.api.write_run_report(RunFolder.open(runs[1].path)).read_text("utf-8")
    assert page.count("<video controls") == 2


def _results(row):
    """Metrics that do not depend on the clock."""
    return json.dumps({key: value for key, value in row.items() if not key.startswith(("time/", "samples_", "wall_"))})


def test_a_training_goes_on_when_its_env_cannot_be_drawn(tmp_path, capsys):
    run = hundredfold.train(Squares, save_dir=tmp_path, name="run", quiet=False, **TINY, video_interval=1)
    assert run.finished
    captured = capsys.readouterr()
    assert "no videos are recorded" in captured.out + captured.err
    assert not (tmp_path / "run" / "videos").exists()
