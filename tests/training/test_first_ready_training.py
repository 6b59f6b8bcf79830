"""Training on worker processes: bit-equal with `processes`, partial batches with `first_ready`."""

import signal

import numpy as np
import pytest

import hundredfold
from helpers.processes import run_forked
from helpers.training_runs import KILLED_RUN, assert_same_run, read_metrics

pytestmark = pytest.mark.process

SMALL = {"num_envs": 6, "num_steps": 16, "eval_interval": 2, "eval_episodes": 4}


@pytest.mark.parametrize("env", ["corridor", "CartPole-v1"])
def test_worker_processes_train_a_bit_equal_policy(tmp_path, env):
    runs = [
        hundredfold.train(env, epochs=4, save_dir=tmp_path, name=name, backend=name, report=False, **SMALL)
        for name in ("in_process", "processes")
    ]
    assert_same_run(*(run.path for run in runs))


@pytest.mark.parametrize("backend", ["first_ready", "in_process"])
@pytest.mark.parametrize("env", ["corridor", "CartPole-v1"])
@pytest.mark.filterwarnings("ignore:.*cannot continue in the middle")
def test_a_killed_first_ready_run_resumes_on_any_backend(tmp_path, env, backend):
    settings = {**SMALL, "epochs": 6, "save_interval": 3, "backend": "first_ready", "quiet": True}
    code = KILLED_RUN.format(env=env, save_dir=str(tmp_path), settings=settings, moment="after saving")
    run_forked(code, expect=-signal.SIGKILL)
    resumed = hundredfold.train(resume=tmp_path / "killed", backend=backend, report=False)
    assert resumed.finished
    metrics = read_metrics(resumed.path)
    assert [row["epoch"] for row in metrics] == list(range(1, 7))
    assert metrics[-1]["total_steps"] == 6 * SMALL["num_envs"] * SMALL["num_steps"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_first_ready_learns_cartpole_as_well_as_full_batches(tmp_path, seed):
    scores = {}
    for backend in ("processes", "first_ready"):
        run = hundredfold.train(
            "CartPole-v1",
            steps=150_000,
            num_envs=32,
            num_steps=64,
            eval_interval=0,
            seed=seed,
            backend=backend,
            save_dir=tmp_path,
            name=backend,
            report=False,
        )
        returns = [row.get("return_mean", np.nan) for row in read_metrics(run.path)]
        scores[backend] = np.nanmean(returns[-10:])
    assert scores["processes"] > 450
    assert scores["first_ready"] > 0.95 * scores["processes"]
