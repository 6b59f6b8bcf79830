"""Small batch envs with features that no built-in env has."""

from __future__ import annotations

import numpy as np

from hundredfold.core import rng
from hundredfold.core.batch import ArraySpec, EnvSpec
from hundredfold.envs.batch_env import ArrayBatchEnv

SIDE = 8


class Spotlight(ArrayBatchEnv):
    """Move a lamp (two continuous actions) to the bright pixel of an image.

    Observations are the image, `SIDE` x `SIDE` bytes, and the lamp's position. The reward is minus
    the distance. Episodes take 5 steps, or end when the lamp is within half a pixel.
    """

    def __init__(self, env_ids):
        spec = EnvSpec(
            name="spotlight",
            observation={
                "stage": ArraySpec((SIDE, SIDE, 1), "uint8", 0, 255),
                "lamp": ArraySpec((2,), "float32", 0, SIDE - 1),
            },
            continuous_action=ArraySpec((2,), "float32", -3.0, 3.0),
        )
        super().__init__(spec, env_ids)
        self.steps = np.zeros(self.num_envs, np.int64)
        self.target = np.zeros((self.num_envs, 2), np.int64)
        self.lamp = np.zeros((self.num_envs, 2), np.float32)

    def start(self):
        self._start_rows(np.ones(self.num_envs, bool))
        self._write_observations(self.out.observation)

    def step(self, actions):
        out = self.out
        assert actions.dtype == np.float32
        assert np.abs(actions).max() <= 3.0
        self.steps += 1
        self.lamp[:] = np.clip(self.lamp + actions, 0, SIDE - 1)
        distance = np.abs(self.lamp - self.target).max(axis=1)
        out.reward[:] = -distance / SIDE
        out.terminated[:] = distance < 0.5
        out.truncated[:] = (self.steps >= 5) & ~out.terminated
        self._write_observations(out.final_observation)
        self.episodes[out.ended] += 1
        self._start_rows(out.ended)
        self._write_observations(out.observation)
        return out

    def state_arrays(self):
        return {"steps": self.steps, "target": self.target, "lamp": self.lamp}

    def _start_rows(self, rows):
        keys = rng.spawn(self.env_keys[rows], self.episodes[rows])[:, None]
        self.target[rows] = rng.integers(keys, np.arange(2), SIDE)
        self.lamp[rows] = rng.uniforms(keys, np.arange(2, 4)) * (SIDE - 1)
        self.steps[rows] = 0

    def _write_observations(self, observation):
        observation["stage"][...] = 0
        observation["stage"][np.arange(self.num_envs), self.target[:, 0], self.target[:, 1]] = 255
        observation["lamp"][...] = self.lamp
