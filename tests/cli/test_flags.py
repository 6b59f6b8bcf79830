"""Flags of all commands: lists, counts and colours."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest
import tyro

import hundredfold
from hundredfold.cli.flags import parse_flags, split_list, whole_number


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Flags of a command."""

    env: Annotated[str, tyro.conf.Positional]
    sizes: tuple[int, ...] = (1, 8)
    splits: tuple[Literal["known", "new"], ...] = ("known",)
    rates: tuple[float, ...] = ()
    pairs: tuple[str, ...] = ()
    steps: int = 3
    seeds: int | None = None
    """Number of seeds of this command, described at such length that the text does not fit into
    one line."""
    shifts: tuple[int, ...] | None = None
    ruleset: Literal["old", "new"] | None = None
    arm: tyro.conf.UseAppendAction[tuple[str, ...]] = ()


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--sizes", "64,256"], {"sizes": (64, 256)}),
        (["--sizes", "64", "256"], {"sizes": (64, 256)}),
        (["--sizes", "1e3,2_000"], {"sizes": (1000, 2000)}),
        (["--sizes=64,256"], {"sizes": (64, 256)}),
        (["--splits", "known,new"], {"splits": ("known", "new")}),
        (["--rates", "0,0.5"], {"rates": (0.0, 0.5)}),
        (["--pairs", "a=1,b=[1,2]", "c=x,y"], {"pairs": ("a=1", "b=[1,2]", "c=x,y")}),
        (["--steps", "1e5"], {"steps": 100_000}),
        (["--seeds", "2.5e3"], {"seeds": 2500}),
        (["--seeds", "None"], {"seeds": None}),
        (["--shifts", "0,10"], {"shifts": (0, 10)}),
        (["--ruleset", "new"], {"ruleset": "new"}),
        (["--ruleset", "None"], {"ruleset": None}),
        (["--arm", "a: --x 1,2", "--arm", "b"], {"arm": ("a: --x 1,2", "b")}),
    ],
)
def test_lists_and_counts(argv, expected):
    assert parse_flags(Flags, ["e", *argv], "x") == Flags(env="e", **expected)
    if len(argv) == 2:
        assert parse_flags(Flags, [*argv, "e"], "x") == Flags(env="e", **expected)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--steps", "1.5"], "whole number such as 64, 100_000 or 1e5, got '1.5'"),
        (["--seeds", "1.5"], "'1.5'"),
        (["--steps", "nan"], "'nan'"),
        (["--steps", "1e999999999"], "digits"),
        (["--sizes", "1,x"], "'x'"),
        (["--sizes", "1,,2"], "whole number"),
        (["--splits", "known,nwe"], "'nwe' is not one of known, new"),
        (["--ruleset", "nwe"], "'nwe' is not one of old, new"),
    ],
)
def test_wrong_values_name_what_is_expected(argv, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        parse_flags(Flags, ["e", *argv], "x")
    assert stopped.value.code == 2
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_help_shows_flags_as_they_are_written(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        parse_flags(Flags, ["--help"], "x")
    text = capsys.readouterr().out
    assert "(default: 1,8)" in text
    assert "--seeds INT " in text
    assert "--shifts INT,... " in text
    assert "--ruleset {old,new} " in text
    # The break in the docstring is none in the help.
    assert "into one line." in text.replace("│", "")


def test_help_is_wrapped_between_words(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    with pytest.raises(SystemExit):
        parse_flags(Flags, ["--help"], "x", description="A description of many words. " * 5)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60
    assert sum(line.count("description") for line in lines) == 5


@pytest.mark.parametrize("variable", ["NO_COLOR", None])
def test_usage_errors_have_colours_on_a_terminal_unless_no_color_is_set(variable, capsys, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for stream in ("stdout", "stderr"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True)
    if variable:
        monkeypatch.setenv(variable, "1")
    with pytest.raises(SystemExit):
        parse_flags(Flags, ["e", "--stps", "1"], "x")
    assert ("\x1b[" in capsys.readouterr().err) == (variable is None)


def test_help_in_a_pipe_has_no_colours(capsys, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr("sys.stdout.isatty", lambda: False)
    with pytest.raises(SystemExit):
        parse_flags(Flags, ["--help"], "x")
    assert "\x1b[" not in capsys.readouterr().out


def test_whole_numbers_and_parts_of_lists():
    assert [whole_number(text) for text in ("7", "-7", "1E2", "10.0")] == [7, -7, 100, 10]
    assert split_list("") == [""]
    assert split_list(' {"rider": "Ada", "pickup": "a=b,c=d"}') == [' {"rider": "Ada", "pickup": "a=b,c=d"}']
    assert split_list('a={"x":1,"y":2},b=3') == ['a={"x":1,"y":2}', "b=3"]


def test_every_command_parses_its_flags_here():
    roots = (Path(hundredfold.__file__).parent, Path(__file__).parents[2] / "benchmarks")
    users = {path.name for root in roots for path in root.rglob("*.py") if "tyro.cli(" in path.read_text()}
    assert users == {"flags.py"}
