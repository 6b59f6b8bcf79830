"""`hundredfold compare dvrp`: arms, seeds, resume, table and report."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from helpers.training_runs import read_metrics
from hundredfold.cli.main import main
from hundredfold.config.presets import preset_settings
from hundredfold.core.errors import SettingsError
from hundredfold.training.compare import Curve, first_reach, highest_common_level, interval_over_seeds, make_arms

ARGV = [
    *("compare", "dvrp", "--num-envs", "2,4", "--seeds", "2", "--days", "4", "--episodes", "16"),
    *("--num-customers", "5", "--lns-iterations", "0", "--hidden-sizes", "8", "--eval-episodes", "4"),
    *("--eval-interval", "2", "--oracle-threads", "1"),
]


def curve(*scores, step=100):
    count = np.arange(1, len(scores) + 1, dtype=float)
    return Curve(count, step * count, 10 * count, np.array(scores, float), 1.0)


def test_every_arm_is_trained_and_evaluated_and_finished_runs_are_reused(capsys, tmp_path):
    argv = [*ARGV, "--save-dir", str(tmp_path / "arms"), "--json"]
    assert main(argv) == 0
    rows = {row["arm"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert list(rows) == ["2-envs", "4-envs", "2-envs-x2"]
    assert [row["epochs"] for row in rows.values()] == [8, 4, 4]
    assert {row["samples"] for row in rows.values()} == {80}
    assert rows["4-envs"]["samples_per_update"] == rows["2-envs-x2"]["samples_per_update"] == 20
    for row in rows.values():
        assert row["known_low"] <= row["known"] <= row["known_high"]
        assert {"unseen_trips", "unseen_customers", "return_std_within_seed"} <= row.keys()
    page = (tmp_path / "arms" / "compare.html").read_text("utf-8")
    assert "2-envs-x2" in page

    # A missing run is trained again; the others are not touched.
    metrics_before = read_metrics(tmp_path / "arms" / "4-envs-seed-43")
    before = (tmp_path / "arms" / "2-envs-seed-42" / "metrics.jsonl").stat().st_mtime_ns
    shutil.rmtree(tmp_path / "arms" / "4-envs-seed-43")
    assert main(argv) == 0
    rerun = {row["arm"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rerun["2-envs"]["known"] == rows["2-envs"]["known"]
    assert rerun["4-envs"]["known"] == rows["4-envs"]["known"]
    assert read_metrics(tmp_path / "arms" / "4-envs-seed-43") == metrics_before
    after = (tmp_path / "arms" / "2-envs-seed-42" / "metrics.jsonl").stat().st_mtime_ns
    assert after == before

    assert main([*argv, "--learning-rate", "0.5"]) == 2
    assert "ppo.learning_rate" in capsys.readouterr().err


def test_arms_are_evaluated_after_the_same_number_of_episodes():
    start = preset_settings("dvrp")
    start = start.__class__(
        env="dvrp",
        length=start.length.__class__(episodes=12_800),
        rollout=start.rollout.__class__(num_envs=64, num_steps=0),
        evaluation=start.evaluation.__class__(eval_interval=20),
        env_settings=start.env_settings,
    )
    arms = make_arms(start, [64, 256], 30)
    arm_settings = {
        arm.name: (
            arm.settings.rollout.num_envs,
            arm.settings.rollout.num_steps,
            arm.settings.evaluation.eval_interval,
            arm.settings.length.epochs,
        )
        for arm in arms
    }
    assert arm_settings == {"64-envs": (64, 30, 20, 200), "256-envs": (256, 30, 5, 50), "64-envs-x4": (64, 120, 5, 50)}
    with pytest.raises(SettingsError, match="different"):
        make_arms(start, [64, 64], 30)
    with pytest.raises(SettingsError, match="multiples"):
        make_arms(start, [64, 96], 30)


def test_a_comparison_of_another_length_in_the_same_folder_is_rejected(capsys, tmp_path):
    argv = [*ARGV, "--save-dir", str(tmp_path), "--seeds", "1", "--json"]
    assert main(argv) == 0
    capsys.readouterr()
    assert main([*argv, "--episodes", "32"]) == 2
    assert "length.epochs" in capsys.readouterr().err
    assert main([*argv, "--epochs", "3"]) == 2


def test_the_common_level_is_five_percent_or_what_all_arms_reach():
    high = {"one": [curve(2, 6), curve(4, 8)], "other": [curve(1, 5.5)]}
    assert highest_common_level(high) == 5.0
    low = {"one": [curve(2, 2.57)], "other": [curve(1, 2.31)]}
    assert highest_common_level(low) == pytest.approx(2.3)
    assert first_reach(high["one"], 5.0) == {
        "epochs_to_level": 2.0,
        "samples_to_level": 200.0,
        "seconds_to_level": 20.0,
    }
    assert first_reach(low["other"], 5.0) == {}


def test_the_interval_over_seeds_includes_the_variance_between_seeds():
    rng = np.random.default_rng(1)
    days = rng.normal(size=200)
    agreeing = np.stack([days] * 5)
    differing = agreeing + rng.normal(size=(5, 1))
    narrow, wide = (np.diff(interval_over_seeds(runs))[0] for runs in (agreeing, differing))
    assert wide > 2 * narrow
