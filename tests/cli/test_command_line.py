"""The command line as a person uses it: words in, answer and exit code out."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hundredfold.cli import main

QUICK = ["--epochs", "2", "--num-envs", "4", "--num-steps", "16", "--eval-episodes", "4"]


def call(*words):
    """Exit code of a command; tyro leaves by SystemExit."""
    try:
        return main.main([str(word) for word in words])
    except SystemExit as left:
        return left.code


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    save_dir = tmp_path_factory.mktemp("runs")
    assert call("train", "corridor", *QUICK, "--save-dir", save_dir, "--name", "first") == 0
    return save_dir / "first"


def test_a_run_leaves_everything_in_its_folder(run_folder):
    names = {path.name for path in run_folder.iterdir()}
    assert {
        "settings.toml",
        "metrics.jsonl",
        "versions.json",
        "checkpoints",
        "report.html",
    } <= names
    assert any(name.startswith("events.out.tfevents") for name in names)


def test_training_ends_with_what_came_out_and_what_to_do_next(capsys, tmp_path):
    assert call("train", "corridor", *QUICK, "--save-dir", tmp_path) == 0
    said = capsys.readouterr()
    assert "best evaluated return" in said.out
    assert "hundredfold evaluate" in said.out
    assert "epoch 2/2" in said.err
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("corridor-")
    assert folder.name.endswith("-42")


def test_quiet_says_nothing(capsys, tmp_path):
    assert call("train", "corridor", *QUICK, "--save-dir", tmp_path, "--quiet") == 0
    said = capsys.readouterr()
    assert said.out == said.err == ""


def test_evaluate_prints_a_table_or_json(capsys, run_folder):
    assert call("evaluate", run_folder, "--episodes", "5") == 0
    assert "stderr" in capsys.readouterr().out
    assert call("evaluate", run_folder, "--episodes", "5", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["command"][0] == "evaluate"
    (row,) = answer["rows"]
    assert row["episodes"] == 5
    assert row["ci_low"] <= row["mean"] <= row["ci_high"]
    assert answer["machine"]["cores"] >= 1


def test_a_settings_file_and_flags_over_it(capsys, tmp_path, run_folder):
    config = run_folder / "settings.toml"
    words = ["train", "corridor", "--config", config, "--gamma", "0.5", "--save-dir", tmp_path]
    assert call(*words, "--name", "copy") == 0
    text = (tmp_path / "copy" / "settings.toml").read_text()
    assert "gamma = 0.5" in text
    assert "epochs = 2" in text


def test_resume_needs_no_env(capsys, run_folder):
    assert call("train", "--resume", run_folder) == 0


def test_report_draws_the_page_again(capsys, run_folder):
    (run_folder / "report.html").unlink()
    assert call("report", run_folder) == 0
    assert (run_folder / "report.html").stat().st_size > 10_000


def test_envs_and_doctor_tell_what_is_there(capsys):
    assert call("envs", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {"corridor", "cartpole"} <= {row["env"] for row in rows}
    assert call("doctor") == 0
    said = capsys.readouterr().out
    for word in ("processor", "memory", "device", "torch", "[sb3] stable_baselines3", "[ray] ray"):
        assert word in said


@pytest.mark.parametrize("words", [[], ["--help"], ["train", "--help"]])
def test_help_is_there(capsys, words):
    assert call(*words) == 0
    assert "usage: hundredfold" in capsys.readouterr().out


def test_train_help_teaches_every_flag(capsys):
    assert call("train", "cartpole", "--help") == 0
    said = capsys.readouterr().out
    for flag in ("--num-envs", "--learning-rate", "--max-episode-steps", "--resume", "--wandb"):
        assert flag in said
    assert "(default: 64)" in said


WRONG = {
    "an unknown env": (["train", "cartpol"], 2, "did you mean cartpole"),
    "an unknown Gymnasium id": (["train", "CartPole-v11"], 2, "did you mean CartPole-v1"),
    "an unknown command": (["trian"], 2, "did you mean train"),
    "an unknown flag": (["train", "corridor", "--num-env", "3"], 2, "num-envs"),
    "no envs": (["train", "corridor", "--num-envs", "0"], 2, "num_envs must be at least 1, got 0"),
    "words for numbers": (["train", "corridor", "--num-envs", "many"], 2, "many"),
    "two lengths": (["train", "corridor", "--steps", "9", "--epochs", "1"], 2, "one of --epochs"),
    "no env": (["train"], 2, "usage"),
    "a missing run": (["train", "--resume", "no/such/run"], 1, "no/such/run is not a run folder"),
    "a dangling flag": (["train", "--resume"], 2, "--resume expects a value"),
    "a missing settings file": (["train", "corridor", "--config", "no.toml"], 2, "no.toml"),
    "an unknown policy": (["evaluate", "corridor", "--policy", "randm"], 2, "did you mean random"),
    "an env without policy": (["evaluate", "corridor"], 2, "--policy random"),
    "no episodes": (
        ["evaluate", "corridor", "--policy", "random", "--episodes", "0"],
        2,
        "at least",
    ),
    "a report of nothing": (["report", "no/such/run"], 1, "not a run folder"),
}


@pytest.mark.parametrize(("words", "code", "hint"), WRONG.values(), ids=WRONG)
def test_wrong_usage_gets_a_hint_and_an_exit_code(capsys, tmp_path, monkeypatch, words, code, hint):
    monkeypatch.chdir(tmp_path)
    assert call(*words) == code
    said = capsys.readouterr()
    assert hint in said.err + said.out
    assert "Traceback" not in said.err
    assert list(tmp_path.iterdir()) == []


def test_a_run_folder_that_exists_is_not_written_over(capsys, run_folder):
    words = ["train", "corridor", *QUICK, "--save-dir", run_folder.parent, "--name", "first"]
    before = (run_folder / "metrics.jsonl").read_text()
    assert call(*words) == 2
    assert "exists already" in capsys.readouterr().err
    assert (run_folder / "metrics.jsonl").read_text() == before


def test_a_typo_in_a_settings_file_is_found(capsys, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("[ppo]\nlearning_rte = 0.1\n")
    assert call("train", "corridor", "--config", path) == 2
    assert "did you mean learning_rate" in capsys.readouterr().err


NAN_ENV = """
import gymnasium
import numpy as np

class Drifting(gymnasium.Env):
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

gymnasium.register(id="Drifting-v0", entry_point=Drifting)
"""


def test_a_nan_from_an_env_names_env_and_step_and_ends_with_one(tmp_path):
    (tmp_path / "drifting.py").write_text(NAN_ENV)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "hundredfold", "train", "drifting:Drifting-v0"),
            *(*QUICK, "--on-env-error", "stop"),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert "env 0 of drifting:Drifting-v0 (step 7 of its episode 0) returned nan" in done.stderr
    assert "Traceback" not in done.stderr


def test_python_dash_m_is_the_same_command():
    words = [sys.executable, "-m", "hundredfold", "trian"]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ran.returncode == main.WRONG_USAGE
    assert "train" in ran.stderr


def test_the_installed_command_is_this_one():
    command = Path(sys.executable).with_name("hundredfold")
    if not command.exists():
        pytest.skip("the package is not installed beside this Python")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("hundredfold ")
