"""`hundredfold evaluate cage2`: the challenge's own table, beside what others published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from hundredfold.cli.output import print_rows
from hundredfold.core.batch import Array, BoolArray, IntArray
from hundredfold.core.errors import SettingsError
from hundredfold.envs.cage2.baselines import POLICIES, BluePolicy, make_policy
from hundredfold.envs.cage2.blue_agent import SHIPPED, shipped_run
from hundredfold.envs.cage2.env import Cage2Settings
from hundredfold.envs.cage2.evaluation import evaluate_table
from hundredfold.training.run_folder import RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateCage2:
    """Score a blue policy: 3 red agents x 3 lengths, mean and standard error, and their total."""

    target: Annotated[str, tyro.conf.Positional]
    """A run folder on cage2; or the word cage2, with --policy."""
    policy: str | None = None
    """A run folder, shipped (the package's own policy), or a rule: sleep, random, reactive."""
    episodes: int = 1000
    """Episodes in each of the nine cells."""
    seed: int = 9999
    """Seed of the episodes; the same seed gives the same ones."""
    checkpoint: str = "best"
    """Which checkpoint of a run: best, last or the number of an epoch."""
    ruleset: Literal["current", "leaderboard"] | None = None
    """Play by these rules instead of the run's own (a rule: current)."""
    json: bool = False
    """Print one JSON object and nothing else."""


def run(arguments: Sequence[str]) -> int:
    """Print the table; the published rows were scored on the leaderboard ruleset."""
    args = tyro.cli(EvaluateCage2, args=list(arguments), prog="hundredfold evaluate")
    if args.episodes < 1:
        raise SettingsError(f"episodes must be at least 1, got {args.episodes}.")
    name = args.policy or args.target
    policy, settings = _policy(name, args.checkpoint, args.seed)
    if args.ruleset:
        settings = replace(settings, ruleset=args.ruleset)
    rows = evaluate_table(policy, args.episodes, args.seed, settings, name=name)
    title = f"cage2, {settings.ruleset} ruleset; published rows were scored on leaderboard"
    print_rows(rows, command=["evaluate", *arguments], as_json=args.json, title=title)
    return 0


def _policy(name: str, checkpoint: str, seed: int) -> tuple[BluePolicy, Cage2Settings]:
    """A rule by name, or the policy of a run with what it needs to see."""
    if name in POLICIES:
        return make_policy(name, seed), Cage2Settings()
    if name == "cage2":
        known = ", ".join([SHIPPED, *POLICIES])
        raise SettingsError(f"say which policy to play: --policy RUN, or one of {known}.")
    from hundredfold.api import load

    path = shipped_run() if name == SHIPPED else Path(name)
    settings = RunFolder.open(path).settings()
    if not isinstance(settings.env_settings, Cage2Settings):
        raise SettingsError(f"{name} was trained on {settings.env}, not on cage2.")
    learned = load(path, checkpoint).policy

    def act(observation: Mapping[str, Array], mask: BoolArray | None = None) -> IntArray:
        return learned.act_deterministic(dict(observation), mask)

    return act, settings.env_settings
