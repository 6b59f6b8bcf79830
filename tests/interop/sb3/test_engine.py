"""`--engine sb3`: training with Stable-Baselines3, with the run folder of this package."""

import multiprocessing
import os
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

import hundredfold
from helpers import third_party_envs
from helpers.training_runs import read_metrics, run_python
from helpers.trajectories import record_trajectory
from hundredfold.algorithms.actor_critic import tensors
from hundredfold.backends import make_backend
from hundredfold.config.presets import preset_settings
from hundredfold.config.toml import with_overrides
from hundredfold.core.errors import SettingsError
from hundredfold.envs.cartpole import CartPole, CartPoleSettings
from hundredfold.envs.registry import callable_factory
from hundredfold.interop.flat_spaces import FlatSpaces
from hundredfold.training.checkpoint import saved_epochs
from hundredfold.training.run_folder import RunFolder

pytest.importorskip("stable_baselines3", reason="the extra [sb3] is missing")
pytest.importorskip("sb3_contrib", reason="the extra [sb3] is missing")

from hundredfold.interop.sb3 import engine
from hundredfold.interop.sb3.engine import ppo_kwargs, unsupported_notes
from hundredfold.interop.sb3.envs import BackendVecEnv
from hundredfold.interop.sb3.networks import copy_weights_back

SMALL = {
    "epochs": 4,
    "num_envs": 4,
    "num_steps": 16,
    "hidden_sizes": (16, 16),
    "eval_interval": 2,
    "eval_episodes": 4,
    "save_interval": 2,
}
SMALL_DQN = {
    **SMALL,
    "algo": "dqn",
    "learning_starts": 32,
    "train_frequency": 16,
    "gradient_steps": 4,
    "batch_size": 16,
    "replay_size": 400,
}

# A program in which Stable-Baselines3 cannot be imported.
WITHOUT_SB3 = """
import sys
sys.modules["stable_baselines3"] = sys.modules["sb3_contrib"] = None
import hundredfold
from hundredfold.cli.main import main
"""


def build(make_env, **overrides):
    """Components of the engine on third-party envs."""
    start = preset_settings("CartPole-v1", algo=overrides.get("algo", "ppo"))
    changes = {**SMALL, "steps": 0, "backend": "in_process", **overrides}
    settings = with_overrides(start, changes)
    return engine.build(settings, callable_factory(make_env))


def random_observations(components):
    """Observations of random episodes, the same as flat rows, and the masks."""
    spec = components.backend.spec
    trajectory = record_trajectory(components.backend, seed=5, steps=60)
    observation = {
        name: trajectory[f"observation/{name}"].reshape(-1, *array.shape) for name, array in spec.observation.items()
    }
    mask = trajectory["mask"].reshape(-1, spec.num_logits) if spec.has_mask else None
    return observation, FlatSpaces(spec).flatten(observation), mask


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    "make_env",
    [
        third_party_envs.DiceEnv,
        third_party_envs.MultiDiscreteObservation,
        third_party_envs.DictObservation,
        third_party_envs.MaskInObservation,
        third_party_envs.MultiDiscreteActions,
        third_party_envs.ImageGoalEnv,
        third_party_envs.ImageAndVectorGoalEnv,
        third_party_envs.UnevenBoxActions,
    ],
)
def test_sb3_ppo_and_the_network_agree_on_every_observation(make_env, shared):
    components = build(make_env, shared=shared, activation="tanh", normalise_observations=True)
    model, network = engine.make_model(components), components.learner.network
    observation, rows, mask = random_observations(components)
    model.policy.pi_features_extractor.update_stats(rows)
    model.policy.vf_features_extractor.update_stats(rows)
    copy_weights_back(model.policy, network)
    masks = {} if mask is None else {"action_masks": mask}
    with torch.no_grad():
        actions, values, log_probs = model.policy(torch.from_numpy(rows), **masks)
        inputs = tensors(observation, torch.device("cpu"))
        mask_tensor = None if mask is None else torch.from_numpy(mask)
        distribution = network.distribution(network.logits(inputs), mask_tensor)
        ours = distribution.log_prob(actions.reshape(len(rows), -1))
        assert_allclose(network.value(inputs), values.squeeze(-1), rtol=1e-4, atol=1e-5)
    assert_allclose(ours, log_probs, rtol=1e-4, atol=1e-5)
    assert ours.std() > 0
    predicted, _ = model.predict(rows, deterministic=True, **masks)
    env_actions = FlatSpaces(components.backend.spec).unflatten_action(predicted)
    expected = components.learner.policy.act_deterministic(observation, mask)
    assert_allclose(env_actions, expected, rtol=1e-5, atol=1e-5)
    components.close()


@pytest.mark.parametrize(
    "make_env", [third_party_envs.DiceEnv, third_party_envs.DictObservation, third_party_envs.ImageObservation]
)
def test_sb3_dqn_and_the_network_agree_on_every_observation(make_env):
    components = build(make_env, **SMALL_DQN)
    model, network = engine.make_model(components), components.learner.network
    observation, rows, _ = random_observations(components)
    copy_weights_back(model.policy, network)
    with torch.no_grad():
        theirs = model.policy.q_net(torch.from_numpy(rows))
        ours = network(tensors(observation, torch.device("cpu")))
        assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    predicted, _ = model.predict(rows, deterministic=True)
    assert_array_equal(components.learner.policy.act_deterministic(observation, None), predicted)
    components.close()


@pytest.mark.parametrize(("env", "settings"), [("cartpole", SMALL), ("corridor", SMALL), ("cartpole", SMALL_DQN)])
@pytest.mark.process
def test_sb3_run_has_metrics_evaluations_checkpoints_and_report(tmp_path, env, settings):
    run = hundredfold.train(env, engine="sb3", save_dir=tmp_path, name="run", **settings)
    assert run.finished
    assert [row["epoch"] for row in run.metrics] == [1, 2, 3, 4]
    assert [row["total_steps"] for row in run.metrics] == [64, 128, 192, 256]
    losses = {"q_loss", "exploration"} if settings is SMALL_DQN else {"policy_loss", "entropy"}
    assert losses <= run.metrics[-1].keys()
    assert {"samples_per_second", "time/collect", "return_mean"} <= run.metrics[-1].keys()
    assert [row["epoch"] for row in run.metrics if "eval/return_mean" in row] == [2, 4]
    assert (run.path / "report.html").stat().st_size > 10_000
    # Reading the run does not need Stable-Baselines3.
    code = f"""{WITHOUT_SB3}
assert main(["evaluate", {str(run.path)!r}, "--episodes", "4"]) == 0
assert main(["report", {str(run.path)!r}]) == 0
"""
    run_python(code, expect=0)


def test_sb3_training_is_reproducible(tmp_path):
    one, two = (
        hundredfold.train("cartpole", engine="sb3", save_dir=tmp_path, name=name, **SMALL) for name in ("one", "two")
    )
    assert read_metrics(one.path) == read_metrics(two.path)


def test_sb3_ppo_learns_the_corridor_with_masks(tmp_path):
    run = hundredfold.train("corridor", engine="sb3", steps=12_000, save_dir=tmp_path, name="run")
    trained = hundredfold.evaluate(run.path, episodes=16)
    random = hundredfold.evaluate("corridor", policy="random", episodes=16)
    assert trained.returns.mean() > random.returns.mean() + 0.1


@pytest.mark.parametrize(
    "make_env",
    [
        third_party_envs.MaskInObservation,
        third_party_envs.MaskInInfo,
        third_party_envs.MaskFromMethod,
        third_party_envs.MultiDiscreteActions,
    ],
)
def test_envs_that_reject_forbidden_actions_never_get_one(tmp_path, make_env):
    run = hundredfold.train(make_env, engine="sb3", backend="in_process", save_dir=tmp_path, name="run", **SMALL)
    assert run.finished


@pytest.mark.parametrize("env", ["corridor", third_party_envs.MaskInInfo])
def test_sb3_dqn_is_rejected_for_envs_with_masks(tmp_path, env):
    with pytest.raises(SettingsError, match=r"has action masks .* Use the default engine.* MaskablePPO"):
        hundredfold.train(env, engine="sb3", save_dir=tmp_path, **SMALL_DQN)
    assert not list(tmp_path.iterdir())


class FailsInSubprocess(third_party_envs.DiceEnv):
    """Cannot be created in a child process."""

    def __init__(self):
        if multiprocessing.parent_process() is not None:
            raise OSError("not in a child process")


@pytest.mark.process
def test_third_party_envs_run_in_subproc_vec_env():
    settings = with_overrides(preset_settings("CartPole-v1"), {**SMALL, "steps": 0, "num_envs": 2})
    components = engine.build(settings, None)
    try:
        assert components.env_runner_name == "SubprocVecEnv"
        assert components.settings.machine.backend == "processes"
        assert engine.vec_env_of(components).reset().shape == (2, 4)
    finally:
        components.close()


@pytest.mark.process
def test_envs_that_fail_in_subprocesses_run_in_dummy_vec_env_with_a_warning():
    with pytest.warns(UserWarning, match="SubprocVecEnv could not start .* DummyVecEnv"):
        components = build(FailsInSubprocess, backend="processes", num_envs=2)
    assert components.env_runner_name == "DummyVecEnv"
    assert components.settings.machine.backend == "in_process"
    assert engine.vec_env_of(components).reset().shape == (2, 2)
    components.close()


class SendsSigterm(third_party_envs.DiceEnv):
    """Sends SIGTERM to its own process in the middle of the third epoch."""

    steps_taken = 0

    def step(self, action):
        type(self).steps_taken += 1
        # Not in the process where the env is only profiled.
        if self.steps_taken == 2 * 4 * 16 + 20 and multiprocessing.parent_process() is None:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().step(action)


def test_sigterm_saves_the_last_complete_epoch_and_ends_the_run(tmp_path):
    SendsSigterm.steps_taken = 0
    settings = {**SMALL, "save_interval": 100, "eval_interval": 0, "backend": "in_process"}
    # A preset without automatic configuration, which would step the env before.
    settings["preset"] = "by-device"
    run = hundredfold.train(SendsSigterm, engine="sb3", save_dir=tmp_path, name="run", **settings)
    assert not run.finished
    assert saved_epochs(RunFolder.open(run.path)) == [2]
    with pytest.raises(SettingsError, match=r"--engine sb3.*cannot be resumed"):
        hundredfold.train(SendsSigterm, resume=run.path)


# Sends SIGINT to the process group, as a terminal does, from a worker in the third epoch.
CTRL_C = """
import os, signal
from helpers import third_party_envs

class PressesCtrlC(third_party_envs.DiceEnv):
    steps_taken = 0
    def step(self, action):
        self.steps_taken += 1
        if self.steps_taken == 40:
            os.killpg(os.getpgid(0), signal.SIGINT)
        return super().step(action)

if __name__ == "__main__":
    import hundredfold
    run = hundredfold.train(
        PressesCtrlC, engine="sb3", preset="by-device", backend="processes", num_envs=2,
        num_steps=16, epochs=100, eval_interval=0, save_dir={save_dir!r}, name="run", report=False,
    )
    assert type(run.finished) is bool and not run.finished
"""


@pytest.mark.process
def test_ctrl_c_that_also_reaches_the_workers_saves_the_run(tmp_path):
    run_python(
        CTRL_C.format(save_dir=str(tmp_path)),
        expect=0,
        start_new_session=True,
        env={"PYTHONPATH": str(Path(third_party_envs.__file__).parents[2])},
    )
    assert saved_epochs(RunFolder.open(tmp_path / "run")) == [2]


@pytest.mark.process
def test_without_the_extra_one_line_says_how_to_install_it(tmp_path):
    code = f"{WITHOUT_SB3}\nassert main(['train', 'corridor', '--engine', 'sb3']) == 1"
    done = run_python(code, expect=0, cwd=tmp_path)
    assert "pip install 'hundredfold[sb3]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_vec_env_reports_ends_of_episodes_as_sb3_expects():
    make_envs = partial(CartPole, settings=CartPoleSettings(max_episode_steps=12))
    envs = BackendVecEnv(make_backend("in_process", make_envs, 3), seed=1)
    envs.reset()
    ends = {True: 0, False: 0}
    for step in range(60):
        observations, rewards, dones, infos = envs.step(np.array([step % 2, 0, step % 3 == 0], int))
        batch = envs.batch
        assert_array_equal(dones, batch.terminated | batch.truncated)
        for row, info in enumerate(infos):
            assert bool(info) == dones[row]
            if info:
                truncated = info["TimeLimit.truncated"]
                ends[truncated] += 1
                assert truncated == batch.truncated[row]
                final = batch.final_observation["observation"][row]
                assert_array_equal(info["terminal_observation"], final)
                assert not np.array_equal(final, observations[row])
        assert rewards.dtype == np.float32
    assert min(ends.values()) > 2


def test_sb3_learning_rate_is_annealed_as_in_the_default_engine():
    settings = with_overrides(preset_settings("CartPole-v1"), {"epochs": 5, "steps": 0, "learning_rate": 1.0})
    schedule = ppo_kwargs(settings)["learning_rate"]
    rates = [schedule(1 - done / 5) for done in range(1, 6)]
    assert_allclose(rates, [1.0, 0.8, 0.6, 0.4, 0.2])


def test_unsupported_settings_are_noted_or_rejected():
    start = preset_settings("CartPole-v1")
    assert any("normalise_values" in note for note in unsupported_notes(start))
    supported = with_overrides(start, {"normalise_values": False, "normalise_advantages": False})
    assert unsupported_notes(supported) == []
    dqn = with_overrides(preset_settings("CartPole-v1", algo="dqn"), {"train_frequency": 12})
    assert any("updates come every 16 samples" in note for note in unsupported_notes(dqn))
    with pytest.raises(SettingsError, match="has one loss"):
        build(third_party_envs.DiceEnv, num_value_epochs=3, num_policy_epochs=2)
    with pytest.raises(SettingsError, match="dueling is not supported"):
        build(third_party_envs.DiceEnv, **SMALL_DQN, dueling=True)


def test_belief_model_is_trained_with_engine_sb3(tmp_path):
    run = hundredfold.train(
        "dvrp", engine="sb3", epochs=2, num_envs=8, num_customers=9, lns_iterations=1,
        acceptance_refit_interval=40, eval_interval=2, eval_episodes=4, save_dir=tmp_path,
        name="run", report=False,
    )  # fmt: skip
    assert run.metrics[-1]["acceptance/responses"] > 0
    assert "avg_cost" in run.metrics[-1]
    assert hundredfold.api.belief_params(run.path) is not None
