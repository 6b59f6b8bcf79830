"""Stop rules and the functions of a user that take part in a training."""

import numpy as np
import pytest

import hundredfold
from helpers.training_runs import assert_same_run, read_metrics
from hundredfold.cli.main import main
from hundredfold.config.run import StopSettings
from hundredfold.core.errors import SettingsError
from hundredfold.core.formatting import parse_duration
from hundredfold.report.page import render_run
from hundredfold.training.checkpoint import saved_epochs
from hundredfold.training.run_folder import RunFolder
from hundredfold.training.stop import StopAfter, StopAt, StopOnPlateau, read_stop, stop_rules

RUN = {
    "num_envs": 4,
    "num_steps": 16,
    "epochs": 6,
    "hidden_sizes": (8,),
    "eval_interval": 2,
    "eval_episodes": 4,
    "save_interval": 10,
    "backend": "in_process",
    "report": False,
}
FLAGS = (
    *("--num-envs", "4", "--num-steps", "16", "--epochs", "6", "--hidden-sizes", "8", "--eval-interval", "2"),
    *("--eval-episodes", "4", "--backend", "in_process"),
)


def evaluated(*scores):
    return [{"epoch": number, "eval/return_mean": score} for number, score in enumerate(scores, 1)]


def test_a_run_stopped_at_a_return_is_whole_and_says_why(capsys, tmp_path):
    folder = RunFolder(tmp_path / "run")
    argv = ["train", "corridor", *FLAGS, "--save-dir", str(tmp_path), "--name", "run", "--stop-at=-1000"]
    assert main(argv) == 0
    captured = capsys.readouterr()
    reason = read_stop(folder).reason
    assert "--stop-at" in reason
    assert "stopped after epoch 2/6" in captured.err
    assert "stopped after epoch 2" in captured.out
    assert saved_epochs(folder) == [2]
    assert len(read_metrics(folder.path)) == 2
    assert "stopped after 2 epochs" in render_run(folder)
    assert hundredfold.load(folder.path, "last").epoch == 2

    # Resumed as it is, it stays stopped.
    assert main(["train", "--resume", str(folder.path)]) == 0
    assert "--stop-at None" in " ".join(capsys.readouterr().err.split())
    assert saved_epochs(folder) == [2]


def test_a_stopped_run_continues_without_its_rule_bit_for_bit(tmp_path):
    whole = hundredfold.train("corridor", save_dir=tmp_path, name="whole", **RUN)
    stopped = hundredfold.train("corridor", save_dir=tmp_path, name="stopped", stop_at=-1000, **RUN)
    assert stopped.finished
    assert "--stop-at" in stopped.stop_reason
    assert len(stopped.metrics) == 2
    resumed = hundredfold.train(resume=stopped.path, stop_at=None, report=False)
    assert resumed.finished
    assert resumed.stop_reason is None
    assert_same_run(whole.path, resumed.path)


def test_a_run_stopped_by_the_clock_ends_with_an_evaluation(tmp_path):
    run = hundredfold.train("corridor", save_dir=tmp_path, **{**RUN, "stop_after": "0.000001s"})
    assert len(run.metrics) == 1
    assert run.metrics[0]["eval/return_mean"] is not None
    assert "have passed" in run.stop_reason


def test_any_function_stops_a_run(tmp_path):
    run = hundredfold.train("corridor", save_dir=tmp_path, stop=lambda metrics: metrics["epoch"] >= 3, **RUN)
    assert (len(run.metrics), run.stop_reason) == (3, "the stop function returned True")
    assert saved_epochs(RunFolder(run.path))[-1] == 3
    # A folder holds no function: without it the run continues, with another one it stops there.
    again = hundredfold.train(resume=run.path, stop=lambda metrics: "enough" * (metrics["epoch"] == 5), report=False)
    assert (len(again.metrics), again.stop_reason) == (5, "enough")
    assert len(hundredfold.train(resume=run.path, report=False).metrics) == 6


def test_a_plateau_is_a_number_of_evaluations_without_a_new_best(tmp_path):
    rule = StopOnPlateau(2)
    reasons = [rule(metrics) for metrics in evaluated(1, 3, None, 2, 3)]
    assert reasons[:4] == [None] * 4
    assert "2 evaluations without a return above 3.00" in reasons[4]
    # A resumed run counts the evaluations before.
    run = hundredfold.train("corridor", save_dir=tmp_path, stop=lambda metrics: metrics["epoch"] == 4, **RUN)
    stops = [StopOnPlateau(1)(metrics) for metrics in run.metrics]
    best = max(row["eval/return_mean"] for row in run.metrics if "eval/return_mean" in row)
    assert not any(stops)
    resumed = hundredfold.train(resume=run.path, stop_on_plateau=1, report=False)
    last = resumed.metrics[-1]
    assert (last["epoch"], resumed.stop_reason is not None) == (6, last["eval/return_mean"] <= best)


def test_settings_make_rules():
    rules = stop_rules(StopSettings(stop_at=475, stop_after="10m", stop_on_plateau=5))
    assert rules == [StopAt(475), StopAfter(600.0), StopOnPlateau(5)]
    assert stop_rules(StopSettings()) == []
    assert StopAt(3)({"eval/return_mean": None}) is None
    assert StopAfter(60.0)({"wall_seconds": 59.9}) is None


def test_durations_have_units():
    assert [parse_duration(text) for text in ("90", "90s", "10m", "1.5h", "2d")] == [90, 90, 600, 5400, 172_800]
    for text in ("", "m", "ten", "-1s", "0", "inf", "nanm"):
        with pytest.raises(ValueError):
            parse_duration(text)
        with pytest.raises(SettingsError, match="10m"):
            StopSettings(stop_after=text)
    with pytest.raises(SettingsError, match="--eval-interval"):
        hundredfold.train("corridor", stop_at=1.0, eval_interval=0)


def test_a_function_is_called_after_every_epoch(tmp_path):
    seen = []

    def on_epoch(epoch):
        observation = {name: np.zeros(array.shape) for name, array in epoch.policy.spec.observation.items()}
        seen.append(
            (
                epoch.number,
                epoch.metrics["total_steps"],
                epoch.policy.act(observation, np.ones(epoch.policy.spec.num_logits, bool)),
                epoch.path,
            )
        )

    run = hundredfold.train("corridor", save_dir=tmp_path, on_epoch=on_epoch, **RUN)
    assert [number for number, *_ in seen] == [1, 2, 3, 4, 5, 6]
    assert seen[-1][1] == 6 * 64
    assert {path for *_, path in seen} == {run.path}
    assert_same_run(run.path, hundredfold.train("corridor", save_dir=tmp_path, **RUN).path)


def test_an_error_in_a_function_of_the_user_keeps_the_epochs_before(tmp_path):
    def on_epoch(epoch):
        if epoch.number == 3:
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        hundredfold.train("corridor", save_dir=tmp_path, name="run", on_epoch=on_epoch, **RUN)
    assert saved_epochs(RunFolder(tmp_path / "run"))[-1] == 3


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_a_rule_stops_stable_baselines(tmp_path, algo):
    settings = {**RUN, "engine": "sb3", "algo": algo} | ({"learning_starts": 8} if algo == "dqn" else {})
    run = hundredfold.train("cartpole", save_dir=tmp_path, stop=lambda metrics: metrics["epoch"] == 2, **settings)
    assert (len(run.metrics), run.finished) == (2, True)
    assert run.stop_reason
