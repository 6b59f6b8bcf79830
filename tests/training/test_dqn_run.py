"""DQN training runs: bit-exact resume, evaluation, policy export and metrics."""

import signal
import warnings

import numpy as np
import pytest

import hundredfold
from helpers.processes import run_forked
from helpers.training_runs import KILLED_RUN, assert_same_run
from hundredfold.config.presets import preset_settings
from hundredfold.config.toml import with_overrides
from hundredfold.core.errors import SettingsError

pytestmark = pytest.mark.process

SMALL = {
    "epochs": 6,
    "num_envs": 4,
    "num_steps": 32,
    "eval_interval": 2,
    "eval_episodes": 4,
    "learning_starts": 64,
    "train_frequency": 32,
    "gradient_steps": 8,
    "batch_size": 16,
    "replay_size": 400,
    "save_interval": 3,
}


@pytest.mark.parametrize("env", ["corridor", "cage2"])
@pytest.mark.parametrize("moment", ["after saving", "two epochs later"])
def test_resume_after_sigkill_is_bit_exact_with_a_saved_replay_buffer(tmp_path, env, moment):
    settings = {**SMALL, "algo": "dqn"}
    whole = hundredfold.train(env, save_dir=tmp_path, name="whole", **settings)
    code = KILLED_RUN.format(env=env, save_dir=str(tmp_path), settings=settings, moment=moment)
    run_forked(code, expect=-signal.SIGKILL)
    resumed = hundredfold.train(resume=tmp_path / "killed")
    assert_same_run(whole.path, resumed.path)


def test_resume_without_a_saved_replay_buffer_warns(tmp_path):
    settings = {**SMALL, "algo": "dqn", "save_replay": False}
    code = KILLED_RUN.format(env="corridor", save_dir=str(tmp_path), settings=settings, moment="after saving")
    run_forked(code, expect=-signal.SIGKILL)
    with pytest.warns(UserWarning, match="have no replay"):
        resumed = hundredfold.train(resume=tmp_path / "killed")
    assert resumed.finished
    assert resumed.metrics[-1]["gradient_steps"] > 0


def test_a_dqn_run_can_be_evaluated_loaded_and_exported(tmp_path):
    run = hundredfold.train("corridor", algo="dqn", steps=6_000, seed=1, save_dir=tmp_path, name="run")
    trained = hundredfold.evaluate(run.path, episodes=16)
    random = hundredfold.evaluate("corridor", policy="random", episodes=16)
    assert trained.returns.mean() > random.returns.mean()
    policy = run.policy()
    exported = hundredfold.load(hundredfold.api.export_policy_folder(run.path, tmp_path / "exported"))
    observation = {name: array.empty(5) for name, array in policy.spec.observation.items()}
    mask = np.ones((5, policy.spec.num_logits), bool) if policy.spec.has_mask else None
    assert (policy.act(observation, mask) == exported.act(observation, mask)).all()
    assert (run.path / "report.html").stat().st_size > 10_000


def test_gradient_steps_during_collection_count_as_update_time(tmp_path):
    run = hundredfold.train("corridor", algo="dqn", save_dir=tmp_path, report=False, **SMALL)
    last = run.metrics[-1]
    assert last["time/update"] > 0
    assert last["time/collect"] >= 0
    assert {"q_loss", "q_value", "exploration", "replay_samples"} <= last.keys()


def test_settings_of_another_algorithm_are_rejected():
    with pytest.raises(SettingsError, match="clip_range is a setting of ppo"):
        with_overrides(preset_settings("cartpole", algo="dqn"), {"clip_range": 0.1})
    with pytest.raises(SettingsError, match="replay_size is a setting of dqn"):
        with_overrides(preset_settings("cartpole"), {"replay_size": 100})


def test_the_first_ready_backend_fills_the_replay_buffer(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = hundredfold.train(
            "CartPole-v1",
            algo="dqn",
            backend="first_ready",
            workers=2,
            batch_envs=1,
            save_dir=tmp_path,
            report=False,
            **SMALL,
        )
    assert run.finished
    assert run.metrics[-1]["replay_samples"] == 400
