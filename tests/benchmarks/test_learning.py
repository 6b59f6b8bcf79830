"""Samples to a target: read off metrics, trained for real, and asked for by name."""

import pytest

from benchmarks import learning
from benchmarks.__main__ import run
from benchmarks.learning import Learned, bench_learning, learned_from
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
    assert learned_from(METRICS, target=9.0) == Learned(400, True, 9.0, 500 / 5.0)


def test_a_run_that_never_reaches_it_counts_whole_and_unsolved():
    assert learned_from(METRICS, target=10.0) == Learned(500, False, 9.0, 500 / 5.0)


@pytest.mark.parametrize(("name", "algo"), TASKS)
def test_every_task_is_judged_often_enough_to_tell_samples_apart(name, algo):
    settings = TASKS[name, algo].settings()
    between = settings.evaluation.eval_interval * settings.rollout.samples_per_epoch
    assert settings.algo == algo
    assert settings.length.steps >= 10 * between


def test_both_systems_train_the_same_task(monkeypatch):
    pytest.importorskip("stable_baselines3", reason="needs the extra [sb3]")
    easy = Task(
        9.0,
        lambda: classic("CartPole-v1", "ppo", num_envs=2, num_steps=32, samples=256, epochs=2),
    )
    monkeypatch.setitem(learning.TASKS, ("cartpole", "ppo"), easy)
    rows = bench_learning("cartpole", "ppo", 1, on_progress=lambda text: None)
    assert [row["system"] for row in rows] == ["hundredfold", "stable-baselines3"]
    for row in rows:
        assert row["solved"] == 1
        assert row["samples_to_target"] == 128
        assert row["ratio_to_ours"] == 1.0


def test_who_stops_a_training_stops_all_of_them(monkeypatch):
    started = []

    def interrupted(settings, save_dir, **options):
        started.append(settings.seed)
        return TrainedRun(save_dir, finished=False)

    monkeypatch.setattr(learning, "start_run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench_learning("cartpole", "ppo", 5, on_progress=lambda text: None)
    assert started == [0]


def test_a_task_that_is_not_there_is_refused_by_name():
    with pytest.raises(SettingsError, match="cage2 is not among the tasks for dqn"):
        bench_learning("cage2", "dqn", 1)
    with pytest.raises(SettingsError, match="bench train acrobot counts samples: say --seeds 5"):
        run(["train", "acrobot"])
