"""Gymnasium's own CartPole-v1 through the adapter, on five seeds."""

import pytest
import torch

from hundredfold.algorithms.actor_critic import NetworkSettings
from hundredfold.algorithms.dqn import DQN, DQNSettings
from hundredfold.backends import make_backend
from hundredfold.envs.gymnasium_env import GymnasiumFactory
from hundredfold.rollout.collector import Collector
from hundredfold.rollout.rollout_buffer import RolloutSettings
from hundredfold.training.evaluate import evaluate

NUM_ENVS, NUM_STEPS, EPOCHS = 8, 312, 20
# What Stable-Baselines3's DQN needs with the settings its zoo tuned for CartPole-v1: the median of
# five seeds, judged in the same way (5,000, 27,500, 35,000, 37,500 and 40,000 samples).
SAMPLES = 35_000


def samples_to_solve(seed):
    """Samples until the best actions balance 475 of 500 steps, over 100 episodes; None if never."""
    make_envs = GymnasiumFactory("CartPole-v1", {})
    backend = make_backend("in_process", make_envs, NUM_ENVS)
    judges = make_backend("in_process", make_envs, 25)
    learner = DQN(
        backend.spec,
        settings=DQNSettings(),
        network=NetworkSettings(hidden_sizes=(128, 128)),
        rollout=RolloutSettings(num_envs=NUM_ENVS, num_steps=NUM_STEPS),
        num_updates=EPOCHS,
        seed=seed,
        device=torch.device("cpu"),
    )
    collector = Collector(backend, seed)
    collector.start(seed)

    def act(batch):
        return learner.policy.act_deterministic(batch.observation, batch.mask)

    while learner.samples < SAMPLES:
        collector.collect(learner.policy, learner.buffer, NUM_STEPS)
        learner.update()
        if evaluate(judges, act, 100, seed=9999, max_steps=500).returns.mean() >= 475:
            return learner.samples
    return None


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_cartpole_is_solved_within_the_samples_of_stable_baselines_on_four_of_five_seeds():
    solved = {seed: samples_to_solve(seed) for seed in range(5)}
    print(solved)
    assert sum(samples is not None for samples in solved.values()) >= 4
