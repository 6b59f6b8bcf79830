"""Tables of commands at 80 columns: whole numbers, the important columns first, nothing cut."""

import contextlib
import inspect
import io
import json
import sys
from dataclasses import replace

import pytest
import torch
from rich.console import Console

import benchmarks.__main__ as benchmarks
from helpers.operator_trips import write_operator_trips
from helpers.processes import run_process
from hundredfold.cli import cage2, estimate, evaluate, evaluate_dvrp_tables, info, output, scale
from hundredfold.cli.main import main
from hundredfold.cli.output import Column, fit_columns, print_rows
from hundredfold.config.presets import preset_settings
from hundredfold.config.run import LengthSettings
from hundredfold.core.terminal import wrap
from hundredfold.training.console import TrainingDisplay, describe_run, progress_bar, run_banner

LONG_RUN = "runs/a-folder-with-a-rather-long-name/dvrp-2026-11-18-015822-42"
NAMES = {
    *("policy", "baseline", "env", "split", "backend", "system", "by", "group", "days", "true_type", "city", "file"),
    *("summary", "largest_loss", "gymnasium_id", "actions", "masks", "what", "unit", "reason"),
}


def layouts():
    """The declared columns of every table, by module and name."""
    found = {f"evaluate dvrp {name}": layout.columns for name, layout in evaluate_dvrp_tables.LAYOUTS.items()}
    for module in (benchmarks, cage2, estimate, evaluate, info, scale):
        for name, value in inspect.getmembers(module):
            if isinstance(value, tuple) and value and all(isinstance(item, Column) for item in value):
                found[f"{module.__name__} {name}"] = value
    return found


def large_row(columns):
    """A row with values as long as they get: long names, millions, and more keys than are declared."""
    row = {key: -123.4567 for column in columns for key in column.keys}
    texts = {key: "hundredfold/Corridor-v0" for key in row if key in NAMES}
    return row | texts | {"policy": LONG_RUN, "seconds": 1_234_567.0, "steps": 98_765_432}


@pytest.mark.parametrize("name", layouts())
def test_every_table_fits_80_columns_with_whole_numbers(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    columns = layouts()[name]
    print_rows([large_row(columns)] * 2, command=[], as_json=False, title="a title " * 20, columns=columns)
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert "..." not in text
    firsts = [column for column in columns if column.priority == 1 and not {*column.keys} & NAMES]
    assert all(column in fit_columns([large_row(columns)], columns, 80) for column in firsts[:2])


def test_optional_columns_are_left_out_before_a_run_is_broken_in_two():
    columns = evaluate_dvrp_tables.LAYOUTS["policies"].columns
    row = {key: 100.0 for column in columns for key in column.keys} | {"policy": "runs/dvrp-20261118-120959"}
    shown = [column.keys[0] for column in fit_columns([row], columns, 72)]
    assert shown == ["policy", "mean", "ci_low", "shift_minutes", "offers_made"]
    assert len(fit_columns([row], columns, 100)) == len(columns)


def test_wide_shows_every_column_and_narrow_the_important_ones(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    columns = (Column("policy"), Column("cost", priority=3), Column("mean", decimals=1))
    row = {"policy": "a_policy", "cost": 123456.0, "mean": 0.123456, **{f"extra_{number}": 1.0 for number in range(9)}}
    print_rows([row], command=[], as_json=False, columns=columns)
    captured = capsys.readouterr()
    assert "123,456" in captured.out
    assert "0.1\n" in captured.out.replace(" \n", "\n")
    assert "extra" not in captured.out
    assert "9 more columns with --wide" in captured.err
    monkeypatch.setenv("COLUMNS", "20")
    print_rows([row], command=[], as_json=False, columns=columns)
    captured = capsys.readouterr()
    assert "cost" not in captured.out
    assert "mean" in captured.out
    print_rows([row], command=[], as_json=False, columns=columns, wide=True)
    captured = capsys.readouterr()
    assert captured.out.count("extra") == 9
    assert not captured.err


def test_an_interval_is_one_column_and_text_is_wrapped_not_cut(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    row = {"policy": LONG_RUN, "ci_low": -1.5, "ci_high": 2.25, "note": "a sentence that does not fit beside the rest"}
    columns = (Column("policy"), Column(("ci_low", "ci_high"), "95 % interval", decimals=2), Column("note"))
    print_rows([row], command=[], as_json=False, columns=columns)
    text = capsys.readouterr().out
    assert "-1.50 to 2.25" in text
    assert "".join(line.split("  ")[0] for line in text.splitlines()[2:]) == LONG_RUN
    assert max(map(len, text.splitlines())) <= 60


def test_json_has_all_keys_whatever_is_shown(capsys):
    print_rows([{"a": 1, "b": None}], command=["x"], as_json=True, columns=(Column("a"),))
    assert json.loads(capsys.readouterr().out)["rows"] == [{"a": 1, "b": None}]


def test_a_pipe_without_columns_is_80_wide(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    print_rows([{f"column_{number}": 1e9 for number in range(30)}], command=[], as_json=False)
    captured = capsys.readouterr()
    assert max(map(len, captured.out.splitlines())) <= 80
    assert "more columns with --wide" in captured.err


@pytest.mark.parametrize("columns", [50, 120])
def test_notes_are_wrapped_between_words(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    output.note("a note of many words " * 10)
    lines = capsys.readouterr().err.splitlines()
    assert columns - 12 < max(map(len, lines)) <= columns
    assert " ".join(" ".join(lines).split()) == ("a note of many words " * 10).strip()


def test_lines_of_parts_are_wrapped_between_parts():
    text = "epoch 5/30  steps 10,240  4,385 steps/s  left 11.7 s  return 44.83  evaluated 377.50"
    assert wrap(text, 80).splitlines() == [text.rpartition("  ")[0], "  evaluated 377.50"]
    assert wrap("a sentence  of two parts, the second of which is long", 30).count("\n") == 1


def test_the_numbers_of_a_column_have_the_same_digits_after_the_point(capsys):
    rows = [{"stderr": 0.338, "loss": 0.5, "cost": 2.0, "count": 3}, {"stderr": 1.53, "loss": 0.0004, "cost": 1234.5}]
    print_rows([*rows, {"stderr": 0.0}], command=[], as_json=False)
    table = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert table == [["0.34", "0.5", "2.00", "3"], ["1.53", "0.0004", "1,234"], ["0.00"]]


@pytest.mark.process
def test_messages_in_a_pipe_are_80_wide(tmp_path):
    """Standard error of the command whose automatic settings give the longest reasons, and a long error."""
    argv = [sys.executable, "-m", "hundredfold"]
    environment = {"COLUMNS": "", "PYTHONUTF8": "1"}
    shown = run_process([*argv, "train", "CartPole-v1", "--help"], env=environment)
    refused = run_process(
        [*argv, "train", "CartPole-v1", "--algo", "dqn", "--hidden-sizes", "0"], expect=2, env=environment
    )
    for text in (shown.stdout, shown.stderr, refused.stderr):
        assert text
        assert [line for line in text.splitlines() if len(line) > 80] == []


def test_the_rate_of_a_training_does_not_count_its_set_up(monkeypatch):
    clock = iter((0.0, 100.0, 102.0))
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    display = TrainingDisplay(total_steps=50, done_steps=10, quiet=True)
    display.start_clock()
    display.advance(20)
    assert display.steps_per_second == 10.0


@pytest.mark.parametrize(
    ("collected", "left"), [(20, "left 3.0 s"), (49, "left 0 s"), (50, "left 0 s"), (51, "left 0 s")]
)
def test_the_time_left_ends_at_zero_also_where_envs_run_ahead(monkeypatch, collected, left):
    display = TrainingDisplay(total_steps=50, done_steps=0, quiet=True)
    monkeypatch.setattr(TrainingDisplay, "steps_per_second", 10.0)
    display.advance(collected)
    assert left in display.line(1, 2, {})


def test_the_steps_of_an_epoch_are_those_of_the_summary_also_where_envs_run_ahead(tmp_path):
    display = TrainingDisplay(total_steps=200, done_steps=0, quiet=True)
    rows = [{"epoch": n, "total_steps": 100 * n, "wall_seconds": 4.0 * n} for n in (1, 2)]
    for row, collected in zip(rows, (115, 110), strict=True):
        display.advance(collected)
        display.epoch(row["epoch"], 2, row)
        assert f"steps {row['total_steps']:,}  " in display.line(row["epoch"], 2, row)
    assert "trained 200 steps in 2 epochs" in describe_run(tmp_path, rows)


def test_the_banner_of_a_run_counts_one_epoch_as_one(tmp_path):
    settings = replace(preset_settings("cartpole"), length=LengthSettings(epochs=1))
    assert " steps x 1 epoch = " in run_banner(tmp_path, settings, "InProcessBackend", torch.device("cpu"))


def test_the_rate_after_an_epoch_is_that_of_the_summary(tmp_path):
    """Time that the metrics do not count, such as the set-up of an engine, is not in the rate of an epoch either."""
    rows = [{"epoch": n, "total_steps": 100 * n, "wall_seconds": 4.0 * n} for n in (1, 2)]
    display = TrainingDisplay(total_steps=200, done_steps=0, quiet=True)
    for row in rows:
        display.advance(100)
        display.epoch(row["epoch"], 2, row)
        assert f"steps {row['total_steps']:,}  25 steps/s" in display.line(row["epoch"], 2, row)
        assert display._fields()["rate"] == "25"
    assert "trained 200 steps in 2 epochs, 8.0 s, 25 steps/s" in describe_run(tmp_path, rows)
    resumed = TrainingDisplay(total_steps=300, done_steps=200, done_seconds=8.0, quiet=True)
    resumed.advance(100)
    resumed.epoch(3, 3, {"total_steps": 300, "wall_seconds": 10.0})
    assert resumed.steps_per_second == 50.0


def test_the_progress_of_a_training_fits_80_columns():
    stream = io.StringIO()
    display = TrainingDisplay(total_steps=50_000_000, done_steps=0, quiet=True)
    display.console = Console(file=stream, width=80, force_terminal=True, color_system=None)
    display.progress = progress_bar(display.console)
    display.task = display.progress.add_task("epoch 1234/9765", total=50_000_000, **display._fields())
    display.num_failures, display.return_text = 123, "-1234.56"
    display.advance(12_345_678)
    display.console.print(display.progress.get_renderable())
    text = stream.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    for part in ("epoch 1234/9765", "12.3 M steps", "return -1234.56", "123 failures"):
        assert part in text


@pytest.mark.parametrize(
    "argv",
    [
        *(["--help"], ["train", "--help"], ["evaluate", "--help"], ["estimate", "--help"], ["compare", "--help"]),
        *(["data", "--help"], ["sweep", "--help"], ["envs"], ["envs", "cage2"], ["doctor"]),
        *(["data", "check", "--help"], ["export", "--help"], ["envs", "--help"], ["scale", "--help"]),
        *(["train", "dvrp", "--help"], ["evaluate", "dvrp", "--help"], ["evaluate", "cage2", "--help"]),
        *(["watch", "--help"], ["report", "--help"], ["verify", "--help"], ["train-oracle", "--help"]),
        *(["serve", "--help"], ["quote", "--help"], ["data", "template", "--help"], ["envs", "dvrp"]),
        *(["train", "CartPole-v1", "--help"], ["compare", "corridor", "--help"], ["sweep", "corridor", "--help"]),
        ["data", "check", "trips.csv", "--customers", "8"],
        ["estimate", "corridor", "--no-measure"],
        ["evaluate", "corridor", "--policy", "random", "--episodes", "2", "--backend", "in_process"],
        ["evaluate", "cage2", "--policy", "sleep", "--episodes", "2"],
    ],
    ids=" ".join,
)
def test_quick_commands_fit_80_columns(argv, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    write_operator_trips(tmp_path / "trips.csv")
    with contextlib.suppress(SystemExit):
        assert main(argv) == 0
    captured = capsys.readouterr()
    assert captured.out
    assert_fits_80_columns(captured)


def assert_fits_80_columns(captured):
    """Neither stream has a line that is longer or cut."""
    text = captured.out + captured.err
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert "…" not in text


def test_commands_of_a_run_fit_80_columns(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    short = ["--num-envs", "4", "--num-steps", "16", "--hidden-sizes", "8", "--eval-episodes", "4"]
    arms = ["--arm", "fast: --learning-rate 0.01", "--arm", "slow: --learning-rate 1e-5"]
    for argv in (
        ["train", "corridor", *short, "--epochs", "2", "--save-dir", "runs", "--name", "first"],
        ["train", "--resume", "runs/first"],
        ["train", "--resume", "runs/first", "--epochs", "3"],
        ["evaluate", "runs/first", "--episodes", "4"],
        ["report", "runs/first"],
        ["watch", "runs/first"],
        ["export", "runs/first", "--torchscript", "policy.pt"],
        ["compare", "corridor", *short, "--steps", "128", "--final-episodes", "4", *arms, "--save-dir", "arms"],
        ["scale", "corridor", "--num-envs", "1,2", "--seconds", "0.1"],
    ):
        assert main(argv) == 0, argv
        captured = capsys.readouterr()
        assert captured.out or captured.err
        assert_fits_80_columns(captured)


def test_compare_wide_shows_every_column(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "80")
    argv = [
        *("compare", "corridor", "--num-envs", "4", "--num-steps", "16", "--hidden-sizes", "8", "--steps", "128"),
        *("--eval-episodes", "4", "--final-episodes", "4", "--save-dir", str(tmp_path)),
        *("--arm", "fast: --learning-rate 0.01", "--arm", "slow: --learning-rate 1e-5"),
    ]
    assert main(argv) == 0
    narrow = capsys.readouterr()
    assert "iqm" not in narrow.out
    assert "more columns with --wide" in narrow.err
    assert main([*argv, "--wide"]) == 0
    wide = capsys.readouterr()
    for word in ("iqm", "update", "level"):  # headings are wrapped between words
        assert word in wide.out.split()
    assert "--wide" not in wide.err
