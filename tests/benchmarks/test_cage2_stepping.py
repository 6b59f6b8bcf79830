from benchmarks.cage2_stepping import bench_stepping


def test_rows_compare_batches_with_loops_and_recorded_systems():
    rows = bench_stepping(num_envs=(100, 1000), threads=(1,), repeats=1, seconds=0.002)
    batches = [row for row in rows if row["system"] == "hundredfold"]
    assert [(row["num_envs"], row["threads"]) for row in batches] == [(100, 1), (1000, 1)]
    for row in batches:
        assert row["low"] <= row["steps_per_second"] <= row["high"]
        assert row["episodes_per_second"] == row["steps_per_second"] / 100
        assert min(row["efficiency"], row["ratio_to_python_loop"]) > 0
    recorded = [row for row in rows if row.get("source") == "recorded"]
    assert {row["system"] for row in recorded} == {"CybORG", "MiniCAGE"}
    assert all(row["ratio_to_hundredfold"] < 1 for row in recorded)
