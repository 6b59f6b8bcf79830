"""A million masked steps of a learning policy, and not one forbidden action."""

import numpy as np
import torch

from hundredfold.backends import make_backend
from hundredfold.experience.collect import Collector
from hundredfold.experience.rollout import RolloutSettings
from hundredfold.learners.networks import NetworkSettings
from hundredfold.learners.ppo import PPO, PPOSettings
from hundredfold.worlds.corridor import LEFT, Corridor


def test_no_forbidden_action_in_a_million_masked_steps():
    num_envs, num_steps, updates = 1000, 100, 10
    backend = make_backend("in_process", Corridor, num_envs)
    learner = PPO(
        backend.spec,
        # Rewarded for nothing but entropy, the policy keeps trying everything it may.
        settings=PPOSettings(entropy_coefficient=1.0, update_epochs=1),
        network=NetworkSettings(hidden=(16,)),
        rollout=RolloutSettings(num_envs=num_envs, num_steps=num_steps),
        num_updates=updates,
        seed=0,
        device=torch.device("cpu"),
    )
    collector = Collector(backend, seed=0)
    collector.start(0)
    at_the_wall = lefts_elsewhere = 0
    for _ in range(updates):
        # The backend's door refuses a forbidden action with an error.
        collector.collect(learner.policy, learner.experience, num_steps)
        cells = learner.experience.observation["cell"][:-1, :, 0]
        went_left = learner.experience.actions == LEFT
        assert not (went_left & (cells == 0)).any()
        at_the_wall += int(np.sum(cells == 0))
        lefts_elsewhere += int(np.sum(went_left))
        learner.update()
    assert num_envs * num_steps * updates == 1_000_000
    assert at_the_wall > 50_000
    assert lefts_elsewhere > 50_000
