"""Samples until a target return."""

import pytest

from benchmarks import learning
from benchmarks.__main__ import run
from benchmarks.learning import LearningResult, bench_learning, learning_result
from benchmarks.tasks import TASKS, Task, classic
from hundredfold.api import TrainedRun
from hundredfold.core.errors import SettingsError

METRICS = [
    {"total_steps": 100, "wall_seconds": 1.0},
    {"total_steps": 200, "wall_seconds": 3.0, "eval/return_mean": 4.0, "time/evaluate": 1.0},
    {"total_steps": 300, "wall_seconds": 4.0},
    {"total_steps": 400, "wall_seconds": 7.0, "eval/return_mean": 9.0, "time/evaluate": 2.0},
    {"total_steps": 500, "wall_seconds": 9.0, "eval/return_mean": 8.0, "time/evaluate": 1.0},
]


def test_the_first_evaluation_that_reaches_the_target_counts():
    assert learning_result(METRICS, target=9.0) == LearningResult(400, True, 9.0, 500 / 5.0, 4.0)


def test_a_run_that_never_reaches_the_target_counts_whole_and_unsolved():
    assert learning_result(METRICS, target=10.0) == LearningResult(500, False, 9.0, 500 / 5.0, 5.0)


@pytest.mark.parametrize(("name", "algo"), TASKS)
def test_every_task_is_evaluated_at_least_ten_times(name, algo):
    settings = TASKS[name, algo].settings()
    between = settings.evaluation.eval_interval * settings.rollout.samples_per_epoch
    assert settings.algo == algo
    assert settings.length.steps >= 10 * between


def test_both_systems_train_the_same_task(monkeypatch):
    pytest.importorskip("stable_baselines3", reason="needs the extra [sb3]")
    easy = Task(9.0, lambda: classic("CartPole-v1", "ppo", num_envs=2, num_steps=32, samples=256, epochs=2))
    monkeypatch.setitem(learning.TASKS, ("cartpole", "ppo"), easy)
    rows = bench_learning("cartpole", "ppo", 1, on_progress=lambda text: None)
    assert [row["system"] for row in rows] == ["hundredfold", "stable-baselines3"]
    for row in rows:
        assert row["solved"] == 1
        assert row["samples_to_target"] == 128
        assert row["ratio_to_hundredfold"] == 1.0


def test_pqn_is_trained_beside_dqn_and_ppo(monkeypatch):
    pytest.importorskip("stable_baselines3", reason="needs the extra [sb3]")
    trained = []

    def train_once(task, engine, seed, stop):
        assert stop
        settings = task.settings()
        trained.append((settings.algo, engine, settings.env))
        return LearningResult(1_000, True, 500.0, 100.0, 10.0)

    monkeypatch.setattr(learning, "train_once", train_once)
    rows = bench_learning("cartpole", "pqn", 1, on_progress=lambda text: None)
    algorithms = [("pqn", "hundredfold"), ("dqn", "hundredfold"), ("ppo", "hundredfold"), ("dqn", "sb3")]
    assert trained == [(*one, "CartPole-v1") for one in algorithms]
    assert [row["seconds"] for row in rows] == [10.0] * 4


def test_interrupting_one_run_stops_the_benchmark(monkeypatch):
    started = []

    def interrupted(settings, save_dir, **options):
        started.append(settings.seed)
        return TrainedRun(save_dir, finished=False)

    monkeypatch.setattr(learning, "start_run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench_learning("cartpole", "ppo", 5, on_progress=lambda text: None, first_seed=7)
    assert started == [7]


def test_an_unknown_task_raises():
    with pytest.raises(SettingsError, match="cage2 is not a task for dqn"):
        bench_learning("cage2", "dqn", 1)
    with pytest.raises(SettingsError, match="train acrobot counts samples and needs --seeds"):
        run(["train", "acrobot"])
