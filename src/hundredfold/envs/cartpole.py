"""CartPole as a batch: the yardstick env, equal to Gymnasium's CartPole-v1 step by step.

The state is kept in double precision like Gymnasium's and shown in single precision. Start states
come from our streams, so episodes differ from Gymnasium's for the same seed; for the same start
state and actions they agree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from hundredfold.core.batch import Arrays, ArraySpec, EnvSpec, FloatArray, IntArray, StepBatch
from hundredfold.core.errors import SettingsError
from hundredfold.core.numba_kernels import kernel, spawn, uniform
from hundredfold.envs.batch_env import ArrayBatchEnv

GRAVITY = 9.8
POLE_MASS = 0.1
TOTAL_MASS = 1.0 + POLE_MASS
HALF_POLE = 0.5
POLE_MOMENT = POLE_MASS * HALF_POLE
FORCE = 10.0
SECONDS_PER_STEP = 0.02
MAX_POSITION = 2.4
MAX_ANGLE = 12 * 2 * math.pi / 360
START_SPREAD = 0.05

INFINITY = float("inf")
BOUNDS = (2 * MAX_POSITION, INFINITY, 2 * MAX_ANGLE, INFINITY)


@dataclass(frozen=True, slots=True, kw_only=True)
class CartPoleSettings:
    """CartPole's only choice."""

    max_episode_steps: int = 500
    """Steps after which an episode is cut off (truncated)."""

    def __post_init__(self) -> None:
        if self.max_episode_steps < 1:
            raise SettingsError(
                f"max_episode_steps must be at least 1, got {self.max_episode_steps}."
            )


class CartPole(ArrayBatchEnv):
    """Balance a pole on a cart by pushing it left (0) or right (1); every step pays 1."""

    def __init__(self, env_ids: IntArray, settings: CartPoleSettings | None = None) -> None:
        self.settings = settings or CartPoleSettings()
        spec = EnvSpec(
            name="cartpole",
            observation={
                "observation": ArraySpec((4,), low=tuple(-b for b in BOUNDS), high=BOUNDS)
            },
            action_nvec=(2,),
            # Position, speed, angle and turning speed in double precision: what the kernel steps.
            true_state={"physics": ArraySpec((4,), "float64")},
        )
        super().__init__(spec, env_ids)
        self.steps = np.zeros(self.num_envs, np.int64)

    def start(self) -> None:
        self.steps[:] = 0
        physics = self.out.true_state["physics"]
        start_episodes(physics, self.env_keys, self.episodes)
        self.out.observation["observation"][:] = physics

    def step(self, actions: IntArray) -> StepBatch:
        out = self.out
        step_carts(
            out.true_state["physics"],
            self.steps,
            self.env_keys,
            self.episodes,
            actions,
            self.settings.max_episode_steps,
            out.observation["observation"],
            out.final_observation["observation"],
            out.terminated,
            out.truncated,
        )
        out.reward[:] = 1.0
        return out

    def state_arrays(self) -> Arrays:
        return {"steps": self.steps}


@kernel
def draw_start(physics: FloatArray, row: Any, env_key: Any, episode: Any) -> None:
    """Put one cart near the upright rest."""
    key = spawn(env_key, episode)
    for part in range(4):
        physics[row, part] = (2.0 * uniform(key, np.uint64(part)) - 1.0) * START_SPREAD


@kernel
def start_episodes(physics: FloatArray, env_keys: Any, episodes: IntArray) -> None:
    """Put every cart near the upright rest."""
    for row in range(len(episodes)):
        draw_start(physics, row, env_keys[row], episodes[row])


@kernel
def step_carts(
    physics: FloatArray,
    steps: IntArray,
    env_keys: Any,
    episodes: IntArray,
    actions: IntArray,
    max_steps: int,
    observation: Any,
    final_observation: Any,
    terminated: Any,
    truncated: Any,
) -> None:
    """Push every cart once (explicit Euler, as Gymnasium does) and restart the ones that ended."""
    for row in range(len(steps)):
        position, speed, angle, turning = physics[row]
        push = FORCE if actions[row] == 1 else -FORCE
        sine, cosine = math.sin(angle), math.cos(angle)
        # Squares come first, as in Gymnasium: an upright pole is unstable, so a difference in the
        # last bit would grow to something visible within 400 steps.
        drive = (push + POLE_MOMENT * (turning * turning) * sine) / TOTAL_MASS
        turning_gain = (GRAVITY * sine - cosine * drive) / (
            HALF_POLE * (4.0 / 3.0 - POLE_MASS * (cosine * cosine) / TOTAL_MASS)
        )
        speed_gain = drive - POLE_MOMENT * turning_gain * cosine / TOTAL_MASS

        physics[row, 0] = position + SECONDS_PER_STEP * speed
        physics[row, 1] = speed + SECONDS_PER_STEP * speed_gain
        physics[row, 2] = angle + SECONDS_PER_STEP * turning
        physics[row, 3] = turning + SECONDS_PER_STEP * turning_gain
        steps[row] += 1

        fell = abs(physics[row, 0]) > MAX_POSITION or abs(physics[row, 2]) > MAX_ANGLE
        terminated[row] = fell
        truncated[row] = steps[row] >= max_steps
        if fell or truncated[row]:
            for part in range(4):
                final_observation[row, part] = physics[row, part]
            episodes[row] += 1
            steps[row] = 0
            draw_start(physics, row, env_keys[row], episodes[row])
        for part in range(4):
            observation[row, part] = physics[row, part]
