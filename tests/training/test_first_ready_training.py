"""Training on worker processes: the same run as ever, or one that waits for nobody."""

import signal

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hundredfold
from helpers.training_runs import checkpoint_arrays, read_metrics, run_python

SMALL = {"num_envs": 6, "num_steps": 16, "eval_interval": 2, "eval_episodes": 4, "report": False}

KILLED = """
import os, signal, hundredfold
from hundredfold.training import run as books

save = books.save_checkpoint
def save_then_die(folder, checkpoint):
    save(folder, checkpoint)
    os.kill(os.getpid(), signal.SIGKILL)
books.save_checkpoint = save_then_die

hundredfold.train({env!r}, epochs=6, save_interval=3, save_dir={save_dir!r}, name="killed",
                  backend="first_ready", quiet=True, **{settings!r})
"""


@pytest.mark.parametrize("env", ["corridor", "CartPole-v1"])
def test_worker_processes_train_the_very_same_policy(tmp_path, env):
    runs = [
        hundredfold.train(env, epochs=4, save_dir=tmp_path, name=name, backend=name, **SMALL)
        for name in ("in_process", "processes")
    ]
    one, other = (run.path for run in runs)
    assert read_metrics(one) == read_metrics(other)
    left, right = checkpoint_arrays(one), checkpoint_arrays(other)
    assert left.keys() == right.keys()
    for name, array in left.items():
        assert_array_equal(array, right[name], err_msg=name)


@pytest.mark.parametrize("backend", ["first_ready", "in_process"])
@pytest.mark.parametrize("env", ["corridor", "CartPole-v1"])
@pytest.mark.filterwarnings("ignore:.*cannot continue in the middle")
def test_a_killed_first_ready_run_goes_on_on_any_backend(tmp_path, env, backend):
    code = KILLED.format(env=env, save_dir=str(tmp_path), settings=SMALL)
    run_python(code, expect=-signal.SIGKILL)
    resumed = hundredfold.train(resume=tmp_path / "killed", backend=backend)
    assert resumed.finished
    told = read_metrics(resumed.path)
    assert [row["epoch"] for row in told] == list(range(1, 7))
    assert told[-1]["total_steps"] == 6 * SMALL["num_envs"] * SMALL["num_steps"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_waiting_for_nobody_learns_cartpole_as_well_as_waiting_for_all(tmp_path, seed):
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
        rewards = [row.get("return_mean", np.nan) for row in read_metrics(run.path)]
        scores[backend] = np.nanmean(rewards[-10:])
    assert scores["processes"] > 450
    assert scores["first_ready"] > 0.95 * scores["processes"]
