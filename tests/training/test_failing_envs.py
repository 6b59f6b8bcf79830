"""Failing envs in a training: shown on the console, counted in the summary, heard in an evaluation."""

import re
from functools import partial

import numpy as np
import pytest

import hundredfold
from helpers import third_party_envs
from helpers.cases import backend_param
from helpers.ray_pool import shared_cluster
from hundredfold.backends import make_backend
from hundredfold.backends.settings import WorkerSettings
from hundredfold.core.errors import CheckpointError, EnvError
from hundredfold.envs.gymnasium_env import GymnasiumBatchEnv
from hundredfold.training import run as run_module
from hundredfold.training.checkpoint import load_checkpoint, save_checkpoint
from hundredfold.training.console import describe_run
from hundredfold.training.evaluate import evaluate
from hundredfold.training.run_folder import RunFolder

SMALL = {"num_envs": 4, "num_steps": 16, "epochs": 3, "eval_interval": 0, "report": False}


class FailsAtTimes(third_party_envs.DiceEnv):
    """Raises in every third episode or so."""

    def step(self, action):
        result = super().step(action)
        if self.step_count == 2 and self.total % 3 == 0:
            raise ZeroDivisionError("the env failed in step")
        return result


def train(make_env, tmp_path, **settings):
    # With this preset the env is not profiled.
    return hundredfold.train(make_env, preset="by-device", save_dir=tmp_path, quiet=False, **SMALL | settings)


@pytest.mark.parametrize("backend", [backend_param(kind) for kind in ("in_process", "processes", "ray")])
def test_the_first_failure_is_shown_with_its_traceback_and_then_their_number(tmp_path, backend, capfd):
    if backend == "ray":
        shared_cluster()
    run = train(FailsAtTimes, tmp_path, backend=backend, max_env_failures=1000, workers=2)
    text = capfd.readouterr().err
    failures = run.metrics[-1]["env_failures"]
    assert failures > 1
    assert text.count("warning: an env failed") == 1
    assert text.count("The env's own traceback is above") == 1
    assert "ZeroDivisionError: the env failed in step." in text.partition("warning: an env failed")[2]
    shown, _, counted = text.partition("warning: an env failed")
    assert 'raise ZeroDivisionError("the env failed in step")' in shown
    assert re.search(rf"epoch 3/3 .*  {failures} env failures", counted)
    assert f"env failures: {failures} ({failures} envs and 0 workers restarted)" in describe_run(run.path, run.metrics)


def test_failures_are_shown_within_an_epoch(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(run_module, "FAILURE_CHECK_SECONDS", 0.0)
    train(FailsAtTimes, tmp_path, backend="in_process", max_env_failures=1000)
    text = capfd.readouterr().err
    assert text.index("warning: an env failed") < text.index("epoch 1/3")


def test_a_run_without_failures_does_not_mention_them(tmp_path, capfd):
    run = train(third_party_envs.DiceEnv, tmp_path, backend="in_process")
    assert "env fail" not in capfd.readouterr().err
    assert "env fail" not in describe_run(run.path, run.metrics)


def test_failures_in_an_evaluation_are_reported():
    make_envs = partial(GymnasiumBatchEnv, make_env=FailsAtTimes)
    backend = make_backend("in_process", make_envs, 4, WorkerSettings(max_env_failures=1000))
    with pytest.warns(
        UserWarning, match=r"envs failed \d+ times during the evaluation.*ZeroDivisionError: the env failed in step\.$"
    ):
        evaluate(backend, lambda batch: np.zeros(len(batch), np.int64), 20, seed=1, max_steps=100)


class InterruptsLater(third_party_envs.RaisesKeyboardInterrupt):
    """Raises KeyboardInterrupt once it has played for a while."""

    def reset(self, *, seed=None, options=None):
        self.episodes = getattr(self, "episodes", -1) + 1
        result = super().reset(seed=seed, options=options)
        self.has_fault = self.episodes == 5
        return result


def test_a_keyboard_interrupt_without_a_signal_saves_and_names_an_env(tmp_path, capfd):
    with pytest.raises(EnvError, match="an env raised KeyboardInterrupt without a signal"):
        train(InterruptsLater, tmp_path, backend="in_process", epochs=30)
    assert "stopped after epoch 2/30" in capfd.readouterr().err


def test_weights_that_are_not_numbers_are_refused(tmp_path):
    run = hundredfold.train("corridor", save_dir=tmp_path, **SMALL)
    folder = RunFolder.open(run.path)
    checkpoint = load_checkpoint(folder)
    checkpoint.epoch += 1
    for array in checkpoint.parts["learner"].values():
        if array.dtype.kind == "f":
            array[...] = np.nan
    save_checkpoint(folder, checkpoint)
    with pytest.raises(CheckpointError, match=r"weight arrays of this checkpoint contain NaN.*earlier checkpoint"):
        hundredfold.evaluate(run.path, episodes=2, checkpoint="last")
    assert len(hundredfold.evaluate(run.path, episodes=2, checkpoint="3").returns) == 2
