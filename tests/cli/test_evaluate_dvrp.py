"""`hundredfold evaluate dvrp`: rules that learn first, prices, fairness and acceptance models."""

import json

import pytest

from hundredfold.cli import main

QUICK = ["--num-envs", "4", "--episodes", "8", "--eval-episodes", "4", "--quiet"]
FEW = ["--days", "4", "--splits", "known", "--warm-up-days", "10", "--lookahead-samples", "1"]


def call(*words):
    try:
        return main.main([str(word) for word in words])
    except SystemExit as left:
        return left.code


def rows_of(capsys, *words):
    assert call("evaluate", *words, *FEW, "--json") == 0
    return json.loads(capsys.readouterr().out)["rows"]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    save_dir = tmp_path_factory.mktemp("runs")
    words = ["train", "dvrp", *QUICK, "--customers", "6", "--save-dir", save_dir]
    assert call(*words, "--name", "day") == 0
    return save_dir / "day"


def test_rules_that_believe_learn_and_are_judged(capsys):
    names = ["belief_largest", "thompson", "belief_greedy", "lookahead"]
    rows = rows_of(capsys, "dvrp", "--policy", names[0], "--baselines", *names[1:])
    assert [row["policy"] for row in rows] == names
    assert len({row["reference"] for row in rows}) == 1
    assert all(row["offers_made"] > 0 and row["seconds"] > 0 for row in rows)
    assert "table" not in rows[0]


def test_a_tradeoff_has_curves_and_dots_and_compares_them(capsys, run_folder):
    words = [run_folder, "--baselines", "greedy_expected", "belief_largest", "random"]
    rows = rows_of(capsys, *words, "--tradeoff", "--shift-penalties", "0", "1000")
    points = [row for row in rows if "table" not in row]
    assert [(row["policy"], row["shift_penalty"]) for row in points] == [
        ("greedy_expected", 0.0),
        ("greedy_expected", 1000.0),
        ("belief_largest", 0.0),
        ("belief_largest", 1000.0),
        (str(run_folder), pytest.approx(points[4]["shift_penalty"])),
        ("random", None),
    ]
    for point in (points[1], points[3]):
        assert point["saved_minutes"] == point["shift_minutes"] == point["mean"] == 0.0
    assert points[2]["shift_minutes"] > 0
    compared = [row for row in rows if row.get("table") == "equal_minutes"]
    pairs = {(row["policy"], row["against"]) for row in compared}
    assert (str(run_folder), "belief_largest") in pairs
    assert ("belief_largest", "greedy_expected") in pairs
    assert all(row["ci_low"] <= row["mean"] <= row["ci_high"] for row in compared)


def test_fairness_and_acceptance_model_of_a_run_and_of_a_rule(capsys, run_folder):
    words = [run_folder, "--baselines", "thompson", "none", "--fairness", "--belief-metrics"]
    rows = rows_of(capsys, *words)
    tables = {}
    for row in rows:
        tables.setdefault(row.get("table", "policies"), []).append(row)
    assert {row["policy"] for row in tables["fairness"]} == {str(run_folder), "thompson", "none"}
    assert {row["by"] for row in tables["fairness"]} >= {"all", "type", "purpose"}
    known = {row["policy"]: row for row in tables["beliefs"]}
    assert set(known) == {str(run_folder), "thompson"}
    for row in known.values():
        assert 0.0 <= row["type_accuracy"] <= 1.0
        assert 0.0 <= row["bayes_optimal_accuracy"] <= 1.0
        assert row["customers"] <= row["responses"]
    people = [
        row["taken_for_late"]
        + row["taken_for_early"]
        + row["taken_for_none"]
        + row["taken_for_both"]
        for row in tables["confusion"]
        if row["policy"] == "thompson"
    ]
    assert sum(people) == known["thompson"]["customers"]
    asked = sum(row["offers"] for row in tables["calibration"] if row["policy"] == "thompson")
    made = next(row["offers_made"] for row in rows if row["policy"] == "thompson")
    assert asked == 4 * made


def test_people_see_tables(capsys):
    words = ["evaluate", "dvrp", "--policy", "thompson", "--fairness", "--belief-metrics", *FEW]
    assert call(*words) == 0
    shown = capsys.readouterr().out
    for title in ("improvement in percent", "who is asked", "how well people are known"):
        assert title in shown
    assert shown.count("neighbourhood") < 20


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["dvrp", "--policy", "lookahead", "--lookahead-samples", "0"], "samples"),
        (["dvrp", "--policy", "thompson", "--warm-up-days", "-1"], "warm_up_days"),
        (["dvrp", "--tradeoff", "--shift-penalties", "-1"], "shift_penalties"),
    ],
)
def test_wrong_words_get_a_hint(capsys, words, hint):
    assert call("evaluate", *words) in (1, 2)
    said = capsys.readouterr()
    assert hint in said.err + said.out
    assert "Traceback" not in said.err
