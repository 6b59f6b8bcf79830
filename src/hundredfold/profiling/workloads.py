"""Synthetic Gymnasium envs of known step cost: they wait, compute, or return large data.

The reward of a step is its intended duration in seconds, so a measurement can tell how much of the
time the envs were stepping, whatever durations were drawn. All durations of an episode are drawn at
its reset, so that a step costs its duration and almost nothing else.
"""

from __future__ import annotations

from time import sleep, thread_time
from typing import Any, ClassVar, Final

import gymnasium
import numpy as np
from gymnasium import spaces

from hundredfold.core.batch import FloatArray

EPISODE_STEPS: Final = 200

# Default observations: the fraction of the episode that is over.
OBSERVATIONS: Final = np.repeat(np.linspace(0, 1, EPISODE_STEPS + 1, dtype=np.float32)[:, None], 8, axis=1)
OBSERVATIONS.setflags(write=False)

StepResult = tuple[Any, float, bool, bool, dict[str, Any]]


class SyntheticEnv(gymnasium.Env[Any, Any]):
    """Episodes of a fixed length; subclasses define how long a step takes and what it returns."""

    observation_space: spaces.Space[Any] = spaces.Box(-1.0, 1.0, (8,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(4)
    num_steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.num_steps = 0
        self.durations: list[float] = self.draw_seconds(EPISODE_STEPS).tolist()
        return self.observation(), self.info()

    def step(self, action: Any) -> StepResult:
        seconds = self.durations[self.num_steps]
        self.num_steps += 1
        self.spend(seconds)
        truncated = self.num_steps >= EPISODE_STEPS
        return self.observation(), seconds, False, truncated, self.info()

    def draw_seconds(self, steps: int) -> FloatArray:
        """(steps,) durations of an episode's steps."""
        return np.zeros(steps)

    def spend(self, seconds: float) -> None:
        """Take this long."""

    def observation(self) -> Any:
        return OBSERVATIONS[self.num_steps]

    def info(self) -> dict[str, Any]:
        return {}


class WaitingEnv(SyntheticEnv):
    """Waits 10 ms on average, as for a simulator or a network, without using a core.

    Lognormal: the slowest of 100 steps takes about 3.5 times the mean.
    """

    mean_seconds: ClassVar[float] = 0.010
    sigma: ClassVar[float] = 0.55

    def draw_seconds(self, steps: int) -> FloatArray:
        location = np.log(self.mean_seconds) - self.sigma**2 / 2
        return self.np_random.lognormal(location, self.sigma, steps)

    def spend(self, seconds: float) -> None:
        sleep(seconds)


class SlowWaitingEnv(WaitingEnv):
    """Waits 50 ms: so few steps per second that wake-ups cost almost nothing."""

    mean_seconds = 0.050


class ComputingEnv(SyntheticEnv):
    """Computes in pure Python for 1 ms, in one step of ten for 5 ms."""

    usual_seconds: ClassVar[float] = 0.001
    long_seconds: ClassVar[float] = 0.005
    long_fraction: ClassVar[float] = 0.1

    def draw_seconds(self, steps: int) -> FloatArray:
        is_long = self.np_random.random(steps) < self.long_fraction
        return np.where(is_long, self.long_seconds, self.usual_seconds)

    def spend(self, seconds: float) -> None:
        # CPU time of the thread: time in which it was preempted does not count.
        until = thread_time() + seconds
        while thread_time() < until:
            pass


class LargeInfoEnv(SyntheticEnv):
    """Steps cost almost nothing, but return a Dict observation of four entries and 5 kB of info."""

    observation_space = spaces.Dict(
        {
            "picture": spaces.Box(0, 255, (16, 16), np.uint8),
            "vector": spaces.Box(-1.0, 1.0, (32,), np.float32),
            "position": spaces.Box(-1.0, 1.0, (3,), np.float64),
            "phase": spaces.Discrete(8),
        }
    )

    def __init__(self) -> None:
        self.history = np.arange(500, dtype=np.float64)  # 4 kB
        self.names = [f"sensor number {number}" for number in range(40)]  # 1 kB in all

    def observation(self) -> Any:
        fraction = self.num_steps / EPISODE_STEPS
        return {
            "picture": np.full((16, 16), self.num_steps % 256, np.uint8),
            "vector": np.full(32, fraction, np.float32),
            "position": np.full(3, fraction),
            "phase": self.num_steps % 8,
        }

    def info(self) -> dict[str, Any]:
        return {"num_steps": self.num_steps, "history": self.history, "names": self.names}
