import pytest

from hundredfold.bench import dvrp_world
from hundredfold.worlds.dvrp.settings import DvrpSettings


def test_the_bench_tells_rates_and_where_the_time_goes(monkeypatch):
    monkeypatch.setattr(dvrp_world, "DAYS_PER_REPEAT", 2)
    settings = DvrpSettings(num_customers=4, lns_iterations=0)
    rows = dvrp_world.bench_world((1, 3), repeats=2, settings=settings)
    assert [row["num_envs"] for row in rows] == [1, 3]
    for row in rows:
        assert 0 < row["low"] <= row["samples_per_second"] <= row["high"]
        assert row["episodes_per_second"] == row["samples_per_second"] / 4
        shares = [row[f"{part}_share"] for part in ("oracle", "world", "policy")]
        assert min(shares) > 0
        assert sum(shares) == pytest.approx(1)
