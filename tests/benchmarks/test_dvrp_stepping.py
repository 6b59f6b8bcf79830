"""Stepping speed of dvrp and the benchmark command."""

import json

import pytest

from benchmarks import dvrp_stepping
from benchmarks.__main__ import main
from hundredfold.envs.dvrp.settings import DvrpSettings


def test_rows_have_rates_and_shares_of_the_time(monkeypatch):
    monkeypatch.setattr(dvrp_stepping, "DAYS_PER_REPEAT", 2)
    settings = DvrpSettings(num_customers=4, lns_iterations=0)
    rows = dvrp_stepping.bench_stepping((1, 3), repeats=2, settings=settings)
    assert [row["num_envs"] for row in rows] == [1, 3]
    for row in rows:
        assert 0 < row["low"] <= row["samples_per_second"] <= row["high"]
        assert row["episodes_per_second"] == row["samples_per_second"] / 4
        shares = [row[f"{part}_share"] for part in ("oracle", "env", "policy")]
        assert min(shares) > 0
        assert sum(shares) == pytest.approx(1)


def test_the_command_reports_shares_of_the_time(capsys):
    assert main(["stepping", "dvrp", "--num-envs", "4", "--repeats", "1", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    shares = row["oracle_share"] + row["env_share"] + row["policy_share"]
    assert shares == pytest.approx(1.0)


def test_an_unknown_benchmark_gets_a_suggestion(capsys):
    assert main(["trian"]) == 2
    assert "did you mean train" in capsys.readouterr().err
    assert main(["--help"]) == 0
    assert "usage: python -m benchmarks" in capsys.readouterr().out
