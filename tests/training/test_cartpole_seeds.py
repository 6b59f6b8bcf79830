"""Gymnasium's own CartPole-v1 through the adapter, on five seeds."""

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
        # The last checkpoint's best actions, over 100 episodes that training never saw.
        solved[seed] = hundredfold.evaluate(run.path, checkpoint="last").summary()["mean"]
    print(solved)
    assert sum(mean >= 475 for mean in solved.values()) >= 4
