"""The command line: output, exit codes and error messages."""

import json
import re
import sys
from pathlib import Path

import pytest

from helpers.processes import run_process
from hundredfold.backends import auto_select, make_backend
from hundredfold.cli import main
from hundredfold.training.run_folder import RunFolder

QUICK = ["--epochs", "2", "--num-envs", "4", "--num-steps", "16", "--eval-episodes", "4"]


def call(*argv):
    """Exit code of a command; tyro raises SystemExit."""
    try:
        return main.main([str(argument) for argument in argv])
    except SystemExit as error:
        return error.code


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    save_dir = tmp_path_factory.mktemp("runs")
    assert call("train", "corridor", *QUICK, "--save-dir", save_dir, "--name", "first") == 0
    return save_dir / "first"


def test_a_run_folder_contains_settings_metrics_checkpoints_and_report(run_folder):
    names = {path.name for path in run_folder.iterdir()}
    assert {"settings.toml", "metrics.jsonl", "versions.json", "checkpoints", "report.html"} <= names
    assert any(name.startswith("events.out.tfevents") for name in names)


def test_train_prints_the_best_return_and_the_next_commands(capsys, tmp_path):
    assert call("train", "corridor", *QUICK, "--save-dir", tmp_path) == 0
    captured = capsys.readouterr()
    assert "best evaluated return" in captured.out
    assert "hundredfold evaluate" in captured.out
    assert "epoch 2/2" in captured.err
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("corridor-")
    assert folder.name.endswith("-42")


def test_quiet_prints_nothing(capsys, tmp_path):
    assert call("train", "corridor", *QUICK, "--save-dir", tmp_path, "--quiet") == 0
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_evaluate_prints_a_table_or_json(capsys, run_folder):
    assert call("evaluate", run_folder, "--episodes", "5") == 0
    assert "stderr" in capsys.readouterr().out
    assert call("evaluate", run_folder, "--episodes", "5", "--json") == 0
    output = json.loads(capsys.readouterr().out)
    assert output["command"][0] == "evaluate"
    (row,) = output["rows"]
    assert row["episodes"] == 5
    assert row["ci_low"] <= row["mean"] <= row["ci_high"]
    assert output["machine"]["cores"] >= 1


def test_flags_override_a_settings_file(capsys, tmp_path, run_folder):
    config = run_folder / "settings.toml"
    argv = ["train", "corridor", "--config", config, "--gamma", "0.5", "--save-dir", tmp_path]
    assert call(*argv, "--name", "copy") == 0
    text = (tmp_path / "copy" / "settings.toml").read_text()
    assert "gamma = 0.5" in text
    assert "epochs = 2" in text


@pytest.mark.parametrize("name", ["../../etc", "a/b", "..", ".", "", " ", "a\\b", "a\nb", "x" * 256])
def test_a_name_with_a_path_is_refused_before_anything_is_built(capsys, tmp_path, name):
    save_dir = tmp_path / "runs"
    assert call("train", "corridor", *QUICK, "--save-dir", save_dir, f"--name={name}") == 2
    captured = capsys.readouterr().err
    assert "--name" in captured
    assert "preparing" not in captured
    assert list(tmp_path.iterdir()) == []


def test_so_many_envs_that_they_do_not_fit_into_memory_are_refused_before_they_exist(capsys, tmp_path, monkeypatch):
    def start(*arguments, **options):
        raise AssertionError("envs were created")

    monkeypatch.setattr("hundredfold.training.build.start_backend", start)
    monkeypatch.setattr("hundredfold.training.build.available_memory", lambda: 10**9)
    for env, *flags in (["dvrp", "--num-envs", "1e6"], ["CartPole-v1", "--num-envs", "1e7", "--num-steps", "1"]):
        assert call("train", env, *flags, "--save-dir", tmp_path) == 2
        text = capsys.readouterr().err
        assert "for envs" in text
        assert "1 GB are available; use fewer --num-envs" in text


@pytest.mark.parametrize(
    "flags",
    [
        ["--hidden-sizes", "1000000", "1000000"],
        ["--num-steps", "1000000000"],
        ["--algo", "dqn", "--replay-size", "1000000000000"],
    ],
    ids=["network", "rollout", "replay buffer"],
)
def test_a_run_that_does_not_fit_into_memory_is_refused_before_memory_is_taken(capsys, tmp_path, flags):
    assert call("train", "corridor", *QUICK, *flags, "--save-dir", tmp_path) == 2
    assert "this run needs about" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "argv",
    [
        ["train", "corridor", "--step-timeout", "inf"],
        ["train", "corridor", "--start-timeout", "1e300"],
        ["train", "corridor", "--threads", "7" * 25],
        ["train", "corridor", "--eval-episodes", "7" * 25],
        ["scale", "corridor", "--seconds", "inf"],
        ["scale", "corridor", "--seconds", "nan"],
        ["scale", "corridor", "--num-envs", "7" * 25],
    ],
    ids=lambda argv: " ".join(argv[2:])[:20],
)
def test_numbers_that_no_library_accepts_are_refused(capsys, argv):
    assert call(*argv) == 2
    assert "must be" in capsys.readouterr().err


def test_resume_needs_no_env(capsys, run_folder):
    assert call("train", "--resume", run_folder) == 0


def test_report_writes_the_html_report_again(capsys, run_folder):
    (run_folder / "report.html").unlink()
    assert call("report", run_folder) == 0
    assert (run_folder / "report.html").stat().st_size > 10_000


def test_envs_and_doctor_list_envs_machine_and_packages(capsys):
    assert call("envs", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {"corridor", "cartpole"} <= {row["env"] for row in rows}
    assert call("doctor") == 0
    output = capsys.readouterr().out
    for item in ("processor", "memory", "device", "torch", "[sb3] stable_baselines3", "[ray] ray"):
        assert item in output


@pytest.mark.parametrize("argv", [[], ["--help"], ["train", "--help"]])
def test_help_is_printed(capsys, argv):
    assert call(*argv) == 0
    assert "usage: hundredfold" in capsys.readouterr().out


def test_train_help_shows_flags_and_defaults(capsys):
    assert call("train", "cartpole", "--help") == 0
    output = capsys.readouterr().out
    for flag in ("--num-envs", "--learning-rate", "--max-episode-steps", "--resume", "--wandb"):
        assert flag in output
    assert "(default: 64)" in output


WRONG_USAGE = {
    "an unknown env": (["train", "cartpol"], 2, "did you mean cartpole"),
    "an unknown Gymnasium id": (["train", "CartPole-v11"], 2, "did you mean CartPole-v1"),
    "an unknown command": (["trian"], 2, "did you mean train"),
    "an unknown flag": (["train", "corridor", "--num-env", "3"], 2, "num-envs"),
    "no envs": (["train", "corridor", "--num-envs", "0"], 2, "num_envs must be at least 1 and at most 10000000, got 0"),
    "text for a number": (["train", "corridor", "--num-envs", "many"], 2, "many"),
    "two lengths": (["train", "corridor", "--steps", "9", "--epochs", "1"], 2, "one of --epochs"),
    "no env": (["train"], 2, "usage"),
    "a missing run": (["train", "--resume", "no/such/run"], 1, "no/such/run is not a run folder"),
    "a flag without value": (["train", "--resume"], 2, "--resume expects a value"),
    "a missing settings file": (["train", "corridor", "--config", "no.toml"], 2, "no.toml"),
    "an unknown policy": (["evaluate", "corridor", "--policy", "randm"], 2, "did you mean random"),
    "an env without policy": (["evaluate", "corridor"], 2, "--policy random"),
    "no episodes": (["evaluate", "corridor", "--policy", "random", "--episodes", "0"], 2, "at least"),
    "a report of a missing run": (["report", "no/such/run"], 1, "not a run folder"),
}


@pytest.mark.parametrize(("argv", "code", "message"), WRONG_USAGE.values(), ids=WRONG_USAGE)
def test_wrong_usage_prints_a_message_and_an_exit_code(capsys, tmp_path, monkeypatch, argv, code, message):
    monkeypatch.chdir(tmp_path)
    assert call(*argv) == code
    captured = capsys.readouterr()
    assert message in captured.err + captured.out
    assert "Traceback" not in captured.err
    assert list(tmp_path.iterdir()) == []


def test_an_existing_run_folder_is_not_overwritten(capsys, run_folder):
    argv = ["train", "corridor", *QUICK, "--save-dir", run_folder.parent, "--name", "first"]
    before = (run_folder / "metrics.jsonl").read_text()
    assert call(*argv) == 2
    assert "exists already" in capsys.readouterr().err
    assert (run_folder / "metrics.jsonl").read_text() == before


def test_an_unknown_setting_in_a_settings_file_is_rejected_with_a_suggestion(capsys, tmp_path):
    path = tmp_path / "settings.toml"
    path.write_text("[ppo]\nlearning_rte = 0.1\n")
    assert call("train", "corridor", "--config", path) == 2
    assert "did you mean learning_rate" in capsys.readouterr().err


NAN_ENV = """
import gymnasium
import numpy as np

class NanEnv(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        value = np.nan if self.steps == 7 else 0.1
        return np.array([0.0, value], np.float32), 0.0, False, False, {}

gymnasium.register(id="NanEnv-v0", entry_point=NanEnv)
"""


@pytest.mark.process
def test_a_nan_observation_stops_the_run_and_names_env_and_step(tmp_path):
    (tmp_path / "nan_env.py").write_text(NAN_ENV)
    done = run_process(
        [*(sys.executable, "-m", "hundredfold", "train", "nan_env:NanEnv-v0"), *(*QUICK, "--on-env-error", "stop")],
        expect=1,
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
    )
    assert "env 0 of nan_env:NanEnv-v0 (step 7 of its episode 0) returned nan" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.process
def test_python_dash_m_runs_the_command_line():
    argv = [sys.executable, "-m", "hundredfold", "trian"]
    done = run_process(argv, expect=main.WRONG_USAGE)
    assert "train" in done.stderr


@pytest.mark.process
def test_the_installed_command_prints_its_version():
    command = Path(sys.executable).with_name("hundredfold")
    if not command.exists():
        pytest.skip("the package is not installed for this Python")
    done = run_process([command, "--version"])
    assert done.stdout.startswith("hundredfold ")


def test_help_of_a_gymnasium_env_shows_the_settings_that_would_be_chosen(capsys):
    assert call("train", "CartPole-v1", "--help") == 0
    captured = capsys.readouterr()
    for flag in ("num-envs", "num-steps", "hidden-sizes"):
        chosen = re.search(rf"--{flag} (\S+):", captured.err).group(1)
        assert re.search(rf"--{flag} .*?\(default: {chosen}\)", captured.out, re.DOTALL)


def test_help_of_a_gymnasium_env_shows_the_settings_that_a_run_uses(capsys, tmp_path, monkeypatch):
    profiles = []

    def profile_once(*arguments, **options):
        """The same measurement for help and run, whatever else the machine does."""
        profiles.append(profiles[0] if profiles else auto_select.profile_env(*arguments, **options))
        return profiles[0]

    monkeypatch.setattr("hundredfold.training.auto_config.profile_env", profile_once)
    monkeypatch.setenv("COLUMNS", "80")  # one column of flags
    argv = ["train", "CartPole-v1", "--epochs", "1", "--eval-episodes", "2"]
    assert call(*argv, "--help") == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert call(*argv, "--save-dir", tmp_path, "--name", "short", "--quiet") == 0
    assert len(profiles) == 2
    used = RunFolder.open(tmp_path / "short").settings()
    compared = {
        **{name: getattr(used.rollout, name) for name in ("num_envs", "num_steps")},
        **{name: getattr(used.ppo, name) for name in ("learning_rate", "gamma", "gae_lambda", "clip_range")},
        **{name: getattr(used.ppo, name) for name in ("update_epochs", "num_minibatches", "entropy_coefficient")},
        "hidden_sizes": used.network.hidden_sizes,
        "eval_interval": used.evaluation.eval_interval,
    }
    for name, value in compared.items():
        shown = re.search(rf"--{name.replace('_', '-')} [A-Z,.]+ .*?\(default: (.*?)\)", text).group(1)
        expected = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        assert shown == expected, name


def test_help_of_evaluate_names_the_flags_of_every_env(capsys):
    assert call("evaluate", "--help") == 0
    text = capsys.readouterr().out
    assert "hundredfold evaluate dvrp --help" in text
    assert "--max-steps" in text
    assert call("evaluate", "dvrp", "--help") == 0
    assert "--baselines" in capsys.readouterr().out


def test_help_of_watch_names_the_help_of_every_env(capsys):
    assert call("watch", "--help") == 0
    text = capsys.readouterr().out
    assert "hundredfold watch dvrp --help" in text
    assert "--max-steps" in text
    assert call("watch", "dvrp", "--help") == 0
    text = capsys.readouterr().out
    assert "--beside" in text
    assert "hundredfold watch cage2 --help" not in text


def test_evaluate_uses_the_backend_of_the_run_unless_told_otherwise(capsys, run_folder, monkeypatch):
    used = []

    def make(name, *rest):
        used.append(name)
        return make_backend(name, *rest)

    monkeypatch.setattr("hundredfold.api.make_backend", make)
    backend = RunFolder.open(run_folder).settings().machine.backend
    assert backend == "in_process"
    assert call("evaluate", run_folder, "--episodes", "2") == 0
    assert call("evaluate", run_folder, "--episodes", "2", "--backend", "serial") == 0
    assert used == [backend, "serial"]


def test_export_creates_no_folder(capsys, run_folder, tmp_path):
    target = tmp_path / "no" / "folder" / "policy.pt"
    assert call("export", run_folder, "--torchscript", target) == 2
    assert f"there is no folder {target.parent}" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
