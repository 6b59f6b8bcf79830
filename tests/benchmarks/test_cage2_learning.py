"""Samples until a defender of cage2 reaches a score."""

import pytest

from benchmarks.cage2_learning import (
    ARMS,
    Cage2LearningSettings,
    arm_settings,
    bench_cage2_learning,
    read_scores,
    target_row,
)
from hundredfold.core.errors import SettingsError

RUNS = [
    [{"samples": 100, "seconds": 1.0, "total": -70.0}, {"samples": 200, "seconds": 2.5, "total": -55.0}],
    [{"samples": 100, "seconds": 1.5, "total": -90.0}, {"samples": 200, "seconds": 3.0, "total": -65.0}],
    [{"samples": 100, "seconds": 1.2, "total": -59.0}, {"samples": 200, "seconds": 2.0, "total": -61.0}],
]


def test_a_run_counts_where_it_first_reaches_the_target_and_whole_if_it_never_does():
    row = target_row("plain", RUNS, -60.0)
    assert row["reached"] == "2 of 3"
    assert (row["low"], row["samples_to_target"], row["high"]) == (100, 200, 200)
    assert (row["seconds_low"], row["seconds"], row["seconds_high"]) == (1.2, 2.5, 3.0)
    assert row["best_total"] == -55.0


def test_arms_differ_in_critic_and_memory_only():
    networks = {name: arm_settings(name, "--steps 5000").network for name in ARMS}
    assert {name: (network.critic, network.memory) for name, network in networks.items()} == {
        "plain": ("observation", "none"),
        "privileged": ("privileged", "none"),
        "memory": ("observation", "gru"),
        "both": ("privileged", "gru"),
    }
    assert arm_settings("both", "--steps 5000").length.steps == 5000


def test_a_finished_benchmark_is_read_and_not_trained_again(tmp_path):
    settings = Cage2LearningSettings(
        arms=("plain",),
        seeds=1,
        targets=(-5000.0, 0.0),
        episodes=2,
        interval=1,
        flags="--steps 64 --num-envs 4 --num-steps 8 --hidden-sizes 8 8 --threads 1",
        save_dir=tmp_path,
    )
    rows = bench_cage2_learning(settings, on_progress=lambda text: None)
    assert [row["reached"] for row in rows] == ["1 of 1", "0 of 1"]
    assert [row["samples"] for row in read_scores(tmp_path / "plain-seed-0" / "nine_cells.jsonl")] == [32, 64]
    checkpoints = sorted((tmp_path / "plain-seed-0" / "checkpoints").iterdir())
    assert bench_cage2_learning(settings, on_progress=lambda text: None) == rows
    assert sorted((tmp_path / "plain-seed-0" / "checkpoints").iterdir()) == checkpoints


def test_an_unknown_arm_is_named():
    with pytest.raises(SettingsError, match="did you mean privileged"):
        bench_cage2_learning(Cage2LearningSettings(arms=("privilege",)))
