"""Atari games of the Arcade Learning Environment, with the usual preprocessing of frames."""

from __future__ import annotations

from typing import Any, Final

import gymnasium
import numpy as np
from gymnasium import spaces
from PIL import Image

from hundredfold.core.batch import Array
from hundredfold.core.errors import MissingExtraError, is_installed

SIDE: Final = 84
FRAME_SKIP: Final = 4
NUM_FRAMES: Final = 4
MAX_NOOPS: Final = 30


def register_atari() -> None:
    """Register the ids `ALE/...` with Gymnasium."""
    if not is_installed("ale_py"):
        raise MissingExtraError("ale-py", "atari", "an Atari game")
    import ale_py

    gymnasium.register_envs(ale_py)


class AtariFrames(gymnasium.Wrapper[Array, int, Array, int]):
    """The last four of every fourth frames, in grey and 84 x 84 pixels (Mnih et al. 2015).

    Every action is repeated for four frames, and the brighter of the last two counts, because sprites flicker. An
    episode begins with up to 30 steps without an action. As Machado et al. (2018) recommend, an episode is a whole
    game, not one life, and actions stick with the probability of the env. Rewards are the scores of the game.

    Args:
        env: A game that was made with `frameskip=1`.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.ale: Any = getattr(env.unwrapped, "ale")  # noqa: B009 (Gymnasium's Env does not declare it)
        screen = self.ale.getScreenDims()
        self.screens = np.zeros((2, *screen), np.uint8)
        self.frames = np.zeros((NUM_FRAMES, SIDE, SIDE), np.uint8)
        self.observation_space = spaces.Box(0, 255, self.frames.shape, np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        _, info = self.env.reset(seed=seed, options=options)
        for _ in range(int(self.unwrapped.np_random.integers(1, MAX_NOOPS + 1))):
            _, _, terminated, truncated, info = self.env.step(0)
            if terminated or truncated:
                _, info = self.env.reset()
        self.ale.getScreenGrayscale(self.screens[0])
        self.screens[1] = 0
        self.frames[:] = self._resized()
        return self.frames.copy(), info

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        total, terminated, truncated = 0.0, False, False
        info: dict[str, Any] = {}
        for number in range(FRAME_SKIP):
            _, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
            if number >= FRAME_SKIP - 2:
                self.ale.getScreenGrayscale(self.screens[number % 2])
        self.frames[:-1] = self.frames[1:]
        self.frames[-1] = self._resized()
        return self.frames.copy(), total, terminated, truncated, info

    def _resized(self) -> Array:
        """The brighter of the two screens, averaged over the area of every pixel."""
        brighter = Image.fromarray(self.screens.max(axis=0))
        return np.asarray(brighter.resize((SIDE, SIDE), Image.Resampling.BOX))
