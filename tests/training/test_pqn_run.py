"""PQN training runs: bit-exact resume, backends, evaluation, export and settings."""

import signal
import warnings

import numpy as np
import pytest

import hundredfold
from helpers.processes import run_forked
from helpers.training_runs import KILLED_RUN, assert_same_run, read_metrics
from hundredfold.cli.sweep import DEFAULT_SEARCH
from hundredfold.config.presets import preset_settings
from hundredfold.config.toml import with_overrides
from hundredfold.core.errors import SettingsError
from hundredfold.training.estimate import estimate_run

pytestmark = pytest.mark.process

SMALL = {"epochs": 6, "num_envs": 4, "num_steps": 16, "eval_interval": 2, "eval_episodes": 4, "save_interval": 3}


@pytest.mark.parametrize("env", ["corridor", "cage2"])
@pytest.mark.parametrize("moment", ["after saving", "two epochs later"])
def test_resume_after_sigkill_is_bit_exact(tmp_path, env, moment):
    # Two epochs per update: the checkpoint of epoch 3 is in the middle of a rollout.
    settings = {**SMALL, "algo": "pqn", "policy_update_interval": 2}
    whole = hundredfold.train(env, save_dir=tmp_path, name="whole", report=False, **settings)
    code = KILLED_RUN.format(env=env, save_dir=str(tmp_path), settings=settings, moment=moment)
    run_forked(code, expect=-signal.SIGKILL)
    resumed = hundredfold.train(resume=tmp_path / "killed")
    assert_same_run(whole.path, resumed.path)


@pytest.mark.parametrize("env", ["corridor", "CartPole-v1"])
def test_worker_processes_train_the_same_weights(tmp_path, env):
    settings = {**SMALL, "algo": "pqn", "save_dir": tmp_path, "report": False}
    here = hundredfold.train(env, name="here", backend="in_process", **settings)
    there = hundredfold.train(env, name="there", backend="processes", workers=2, **settings)
    assert_same_run(here.path, there.path)
    assert any("q_loss" in row for row in read_metrics(here.path))


def test_a_pqn_run_can_be_evaluated_loaded_and_exported(tmp_path):
    run = hundredfold.train("corridor", algo="pqn", steps=12_000, seed=1, save_dir=tmp_path, name="run")
    trained = hundredfold.evaluate(run.path, episodes=16)
    random = hundredfold.evaluate("corridor", policy="random", episodes=16)
    assert trained.returns.mean() > random.returns.mean()
    policy = run.policy()
    exported = hundredfold.load(hundredfold.api.export_policy_folder(run.path, tmp_path / "exported"))
    cells = {"cell": np.arange(6)[:, None]}
    mask = np.ones((6, 3), bool)
    mask[0, 0] = False
    assert (policy.act(cells, mask) == exported.act(cells, mask)).all()
    assert (run.path / "report.html").stat().st_size > 10_000
    last = run.metrics[-1]
    assert {"q_loss", "q_value", "exploration", "gradient_steps"} <= last.keys()


def test_the_first_ready_backend_fills_rollouts(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = hundredfold.train(
            "CartPole-v1",
            algo="pqn",
            backend="first_ready",
            workers=2,
            batch_envs=1,
            save_dir=tmp_path,
            report=False,
            **SMALL,
        )
    assert run.finished
    assert run.metrics[-1]["gradient_steps"] == 6 * 2 * 4


def test_settings_of_another_algorithm_are_rejected():
    with pytest.raises(SettingsError, match="clip_range is a setting of ppo"):
        with_overrides(preset_settings("cartpole", algo="pqn"), {"clip_range": 0.1})
    with pytest.raises(SettingsError, match="q_lambda is a setting of pqn"):
        with_overrides(preset_settings("cartpole"), {"q_lambda": 0.5})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine": "rllib"}, "--engine rllib works with --algo ppo only"),
        ({"backend": "ray"}, "--backend ray works with --algo ppo only"),
        ({"memory": "gru"}, "--memory gru works with --algo ppo only"),
        ({"preset": "by-device"}, "by-device has no settings for pqn"),
    ],
)
def test_what_pqn_does_not_support_is_an_error(tmp_path, settings, message):
    if settings.get("engine"):
        pytest.importorskip("ray", reason="needs the extra [ray]")
    with pytest.raises(SettingsError, match=message):
        hundredfold.train("corridor", algo="pqn", epochs=1, save_dir=tmp_path, **settings)


def test_stable_baselines3_refuses_pqn(tmp_path):
    pytest.importorskip("stable_baselines3", reason="needs the extra [sb3]")
    with pytest.raises(SettingsError, match="Stable-Baselines3 has no PQN"):
        hundredfold.train("corridor", algo="pqn", engine="sb3", epochs=1, save_dir=tmp_path)


def test_an_estimate_counts_passes_and_minibatches():
    settings = with_overrides(preset_settings("corridor", algo="pqn"), {"update_epochs": 3, "num_minibatches": 5})
    estimate = estimate_run(settings, settings, measure=True)
    assert estimate.gradient_steps == 15
    assert estimate.timing.update > 0
    assert estimate.largest_num_envs > 1_000
    assert estimate.recommendations == []


def test_the_default_search_names_settings_of_pqn():
    settings = preset_settings("cartpole", algo="pqn")
    for name in DEFAULT_SEARCH["pqn"]:
        assert hasattr(settings.pqn, name)
