"""`hundredfold evaluate dvrp`: belief policies, trade-off, fairness and belief metrics."""

import json

import pytest

from hundredfold.cli import main

QUICK = ["--num-envs", "4", "--episodes", "8", "--eval-episodes", "4", "--quiet"]
FEW = ["--days", "4", "--splits", "known", "--warm-up-days", "10", "--lookahead-samples", "1"]


def call(*arguments):
    try:
        return main.main([str(argument) for argument in arguments])
    except SystemExit as error:
        return error.code


def evaluate(capsys, *arguments):
    assert call("evaluate", *arguments, *FEW, "--json") == 0
    return json.loads(capsys.readouterr().out)["rows"]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    save_dir = tmp_path_factory.mktemp("runs")
    arguments = ["train", "dvrp", *QUICK, "--customers", "6", "--save-dir", save_dir]
    assert call(*arguments, "--name", "day") == 0
    return save_dir / "day"


def test_belief_policies_are_evaluated_after_a_warm_up(capsys):
    names = ["belief_largest", "thompson", "belief_greedy", "lookahead"]
    rows = evaluate(capsys, "dvrp", "--policy", names[0], "--baselines", *names[1:])
    assert [row["policy"] for row in rows] == names
    assert len({row["baseline_cost"] for row in rows}) == 1
    assert all(row["offers_made"] > 0 and row["seconds"] > 0 for row in rows)
    assert "table" not in rows[0]


def test_the_shift_penalty_of_a_run_is_chosen_when_deciding(capsys, run_folder):
    free, dear = (evaluate(capsys, run_folder, "--shift-penalty", penalty)[0] for penalty in ("0", "1000"))
    assert free["shift_minutes"] > 0
    assert dear["shift_minutes"] == dear["offers_made"] == 0
    assert call("evaluate", "dvrp", "--policy", "random", *FEW, "--shift-penalty", "1") != 0
    assert "none of these policies weighs shifts" in capsys.readouterr().err


def test_a_run_is_evaluated_with_lookahead_on_top(capsys, run_folder):
    alone, ahead = (evaluate(capsys, run_folder, "--lookahead", samples)[0] for samples in ("0", "4"))
    assert ahead["offers_made"] > 0
    assert ahead["baseline_cost"] == alone["baseline_cost"]
    assert (ahead["cost"], ahead["shift_minutes"]) != (alone["cost"], alone["shift_minutes"])


def test_a_run_with_observations_of_another_version_is_refused(capsys, run_folder, monkeypatch):
    monkeypatch.setattr("hundredfold.envs.dvrp.observation.NUM_FEATURES", 36)
    assert call("evaluate", run_folder, *FEW) == 2
    assert "other observations of dvrp (offers); train it again" in " ".join(capsys.readouterr().err.split())


def test_baselines_share_the_acceptance_model_of_a_run(capsys, run_folder):
    def believed(*more):
        arguments = [run_folder, "--baselines", "belief_largest", "--belief-metrics", "--days", "4", "--json"]
        assert call("evaluate", *arguments, "--splits", "known", *more) == 0
        rows = json.loads(capsys.readouterr().out)["rows"]
        return [row["responses"] for row in rows if row.get("table") == "beliefs"]

    shared, own = believed(), believed("--warm-up-days", "2")
    assert len(set(shared)) == 1
    assert len(set(own)) == 2


def test_a_tradeoff_has_curves_and_points_and_compares_them(capsys, run_folder):
    arguments = [run_folder, "--baselines", "greedy_expected", "belief_largest", "random"]
    rows = evaluate(capsys, *arguments, "--tradeoff", "--shift-penalties", "0", "1000")
    points = [row for row in rows if "table" not in row]
    assert [(row["policy"], row["shift_penalty"]) for row in points] == [
        (str(run_folder), 0.0),
        (str(run_folder), 1000.0),
        ("greedy_expected", 0.0),
        ("greedy_expected", 1000.0),
        ("belief_largest", 0.0),
        ("belief_largest", 1000.0),
        ("random", None),
    ]
    for point in (points[1], points[3], points[5]):
        assert point["saved_minutes"] == point["shift_minutes"] == point["mean"] == 0.0
    for point in (points[0], points[4]):
        assert point["shift_minutes"] > 0
    compared = [row for row in rows if row.get("table") == "equal_shift"]
    pairs = {(row["policy"], row["baseline"]) for row in compared}
    assert (str(run_folder), "belief_largest") in pairs
    assert ("belief_largest", "greedy_expected") in pairs
    assert all(row["ci_low"] <= row["mean"] <= row["ci_high"] for row in compared)


def test_fairness_and_belief_metrics_of_a_run_and_a_baseline(capsys, run_folder):
    arguments = [run_folder, "--baselines", "thompson", "none", "--fairness", "--belief-metrics"]
    rows = evaluate(capsys, *arguments)
    tables = {}
    for row in rows:
        tables.setdefault(row.get("table", "policies"), []).append(row)
    assert {row["policy"] for row in tables["fairness"]} == {str(run_folder), "thompson", "none"}
    assert {row["by"] for row in tables["fairness"]} >= {"all", "type", "purpose"}
    beliefs = {row["policy"]: row for row in tables["beliefs"]}
    assert set(beliefs) == {str(run_folder), "thompson"}
    for row in beliefs.values():
        assert 0.0 <= row["type_accuracy"] <= 1.0
        assert 0.0 <= row["bayes_optimal_accuracy"] <= 1.0
        assert row["customers"] <= row["responses"]
    customers = [
        row["predicted_late"] + row["predicted_early"] + row["predicted_none"] + row["predicted_both"]
        for row in tables["confusion"]
        if row["policy"] == "thompson"
    ]
    assert sum(customers) == beliefs["thompson"]["customers"]
    offers = sum(row["offers"] for row in tables["calibration"] if row["policy"] == "thompson")
    made = next(row["offers_made"] for row in rows if row["policy"] == "thompson")
    assert offers == 4 * made
    by_group = [row for row in tables["calibration_by_group"] if row["policy"] == "thompson"]
    assert {row["by"] for row in by_group} == {"type", "purpose", "neighbourhood", "age", "occupation", "trip"}
    for attribute in ("age", "trip"):
        assert sum(row["offers"] for row in by_group if row["by"] == attribute) == offers
    by_day = tables["calibration_by_day"]
    assert {row["policy"] for row in by_day} == {"thompson"}
    assert sum(row["offers"] for row in by_day) == beliefs["thompson"]["responses"]
    assert all(0.0 <= row["predicted_pct"] <= 100.0 and row["offer_brier_score"] <= 1.0 for row in by_day)


def test_trip_memory_and_stranger_prior_can_be_turned_off(capsys):
    arguments = ["dvrp", "--policy", "thompson", "--belief-metrics"]
    for flags, expected in (
        ((), {"with responses", "without responses"}),
        (("--no-trip-memory",), {"without responses"}),
    ):
        rows = evaluate(capsys, *arguments, *flags, "--no-stranger-prior")
        groups = {row["group"] for row in rows if row.get("table") == "calibration_by_group" and row["by"] == "trip"}
        assert groups == expected


def test_demand_is_reported_by_city_without_a_policy(capsys, run_folder):
    (even,) = evaluate(capsys, "dvrp", "--demand")
    (hubs,) = evaluate(capsys, "dvrp", "--demand", "--city", "hubs")
    assert (even["city"], hubs["city"]) == ("spread", "hubs")
    assert hubs["pickup_cells"] < even["pickup_cells"] / 2
    assert hubs["baseline_cost"] < even["baseline_cost"]
    demand, policy = evaluate(capsys, "dvrp", "--demand", "--city", "hubs", "--policy", "none")
    assert demand == hubs
    assert policy["table"] == "policies"
    assert policy["baseline_cost"] == hubs["baseline_cost"]
    (of_run, _) = evaluate(capsys, run_folder, "--demand")
    assert of_run["city"] == "spread"
    assert call("evaluate", run_folder, "--city", "hubs") == 2
    assert "with its own city" in capsys.readouterr().err


def test_days_of_policies_by_name_have_the_given_number_of_customers(capsys, run_folder):
    few, many = (evaluate(capsys, "dvrp", "--policy", "none", "--customers", count)[0] for count in ("6", "12"))
    assert 0 < few["baseline_cost"] < many["baseline_cost"]
    assert call("evaluate", run_folder, "--customers", "12") == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "--customers cannot be combined with the run" in message
    assert "with its own number of customers" in message


def test_policies_by_name_are_evaluated_with_other_offers_and_a_run_with_its_own(capsys, run_folder):
    (usual,) = evaluate(capsys, "dvrp", "--policy", "privileged_largest")
    flags = ("--offer-minutes", "0,60", "--offer-directions", "both", "--vehicle-cost", "50")
    (wide,) = evaluate(capsys, "dvrp", "--policy", "privileged_largest", *flags)
    assert wide["shift_minutes"] < usual["shift_minutes"], "few customers tolerate 60 minutes"
    assert wide["baseline_cost"] >= usual["baseline_cost"] + 50.0
    for number in (0, 2, 4):
        assert call("evaluate", run_folder, *flags[number : number + 2]) == 2
        assert "a run is evaluated with its own" in capsys.readouterr().err
    assert call("evaluate", "dvrp", "--policy", "none", "--offer-minutes", "10,20") == 2
    assert "ascend from 0" in capsys.readouterr().err


def test_the_upper_bound_is_evaluated_beside_policies(capsys):
    pytest.importorskip("ortools")
    hindsight, bound = evaluate(capsys, "dvrp", "--policy", "hindsight", "--baselines", "upper_bound")
    assert (hindsight["policy"], bound["policy"]) == ("hindsight", "upper_bound")
    assert 0.0 < hindsight["mean"] <= bound["mean"]
    assert "shift_minutes" not in bound
    (alone,) = evaluate(capsys, "dvrp", "--policy", "upper_bound")
    assert alone["mean"] == bound["mean"]


def test_policies_are_printed_best_first_and_privileged_ones_last(capsys):
    baselines = "privileged_largest,greedy_expected,hindsight,random"
    arguments = [
        "evaluate",
        "dvrp",
        "--policy",
        "none",
        "--baselines",
        baselines,
        *FEW,
        "--splits",
        "unseen_trips,known",
    ]
    assert call(*arguments) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    first = [line[0].rstrip(",:") for line in lines if line]
    names = {"none", "random", "greedy_expected", "privileged_largest", "hindsight"}
    printed = [line for line in lines if line and line[0] in names]
    assert len(printed) == 2 * len(names), first
    for rows in (printed[:5], printed[5:]):
        saved = [float(row[1]) for row in rows]
        assert saved[:3] == sorted(saved[:3], reverse=True)
        assert {row[0] for row in rows[3:]} == {"privileged_largest", "hindsight"}
    titles = [line for line in lines if "dvrp," in line]
    assert ["unseen_trips" in " ".join(title) for title in titles] == [True, False]


def test_tables_are_printed_with_titles(capsys):
    arguments = ["evaluate", "dvrp", "--policy", "thompson", "--fairness", "--belief-metrics", *FEW]
    assert call(*arguments) == 0
    printed = capsys.readouterr().out
    for title in ("driving minutes saved", "offers by group", "believed customer types"):
        assert title in printed
    assert printed.count("neighbourhood") < 20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dvrp", "--policy", "lookahead", "--lookahead-samples", "0"], "samples"),
        (["dvrp", "--policy", "thompson", "--warm-up-days", "-1"], "warm_up_days"),
        (["dvrp", "--tradeoff", "--shift-penalties", "-1"], "shift_penalties"),
        (["dvrp", "--tradeoff", "--baselines", "upper_bound"], "makes no offers"),
    ],
)
def test_invalid_arguments_are_explained(capsys, arguments, message):
    assert call("evaluate", *arguments) in (1, 2)
    printed = capsys.readouterr()
    assert message in printed.err + printed.out
    assert "Traceback" not in printed.err
