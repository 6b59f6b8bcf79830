"""Envs with every observation and action space that is supported."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces

from helpers.third_party_envs.dice import DiceEnv


class DiscreteActionsWithStart(DiceEnv):
    """Actions 5, 6 and 7; the reward is the action."""

    action_space = spaces.Discrete(3, start=5)

    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, float(action), *rest


class MultiDiscreteActionsWithStart(DiceEnv):
    action_space = spaces.MultiDiscrete([2, 3], start=[1, -1])

    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, float(10 * action[0] + action[1]), *rest


class DiscreteObservation(DiceEnv):
    observation_space = spaces.Discrete(7)

    def observation(self):
        return self.total % 7


class MultiDiscreteObservation(DiceEnv):
    observation_space = spaces.MultiDiscrete([[4, 2], [9, 3]])

    def observation(self):
        return np.array([[self.total % 4, self.step_count % 2], [self.step_count, self.total % 3]])


class MultiBinaryObservation(DiceEnv):
    observation_space = spaces.MultiBinary((2, 3))

    def observation(self):
        return np.array([[self.total >> bit & 1, self.step_count >> bit & 1] for bit in range(3)]).T


class ImageObservation(DiceEnv):
    observation_space = spaces.Box(0, 255, (3, 2, 1), np.uint8)

    def observation(self):
        return (np.arange(6) * self.total % 256).astype(np.uint8).reshape(3, 2, 1)


class DictObservation(DiceEnv):
    """A flat Dict with one entry of every supported space."""

    observation_space = spaces.Dict(
        {
            "number": spaces.Discrete(7),
            "parts": spaces.MultiDiscrete([4, 9]),
            "bits": spaces.MultiBinary(3),
            "height": spaces.Box(-1.0, 1.0, (), np.float64),
        }
    )

    def observation(self):
        return {
            "number": self.total % 7,
            "parts": np.array([self.total % 4, self.step_count]),
            "bits": np.array([self.total >> bit & 1 for bit in range(3)], np.int8),
            "height": np.sin(self.total),
        }


class ObservationNamedReward(DiceEnv):
    """An observation called `reward`, which differs from the reward."""

    observation_space = spaces.Dict({"reward": spaces.Discrete(3), "step_count": spaces.Discrete(9)})

    def observation(self):
        return {"reward": self.total % 3, "step_count": self.step_count}

    def reward(self, roll):
        return -float(roll)


class NestedObservation(DiceEnv):
    """Dict and Tuple spaces within each other, and categories that do not start at 0."""

    observation_space: spaces.Space = spaces.Dict(
        {
            "arm": spaces.Dict(
                {"joints": spaces.Box(-1.0, 1.0, (2,), np.float32), "mode": spaces.Discrete(3, start=5)}
            ),
            "cameras": spaces.Tuple((spaces.Box(0, 255, (2, 2), np.uint8), spaces.MultiBinary(2))),
            "dice": spaces.MultiDiscrete([3, 3], start=[0, -1]),
        }
    )

    def observation(self):
        return {
            "arm": {"joints": np.full(2, np.sin(self.total), np.float32), "mode": 5 + self.total % 3},
            "cameras": (np.full((2, 2), self.total, np.uint8), np.array([self.total % 2, 1], np.int8)),
            "dice": np.array([self.total % 3, self.step_count % 3 - 1]),
        }


class TupleObservation(DiceEnv):
    observation_space = spaces.Tuple((spaces.Discrete(3), spaces.Box(-np.inf, np.inf, (1,), np.float32)))

    def observation(self):
        return self.total % 3, np.array([self.total], np.float32)


class DiscreteObservationWithStart(DiceEnv):
    observation_space = spaces.Discrete(3, start=1)

    def observation(self):
        return 1 + self.total % 3


class RecordsActions(DiceEnv):
    """Keeps its actions; those that its space does not contain raise."""

    def action_total(self, action):
        self.actions = [*getattr(self, "actions", []), action]
        return len(self.actions)


class MultiBinaryActions(RecordsActions):
    action_space = spaces.MultiBinary((2, 2))


class MatrixMultiDiscreteActions(RecordsActions):
    action_space = spaces.MultiDiscrete([[2, 2], [3, 4]], start=[[0, 1], [0, -2]])


class IntegerBoxActions(RecordsActions):
    action_space = spaces.Box(np.array([-1, 3]), np.array([1, 6]), dtype=np.int16)


class WideIntegerBoxActions(RecordsActions):
    action_space = spaces.Box(-1000, 1000, (2,), np.int32)


class TupleActions(RecordsActions):
    action_space = spaces.Tuple((spaces.Discrete(3, start=1), spaces.MultiBinary(2)))


class NestedActions(RecordsActions):
    action_space = spaces.Dict(
        {"move": spaces.Tuple((spaces.Discrete(2), spaces.Discrete(4))), "level": spaces.Box(0, 2, (2,), np.uint8)}
    )


class NestedBoxActions(RecordsActions):
    action_space = spaces.Dict(
        {"arm": spaces.Box(-1, 1, (2, 2), np.float32), "grip": spaces.Tuple((spaces.Box(0, 5, (), np.float64),))}
    )


class BoxActions(DiceEnv):
    """The reward is the sum of two continuous actions in [-1, 1]; others raise."""

    action_space: spaces.Space = spaces.Box(-1, 1, (2,), np.float32)

    def step(self, action):
        self.action_sum = float(np.sum(action, dtype=np.float64))
        return super().step(action)

    def observation(self):
        return np.abs(super().observation())

    def reward(self, roll):
        return self.action_sum


class UnevenBoxActions(BoxActions):
    """A float64 Box of shape (2, 2) with and without bounds."""

    action_space = spaces.Box(
        np.array([[-0.1, 2.0], [-np.inf, -np.inf]]), np.array([[0.1, np.inf], [-3.0, np.inf]]), dtype=np.float64
    )


class ScalarBoxAction(BoxActions):
    """A Box of shape ()."""

    action_space = spaces.Box(0, 10, (), np.float32)


class ImageGoalEnv(gymnasium.Env):
    """Grid navigation on an image: the bright square must reach the grey one."""

    CELLS, PIXELS = 4, 4
    MOVES = np.array([[0, 1], [0, -1], [1, 0], [-1, 0]])
    SIDE = CELLS * PIXELS
    observation_space: spaces.Space = spaces.Box(0, 255, (SIDE, SIDE, 1), np.uint8)
    action_space: spaces.Space = spaces.Discrete(4)
    max_steps = 20

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.step_count = 0
        cells = self.np_random.choice(self.CELLS**2, 2, replace=False)
        self.position, self.goal = np.array(np.unravel_index(cells, (self.CELLS,) * 2)).T
        return self.observation(), {}

    def step(self, action):
        self.step_count += 1
        self.position = np.clip(self.position + self.MOVES[action], 0, self.CELLS - 1)
        reached = bool((self.position == self.goal).all())
        truncated = not reached and self.step_count >= self.max_steps
        return self.observation(), 1.0 if reached else -0.05, reached, truncated, {}

    def observation(self):
        image = np.zeros((self.SIDE, self.SIDE, 1), np.uint8)
        for cell, brightness in ((self.goal, 100), (self.position, 255)):
            row, column = cell * self.PIXELS
            image[row : row + self.PIXELS, column : column + self.PIXELS] = brightness
        return image


class ImageAndVectorGoalEnv(ImageGoalEnv):
    """The goal is on a greyscale image of shape (height, width), the own position a vector."""

    observation_space = spaces.Dict(
        {"goal": spaces.Box(0, 255, (ImageGoalEnv.SIDE,) * 2, np.uint8), "position": spaces.Box(0, 3, (2,), np.float32)}
    )

    def observation(self):
        image = np.zeros((self.SIDE, self.SIDE), np.uint8)
        row, column = self.goal * self.PIXELS
        image[row : row + self.PIXELS, column : column + self.PIXELS] = 255
        return {"goal": image, "position": self.position.astype(np.float32)}
