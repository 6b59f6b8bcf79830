"""No forbidden action in a million masked training steps.

The learners explore strongly: PPO with a large entropy bonus, DQN with an epsilon of one half. The
quick version takes 20,000 steps.
"""

from functools import partial

import numpy as np
import pytest
import torch

from hundredfold.algorithms.actor_critic import NetworkSettings
from hundredfold.algorithms.dqn import DQN, DQNSettings
from hundredfold.algorithms.ppo import PPO, PPOSettings
from hundredfold.backends import make_backend
from hundredfold.envs.corridor import LEFT, Corridor
from hundredfold.rollout.collector import Collector
from hundredfold.rollout.rollout_buffer import RolloutSettings

LEARNERS = {
    "ppo": partial(PPO.build, settings=PPOSettings(entropy_coefficient=1.0, update_epochs=1)),
    "dqn": partial(
        DQN,
        settings=DQNSettings(
            exploration_start=0.5, exploration_end=0.5, replay_size=50_000, train_frequency=1_000, gradient_steps=4
        ),
    ),
}

LENGTHS = pytest.mark.parametrize(
    ("num_envs", "epochs"),
    [(200, 1), pytest.param(1_000, 10, marks=pytest.mark.slow)],
    ids=["20 thousand", "one million"],
)
NUM_STEPS = 100


class CountingBackend:
    """Counts observations at the wall and left actions before the backend checks the actions."""

    def __init__(self, num_envs):
        self.backend = make_backend("in_process", Corridor, num_envs)
        self.steps = self.at_wall = self.lefts = self.forbidden = 0

    def __getattr__(self, name):
        return getattr(self.backend, name)

    def recv(self):
        batch = self.backend.recv()
        self.cells = batch.observation["cell"][:, 0].copy()
        return batch

    def send(self, actions, env_ids=None):
        went_left = np.asarray(actions) == LEFT
        self.steps += len(went_left)
        self.at_wall += int(np.sum(self.cells == 0))
        self.lefts += int(np.sum(went_left))
        self.forbidden += int(np.sum(went_left & (self.cells == 0)))
        self.backend.send(actions, env_ids)

    def check(self, steps):
        assert self.steps == steps
        assert self.forbidden == 0
        # The mask mattered often, and the policy did explore left where it was allowed.
        assert self.at_wall > 0.05 * steps
        assert self.lefts > 0.05 * steps


@LENGTHS
@pytest.mark.parametrize("name", LEARNERS)
def test_learners_take_no_forbidden_action(name, num_envs, epochs):
    backend = CountingBackend(num_envs)
    learner = LEARNERS[name](
        backend.spec,
        network=NetworkSettings(hidden_sizes=(16,)),
        rollout=RolloutSettings(num_envs=num_envs, num_steps=NUM_STEPS),
        num_updates=epochs,
        seed=0,
        device=torch.device("cpu"),
    )
    collector = Collector(backend, seed=0)
    collector.start(0)
    for _ in range(epochs):
        collector.collect(learner.policy, learner.buffer, NUM_STEPS)
        assert learner.update()
    backend.check(num_envs * NUM_STEPS * epochs)


@LENGTHS
def test_maskable_ppo_takes_no_forbidden_action(num_envs, epochs):
    contrib = pytest.importorskip("sb3_contrib", reason="the extra [sb3] is missing")
    from hundredfold.interop.sb3.envs import BackendVecEnv

    backend = CountingBackend(num_envs)
    model = contrib.MaskablePPO(
        "MlpPolicy",
        BackendVecEnv(backend, seed=0),
        n_steps=NUM_STEPS,
        batch_size=10_000,
        n_epochs=1,
        ent_coef=1.0,
        seed=0,
        device="cpu",
    )
    model.learn(num_envs * NUM_STEPS * epochs)
    backend.check(num_envs * NUM_STEPS * epochs)
