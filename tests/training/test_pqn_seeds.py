"""PQN with the settings of `hundredfold train ENV --algo pqn` over five seeds."""

import pytest

import hundredfold

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

# Fixed, so that the result does not depend on how fast this machine steps the env.
SHAPE = {"num_steps": 16, "backend": "in_process", "threads": 1, "device": "cpu"}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("env", "num_envs", "target"), [("cartpole", 64, 475.0), ("CartPole-v1", 32, 475.0), ("Acrobot-v1", 32, -100.0)]
)
def test_pqn_solves_an_env_within_its_default_length(tmp_path, env, num_envs, target, seed):
    run = hundredfold.train(
        env, algo="pqn", num_envs=num_envs, seed=seed, stop_at=target, save_dir=tmp_path, report=False, **SHAPE
    )
    evaluations = {row["total_steps"]: row["eval/return_mean"] for row in run.metrics if "eval/return_mean" in row}
    print(env, seed, evaluations)
    assert max(evaluations.values()) >= target
