"""`hundredfold evaluate cage2`, the official evaluation, and `verify cage2`, conformance with CybORG."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import tyro

from hundredfold.cli.flags import parse_flags
from hundredfold.cli.output import Column, Row, note, print_rows
from hundredfold.core.batch import Array, BoolArray, IntArray
from hundredfold.core.errors import SettingsError
from hundredfold.core.files import write_atomically
from hundredfold.envs.cage2.baselines import POLICIES, BluePolicy, make_policy
from hundredfold.envs.cage2.blue_agent import SHIPPED_POLICIES, shipped_run
from hundredfold.envs.cage2.env import Cage2Settings, Ruleset
from hundredfold.envs.cage2.evaluation import REDS, evaluate_table, evaluation_cells
from hundredfold.training.run_folder import RunFolder

if TYPE_CHECKING:
    from hundredfold.algorithms.loaded_policy import LoadedPolicy

LOGGED_EPISODES: Final = 10
# Titles of the tables of `verify`: by file, by field, returns.
TABLE_TITLES: Final = (
    "steps of the recordings, and how many of them are equal in every field",
    "equal steps by field of the recordings and red agent",
    "mean returns, and those of the original simulator (reference)",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateCage2:
    """Evaluate a blue policy: mean return against 3 red agents x 3 horizons, and the total."""

    target: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|ENV")]
    """A run folder trained on cage2; or cage2, with --policy."""
    policy: str | None = None
    """A run folder, shipped or shipped-exploits (policies of the package, picked by ruleset), or a
    baseline: sleep, random, reactive."""
    episodes: int = 1000
    """Episodes per red agent and horizon."""
    seed: int = 9999
    """Seed of the episodes."""
    checkpoint: str = "best"
    """Checkpoint of the run: best, last or the number of an epoch."""
    ruleset: Literal["current", "leaderboard"] | None = None
    """Ruleset; by default the run's own (baselines and shipped policies: current)."""
    red: str | None = None
    """Only this red agent: b_line, meander, sleep, or one of your own as module:Class; by default the
    three of the official evaluation."""
    network_file: str | None = None
    """Network of a baseline, a TOML file; a run keeps its network."""
    log_episodes: Path | None = None
    """Also write the first 10 episodes of every red agent and horizon to this file: one JSON object per
    step, in words (actions, points lost, red's access and decoys, what blue observes)."""
    wide: bool = False
    """Show all columns, however wide the table gets."""
    json: bool = False
    """Print a single JSON object."""


def run_evaluate(argv: Sequence[str]) -> int:
    """Run the command."""
    args = parse_flags(EvaluateCage2, argv, "hundredfold evaluate")
    if args.episodes < 1:
        raise SettingsError(f"episodes must be at least 1, got {args.episodes}.")
    name = args.policy or args.target
    policy, settings = blue_policy(name, args.checkpoint, args.seed, args.ruleset, args.network_file)
    reds = REDS if args.red is None else (args.red,)
    rows = evaluate_table(policy, args.episodes, args.seed, settings, name=name, reds=reds)
    if args.log_episodes is not None:
        cells = evaluation_cells(args.seed, reds)
        _write_log(args.log_episodes, policy, settings, min(args.episodes, LOGGED_EPISODES), cells)
    title = f"cage2, {settings.ruleset} ruleset"
    if any(row.get("stderr") is None for row in rows):
        title += "; rows without standard errors are published, scored under the ruleset leaderboard"
    print_rows(rows, command=["evaluate", *argv], as_json=args.json, title=title, wide=args.wide)
    return 0


def _write_log(
    path: Path, policy: BluePolicy, settings: Cage2Settings, episodes: int, cells: Sequence[tuple[str, int, int]]
) -> None:
    """Write the first episodes of every cell of the evaluation, a JSON object per step."""
    from hundredfold.envs.cage2.episodes import log_rows, record_episodes

    lines = []
    for red, horizon, cell_seed in cells:
        recorded = record_episodes(policy, replace(settings, red=red, horizons=(horizon,)), episodes, cell_seed)
        lines += [json.dumps({"horizon": horizon, **row}) + "\n" for row in log_rows(recorded)]
    write_atomically(path, "".join(lines))
    note(f"{len(lines):,} steps of {len(cells) * episodes} episodes in {path}")


class TrainedPolicy:
    """A trained policy as the evaluation takes it: reset at the beginning of episodes."""

    def __init__(self, loaded: LoadedPolicy) -> None:
        self.loaded = loaded

    def reset(self, num_envs: int) -> None:
        self.loaded.reset()

    def __call__(self, observation: Mapping[str, Array], mask: BoolArray | None = None) -> IntArray:
        actions: IntArray = self.loaded.act(observation, mask)
        return actions


def blue_policy(
    name: str, checkpoint: str, seed: int, ruleset: Ruleset | None = None, network_file: str | None = None
) -> tuple[BluePolicy, Cage2Settings]:
    """A baseline or the policy of a run, with the env settings it needs.

    Args:
        name: Baseline, policy of the package or run folder.
        checkpoint: Checkpoint of the run.
        seed: Seed of the baseline `random`.
        ruleset: Ruleset to play by, for which a policy of the package is picked; by default the run's own,
            otherwise `current`.
        network_file: Network of a baseline.
    """
    names = [*SHIPPED_POLICIES, *POLICIES]
    if name == "cage2":
        raise SettingsError(f"cage2 needs --policy: a run folder, or one of {', '.join(names)}.")
    if name in POLICIES:
        settings = Cage2Settings(ruleset=ruleset or "current", network_file=network_file)
        return make_policy(name, seed, settings.network), settings
    shipped = name in SHIPPED_POLICIES
    if network_file is not None:
        what = "is for the network of CAGE Challenge 2 only" if shipped else "keeps the network it was trained on"
        raise SettingsError(
            f"{name} {what}; --network-file is for the baselines {', '.join(POLICIES)}. To train a policy on a network "
            "of your own: hundredfold train cage2 --network-file FILE."
        )
    from hundredfold.api import load

    if shipped:
        ruleset = ruleset or "current"
    path = shipped_run(name, ruleset or "current") if shipped else RunFolder.open_policy(name, names).path
    saved = RunFolder.open(path).settings()
    if not isinstance(saved.env_settings, Cage2Settings):
        raise SettingsError(f"{name} was trained on {saved.env}, not on cage2.")
    env_settings = saved.env_settings if ruleset is None else replace(saved.env_settings, ruleset=ruleset)
    return TrainedPolicy(load(path, checkpoint)), env_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Verify:
    """Replay traces of the original simulator (CybORG) and compare every field of every step."""

    env: Annotated[Literal["cage2"], tyro.conf.Positional]
    """Env to verify."""
    traces: Annotated[tuple[Path, ...], tyro.conf.Positional] = ()
    """Trace files (.npz); by default those of the package."""
    returns: Path | None = None
    """Also compare mean returns with this table (.csv; `recorded` is that of the package). Without
    trace files this is the only check."""
    episodes: int = 2000
    """Episodes per policy and red agent for --returns."""
    ruleset: Literal["current", "leaderboard"] | None = None
    """Ruleset to replay with; by default the file's own."""
    observation: Literal["table", "cardiff"] | None = None
    """Observation wrapper to replay with; by default the file's own."""
    wide: bool = False
    """Show all columns, however wide the table gets."""
    json: bool = False
    """Print a single JSON object."""


def run_verify(argv: Sequence[str]) -> int:
    """Run the command; returns 0 if everything is equal, 1 otherwise."""
    args = parse_flags(Verify, argv, "hundredfold verify")
    from hundredfold.envs.cage2.conformance import RECORDED_RETURNS, RECORDINGS, check_returns, verify

    replayed: list[Row] = []
    returns: list[Row] = []
    summary: list[str] = []
    passed = True
    if args.traces or args.returns is None:
        traces = args.traces or tuple(sorted(RECORDINGS.glob("*.npz")))
        result = verify(traces, args.ruleset, args.observation)
        replayed, passed = list(result.rows), result.passed
        summary.append(f"{result.steps_equal:,} of {result.steps_compared:,} steps are equal.")
        if result.first_difference is not None:
            summary.append(f"first difference:\n{result.first_difference}")
    if args.returns is not None:
        table = RECORDED_RETURNS if str(args.returns) == "recorded" else args.returns
        returns = list(check_returns(table, args.episodes))
        num_passed = sum(bool(row["passed"]) for row in returns)
        passed = passed and num_passed == len(returns)
        summary.append(f"{num_passed} of {len(returns)} mean returns are within 4 standard errors.")
    command = ["verify", *argv]
    if args.json:
        print_rows([*replayed, *returns], command=command, as_json=True)
    else:
        for title, rows in zip(TABLE_TITLES, (*_summaries(replayed), returns), strict=True):
            if rows:
                columns = [Column(key, key) for key in REDS if key in rows[0]]
                columns = [Column("field"), *columns] if columns else []
                print_rows(rows, command=command, as_json=False, wide=args.wide, title=title, columns=columns)
                print()
    if replayed:
        summary.append('The fields are explained in docs/cage2.md, section "Conformance".')
    note("\n".join(summary))
    return 0 if passed else 1


def _summaries(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Equal steps by file and red agent; and by field and red agent over all files."""
    whole = [row for row in rows if row["field"] == "all"]
    by_field: dict[str, dict[str, list[int]]] = {}
    for row in rows:
        cell = by_field.setdefault(row["field"], {}).setdefault(row["red"], [0, 0])
        cell[0] += row["steps_equal"]
        cell[1] += row["steps_compared"]
    fields: list[Row] = [
        {"field": name, **{red: f"{equal:,} of {compared:,}" for red, (equal, compared) in reds.items()}}
        for name, reds in by_field.items()
        if name != "all"
    ]
    return [{key: row[key] for key in row if key != "field"} for row in whole], fields
