"""PPO on Gymnasium's CartPole-v1 over five seeds."""

import pytest

import hundredfold

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.timeout(1800)]


def test_cartpole_is_solved_within_250_000_steps_on_at_least_four_of_five_seeds(tmp_path):
    mean_returns = {}
    for seed in range(5):
        run = hundredfold.train(
            "CartPole-v1", save_dir=tmp_path, name=f"seed-{seed}", seed=seed, num_envs=8, steps=250_000, eval_interval=0
        )
        # Deterministic policy of the last checkpoint, over 100 evaluation episodes.
        mean_returns[seed] = hundredfold.evaluate(run.path, checkpoint="last").summary()["mean"]
    print(mean_returns)
    assert sum(mean >= 475 for mean in mean_returns.values()) >= 4
