"""Batch envs that only tests know: small ones with what none of ours has."""

from __future__ import annotations

import numpy as np

from hundredfold.core import rng
from hundredfold.core.batch import ArraySpec, EnvSpec
from hundredfold.envs.batch_env import ArrayBatchEnv

SIDE = 8


class Spotlight(ArrayBatchEnv):
    """Push a lamp (two numbers) to where a picture shows the stage; it knows the lamp's place.

    The picture is `SIDE` x `SIDE` bytes with one bright pixel; what a step costs is the distance
    from the lamp to it. Episodes take 5 steps, or end when the lamp is within half a pixel.
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
        self._begin(np.ones(self.num_envs, bool))
        self._show(self.out.observation)

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
        self._show(out.final_observation)
        self.episodes[out.ended] += 1
        self._begin(out.ended)
        self._show(out.observation)
        return out

    def state_arrays(self):
        return {"steps": self.steps, "target": self.target, "lamp": self.lamp}

    def _begin(self, rows):
        keys = rng.spawn(self.env_keys[rows], self.episodes[rows])[:, None]
        self.target[rows] = rng.integers(keys, np.arange(2), SIDE)
        self.lamp[rows] = rng.uniforms(keys, np.arange(2, 4)) * (SIDE - 1)
        self.steps[rows] = 0

    def _show(self, seen):
        seen["stage"][...] = 0
        seen["stage"][np.arange(self.num_envs), self.target[:, 0], self.target[:, 1]] = 255
        seen["lamp"][...] = self.lamp
