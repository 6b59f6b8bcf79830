"""PPO on Gymnasium's Acrobot-v1, whose rewards come late, with automatic settings over five seeds."""

import pytest

import hundredfold

pytestmark = [pytest.mark.slow, pytest.mark.process, pytest.mark.timeout(3600)]


def test_acrobot_is_learned_within_60_000_steps_on_at_least_four_of_five_seeds(tmp_path):
    mean_returns = {}
    for seed in range(41, 46):
        run = hundredfold.train(
            "Acrobot-v1",
            save_dir=tmp_path,
            name=f"seed-{seed}",
            seed=seed,
            steps=60_000,
            num_envs=32,
            eval_interval=0,
            report=False,
        )
        # Deterministic policy of the last checkpoint, over 32 evaluation episodes.
        mean_returns[seed] = hundredfold.evaluate(run.path, checkpoint="last", episodes=32).summary()["mean"]
    print(mean_returns)
    assert sum(mean >= -120 for mean in mean_returns.values()) >= 4
