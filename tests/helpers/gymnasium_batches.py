"""Batches of third-party envs, for tests of `GymnasiumBatchEnv`."""

import numpy as np

from hundredfold.envs.gymnasium_env import GymnasiumBatchEnv


def make_batch(make_env, num_envs=4):
    return GymnasiumBatchEnv(np.arange(num_envs), make_env)
