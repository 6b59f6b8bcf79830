"""CartPole (Barto, Sutton and Anderson 1983) as a batch, equal to Gymnasium's CartPole-v1.

For the same start state and actions every step is the same as Gymnasium's, in double precision.
Start states come from `core.rng`, so the episodes of a seed differ from Gymnasium's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hundredfold.core.batch import Array, Arrays, ArraySpec, EnvSpec, FloatArray, IntArray, StepBatch
from hundredfold.core.bounds import AtLeastOne, check_bounds
from hundredfold.core.numba_kernels import kernel, spawn, uniform
from hundredfold.envs.batch_env import ArrayBatchEnv
from hundredfold.envs.rendering import BLUE, INK, ORANGE, SOFT, Canvas, LastStep

GRAVITY = 9.8
POLE_MASS = 0.1
TOTAL_MASS = 1.0 + POLE_MASS
HALF_POLE_LENGTH = 0.5
POLE_MASS_LENGTH = POLE_MASS * HALF_POLE_LENGTH
FORCE = 10.0
STEP_SECONDS = 0.02
MAX_POSITION = 2.4
MAX_ANGLE = 12 * 2 * math.pi / 360
START_RANGE = 0.05

INF = float("inf")
BOUNDS = (2 * MAX_POSITION, INF, 2 * MAX_ANGLE, INF)


@dataclass(frozen=True, slots=True, kw_only=True)
class CartPoleSettings:
    """Settings of CartPole."""

    max_episode_steps: AtLeastOne = 500
    """Steps after which an episode is truncated."""

    def __post_init__(self) -> None:
        check_bounds(self)


class CartPole(ArrayBatchEnv):
    """Balance a pole on a cart by pushing it left (0) or right (1); the reward is 1 per step."""

    def __init__(self, env_ids: IntArray, settings: CartPoleSettings | None = None) -> None:
        self.settings = settings or CartPoleSettings()
        spec = EnvSpec(
            name="cartpole",
            observation={"observation": ArraySpec((4,), low=tuple(-b for b in BOUNDS), high=BOUNDS)},
            action_nvec=(2,),
            # Position, velocity, angle and angular velocity in double precision.
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


class CartPoleRendering:
    """Cart, pole and track."""

    fps: ClassVar[int] = 50
    width: ClassVar[int] = 600
    height: ClassVar[int] = 300

    def __init__(self, env: CartPole) -> None:
        self.env = env

    def text(self, last: LastStep) -> str:
        position, _, angle, _ = self.env.out.true_state["physics"][0]
        place = round((position / MAX_POSITION + 1) * 20)
        cart = "/" if angle > 0.02 else "\\" if angle < -0.02 else "|"
        track = "".join(cart if column == place else "-" for column in range(41))
        return f"{track}\nstep {self.env.steps[0]}: position {position:+.2f} m, pole {math.degrees(angle):+.1f} degrees"

    def image(self, last: LastStep) -> Array:
        position, _, angle, _ = self.env.out.true_state["physics"][0]
        canvas = Canvas(self.width, self.height)
        metre = (self.width - 40) / (2 * MAX_POSITION)
        x, y = self.width / 2 + position * metre, self.height - 70
        canvas.line((0, y + 15), (self.width, y + 15), SOFT, 2)
        canvas.box((x - 35, y - 15), (70, 30), INK, INK)
        length = 2 * HALF_POLE_LENGTH * metre
        canvas.line((x, y - 12), (x + length * math.sin(angle), y - 12 - length * math.cos(angle)), ORANGE, 9)
        canvas.circle((x, y - 12), 5, BLUE)
        canvas.text((16, 14), f"step {self.env.steps[0]}", 16)
        return canvas.array()


@kernel
def draw_start(physics: FloatArray, row: Any, env_key: Any, episode: Any) -> None:
    """Draw a start state: each of the four entries uniform in -0.05 .. 0.05."""
    key = spawn(env_key, episode)
    for i in range(4):
        physics[row, i] = (2.0 * uniform(key, np.uint64(i)) - 1.0) * START_RANGE


@kernel
def start_episodes(physics: FloatArray, env_keys: Any, episodes: IntArray) -> None:
    """Draw a start state for every env."""
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
    """One explicit Euler step of every env, as in Gymnasium; ended episodes restart."""
    for row in range(len(steps)):
        position, velocity, angle, angular_velocity = physics[row]
        force = FORCE if actions[row] == 1 else -FORCE
        sine, cosine = math.sin(angle), math.cos(angle)
        # Squares are computed first, as in Gymnasium: an upright pole is unstable, so a difference
        # in the last bit would become visible within 400 steps.
        cart_term = (force + POLE_MASS_LENGTH * (angular_velocity * angular_velocity) * sine) / TOTAL_MASS
        angular_acceleration = (GRAVITY * sine - cosine * cart_term) / (
            HALF_POLE_LENGTH * (4.0 / 3.0 - POLE_MASS * (cosine * cosine) / TOTAL_MASS)
        )
        acceleration = cart_term - POLE_MASS_LENGTH * angular_acceleration * cosine / TOTAL_MASS

        physics[row, 0] = position + STEP_SECONDS * velocity
        physics[row, 1] = velocity + STEP_SECONDS * acceleration
        physics[row, 2] = angle + STEP_SECONDS * angular_velocity
        physics[row, 3] = angular_velocity + STEP_SECONDS * angular_acceleration
        steps[row] += 1

        fell = abs(physics[row, 0]) > MAX_POSITION or abs(physics[row, 2]) > MAX_ANGLE
        terminated[row] = fell
        truncated[row] = steps[row] >= max_steps
        if fell or truncated[row]:
            for i in range(4):
                final_observation[row, i] = physics[row, i]
            episodes[row] += 1
            steps[row] = 0
            draw_start(physics, row, env_keys[row], episodes[row])
        for i in range(4):
            observation[row, i] = physics[row, i]
