"""Resume: a killed or interrupted run continues bit for bit."""

import os
import shutil
import signal
import subprocess
import sys
import warnings

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hundredfold
from helpers.processes import run_forked, run_process, start_process
from helpers.training_runs import KILLED_RUN, assert_same_run, checkpoint_arrays
from hundredfold.cli.main import main
from hundredfold.core.errors import CheckpointError, SettingsError
from hundredfold.training.build import build
from hundredfold.training.checkpoint import saved_epochs
from hundredfold.training.run import Run
from hundredfold.training.run_folder import RunFolder

pytestmark = pytest.mark.process

SMALL = {"epochs": 6, "num_envs": 4, "num_steps": 16, "eval_interval": 2, "eval_episodes": 4}


@pytest.mark.parametrize("moment", ["after saving", "two epochs later"])
@pytest.mark.parametrize("backend", ["in_process", "serial"])
def test_resume_after_sigkill_is_bit_exact(tmp_path, backend, moment):
    settings = {**SMALL, "backend": backend, "save_interval": 3}
    whole = hundredfold.train("corridor", save_dir=tmp_path, name="whole", **settings)
    code = KILLED_RUN.format(env="corridor", save_dir=str(tmp_path), settings=settings, moment=moment)
    run_forked(code, expect=-signal.SIGKILL)
    resumed = hundredfold.train(resume=tmp_path / "killed")
    assert resumed.finished
    assert_same_run(whole.path, resumed.path)


def test_resume_on_another_backend_is_bit_exact(tmp_path):
    settings = {**SMALL, "save_interval": 3}
    whole = hundredfold.train("corridor", save_dir=tmp_path, name="whole", **settings)
    code = KILLED_RUN.format(env="corridor", save_dir=str(tmp_path), settings=settings, moment="after saving")
    run_forked(code, expect=-signal.SIGKILL)
    resumed = hundredfold.train(resume=tmp_path / "killed", backend="serial")
    assert_same_run(whole.path, resumed.path)


def test_resume_between_two_epochs_of_one_update_is_bit_exact(tmp_path):
    settings = {**SMALL, "save_interval": 3, "policy_update_interval": 2}
    whole = hundredfold.train("cartpole", save_dir=tmp_path, name="whole", **settings)
    code = KILLED_RUN.format(env="cartpole", save_dir=str(tmp_path), settings=settings, moment="after saving")
    run_forked(code, expect=-signal.SIGKILL)
    resumed = hundredfold.train(resume=tmp_path / "killed")
    assert_same_run(whole.path, resumed.path)


def test_a_run_killed_before_its_first_checkpoint_starts_over(tmp_path):
    settings = {**SMALL, "save_interval": 6, "eval_interval": 0}
    whole = hundredfold.train("corridor", save_dir=tmp_path, name="whole", **settings)
    code = KILLED_RUN.format(env="corridor", save_dir=str(tmp_path), settings=settings, moment="two epochs later")
    run_forked(code, expect=-signal.SIGKILL)
    resumed = hundredfold.train(resume=tmp_path / "killed")
    assert_same_run(whole.path, resumed.path)


def test_resume_falls_back_to_the_newest_whole_checkpoint_and_is_bit_exact(tmp_path):
    settings = {**SMALL, "save_interval": 2, "keep_last": 3}
    whole = hundredfold.train("corridor", save_dir=tmp_path, name="whole", **settings)
    shutil.copytree(whole.path, tmp_path / "damaged")
    file = tmp_path / "damaged" / "checkpoints" / "000006" / "learner.safetensors"
    os.truncate(file, file.stat().st_size - 1)
    with pytest.warns(UserWarning, match=r"checkpoint of epoch 6 is damaged .*resuming from epoch 4"):
        resumed = hundredfold.train(resume=tmp_path / "damaged")
    assert resumed.finished
    assert_same_run(whole.path, resumed.path)
    assert (tmp_path / "damaged" / "checkpoints" / "000006.damaged").is_dir()


EXTENDED = {
    "ppo": {"anneal_learning_rate": False},
    "dqn": {"algo": "dqn", "exploration_fraction": 0.0, "learning_starts": 32, "replay_size": 200, "batch_size": 16},
}


@pytest.mark.parametrize("settings", EXTENDED.values(), ids=EXTENDED)
@pytest.mark.parametrize("length", [{"epochs": 6}, {"steps": 6 * 64}], ids=["epochs", "steps"])
def test_an_extended_run_equals_one_of_that_length_from_the_start(tmp_path, settings, length):
    settings = {**SMALL, **settings, "report": False}
    whole = hundredfold.train("corridor", save_dir=tmp_path, name="whole", **settings)
    short = hundredfold.train("corridor", save_dir=tmp_path, name="short", **{**settings, "epochs": 4})
    extended = hundredfold.train(resume=short.path, report=False, **length)
    assert extended.finished
    assert_same_run(whole.path, extended.path)
    assert RunFolder.open(short.path).settings() == RunFolder.open(whole.path).settings()


# The presets of dvrp and cage2 with every schedule that ends with the run turned off.
NO_SCHEDULES = {"anneal_learning_rate": False, "anneal_entropy": False}
EXTENDED_ENVS = {
    "dvrp": {
        **NO_SCHEDULES,
        "acceptance_refit": "inline",
        "epsilon_end": 0.1,
        "epsilon_start": 0.1,
        "num_customers": 5,
        "lns_iterations": 0,
        "oracle_threads": 1,
    },
    "cage2": {**NO_SCHEDULES, "num_steps": 30},
}


@pytest.mark.parametrize(("env", "settings"), EXTENDED_ENVS.items(), ids=EXTENDED_ENVS)
def test_an_extended_run_of_dvrp_and_cage2_equals_one_of_that_length(tmp_path, env, settings):
    short = {"num_envs": 2, "eval_interval": 0, "save_interval": 100, "hidden_sizes": (8,), "threads": 1}
    options = {**short, **settings, "save_dir": tmp_path, "report": False, "quiet": True}
    whole = hundredfold.train(env, name="whole", epochs=3, **options)
    assert RunFolder.open(whole.path).settings().length_schedules == []
    first = hundredfold.train(env, name="short", epochs=2, **options)
    extended = hundredfold.train(resume=first.path, epochs=3, report=False, quiet=True)
    assert_same_run(whole.path, extended.path)


def test_extending_a_run_names_the_schedules_that_depend_on_its_length(tmp_path, capsys):
    run = hundredfold.train("corridor", save_dir=tmp_path, report=False, **SMALL)
    assert main(["train", "--resume", str(run.path), "--episodes", "24"]) == 2
    assert "--episodes" in capsys.readouterr().err
    assert main(["train", "--resume", str(run.path), "--epochs", "8"]) == 0
    assert "schedules (learning rate) now end with the new length" in capsys.readouterr().err
    assert hundredfold.load(run.path, "last").epoch == 8


def test_a_finished_run_says_so_and_how_to_extend_it(tmp_path, capsys):
    run = hundredfold.train("corridor", save_dir=tmp_path, **SMALL)
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*") if path.is_file() and path.name != ".lock"}
    assert main(["train", "--resume", str(run.path)]) == 0
    output = capsys.readouterr().err
    assert "is finished: 6 epochs, 384 steps" in output
    assert f"--resume {run.path} --steps 768" in output
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    # As many steps, rounded up to whole updates.
    assert main(["train", "--resume", str(run.path), "--steps", "380"]) == 0
    output = capsys.readouterr().err
    assert "is finished: 6 epochs, 384 steps" in output
    assert "schedules" not in output
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    (run.path / "report.html").unlink()
    assert main(["train", "--resume", str(run.path)]) == 0
    assert (run.path / "report.html").exists()


def test_a_run_cannot_be_made_shorter_than_it_is(tmp_path):
    run = hundredfold.train("corridor", save_dir=tmp_path, report=False, **SMALL)
    with pytest.raises(SettingsError, match=r"already trained 6 epochs \(384 steps\), more than the 2 asked for"):
        hundredfold.train(resume=run.path, epochs=2)
    assert len(run.metrics) == 6


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_a_new_run_starts_from_the_weights_of_another(tmp_path, algo):
    """With a learning rate of almost 0 the new run keeps the policy of the old one."""
    options = {**SMALL, **(EXTENDED["dqn"] if algo == "dqn" else {"algo": algo}), "report": False}
    first = hundredfold.train("corridor", save_dir=tmp_path, name="first", hidden_sizes=(24,), **options)
    options |= {"learning_rate": 1e-12, "num_envs": 8, "seed": 7, "max_episode_steps": 9, "epochs": 1}
    del options["algo"]  # by default that of the other run, as its network
    second = hundredfold.train("corridor", save_dir=tmp_path, name="second", init_from=first.path, **options)
    settings = RunFolder.open(second.path).settings()
    assert (settings.algo, settings.network.hidden_sizes) == (algo, (24,))
    old, new = (checkpoint_arrays(path, which) for path, which in ((first.path, "best"), (second.path, "last")))
    weights = [name for name in old if name.startswith("learner/network/") and "value" not in name]
    assert weights
    for name in weights:
        np.testing.assert_allclose(new[name], old[name], atol=1e-6, err_msg=name)


def test_weights_of_another_env_or_network_are_refused(tmp_path, capsys):
    first = hundredfold.train("corridor", save_dir=tmp_path, name="first", report=False, **SMALL)
    with pytest.raises(SettingsError, match="was trained with ppo on corridor; its weights do not fit ppo on cartpole"):
        hundredfold.train("cartpole", save_dir=tmp_path, init_from=first.path, **SMALL)
    with pytest.raises(CheckpointError, match="this network wants"):
        hundredfold.train("corridor", save_dir=tmp_path, init_from=first.path, hidden_sizes=(8, 8), **SMALL)
    with pytest.raises(SettingsError, match="cannot be combined with resume"):
        hundredfold.train(resume=first.path, init_from=first.path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first"]
    argv = ["train", "corridor", "--init-from", first.path, "--save-dir", tmp_path, "--name", "second", "--epochs", 1]
    assert main([str(argument) for argument in argv]) == 0


def test_a_lock_that_is_a_link_is_refused_and_its_target_kept(tmp_path):
    run = hundredfold.train("corridor", save_dir=tmp_path, report=False, **SMALL)
    target = tmp_path / "target"
    target.write_text("precious")
    (run.path / ".lock").unlink()
    (run.path / ".lock").symlink_to(target)
    with pytest.raises(CheckpointError, match="symbolic link"):
        RunFolder.open(run.path).claim()
    assert target.read_text() == "precious"


def test_third_party_envs_restart_their_episode_and_the_learner_state_is_exact(tmp_path):
    settings = {**SMALL, "save_interval": 3, "normalise_observations": True}
    code = KILLED_RUN.format(env="CartPole-v1", save_dir=str(tmp_path), settings=settings, moment="after saving")
    run_forked(code, expect=-signal.SIGKILL)
    before = checkpoint_arrays(tmp_path / "killed")

    folder = RunFolder.open(tmp_path / "killed")
    folder.claim()
    parts = build(folder.settings())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = Run.resume(folder, parts, quiet=True)
    messages = [str(w.message) for w in caught if "cannot continue in the middle" in str(w.message)]
    assert len(messages) == 1
    after = {
        f"{part}/{name}": array for part, arrays in run.last_complete.parts.items() for name, array in arrays.items()
    }
    learner_arrays = [name for name in before if name.startswith("learner/")]
    assert any("optimiser" in name for name in learner_arrays)
    assert any("inputs.mean" in name for name in learner_arrays)
    for name in [*learner_arrays, "collector/actions_taken", "env/env_keys"]:
        assert_array_equal(after[name], before[name], err_msg=name)
    assert_array_equal(after["env/episodes"], before["env/episodes"] + 1)
    assert parts.collector.batch.truncated.all()
    assert not parts.collector.batch.terminated.any()
    run.close()
    parts.close()
    assert hundredfold.train(resume=tmp_path / "killed").finished


def test_third_party_episodes_are_truncated_between_two_epochs_of_one_update(tmp_path):
    settings = {**SMALL, "save_interval": 3, "policy_update_interval": 2, "eval_interval": 0}
    code = KILLED_RUN.format(env="CartPole-v1", save_dir=str(tmp_path), settings=settings, moment="after saving")
    run_forked(code, expect=-signal.SIGKILL)

    folder = RunFolder.open(tmp_path / "killed")
    folder.claim()
    parts = build(folder.settings())
    with pytest.warns(UserWarning, match="cannot continue in the middle"):
        run = Run.resume(folder, parts, quiet=True)
    rollout = parts.learner.buffer
    assert rollout.steps_done == 16
    assert rollout.ended[15].all()
    last = rollout.truncations[-1]
    assert set(last.steps) == {15}
    run.close()
    parts.close()


def test_resume_after_an_env_error_within_an_epoch_is_bit_exact(tmp_path):
    code = f"""
import sys
from hundredfold.cli.main import main
from hundredfold.core.errors import EnvError
from hundredfold.rollout import episode_stats
step = episode_stats.RunningReturns.step
steps = 0
def failing(self, *args):
    global steps
    steps += 1
    if steps == 3 * 16 + 5: raise EnvError("env 0 failed")
    step(self, *args)
episode_stats.RunningReturns.step = failing
sys.exit(main(["train", "corridor", "--epochs", "6", "--num-envs", "4", "--num-steps", "16",
    "--eval-interval", "0", "--save-interval", "100", "--save-dir", {str(tmp_path)!r},
    "--name", "failed"]))
"""
    done = run_forked(code, expect=1)
    assert "env 0 failed" in done.stderr
    assert "stopped after epoch 3/6" in done.stderr
    settings = {**SMALL, "eval_interval": 0, "save_interval": 100}
    whole = hundredfold.train("corridor", save_dir=tmp_path, name="whole", **settings)
    resumed = hundredfold.train(resume=tmp_path / "failed")
    assert_same_run(whole.path, resumed.path)


def test_a_signal_stops_an_endless_evaluation(tmp_path):
    code = f"""
import os, signal, sys
from hundredfold.cli.main import main
from hundredfold.training import run as run_module
def endless(*arguments, on_progress, **options):
    os.kill(os.getpid(), signal.SIGINT)
    while True: on_progress(0)
run_module.evaluate = endless
sys.exit(main(["train", "corridor", "--epochs", "6", "--num-envs", "4", "--num-steps", "16",
    "--eval-interval", "3", "--save-dir", {str(tmp_path)!r}, "--name", "stopped"]))
"""
    done = run_forked(code, expect=130)
    assert "stopped after epoch 2/6" in done.stderr


def test_equal_settings_give_equal_runs_on_in_process_and_serial(tmp_path):
    runs = [
        hundredfold.train("corridor", save_dir=tmp_path, name=name, backend=backend, **SMALL)
        for name, backend in (("a", "in_process"), ("b", "in_process"), ("c", "serial"))
    ]
    assert_same_run(runs[0].path, runs[1].path)
    assert_same_run(runs[0].path, runs[2].path)


def test_a_background_job_of_a_script_ignores_sigint_and_saves_on_sigterm(tmp_path):
    code = f"""
import os, signal, sys
from hundredfold.cli.main import main
from hundredfold.rollout import episode_stats
step = episode_stats.RunningReturns.step
steps = 0
def signalled(self, *args):
    global steps
    steps += 1
    if steps == 2 * 16 + 5: os.kill(os.getpid(), signal.SIGINT)
    if steps == 4 * 16 + 5: os.kill(os.getpid(), signal.SIGTERM)
    step(self, *args)
episode_stats.RunningReturns.step = signalled
sys.exit(main(["train", "corridor", "--epochs", "6", "--num-envs", "4", "--num-steps", "16",
    "--eval-interval", "0", "--save-interval", "100", "--save-dir", {str(tmp_path)!r},
    "--name", "stopped"]))
"""
    script = '"$0" "$@" & echo $!; wait $!'
    done = run_process(["sh", "-c", script, sys.executable, "-c", code], expect=130)
    assert done.stderr.count("SIGINT (Ctrl-C) is ignored") == 1
    assert f"kill {done.stdout.split()[0]}" in done.stderr
    assert "stopped after epoch 4/6" in done.stderr
    assert saved_epochs(RunFolder.open(tmp_path / "stopped")) == [4]


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_resume_after_a_signal_within_an_epoch_is_bit_exact(tmp_path, signal_number):
    code = f"""
import os, sys
from hundredfold.cli.main import main
from hundredfold.rollout import episode_stats
step = episode_stats.RunningReturns.step
steps = 0
def interrupted(self, *args):
    global steps
    steps += 1
    if steps == 4 * 16 + 5: os.kill(os.getpid(), {int(signal_number)})
    step(self, *args)
episode_stats.RunningReturns.step = interrupted
sys.exit(main(["train", "corridor", "--epochs", "6", "--num-envs", "4", "--num-steps", "16",
    "--eval-interval", "0", "--save-interval", "100", "--save-dir", {str(tmp_path)!r},
    "--name", "stopped"]))
"""
    done = run_forked(code, expect=130)
    assert "stopped after epoch 4/6" in done.stderr
    assert "--resume" in done.stderr
    settings = {**SMALL, "eval_interval": 0, "save_interval": 100}
    whole = hundredfold.train("corridor", save_dir=tmp_path, name="whole", **settings)
    resumed = hundredfold.train(resume=tmp_path / "stopped")
    assert_same_run(whole.path, resumed.path)


def test_resume_of_a_finished_run_changes_nothing(tmp_path):
    run = hundredfold.train("corridor", save_dir=tmp_path, name="done", **SMALL)
    before = checkpoint_arrays(run.path)
    assert hundredfold.train(resume=run.path).finished
    assert all(np.array_equal(array, before[name]) for name, array in checkpoint_arrays(run.path).items())


@pytest.mark.parametrize("change", [{"learning_rate": 0.5}, {"num_envs": 8}, {"gamma": 0.5}])
def test_settings_that_affect_results_cannot_change_on_resume(tmp_path, change):
    run = hundredfold.train("corridor", save_dir=tmp_path, name="done", **SMALL)
    with pytest.raises(SettingsError, match=f"{next(iter(change))} cannot change"):
        hundredfold.train(resume=run.path, **change)


def test_resume_of_a_missing_run_is_rejected(tmp_path):
    with pytest.raises(CheckpointError, match="missing is not a run folder: there is no such"):
        hundredfold.train(resume=tmp_path / "missing")


def test_a_run_folder_is_locked_against_other_processes(tmp_path):
    run = hundredfold.train("corridor", save_dir=tmp_path, name="busy", **SMALL)
    code = f"""
import fcntl, pathlib, sys, time
lock = open({str(run.path / ".lock")!r}, "w")
fcntl.flock(lock, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""
    other = start_process([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(CheckpointError, match="being written by another process"):
            hundredfold.train(resume=run.path)
    finally:
        other.communicate()
    assert os.path.exists(run.path)
    assert hundredfold.train(resume=run.path).finished
