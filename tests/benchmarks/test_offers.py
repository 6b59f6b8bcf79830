"""Learned offers compared with look-ahead at equal shift."""

import json

import numpy as np
import pytest

from benchmarks import offers
from benchmarks.__main__ import main
from hundredfold.cli.main import main as hundredfold


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("offers")
    flags = "--preset default --num-customers 5 --num-envs 8 --epochs 2 --log-interval 1 --device cpu"
    assert hundredfold(["train", "dvrp", *flags.split(), "--save-dir", str(folder), "--name", "run"]) == 0
    return folder / "run"


def test_a_run_is_compared_with_lookahead_and_hindsight(capsys, monkeypatch, run_folder):
    monkeypatch.setattr(offers, "TIMED_ENVS", 2)
    flags = "--days 4 --splits known --futures 1 --policy-futures 1 --hindsight --json"
    capsys.readouterr()
    assert main(["offers", str(run_folder), str(run_folder), *flags.split()]) == 0
    rows = {row["policy"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert list(rows) == [
        "look-ahead, 1 futures",
        "network",
        "network - look-ahead, at equal shift",
        "network - look-ahead, at a shift penalty of 0.002",
        "network + 1 futures",
        "hindsight",
    ]
    assert rows["network"]["runs"] == 2
    assert rows["network"]["lowest"] == rows["network"]["highest"] == pytest.approx(rows["network"]["mean"])
    assert rows["hindsight"]["of_hindsight_pct"] == pytest.approx(100.0)
    assert rows["hindsight"]["mean"] >= rows["network"]["mean"]
    assert all(rows[name]["decision_ms"] > 0.0 for name in rows if name.startswith(("look", "network +")))


def test_runs_of_other_settings_are_refused(capsys, run_folder):
    assert main(["offers"]) == 2
    assert main(["offers", str(run_folder / "missing")]) != 0
    assert "missing" in capsys.readouterr().err


def test_intervals_cover_the_spread_of_runs_and_of_days():
    same_runs = np.tile(np.arange(100.0), (5, 1))
    apart = same_runs + 50.0 * np.arange(5.0)[:, None]
    alike, spread = offers._interval(same_runs), offers._interval(apart)
    assert alike["ci_low"] < alike["mean"] < alike["ci_high"]
    assert spread["ci_high"] - spread["ci_low"] > 2.0 * (alike["ci_high"] - alike["ci_low"])


def test_savings_after_the_penalty_charge_every_minute_of_shift():
    zeros = np.zeros(2)
    scores = offers.DayScores(
        np.array([10.0, -5.0]), zeros, np.array([500.0, 1000.0]), zeros, zeros, np.array([100.0, 50.0]), zeros, zeros
    )
    assert offers._after_penalty(scores, 0.1).tolist() == [8.0, -5.5]


def test_an_interrupted_comparison_continues_from_its_results(capsys, monkeypatch, run_folder, tmp_path):
    monkeypatch.setattr(offers, "TIMED_ENVS", 2)
    monkeypatch.setattr(offers, "DAYS_PER_PART", 2)

    def rows(days: int, *flags: str):
        capsys.readouterr()
        command = ["offers", str(run_folder), "--splits", "known", "--futures", "1", "--days", str(days)]
        assert main([*command, *flags]) == 0
        return json.loads(capsys.readouterr().out)["rows"]

    results = ("--results", str(tmp_path / "results"), "--json")
    rows(2, *results)
    kept = {file: file.stat().st_mtime_ns for file in (tmp_path / "results").iterdir()}
    continued = rows(4, *results)
    assert {file: file.stat().st_mtime_ns for file in kept} == kept  # read, not computed again
    at_once = rows(4, "--json")
    for one, other in zip(continued, at_once, strict=True):
        assert {**one, "decision_ms": None} == {**other, "decision_ms": None}

    rows(2, *results, "--seed", "5")
    assert len(list((tmp_path / "results").iterdir())) > len(kept) * 2  # days of another seed are other days
