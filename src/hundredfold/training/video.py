"""Videos of a policy: frames of whole episodes from an env of their own, as MP4 and GIF.

Third-party envs draw themselves (`render_mode="rgb_array"`), built-in ones have renderings. The env
is separate from those of training, so recording changes no result.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import gymnasium
import numpy as np

from hundredfold.algorithms.policies import BatchActor
from hundredfold.core import rng
from hundredfold.core.batch import Array, EnvSpec
from hundredfold.core.errors import EnvError, MissingExtraError, SettingsError, describe_exception, is_installed
from hundredfold.core.files import replace_file
from hundredfold.core.protocols import EnvFactory, SharedParams
from hundredfold.envs.batch_env import ArrayBatchEnv
from hundredfold.envs.gymnasium_env import GymnasiumBatchEnv
from hundredfold.envs.gymnasium_factory import GymnasiumFactory
from hundredfold.envs.rendering import LastStep, make_rendering
from hundredfold.training.evaluate import EVALUATION_STREAM, Actor

RGB_ARRAY: Final = "rgb_array"
DEFAULT_FPS: Final = 30
# GIFs show fewer and smaller frames: they grow much faster than MP4 files.
GIF_FPS: Final = 15
GIF_WIDTH: Final = 480
# Many envs draw with pygame, which would look for a screen and a sound card.
WITHOUT_DISPLAY: Final = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}


@dataclass(frozen=True, slots=True)
class Video:
    """Frames of whole episodes.

    Args:
        frames: Each (height, width, 3) uint8; every state of an episode, its last one included.
        fps: Frames per second.
        returns: Return of every episode.
    """

    frames: list[Array]
    fps: int
    returns: list[float]

    def write(self, stem: str | Path) -> tuple[Path, Path]:
        """Write `stem`.mp4 and `stem`.gif, replacing older files; returns both paths.

        Args:
            stem: Path without suffix; missing folders are created.
        """
        require_video()
        import imageio.v3 as iio

        stem = Path(stem)
        stem.parent.mkdir(parents=True, exist_ok=True)
        mp4, gif = (stem.with_name(f"{stem.name}{suffix}") for suffix in (".mp4", ".gif"))
        # The codec needs even sizes.
        height, width = (size // 2 * 2 for size in self.frames[0].shape[:2])
        frames = np.stack([frame[:height, :width] for frame in self.frames])
        _replace(mp4, lambda path: iio.imwrite(path, frames, plugin="FFMPEG", fps=self.fps, macro_block_size=2))
        every = max(1, -(-self.fps // GIF_FPS))
        small = [_resized(frame) for frame in self.frames[::every]]
        milliseconds = round(1000 * every / self.fps)
        _replace(gif, lambda path: iio.imwrite(path, small, plugin="pillow", duration=milliseconds, loop=0))
        return mp4, gif


def require_video() -> None:
    """Raise MissingExtraError if the packages that write videos are not installed."""
    for module, package in (("imageio", "imageio"), ("imageio_ffmpeg", "imageio-ffmpeg")):
        if not is_installed(module):
            raise MissingExtraError(package, "video", "writing a video")


def record_video(
    name: str,
    make_envs: EnvFactory,
    make_actor: Callable[[EnvSpec], Actor],
    *,
    episodes: int,
    seed: int,
    max_steps: int,
    shared_params: SharedParams | None = None,
) -> Video:
    """Play whole episodes of a policy in one env and keep a frame of every state.

    Args:
        name: Name of the env.
        make_envs: Env factory.
        make_actor: Makes the policy for the spec of the env.
        episodes: Number of episodes.
        seed: Seed of the episodes.
        max_steps: Steps after which an episode is truncated.
        shared_params: Parameters of the run's belief model.
    """
    for variable, value in WITHOUT_DISPLAY.items():
        os.environ.setdefault(variable, value)
    if isinstance(make_envs, GymnasiumFactory):
        make_envs = replace(make_envs, keywords={**make_envs.keywords, "render_mode": RGB_ARRAY})
    env: Any = make_envs(np.arange(1))
    try:
        if isinstance(env, GymnasiumBatchEnv):
            env.envs[0] = recorder = FrameRecorder(env.envs[0], name)
            source: FrameRecorder | BuiltinFrames = recorder
        else:
            source = BuiltinFrames(name, env)
        if shared_params is not None:
            env.set_shared_params(shared_params)
        return _play(env, source, make_actor(env.spec), episodes, seed, max_steps)
    finally:
        if hasattr(env, "close"):
            env.close()


def _play(
    env: ArrayBatchEnv, source: FrameRecorder | BuiltinFrames, act: Actor, episodes: int, seed: int, max_steps: int
) -> Video:
    key = rng.seed_key(int(rng.spawn(rng.seed_key(seed), EVALUATION_STREAM)))
    frames: list[Array] = []
    returns: list[float] = []
    for episode in range(episodes):
        # Every episode starts from its own seed, so that one that is cut off leaves no trace in the next.
        out = env.reset(int(rng.spawn(key, episode)))
        if isinstance(act, BatchActor):
            act.reset()
        source.start()
        total, ended, steps = 0.0, False, 0
        while not ended and steps < max_steps:
            action = act(out)
            out = env.step(action)
            total += float(out.reward[0])
            ended = bool(out.ended[0])
            steps += 1
            source.after_step(LastStep(int(action[0]) if np.ndim(action) == 1 else None, total), ended)
        frames += source.frames
        returns.append(total)
    return Video(frames, source.fps, returns)


class FrameRecorder(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Keeps the frames of the current episode of a third-party env.

    Frames are taken inside the env: the batch around it starts the next episode in the step that
    ends one.

    Args:
        env: An env made with `render_mode="rgb_array"`.
        name: Name of the env, for messages.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], name: str) -> None:
        super().__init__(env)
        if env.render_mode != RGB_ARRAY:
            raise SettingsError(
                f"{name} was made with render_mode={env.render_mode!r}; for a video the function that makes it must "
                f"pass render_mode={RGB_ARRAY!r}."
            )
        self.name = name
        self.fps = int(env.metadata.get("render_fps") or DEFAULT_FPS)
        self.frames: list[Array] = []

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        result = self.env.step(action)
        self.frames.append(self._frame())
        return result

    def start(self) -> None:
        """An episode has started."""
        self.frames = [self._frame()]

    def after_step(self, last: LastStep, ended: bool) -> None:
        """The batch has made a step."""

    def _frame(self) -> Array:
        try:
            frame: Any = self.env.render()
        except Exception as error:  # often a package for drawing that is not installed
            raise EnvError(f"render() of {self.name} failed: {describe_exception(error)}") from error
        if isinstance(frame, list):  # `rgb_array_list` and some wrappers
            frame = frame[-1] if frame else None
        if not isinstance(frame, np.ndarray) or frame.ndim != 3 or frame.shape[2] != 3:
            shape = getattr(frame, "shape", type(frame).__name__)
            raise EnvError(f"render() of {self.name} returned {shape}; a video needs an image (height, width, 3).")
        return np.asarray(frame, np.uint8)


class BuiltinFrames:
    """Draws the states of a built-in env; the last one of an episode cannot be drawn, as the next has started."""

    def __init__(self, name: str, env: ArrayBatchEnv) -> None:
        self.rendering = make_rendering(name, env)
        self.fps = self.rendering.fps
        self.frames: list[Array] = []

    def start(self) -> None:
        """An episode has started."""
        self.frames = [self.rendering.image(LastStep())]

    def after_step(self, last: LastStep, ended: bool) -> None:
        """The batch has made a step."""
        if not ended:
            self.frames.append(self.rendering.image(last))


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file under a temporary name and rename it, so that no half-written file is left under its name."""
    temporary = path.with_name(f".{path.stem}.part{path.suffix}")
    try:
        write(temporary)
        replace_file(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _resized(frame: Array) -> Array:
    """The frame, scaled down to the width of a GIF."""
    from PIL import Image

    height, width = frame.shape[:2]
    if width <= GIF_WIDTH:
        return frame
    size = (GIF_WIDTH, max(1, round(height * GIF_WIDTH / width)))
    return np.asarray(Image.fromarray(frame).resize(size, Image.Resampling.LANCZOS))
