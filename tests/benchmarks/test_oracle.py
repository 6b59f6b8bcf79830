"""Rows of the oracle benchmark."""

import pytest

from benchmarks import oracle
from benchmarks.oracle import bench_oracle
from hundredfold.routing.ortools_oracle import OrToolsSettings

KEYS = {
    "system",
    "oracle",
    "instance",
    "cost",
    "reference",
    "gap_pct",
    "seconds",
    "low",
    "high",
    "repeats",
    "threads",
    "violations",
}


def test_random_instances_and_incremental_routes_have_rows():
    rows = bench_oracle(num_instances=3, num_requests=8, num_envs=4, repeats=2, with_peers=False)
    assert all(set(row) == KEYS for row in rows)
    assert {row["violations"] for row in rows} == {0}
    assert {row["system"] for row in rows} == {"hundredfold"}
    assert rows[-1]["instance"] == "incremental 4 x 8"
    assert all(row["low"] <= row["seconds"] <= row["high"] for row in rows)


def test_or_tools_is_the_reference_if_installed(monkeypatch):
    pytest.importorskip("ortools")
    # Stopped by its solutions: on a busy machine it may find none in a tenth of a second.
    monkeypatch.setattr(oracle, "OrToolsSettings", lambda seconds: OrToolsSettings(seconds=600.0, max_solutions=10))
    rows = bench_oracle(num_instances=2, num_requests=6, num_envs=2, repeats=1, peer_seconds=0.1)
    or_tools = [row for row in rows if row["system"] == "ortools"]
    assert [row["gap_pct"] for row in or_tools] == [0.0, 0.0]
    assert rows[0]["reference"] == or_tools[0]["cost"]


def test_a_folder_of_benchmark_files_gives_gaps_and_their_mean(tmp_path):
    (tmp_path / "tiny.txt").write_text(
        "2 4 480 3 30\n0 0 0 0 0 0 480\n1 3 4 0 1 0 400\n2 6 8 0 1 0 400\n3 0 8 0 -1 0 400\n4 0 4 0 -1 0 400\n"
    )
    (tmp_path / "references.csv").write_text("instance,reference\ntiny,30\n")
    tiny, mean = bench_oracle(instances_dir=tmp_path, instance_seconds=0.05, with_peers=False)
    assert tiny["instance"] == "tiny"
    assert mean["instance"] == "mean of 1"
    assert mean["gap_pct"] == tiny["gap_pct"] == pytest.approx(100 * (tiny["cost"] / 30 - 1))


def test_the_neural_oracle_has_rows_by_batch_and_by_instance_size():
    rows = bench_oracle(num_instances=2, num_requests=4, num_envs=2, repeats=1, with_peers=False, neural_instances=3)
    rows = [row for row in rows if row["oracle"].startswith("neural")]
    assert all(set(row) == KEYS | {"ms_per_batch", "ratio_to_hundredfold"} for row in rows)
    assert [row["instance"] for row in rows[:4]] == [
        "batch of 1 x 4",
        "batch of 64 x 4",
        "batch of 256 x 4",
        "64 single calls",
    ]
    assert rows[3]["ratio_to_hundredfold"] > 0
    assert {row["instance"] for row in rows[4:]} == {
        "held-out days 3 x 1",
        "held-out days 3 x 3",
        "held-out days 3 x 4",
    }
    assert {row["violations"] for row in rows} == {0}
    assert all(row["gap_pct"] is not None for row in rows[4:])
