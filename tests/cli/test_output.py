"""Tables of commands at 80 columns: whole numbers, the important columns first, nothing cut."""

import contextlib
import inspect
import io
import json

import pytest
from rich.console import Console

import benchmarks.__main__ as benchmarks
from hundredfold.cli import cage2, estimate, evaluate, evaluate_dvrp, info, output, scale
from hundredfold.cli.main import main
from hundredfold.cli.output import Column, fit_columns, print_rows
from hundredfold.training.console import TrainingDisplay, progress_bar

LONG_RUN = "runs/a-folder-with-a-rather-long-name/dvrp-2026-11-18-015822-42"
NAMES = {
    *("policy", "baseline", "env", "split", "backend", "system", "by", "group", "days", "true_type", "city", "file"),
    *("summary", "largest_loss", "gymnasium_id", "actions", "masks", "what", "unit", "reason"),
}


def layouts():
    """The declared columns of every table, by module and name."""
    found = {f"evaluate dvrp {name}": layout.columns for name, layout in evaluate_dvrp.LAYOUTS.items()}
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


def test_notes_are_wrapped_between_words_on_a_terminal_only(capsys, monkeypatch):
    text = "a note of many words " * 10
    output.note(text)
    assert capsys.readouterr().err == f"{text}\n"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "50")
    output.note(text)
    assert max(map(len, capsys.readouterr().err.splitlines())) <= 50


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
        ["estimate", "corridor", "--no-measure"],
        ["evaluate", "corridor", "--policy", "random", "--episodes", "2", "--backend", "in_process"],
        ["evaluate", "cage2", "--policy", "sleep", "--episodes", "2"],
    ],
    ids=" ".join,
)
def test_quick_commands_fit_80_columns(argv, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with contextlib.suppress(SystemExit):
        assert main(argv) == 0
    text = capsys.readouterr().out
    assert text
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert "…" not in text
