"""Envs of other people's envs, for tests of the adapter."""

import numpy as np

from hundredfold.envs.gymnasium_env import GymnasiumBatchEnv


def batch_of(make_env, num_envs=4):
    return GymnasiumBatchEnv(np.arange(num_envs), make_env)
