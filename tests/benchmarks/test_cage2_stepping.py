from benchmarks.cage2_stepping import bench_stepping


def test_the_bench_tells_its_yardsticks_and_the_others_figures():
    rows = bench_stepping(num_envs=(100, 1000), threads=(1,), repeats=1, seconds=0.002)
    ours = [row for row in rows if row["system"] == "hundredfold"]
    assert [(row["num_envs"], row["threads"]) for row in ours] == [(100, 1), (1000, 1)]
    for row in ours:
        assert row["low"] <= row["steps_per_second"] <= row["high"]
        assert row["episodes_per_second"] == row["steps_per_second"] / 100
        assert min(row["efficiency"], row["ratio_to_python_loop"]) > 0
    others = [row for row in rows if row.get("source") == "recorded elsewhere"]
    assert {row["system"] for row in others} == {"CybORG", "MiniCAGE"}
    assert all(row["ratio_to_ours"] < 1 for row in others)
