"""dvrp on the command line: train, evaluate and custom data."""

import csv
import json
from pathlib import Path

import pytest

from helpers.operator_trips import write_operator_trips
from hundredfold.cli import main, train
from hundredfold.config.presets import preset_settings

QUICK = ["--num-envs", "4", "--episodes", "8", "--eval-episodes", "4", "--quiet"]


def call(*arguments):
    try:
        return main.main([str(argument) for argument in arguments])
    except SystemExit as error:
        return error.code


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    save_dir = tmp_path_factory.mktemp("runs")
    arguments = ["train", "dvrp", *QUICK, "--customers", "6", "--save-dir", save_dir]
    assert call(*arguments, "--name", "day") == 0
    return save_dir / "day"


def test_an_epoch_is_one_day_of_every_env(run_folder):
    rows = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["total_episodes"] for row in rows] == [4, 8]
    assert rows[-1]["total_steps"] == 48
    assert "avg_improvement_pct" in rows[-1]


def test_a_run_is_evaluated_with_baselines(capsys, run_folder):
    arguments = ["evaluate", run_folder, "--days", "6", "--splits", "known", "--baselines", "none"]
    assert call(*arguments, "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["policy"] for row in rows] == [str(run_folder), "none"]
    assert rows[1]["mean"] == 0.0
    assert rows[0]["baseline_cost"] == rows[1]["baseline_cost"]


def test_a_policy_is_evaluated_on_every_split(capsys):
    assert call("evaluate", "dvrp", "--policy", "privileged_largest", "--days", "4", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["split"] for row in rows] == ["known", "unseen_trips", "unseen_customers"]


@pytest.mark.parametrize(
    "arguments", [["--customers", "6", "--ckpt-dir", "here"], ["--customers=6", "--ckpt-dir=here"]]
)
def test_flags_of_meta_train_are_understood(arguments):
    options, settings = train.parse(arguments, preset_settings("dvrp"), train.RunOptions)
    assert settings.env_settings.num_customers == 6
    assert options.save_dir == Path("here")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluate", "dvrp"], "no policy to evaluate"),
        (["evaluate", "dvrp", "--policy", "no_such_run"], "neither a policy nor a run folder"),
        (["evaluate", "dvrp", "--policy", "largest"], "_largest? The path of a run folder is accepted"),
        (["evaluate", "dvrp", "--policy", "none", "--baselines", "rndom"], "did you mean random?"),
        (["evaluate", "dvrp", "--policy", "none", "--runs", "random"], "random is not a run folder"),
        (["evaluate", "dvrp", "--policy", "none", "--days", "0"], "days must be at least 1"),
        (["train", "dvrp", "--trips", "trips.csv"], "trips.csv cannot be read (No such file or directory)"),
        (["train", "dvrp", "--travel-times", "matrix.csv"], "need your trips as well: --trips trips.csv"),
        (["data", "chek", "trips.csv"], "did you mean check?"),
        (["train", "dvrp", "--customers", "0"], "num_customers must be at least 1"),
    ],
)
def test_invalid_arguments_are_explained(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert call(*arguments) in (1, 2)
    printed = capsys.readouterr()
    assert message in printed.err + printed.out
    assert "Traceback" not in printed.err


LATE = "flexible for late dropoff, but inflexible for early pickup"
BOTH = "flexible for both early pickup and late dropoff"
CELLS = ("north", "east", "south", "west")


def write_city(folder):
    """Four cells ten minutes apart, and eight customers with four trips each."""
    with (folder / "times.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["", *CELLS])
        for row in CELLS:
            table.writerow([row, *(0 if row == column else 600 for column in CELLS)])
    columns = ["traveler_id", "flexibility", "trip_purpose", "departure_location"]
    columns += ["arrival_location", "departure_time_window", "arrival_time_window"]
    columns += ["origin_h3", "destination_h3", "flexibility_pickup_earlier"]
    columns += ["flexibility_dropoff_later"]
    with (folder / "trips.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(columns)
        for customer in range(1, 9):
            kind = LATE if customer % 2 else BOTH
            for trip in range(4):
                hour = 7 + 2 * trip + customer % 2
                pickup, dropoff = f"{hour:02d}:00-{hour:02d}:30", f"{hour:02d}:10-{hour:02d}:40"
                start, end = CELLS[(customer + trip) % 4], CELLS[(customer + trip + 1) % 4]
                table.writerow([customer, kind, "work", "home", "office", pickup, dropoff, start, end, 10, 20])
    return ["--trips", folder / "trips.csv", "--travel-times", folder / "times.csv"]


def test_training_on_custom_data_writes_a_report_and_keeps_the_data(capsys, tmp_path):
    arguments = ["train", "dvrp", *write_city(tmp_path), *QUICK, "--customers", "8"]
    assert call(*arguments, "--save-dir", tmp_path / "runs", "--name", "own") == 0
    page = (tmp_path / "runs" / "own" / "report.html").read_text("utf-8")
    assert "The offers of this run" in page
    assert "No depot was given: it is the most central place" in page
    # The run keeps its data, wherever it is moved, and refuses changed data.
    for name in ("trips.csv", "times.csv"):
        (tmp_path / name).unlink()
    run = (tmp_path / "runs" / "own").rename(tmp_path / "moved")
    evaluation = ["evaluate", run, "--days", "2", "--splits", "known", "--json"]
    assert call(*evaluation) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["episodes"] == 2
    trips = run / "data" / "trips.csv"
    trips.write_text(trips.read_text().replace("work", "shopping"))
    for command in (evaluation, ["train", "--resume", run, "--episodes", "16"], ["report", run]):
        assert call(*command) == 1
        assert "data/trips.csv was changed after the run started" in capsys.readouterr().err


def test_a_raw_export_becomes_a_page_with_a_verdict_in_three_commands(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_operator_trips(tmp_path / "trips.csv")
    assert call("data", "check", "trips.csv") == 1
    assert "set --customers 22 or less, or add customers" in " ".join(capsys.readouterr().out.split())
    assert call("data", "check", "trips.csv", "--customers", "8") == 0
    printed = capsys.readouterr().out
    command = printed.rpartition("Train with: hundredfold ")[2].split()
    assert command == ["train", "dvrp", "--trips", "trips.csv", "--customers", "8"]
    assert call(*command, *QUICK, "--save-dir", "runs", "--name", "own") == 0
    page = (tmp_path / "runs" / "own" / "report.html").read_text("utf-8")
    page = page.replace("\xa0", " ")
    cards = page[page.index('<dl class="cards">') : page.index("</dl>")]
    assert "The offers of this run" in cards
    assert "95 % interval" in cards
    assert "training" in cards
    for text in ("Your data", "straight lines between coordinates", "Klinikum Süd", "Gartenstraße 1"):
        assert text in page


WRONG_EXPORTS = {
    "exchanged, too many and no time": (
        [(3, 3, "11,5904"), (3, 4, "48,1699"), (5, 11, "99"), (7, 8, "")],
        ["exchanged", "99 people", "the trip has no time", "customers with trips for 30 requests a day"],
    ),
    "another place, itself and a wrong date": (
        [(2, 5, "Bahnhof"), (3, 1, "31.02.2026"), (4, 5, "Gartenstraße 18")],
        ["these are the coordinates of 'Dialysezentrum'", "'31.02.2026' is not a date", "are the same place"],
    ),
    "headings in German": (
        [(1, 0, "Kunde"), (2, 12, "manchmal"), (3, 11, "viele")],
        ["has no column customer (also called", "'manchmal' is neither yes (yes,", "'viele' is not a number of people"],
    ),
}


@pytest.mark.parametrize(("changes", "messages"), WRONG_EXPORTS.values(), ids=WRONG_EXPORTS)
def test_an_export_with_several_problems_gets_one_answer(capsys, tmp_path, monkeypatch, changes, messages):
    """`changes` are a row, counted as in a spreadsheet, a column from 0 and its new text."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    rows = [line.split(";") for line in write_operator_trips(tmp_path / "trips.csv").read_text("cp1252").splitlines()]
    for row, column, text in changes:
        rows[row - 1][column] = text
    (tmp_path / "trips.csv").write_text("\n".join(map(";".join, rows)), "utf-8")
    assert call("data", "check", "trips.csv") == 1
    captured = capsys.readouterr()
    assert max(map(len, captured.out.splitlines())) <= 80
    answer = " ".join(captured.out.split())
    for message in messages:
        assert message in answer
    assert call("train", "dvrp", "--trips", "trips.csv") == 2
    refusal = " ".join(capsys.readouterr().err.split())
    assert all(message in refusal for message in messages if "requests a day" not in message)


def test_sample_files_pass_the_check(capsys, tmp_path):
    assert call("data", "template", tmp_path / "own") == 0
    paths = capsys.readouterr().out.split()
    assert call("data", "check", *paths[:2], "--vehicles", paths[2]) == 0
    printed = capsys.readouterr().out
    assert "480" in printed
    assert "2 minibus early with 8 seats and 1 wheelchair place, 05:00 to 15:00" in " ".join(printed.split())
    assert "No problems. Train with: hundredfold train dvrp --trips" in printed
    assert call("data", "check", paths[0], "--travel-times", paths[1], "--vehicles", paths[2]) == 0
    assert capsys.readouterr().out == printed
    assert call("data", "check", *paths[:2], "--travel-times", paths[2]) == 2
    assert "travel times were given twice" in capsys.readouterr().err


def test_a_check_names_all_problems_and_fails(capsys, tmp_path):
    assert call("data", "template", tmp_path / "own") == 0
    trips = tmp_path / "own" / "trips.csv"
    lines = trips.read_text().splitlines()
    lines[3] = lines[3].replace("2026-03", "2026-93")
    lines[5] = "," + lines[5].partition(",")[2]
    trips.write_text("\n".join(lines))
    capsys.readouterr()
    assert call("data", "check", trips, "--json") == 1
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["kind"], row["rows"], row["column"]) for row in rows] == [
        ("problem", [6], "customer"),
        ("problem", [4], "date"),
    ]
    assert call("data", "check", trips) == 1
    printed = capsys.readouterr().out
    assert "problem:" in printed
    assert all(len(line) <= 80 or str(trips) in line for line in printed.splitlines())


def test_an_error_in_custom_data_names_row_and_column(capsys, tmp_path):
    arguments = write_city(tmp_path)
    text = (tmp_path / "trips.csv").read_text().replace("09:00-09:30", "09:30-09:00", 1)
    (tmp_path / "trips.csv").write_text(text)
    assert call("train", "dvrp", *arguments, *QUICK, "--save-dir", tmp_path / "runs") == 2
    printed = capsys.readouterr().err
    assert "trips.csv" in printed
    assert "departure_time_window" in printed
    assert "Traceback" not in printed
