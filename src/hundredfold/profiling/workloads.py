"""Envs whose cost is known: they wait, they compute, or they have much to say.

A step's reward is the seconds it was meant to take, so whoever plays these envs can tell how much
of the time they were at work, free of the luck of the draw. All of an episode is drawn when it
begins: a step costs what it says and next to nothing of its own.
"""

from __future__ import annotations

from time import sleep, thread_time
from typing import Any, ClassVar, Final

import gymnasium
import numpy as np
from gymnasium import spaces

from hundredfold.core.batch import FloatArray

EPISODE_STEPS: Final = 200

# What an env shows that has nothing to say: how much of its episode is over.
VIEWS: Final = np.repeat(np.linspace(0, 1, EPISODE_STEPS + 1, dtype=np.float32)[:, None], 8, axis=1)
VIEWS.setflags(write=False)

Outcome = tuple[Any, float, bool, bool, dict[str, Any]]


class KnownCost(gymnasium.Env[Any, Any]):
    """Plays episodes of a fixed length; a subclass says how long steps take and takes that long."""

    observation_space: spaces.Space[Any] = spaces.Box(-1.0, 1.0, (8,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(4)
    turn = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.turn = 0
        self.plan: list[float] = self.draw_seconds(EPISODE_STEPS).tolist()
        return self.look(), self.tell()

    def step(self, action: Any) -> Outcome:
        seconds = self.plan[self.turn]
        self.turn += 1
        self.spend(seconds)
        return self.look(), seconds, False, self.turn >= EPISODE_STEPS, self.tell()

    def draw_seconds(self, steps: int) -> FloatArray:
        """(steps,) how long each of them takes."""
        return np.zeros(steps)

    def spend(self, seconds: float) -> None:
        """Take that long."""

    def look(self) -> Any:
        return VIEWS[self.turn]

    def tell(self) -> dict[str, Any]:
        return {}


class Waiting(KnownCost):
    """Waits 10 ms on average, as for a simulator or a network: a core is hardly used.

    Lognormal: the slowest of 100 takes about 3.5 times as long as the average one.
    """

    mean_seconds: ClassVar[float] = 0.010
    sigma: ClassVar[float] = 0.55

    def draw_seconds(self, steps: int) -> FloatArray:
        location = np.log(self.mean_seconds) - self.sigma**2 / 2
        return self.np_random.lognormal(location, self.sigma, steps)

    def spend(self, seconds: float) -> None:
        sleep(seconds)


class WaitingLonger(Waiting):
    """Waits 50 ms: so few steps a second that waking up for them costs next to nothing."""

    mean_seconds = 0.050


class Computing(KnownCost):
    """Computes in pure Python for 1 ms on a core, in one step of ten for 5 ms."""

    usual_seconds: ClassVar[float] = 0.001
    long_seconds: ClassVar[float] = 0.005
    long_share: ClassVar[float] = 0.1

    def draw_seconds(self, steps: int) -> FloatArray:
        is_long = self.np_random.random(steps) < self.long_share
        return np.where(is_long, self.long_seconds, self.usual_seconds)

    def spend(self, seconds: float) -> None:
        # The thread's own clock: who is taken off the core has not worked meanwhile.
        until = thread_time() + seconds
        while thread_time() < until:
            pass


class Talkative(KnownCost):
    """Costs next to nothing, but shows a Dict of four parts and tells 5 kB of info in each step."""

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

    def look(self) -> Any:
        share = self.turn / EPISODE_STEPS
        return {
            "picture": np.full((16, 16), self.turn % 256, np.uint8),
            "vector": np.full(32, share, np.float32),
            "position": np.full(3, share),
            "phase": self.turn % 8,
        }

    def tell(self) -> dict[str, Any]:
        return {"turn": self.turn, "history": self.history, "names": self.names}
