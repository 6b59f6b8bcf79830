"""A PPO learner and its collector on a small env."""

import torch

from hundredfold.algorithms.actor_critic import NetworkSettings
from hundredfold.algorithms.ppo import PPO
from hundredfold.backends import make_backend
from hundredfold.rollout.collector import Collector
from hundredfold.rollout.rollout_buffer import RolloutSettings

CPU = torch.device("cpu")


def make_ppo(env, settings, num_envs=16, num_steps=32, updates=40, network=None, seed=5):
    backend = make_backend("in_process", env, num_envs)
    learner = PPO.build(
        backend.spec,
        settings=settings,
        network=network or NetworkSettings(hidden_sizes=(32, 32)),
        rollout=RolloutSettings(num_envs=num_envs, num_steps=num_steps),
        num_updates=updates,
        seed=seed,
        device=CPU,
    )
    collector = Collector(backend, seed)
    collector.start(seed)
    return learner, collector
