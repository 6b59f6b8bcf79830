"""One training, a hundred faults: nothing is lost and the agent learns all the same."""

import os
import signal
import time

import gymnasium
import numpy as np
import pytest

import hundredfold
from hundredfold.training.checkpoint import load_checkpoint, saved_epochs
from hundredfold.training.run_folder import RunFolder

FAULT_CHANCE = 1e-3
# Each way of failing and its share; hanging is rare because every time costs the step's timeout.
WAYS, SHARES = ("raise", "nan", "kill", "hang"), (0.4, 0.35, 0.2, 0.05)


class FaultyCartPole(gymnasium.Wrapper):
    """CartPole-v1 that fails now and then, as the seed of its episode decides."""

    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))

    def reset(self, *, seed=None, options=None):
        self.luck = np.random.default_rng(seed)
        return super().reset(seed=seed, options=options)

    def step(self, action):
        seen, reward, over, cut, info = super().step(action)
        if self.luck.random() < FAULT_CHANCE:
            way = self.luck.choice(WAYS, p=SHARES)
            if way == "raise":
                raise ZeroDivisionError("by chance")
            if way == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            while way == "hang":
                time.sleep(60)
            seen = np.full_like(seen, np.nan)
        return seen, reward, over, cut, info


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["processes", "first_ready"])
@pytest.mark.filterwarnings("ignore")
def test_a_hundred_faults_lose_no_checkpoint_and_end_with_a_trained_agent(tmp_path, backend):
    run = hundredfold.train(
        FaultyCartPole,
        steps=180_000,
        num_envs=16,
        num_steps=64,
        backend=backend,
        step_timeout=3.0,
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
    """On CartPole-v1 as it should be."""
    env = gymnasium.make("CartPole-v1")
    returns = []
    for episode in range(episodes):
        seen, _ = env.reset(seed=episode)
        total, over = 0.0, False
        while not over:
            seen, reward, terminated, truncated, _ = env.step(int(policy.act(seen)))
            total += reward
            over = terminated or truncated
        returns.append(total)
    return np.mean(returns)
