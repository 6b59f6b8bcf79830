"""`hundredfold compare`: arms, seeds, resume, statistics, tables and report."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

from helpers.browser import BROWSER, inspect_page
from helpers.training_runs import read_metrics
from hundredfold.cli.compare import _arms
from hundredfold.cli.main import main
from hundredfold.config.presets import preset_settings
from hundredfold.config.run import LengthSettings
from hundredfold.config.toml import to_toml
from hundredfold.core.errors import SettingsError
from hundredfold.envs.registry import env_factory
from hundredfold.training.compare import AlignedCurves, Curve, first_reach, highest_common_level, num_envs_arms, verdict
from hundredfold.training.run_folder import RunFolder

TINY = (
    *("--num-customers", "5", "--lns-iterations", "0", "--hidden-sizes", "8", "--eval-episodes", "4"),
    *("--eval-interval", "2", "--oracle-threads", "1"),
)
ARGV = ["compare", "dvrp", "--num-envs", "2,4", "--seeds", "2", "--days", "4", "--episodes", "16", *TINY]
CORRIDOR = [
    *("compare", "corridor", "--steps", "256", "--num-envs", "4", "--num-steps", "16", "--hidden-sizes", "8"),
    *("--seeds", "2", "--final-episodes", "8", "--eval-episodes", "4"),
    *("--arm", "fast: --learning-rate 0.01", "--arm", "slow: --learning-rate 1e-5 --no-anneal-learning-rate"),
]


def curve(*scores, step=100):
    count = np.arange(1, len(scores) + 1, dtype=float)
    return Curve(count, step * count, 10 * count, np.array(scores, float), 1.0)


def results(capsys):
    """Rows of scores and of training from standard output."""
    rows = json.loads(capsys.readouterr().out)["rows"]
    return [row for row in rows if "table" not in row], {row["arm"]: row for row in rows if "table" in row}


def test_numbers_of_envs_are_compared_and_finished_runs_are_reused(capsys, tmp_path):
    argv = [*ARGV, "--save-dir", str(tmp_path / "arms"), "--json"]
    assert main(argv) == 0
    scores, training = results(capsys)
    assert list(training) == ["2-envs", "4-envs", "2-envs-x2"]
    assert [row["epochs"] for row in training.values()] == [8, 4, 4]
    assert {row["samples"] for row in training.values()} == {80}
    assert training["4-envs"]["samples_per_update"] == training["2-envs-x2"]["samples_per_update"] == 20
    assert {(row["arm"], row["split"]) for row in scores} == {
        (arm, split) for arm in training for split in ("known", "unseen_trips", "unseen_customers")
    }
    for row in scores:
        assert row["ci_low"] <= row["mean"] <= row["ci_high"]
        assert row["iqm_low"] <= row["iqm"] <= row["iqm_high"]
        assert ("difference" in row) == (row["arm"] != "2-envs")
    page = (tmp_path / "arms" / "compare.html").read_text("utf-8")
    assert "2-envs-x2 is a control: 2 envs that collect as many samples for each update as 4-envs" in page

    # A missing run is trained and evaluated again; the others are not touched.
    metrics_before = read_metrics(tmp_path / "arms" / "4-envs-seed-43")
    kept = tmp_path / "arms" / "2-envs-seed-42"
    before = {path: path.stat().st_mtime_ns for path in (kept / "metrics.jsonl", kept / "compare_scores.json")}
    shutil.rmtree(tmp_path / "arms" / "4-envs-seed-43")
    assert main(argv) == 0
    assert results(capsys)[0] == scores
    assert read_metrics(tmp_path / "arms" / "4-envs-seed-43") == metrics_before
    assert {path: path.stat().st_mtime_ns for path in before} == before

    assert main([*argv, "--learning-rate", "0.5"]) == 2
    assert "ppo.learning_rate" in capsys.readouterr().err


def test_the_comparison_of_64_and_256_envs_learns_from_returns_in_the_city_hubs():
    _, arms = _arms("dvrp", [])
    assert [arm.name for arm in arms] == ["64-envs", "256-envs", "64-envs-x4"]
    for arm in arms:
        assert (arm.settings.ppo.advantages, arm.settings.env_settings.city) == ("gae", "hubs")
        assert arm.settings.length.epochs * arm.settings.rollout.samples_per_epoch == 12_800 * 30
    _, arms = _arms("dvrp", ["--num-envs", "8,16", "--city", "spread", "--preset", "default", "--episodes", "64"])
    assert {arm.settings.env_settings.city for arm in arms} == {"spread"}
    assert {arm.settings.ppo.advantages for arm in arms} == {"futures"}


def test_help_of_a_comparison_shows_the_settings_that_it_uses(capsys):
    with pytest.raises(SystemExit):
        main(["compare", "dvrp", "--help"])
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    _, arms = _arms("dvrp", [])
    assert "--num-envs 64,256 compares numbers of envs, as `compare dvrp` does without arms" in text
    for flag, used in (
        ("num-envs", arms[0].settings.rollout.num_envs),
        ("episodes", arms[0].settings.length.epochs * arms[0].settings.rollout.num_envs),
        ("eval-interval", arms[0].settings.evaluation.eval_interval),
        ("city", arms[0].settings.env_settings.city),
    ):
        assert re.search(rf"--{flag} (?:INT|{{[a-z,]+}}) .*?\(default: (.*?)\)", text).group(1) == str(used), flag


@pytest.mark.parametrize("arms", [[], ["--arm", "a: --gamma 0.9", "--arm", "b:"]])
def test_help_of_a_comparison_on_a_gymnasium_env_shows_the_settings_that_its_arms_start_from(capsys, arms):
    with pytest.raises(SystemExit):
        main(["compare", "CartPole-v1", *arms, "--help"])
    captured = capsys.readouterr()
    for flag in ("num-envs", "num-steps", "hidden-sizes"):
        chosen = re.search(rf"--{flag} (\S+):", captured.err).group(1)
        assert re.search(rf"--{flag} .*?\(default: {chosen}\)", captured.out, re.DOTALL)


def test_help_of_a_comparison_of_numbers_of_envs_shows_the_settings_that_it_uses_on_a_gymnasium_env(capsys):
    with pytest.raises(SystemExit):
        main(["compare", "CartPole-v1", "--num-envs", "8,16", "--help"])
    text = capsys.readouterr().out
    _, (first, *_) = _arms("CartPole-v1", ["--num-envs", "8,16"])
    for flag, used in (("num-envs", first.settings.rollout.num_envs), ("num-steps", first.settings.rollout.num_steps)):
        assert re.search(rf"--{flag} INT .*?\(default: (.*?)\)", text, re.DOTALL).group(1) == str(used), flag


def test_arms_are_evaluated_after_the_same_number_of_episodes():
    start = preset_settings("dvrp", "returns")
    start = replace(
        start, length=LengthSettings(episodes=12_800), evaluation=replace(start.evaluation, eval_interval=20)
    )
    spec = env_factory("dvrp", start.env_settings)(np.arange(1)).spec
    arms = num_envs_arms(start, [64, 256], spec)
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
        num_envs_arms(start, [64, 64], spec)
    with pytest.raises(SettingsError, match="multiples"):
        num_envs_arms(start, [64, 96], spec)


def test_arms_by_flags_are_trained_with_the_same_seeds_and_evaluated_on_the_same_episodes(
    capsys, tmp_path, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    argv = [*CORRIDOR, "--save-dir", str(tmp_path)]
    assert main(argv) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any("compared with fast, paired" in line for line in lines)
    explained = "P(higher): probability that a run scores higher than one of fast"
    assert explained in " ".join(" ".join(lines).split())
    assert sorted(path.parent.name for path in tmp_path.glob("*/settings.toml")) == [
        *("fast-seed-42", "fast-seed-43", "slow-seed-42", "slow-seed-43")
    ]
    slow = RunFolder.open(tmp_path / "slow-seed-43").settings()
    assert (slow.ppo.learning_rate, slow.ppo.anneal_learning_rate, slow.seed) == (1e-5, False, 43)
    assert (slow.length.epochs, slow.evaluation.eval_interval) == (4, 1)

    assert main([*argv, "--json"]) == 0
    (fast, slow), _ = results(capsys)
    assert fast["episodes"] == 8
    assert fast["seeds"] == 2
    assert slow["difference"] == pytest.approx(slow["mean"] - fast["mean"])
    assert slow["difference_low"] <= slow["difference"] <= slow["difference_high"]
    assert 0 <= slow["improvement_probability_low"] <= slow["improvement_probability"] <= 1
    # Other episodes are evaluated again.
    scores_file = tmp_path / "fast-seed-42" / "compare_scores.json"
    before = json.loads(scores_file.read_text())
    assert main([*argv, "--final-seed", "7", "--json"]) == 0
    assert json.loads(scores_file.read_text())["conditions"] == before["conditions"] | {"seed": 7}
    (fast, slow), _ = results(capsys)
    record = json.loads((tmp_path / "compare.json").read_text("utf-8"))
    assert record["scores"] == [fast, slow]
    assert len(record["curves"]["fast"]) == 2
    assert len(record["curves"]["fast"][0]["samples"]) == 4
    page = (tmp_path / "compare.html").read_text("utf-8")
    for words in ("Learning curves", "Compared with fast", "Probability of improvement", record["verdicts"]["all"][:9]):
        assert words in page


@pytest.fixture(scope="module")
def comparison_page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparison")
    assert main([*CORRIDOR, "--save-dir", str(folder), "--json"]) == 0
    return folder / "compare.html"


@BROWSER
@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_of_a_comparison_is_drawn_at_every_width(comparison_page, tmp_path, width):
    seen = inspect_page(comparison_page, width, tmp_path / "profile")
    assert seen["sections"][0] == "Learning curves"
    # Scores, differences, probabilities of improvement and learning curves.
    assert seen["charts"] == seen["drawn"] == 4
    assert seen["failed"] == []
    assert (seen["by_steps"], seen["by_time"]) == ("environment steps", "wall-clock time (s)")
    assert seen["wanted_width"] <= seen["given_width"] <= width


def test_arms_come_from_settings_files(tmp_path):
    wide = replace(preset_settings("corridor"), length=LengthSettings(steps=512))
    wide = replace(wide, network=replace(wide.network, hidden_sizes=(32,)))
    (tmp_path / "wide.toml").write_text(to_toml(wide))
    options, arms = _arms("corridor", ["--arm", str(tmp_path / "wide.toml"), "--arm", "own:", "--steps", "1024"])
    assert [arm.name for arm in arms] == ["wide", "own"]
    assert [arm.settings.network.hidden_sizes for arm in arms] == [(32,), (32, 32)]
    assert [arm.settings.length.epochs for arm in arms] == [2, 2]
    assert options.seeds == 5


def test_ablations_switch_off_one_part_each():
    _, arms = _arms("dvrp", ["--arms", "ablations", "--city", "hubs"])
    settings = {arm.name: arm.settings for arm in arms}
    default = settings["default"]
    assert (default.ppo.advantages, default.network.architecture) == ("futures", "per_action")
    assert default.belief_model.trip_memory
    assert default.belief_model.stranger_prior
    assert settings["no-mask"].env_settings.mask_mode == "none" != default.env_settings.mask_mode
    assert settings["no-shared-weights"].network.architecture == "joint"
    assert settings["policy-gradient"].ppo.futures_loss == "policy_gradient" != default.ppo.futures_loss
    assert settings["returns"].ppo.advantages == "gae"
    assert settings["returns-x10"].length.epochs == 10 * default.length.epochs
    assert not settings["no-trip-memory"].belief_model.trip_memory
    assert not settings["no-stranger-prior"].belief_model.stranger_prior
    assert {arm.settings.env_settings.city for arm in arms} == {"hubs"}


def test_settings_of_third_party_envs_are_fitted_once(tmp_path, monkeypatch):
    def arms():
        return _arms("CartPole-v1", ["--arm", "a:", "--arm", "b: --num-envs 4", "--save-dir", str(tmp_path)])[1]

    first = arms()
    assert [arm.settings.rollout.num_envs for arm in first] == [first[0].settings.rollout.num_envs, 4]
    assert first[0].settings.rollout.num_envs != 8  # fitted
    monkeypatch.setattr("hundredfold.training.auto_config.auto_configure", None)  # would raise if it were called again
    assert arms() == first


@pytest.mark.parametrize(
    ("env", "flags", "words"),
    [
        ("corridor", [], "nothing to compare"),
        ("corridor", ["--arm", "a"], "NAME: FLAGS"),
        ("corridor", ["--arm", "../a:", "--arm", "b:"], "name of a folder"),
        ("corridor", ["--arm", "a:", "--arm", "a:"], "different names"),
        ("corridor", ["--arm", "a: --seeds 3", "--arm", "b:"], "flags of the comparison"),
        ("corridor", ["--arm", "a: --seed 3", "--arm", "b:"], "flags of the comparison"),
        ("corridor", ["--arm", "a: 'x", "--arm", "b:"], "cannot be split"),
        ("corridor", ["--arm", "a:", "--arm", "b:", "--num-envs", "1,2"], "cannot be combined"),
        ("corridor", ["--arm", "a:", "--arm", "b:", "--eval-interval", "0"], "--eval-interval"),
        ("corridor", ["--arms", "ablations"], "no set of arms"),
        ("corridor", ["--num-envs", "1,2", "--algo", "dqn"], "--algo ppo"),
        ("dvrp", ["--arm", "a: --city hubs", "--arm", "b: --city spread"], "different days"),
        ("dvrp", ["--num-envs", "1,2", "--epochs", "3"], "remove --epochs"),
    ],
)
def test_arms_that_cannot_be_compared_are_refused(env, flags, words):
    with pytest.raises(SettingsError, match=words):
        _arms(env, flags)


def test_no_winner_is_named_where_intervals_overlap():
    def rows(*intervals, seeds=5):
        return [
            {"arm": name, "seeds": seeds, "mean": (low + high) / 2, "ci_low": low, "ci_high": high}
            for name, (low, high) in zip("abc", intervals, strict=False)
        ]

    assert verdict(rows((1, 2), (3, 4), (0, 2.9))).startswith("winner: b")
    overlapping = verdict(rows((1, 2), (3, 4), (0, 3)))
    assert overlapping.startswith("no winner")
    assert overlapping.endswith("that of c")
    assert verdict(rows((1, 3), (3, 4), (0, 3))).endswith("those of a and c")
    assert "one seed" in verdict(rows((1, 2), (3, 4), seeds=1))
    assert "one arm" in verdict(rows((1, 2)))


def test_a_comparison_of_another_length_in_the_same_folder_is_rejected(capsys, tmp_path):
    argv = [*ARGV, "--save-dir", str(tmp_path), "--seeds", "1", "--json"]
    assert main(argv) == 0
    capsys.readouterr()
    assert main([*argv, "--episodes", "32"]) == 2
    assert "length.epochs" in capsys.readouterr().err
    assert main([*argv, "--epochs", "3"]) == 2


def test_a_run_that_stopped_early_keeps_its_last_score_and_its_clock_stands_still():
    early, late = curve(1.0, 9.0), curve(1.0, 2.0, 3.0, 7.0)
    aligned = AlignedCurves.of([early, late])
    assert aligned.scores.tolist() == [[1, 9, 9, 9], [1, 2, 3, 7]]
    assert aligned.samples.tolist() == late.samples.tolist()
    assert aligned.seconds[-1] == pytest.approx((early.seconds[-1] + late.seconds[-1]) / 2)
    assert first_reach([early, late], 8.0)["samples_to_level"] == late.samples[-1]


def test_the_common_level_is_the_target_or_what_all_arms_reach():
    high = {"one": [curve(2, 6), curve(4, 8)], "other": [curve(1, 5.5)]}
    assert highest_common_level(high, 5.0) == 5.0
    assert highest_common_level(high) == 5.5
    low = {"one": [curve(2, 2.57)], "other": [curve(1, 2.31)]}
    assert highest_common_level(low, 5.0) == pytest.approx(2.3)
    assert first_reach(high["one"], 5.0) == {
        "epochs_to_level": 2.0,
        "samples_to_level": 200.0,
        "seconds_to_level": 20.0,
    }
    assert first_reach(low["other"], 5.0) == {}
