"""A training with a hundred injected env faults keeps its checkpoints and still learns."""

import os
import signal
import threading

import gymnasium
import numpy as np
import pytest

import hundredfold
from helpers.hangs import announce_hang
from hundredfold.training.checkpoint import load_checkpoint, saved_epochs
from hundredfold.training.run_folder import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.usefixtures("only_hung_envs_time_out")]

FAULT_PROBABILITY = 1e-3
FAULTS, FAULT_WEIGHTS = ("raise", "nan", "kill", "hang"), (0.4, 0.35, 0.2, 0.05)


class FaultyCartPole(gymnasium.Wrapper):
    """CartPole-v1 with random faults, drawn from the seed of the episode."""

    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))

    def reset(self, *, seed=None, options=None):
        self.rng = np.random.default_rng(seed)
        return super().reset(seed=seed, options=options)

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        if self.rng.random() < FAULT_PROBABILITY:
            fault = self.rng.choice(FAULTS, p=FAULT_WEIGHTS)
            if fault == "raise":
                raise ZeroDivisionError("injected fault")
            if fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if fault == "hang":
                announce_hang()
                threading.Event().wait()
            observation = np.full_like(observation, np.nan)
        return observation, reward, terminated, truncated, info


@pytest.mark.parametrize("backend", ["processes", "first_ready"])
@pytest.mark.filterwarnings("ignore")
def test_a_run_with_100_env_faults_keeps_all_checkpoints_and_learns(tmp_path, backend):
    run = hundredfold.train(
        FaultyCartPole,
        steps=180_000,
        num_envs=16,
        num_steps=64,
        backend=backend,
        max_env_failures=1_000,
        eval_interval=0,
        save_interval=40,
        keep_last=100,
        save_dir=tmp_path,
        report=False,
    )
    assert run.finished
    last = run.metrics[-1]
    assert last["env_failures"] >= 100
    assert last["worker_restarts"] >= 10
    folder = RunFolder.open(run.path)
    epochs = saved_epochs(folder)
    assert epochs == [*range(40, last["epoch"], 40), last["epoch"]]
    for epoch in epochs:
        load_checkpoint(folder, str(epoch))
    assert mean_return(run.policy("last")) > 450


def mean_return(policy, episodes=20):
    """Mean return on CartPole-v1 without faults."""
    env = gymnasium.make("CartPole-v1")
    returns = []
    for episode in range(episodes):
        observation, _ = env.reset(seed=episode)
        total, ended = 0.0, False
        while not ended:
            observation, reward, terminated, truncated, _ = env.step(int(policy.act(observation)))
            total += reward
            ended = terminated or truncated
        returns.append(total)
    return np.mean(returns)
