"""A small valid Gymnasium env, the base of all others."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces


class DiceEnv(gymnasium.Env):
    """Rolls a die every step; a six terminates the episode, `max_steps` truncate it."""

    observation_space: spaces.Space = spaces.Box(0, 1000, (2,), np.float32)
    action_space: spaces.Space = spaces.Discrete(3)
    terminates_randomly = True
    max_steps = 8

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.step_count = 0
        self.total = int(self.np_random.integers(5))
        return self.observation(), self.info()

    def step(self, action):
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        roll = int(self.np_random.integers(1, 7))
        self.step_count += 1
        self.total += roll + self.action_total(action)
        terminated = self.terminates_randomly and roll == 6
        truncated = self.step_count >= self.max_steps and not terminated
        return self.observation(), self.reward(roll), terminated, truncated, self.info()

    def observation(self):
        return np.array([self.step_count, self.total], np.float32)

    def action_total(self, action):
        return int(np.sum(action))

    def info(self):
        return {"total": self.total}

    def reward(self, roll):
        return float(roll)
