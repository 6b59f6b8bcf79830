"""`--engine sb3`: real Stable-Baselines3 on built-in envs, with our run folder around it."""

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
from hundredfold.interop.flat_spaces import Window
from hundredfold.training.checkpoint import saved_epochs
from hundredfold.training.run_folder import RunFolder

pytest.importorskip("stable_baselines3", reason="the extra [sb3] is missing")
pytest.importorskip("sb3_contrib", reason="the extra [sb3] is missing")

from hundredfold.interop.sb3 import engine
from hundredfold.interop.sb3.envs import BackendVecEnv
from hundredfold.interop.sb3.networks import bring_home
from hundredfold.interop.sb3.settings_map import notes_on, ppo_options

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

# Runs in which nothing of Stable-Baselines3 can be imported.
WITHOUT_SB3 = """
import sys
sys.modules["stable_baselines3"] = sys.modules["sb3_contrib"] = None
import hundredfold
from hundredfold.cli.main import main
"""


def parts_for(make_env, **overrides):
    """What the engine would train with, on envs of this kind."""
    start = preset_settings("CartPole-v1", algo=overrides.get("algo", "ppo"))
    wanted = {**SMALL, "steps": 0, "backend": "in_process", **overrides}
    settings = with_overrides(start, wanted)
    return engine.build(settings, callable_factory(make_env))


def random_rows(parts):
    """What these envs show in random episodes: by name, as flat rows, and the masks."""
    spec = parts.backend.spec
    trajectory = record_trajectory(parts.backend, seed=5, steps=60)
    seen = {
        name: trajectory[f"observation/{name}"].reshape(-1, *array.shape)
        for name, array in spec.observation.items()
    }
    mask = trajectory["mask"].reshape(-1, spec.num_logits) if spec.has_mask else None
    return seen, Window(spec).seen(seen), mask


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
def test_its_ppo_and_our_network_agree_on_every_observation(make_env, shared):
    parts = parts_for(make_env, shared=shared, activation="tanh", normalise_observations=True)
    model, network = engine.make_model(parts), parts.learner.network
    seen, rows, mask = random_rows(parts)
    model.policy.pi_features_extractor.update_stats(rows)
    model.policy.vf_features_extractor.update_stats(rows)
    bring_home(model.policy, network)
    masks = {} if mask is None else {"action_masks": mask}
    with torch.no_grad():
        drawn, values, log_probs = model.policy(torch.from_numpy(rows), **masks)
        mine = tensors(seen, torch.device("cpu"))
        allowed = None if mask is None else torch.from_numpy(mask)
        options = network.distribution(network.logits(mine), allowed)
        found = options.log_prob(drawn.reshape(len(rows), -1))
        assert_allclose(network.value(mine), values.squeeze(-1), rtol=1e-4, atol=1e-5)
    assert_allclose(found, log_probs, rtol=1e-4, atol=1e-5)
    assert found.std() > 0
    # What it would play is what our policy plays.
    best, _ = model.predict(rows, deterministic=True, **masks)
    played = Window(parts.backend.spec).played(best)
    assert_allclose(
        played, parts.learner.policy.act_deterministic(seen, mask), rtol=1e-5, atol=1e-5
    )
    parts.close()


@pytest.mark.parametrize(
    "make_env",
    [third_party_envs.DiceEnv, third_party_envs.DictObservation, third_party_envs.ImageObservation],
)
def test_its_dqn_and_our_network_agree_on_every_observation(make_env):
    parts = parts_for(make_env, **SMALL_DQN)
    model, network = engine.make_model(parts), parts.learner.network
    seen, rows, _ = random_rows(parts)
    bring_home(model.policy, network)
    with torch.no_grad():
        theirs = model.policy.q_net(torch.from_numpy(rows))
        assert_allclose(network(tensors(seen, torch.device("cpu"))), theirs, rtol=1e-4, atol=1e-5)
    best, _ = model.predict(rows, deterministic=True)
    assert_array_equal(parts.learner.policy.act_deterministic(seen, None), best)
    parts.close()


@pytest.mark.parametrize(
    ("env", "settings"), [("cartpole", SMALL), ("corridor", SMALL), ("cartpole", SMALL_DQN)]
)
def test_a_run_of_sb3_is_a_run_like_any_other(tmp_path, env, settings):
    run = hundredfold.train(env, engine="sb3", save_dir=tmp_path, name="run", **settings)
    assert run.finished
    assert [row["epoch"] for row in run.metrics] == [1, 2, 3, 4]
    assert [row["total_steps"] for row in run.metrics] == [64, 128, 192, 256]
    losses = {"q_loss", "exploration"} if settings is SMALL_DQN else {"policy_loss", "entropy"}
    assert losses <= run.metrics[-1].keys()
    assert {"samples_per_second", "time/collect", "return_mean"} <= run.metrics[-1].keys()
    assert [row["epoch"] for row in run.metrics if "eval/return_mean" in row] == [2, 4]
    assert (run.path / "report.html").stat().st_size > 10_000
    # A year later, elsewhere: nothing of Stable-Baselines3 is needed any more.
    code = f"""{WITHOUT_SB3}
assert main(["evaluate", {str(run.path)!r}, "--episodes", "4"]) == 0
assert main(["report", {str(run.path)!r}]) == 0
"""
    run_python(code, expect=0)


def test_the_same_seed_trains_the_same_policy(tmp_path):
    one, two = (
        hundredfold.train("cartpole", engine="sb3", save_dir=tmp_path, name=name, **SMALL)
        for name in ("one", "two")
    )
    assert read_metrics(one.path) == read_metrics(two.path)


def test_its_ppo_learns_the_corridor_and_minds_its_masks(tmp_path):
    run = hundredfold.train("corridor", engine="sb3", steps=12_000, save_dir=tmp_path, name="run")
    judged = hundredfold.evaluate(run.path, episodes=16)
    beside = hundredfold.evaluate("corridor", policy="random", episodes=16)
    assert judged.returns.mean() > beside.returns.mean() + 0.1


@pytest.mark.parametrize(
    "make_env",
    [
        third_party_envs.MaskInObservation,
        third_party_envs.MaskInInfo,
        third_party_envs.MaskFromMethod,
        third_party_envs.MultiDiscreteActions,
    ],
)
def test_envs_that_mind_forbidden_actions_never_meet_one(tmp_path, make_env):
    run = hundredfold.train(
        make_env, engine="sb3", backend="in_process", save_dir=tmp_path, name="run", **SMALL
    )
    assert run.finished


@pytest.mark.parametrize("env", ["corridor", third_party_envs.MaskInInfo])
def test_its_dqn_is_refused_where_there_are_masks(tmp_path, env):
    with pytest.raises(SettingsError, match=r"has action masks .* Use our DQN .* MaskablePPO"):
        hundredfold.train(env, engine="sb3", save_dir=tmp_path, **SMALL_DQN)
    assert not list(tmp_path.iterdir())


class OnlyAtHome(third_party_envs.DiceEnv):
    """Cannot be made in a process that another one has started."""

    def __init__(self):
        if multiprocessing.parent_process() is not None:
            raise OSError("only at home")


def test_envs_run_in_processes_of_their_own():
    settings = with_overrides(preset_settings("CartPole-v1"), {**SMALL, "steps": 0, "num_envs": 2})
    parts = engine.build(settings, None)
    try:
        assert type(parts.envs).__name__ == "SubprocVecEnv"
        assert parts.settings.machine.backend == "processes"
        assert parts.envs.reset().shape == (2, 4)
    finally:
        parts.close()


def test_where_processes_do_not_start_envs_run_here_with_a_warning():
    with pytest.warns(UserWarning, match="SubprocVecEnv could not start .* DummyVecEnv"):
        parts = parts_for(OnlyAtHome, backend="processes", num_envs=2)
    assert type(parts.envs).__name__ == "DummyVecEnv"
    assert parts.settings.machine.backend == "in_process"
    assert parts.envs.reset().shape == (2, 2)
    parts.close()


class SignalsUs(third_party_envs.DiceEnv):
    """Asks the program to stop in the middle of the third epoch."""

    steps_played = 0

    def step(self, action):
        type(self).steps_played += 1
        # Where it is only tried out, in another process, it keeps quiet.
        if self.steps_played == 2 * 4 * 16 + 20 and multiprocessing.parent_process() is None:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().step(action)


def test_a_signal_saves_the_last_whole_epoch_and_ends_the_run(tmp_path):
    SignalsUs.steps_played = 0
    settings = {**SMALL, "save_interval": 100, "eval_interval": 0, "backend": "in_process"}
    # A preset that is not fitted: nobody plays this env before it counts.
    settings["preset"] = "by-device"
    run = hundredfold.train(SignalsUs, engine="sb3", save_dir=tmp_path, name="run", **settings)
    assert not run.finished
    assert saved_epochs(RunFolder.open(run.path)) == [2]
    with pytest.raises(SettingsError, match=r"engine sb3.*cannot go on bit for bit"):
        hundredfold.train(SignalsUs, resume=run.path)


# Sends Ctrl-C to everybody, as a terminal does, from a worker in the middle of the third epoch.
CTRL_C = """
import os, signal
from helpers import third_party_envs

class PressesCtrlC(third_party_envs.DiceEnv):
    steps_played = 0
    def step(self, action):
        self.steps_played += 1
        if self.steps_played == 40:
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


def test_ctrl_c_that_reaches_the_workers_too_saves_as_well(tmp_path):
    run_python(
        CTRL_C.format(save_dir=str(tmp_path)),
        expect=0,
        start_new_session=True,
        env={"PYTHONPATH": str(Path(third_party_envs.__file__).parents[2])},
    )
    assert saved_epochs(RunFolder.open(tmp_path / "run")) == [2]


def test_without_the_extra_one_line_says_how_to_get_it(tmp_path):
    code = f"{WITHOUT_SB3}\nassert main(['train', 'corridor', '--engine', 'sb3']) == 1"
    done = run_python(code, expect=0, cwd=tmp_path)
    assert "pip install 'hundredfold[sb3]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_ends_of_episodes_reach_it_as_it_wants_them():
    make_envs = partial(CartPole, settings=CartPoleSettings(max_episode_steps=12))
    envs = BackendVecEnv(make_backend("in_process", make_envs, 3), seed=1)
    envs.reset()
    ends = {True: 0, False: 0}
    for step in range(60):
        seen, rewards, dones, infos = envs.step(np.array([step % 2, 0, step % 3 == 0], int))
        batch = envs.batch
        assert_array_equal(dones, batch.terminated | batch.truncated)
        for row, info in enumerate(infos):
            assert bool(info) == dones[row]
            if info:
                cut = info["TimeLimit.truncated"]
                ends[cut] += 1
                assert cut == batch.truncated[row]
                last = batch.final_observation["observation"][row]
                assert_array_equal(info["terminal_observation"], last)
                assert not np.array_equal(last, seen[row])
        assert rewards.dtype == np.float32
    assert min(ends.values()) > 2


def test_its_learning_rate_falls_as_ours_does():
    settings = with_overrides(
        preset_settings("CartPole-v1"), {"epochs": 5, "steps": 0, "learning_rate": 1.0}
    )
    rate = ppo_options(settings)["learning_rate"]
    told = [rate(1 - done / 5) for done in range(1, 6)]
    assert_allclose(told, [1.0, 0.8, 0.6, 0.4, 0.2])


def test_what_it_has_no_words_for_is_said():
    start = preset_settings("CartPole-v1")
    assert any("normalise_values" in note for note in notes_on(start))
    quiet = with_overrides(start, {"normalise_values": False, "normalise_advantages": False})
    assert notes_on(quiet) == []
    dqn = with_overrides(preset_settings("CartPole-v1", algo="dqn"), {"train_frequency": 12})
    assert any("learns every 16 samples" in note for note in notes_on(dqn))
    with pytest.raises(SettingsError, match="has one loss"):
        parts_for(third_party_envs.DiceEnv, num_value_epochs=3, num_policy_epochs=2)
    with pytest.raises(SettingsError, match="dueling cannot be had"):
        parts_for(third_party_envs.DiceEnv, **SMALL_DQN, dueling=True)


def test_a_belief_model_goes_on_learning_beside_it(tmp_path):
    run = hundredfold.train(
        "dvrp", engine="sb3", epochs=2, num_envs=8, num_customers=9, lns_iterations=1,
        acceptance_refit_interval=40, eval_interval=2, eval_episodes=4, save_dir=tmp_path,
        name="run", report=False,
    )  # fmt: skip
    assert run.metrics[-1]["acceptance/answers"] > 0
    assert "avg_cost" in run.metrics[-1]
    assert hundredfold.api.belief_params(run.path) is not None
