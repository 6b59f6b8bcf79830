"""Gymnasium's own CartPole-v1 through the adapter, on five seeds."""

import numpy as np
import pytest

import hundredfold


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_cartpole_is_solved_within_250_000_steps_on_at_least_four_of_five_seeds(tmp_path):
    solved = {}
    for seed in range(5):
        run = hundredfold.train(
            "CartPole-v1",
            save_dir=tmp_path,
            name=f"seed-{seed}",
            seed=seed,
            num_envs=8,
            steps=250_000,
            eval_interval=0,
        )
        # Solved: a mean return of 475 over the last 100 training episodes, exploration included.
        returns = [row["avg_reward"] for row in run.metrics[-60:] if "avg_reward" in row]
        judged = hundredfold.evaluate(run.path, episodes=100, checkpoint="last").summary()
        solved[seed] = (np.mean(returns), judged["mean"])
    print(solved)
    assert sum(mean >= 475 for _, mean in solved.values()) >= 4
