"""A small PPO learner for tests that collect through Ray actors."""

import torch

from hundredfold.algorithms.actor_critic import NetworkSettings
from hundredfold.algorithms.ppo import PPO, PPOSettings
from hundredfold.rollout.rollout_buffer import RolloutSettings

NUM_STEPS = 12


def make_learner(spec, interval=1, num_envs=7):
    """A learner that updates once in `interval` epochs of NUM_STEPS steps."""
    torch.set_num_threads(1)
    rollout = RolloutSettings(num_envs=num_envs, num_steps=NUM_STEPS, policy_update_interval=interval)
    return PPO.build(
        spec,
        settings=PPOSettings(),
        network=NetworkSettings(hidden_sizes=(16,)),
        rollout=rollout,
        num_updates=20,
        seed=3,
        device=torch.device("cpu"),
    )
