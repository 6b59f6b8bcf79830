"""`hundredfold verify cage2`: whether our env plays the original game."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from hundredfold.cli.output import Row, note, print_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Verify:
    """Replay recordings of the original simulator and compare every field after every step."""

    env: Annotated[Literal["cage2"], tyro.conf.Positional]
    """The env to verify."""
    traces: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Recordings (.npz); by default those of the package."""
    returns: Path | None = None
    """A table of mean returns (.csv) to check as well, or alone when no recordings are named;
    `recorded` is the table of the package."""
    episodes: int = 2000
    """Episodes played for every row of --returns."""
    ruleset: Literal["current", "leaderboard"] | None = None
    """Replay by these rules instead of those the file names."""
    observation: Literal["table", "cardiff"] | None = None
    """Replay with this wrapper instead of the one the file names."""
    json: bool = False
    """Print one JSON object and nothing else."""


def run(arguments: Sequence[str]) -> int:
    """0 when everything agrees, 1 on any difference."""
    args = tyro.cli(Verify, args=list(arguments), prog="hundredfold verify")
    from hundredfold.envs.cage2.conformance import RECORDED_RETURNS, check_returns, verify

    replayed: list[Row] = []
    judged: list[Row] = []
    words: list[str] = []
    passed = True
    if args.traces or args.returns is None:
        found = verify(args.traces or _recordings(), args.ruleset, args.observation)
        replayed, passed = list(found.rows), found.passed
        words.append(f"{found.steps_equal:,} of {found.steps_compared:,} steps are equal.")
        if found.first_difference is not None:
            words.append(f"first difference:\n{found.first_difference}")
    if args.returns is not None:
        table = RECORDED_RETURNS if str(args.returns) == "recorded" else args.returns
        judged = list(check_returns(table, args.episodes))
        agreeing = sum(bool(row["passed"]) for row in judged)
        passed = passed and agreeing == len(judged)
        words.append(f"{agreeing} of {len(judged)} mean returns are within 4 standard errors.")
    command = ["verify", *arguments]
    if args.json:
        print_rows([*replayed, *judged], command=command, as_json=True)
    else:
        for rows in (*_summaries(replayed), judged):
            if rows:
                print_rows(rows, command=command, as_json=False)
    note("\n".join(words))
    return 0 if passed else 1


def _summaries(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Whole steps by file and red agent; and every field by red agent over all files."""
    whole = [row for row in rows if row["field"] == "all"]
    by_field: dict[str, dict[str, list[int]]] = {}
    for row in rows:
        cell = by_field.setdefault(row["field"], {}).setdefault(row["red"], [0, 0])
        cell[0] += row["steps_equal"]
        cell[1] += row["steps_compared"]
    fields: list[Row] = [
        {"field": name, **{red: f"{equal:,} of {all_:,}" for red, (equal, all_) in reds.items()}}
        for name, reds in by_field.items()
        if name != "all"
    ]
    return [{key: row[key] for key in row if key != "field"} for row in whole], fields


def _recordings() -> tuple[Path, ...]:
    from hundredfold.envs.cage2.conformance import RECORDINGS

    return tuple(sorted(RECORDINGS.glob("*.npz")))
