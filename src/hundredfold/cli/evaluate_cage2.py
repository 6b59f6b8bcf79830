"""`hundredfold evaluate cage2`: the official evaluation, compared with published results."""

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
    """Evaluate a blue policy: mean return against 3 red agents x 3 horizons, and the total."""

    target: Annotated[str, tyro.conf.Positional]
    """A run folder trained on cage2; or cage2, with --policy."""
    policy: str | None = None
    """A run folder, shipped (the policy of the package), or a baseline: sleep, random, reactive."""
    episodes: int = 1000
    """Episodes per red agent and horizon."""
    seed: int = 9999
    """Seed of the episodes."""
    checkpoint: str = "best"
    """Checkpoint of the run: best, last or the number of an epoch."""
    ruleset: Literal["current", "leaderboard"] | None = None
    """Ruleset; by default the run's own (baselines: current)."""
    json: bool = False
    """Print a single JSON object."""


def run(argv: Sequence[str]) -> int:
    """Run the command."""
    args = tyro.cli(EvaluateCage2, args=list(argv), prog="hundredfold evaluate")
    if args.episodes < 1:
        raise SettingsError(f"episodes must be at least 1, got {args.episodes}.")
    name = args.policy or args.target
    policy, settings = _policy(name, args.checkpoint, args.seed)
    if args.ruleset:
        settings = replace(settings, ruleset=args.ruleset)
    rows = evaluate_table(policy, args.episodes, args.seed, settings, name=name)
    title = f"cage2, {settings.ruleset} ruleset; published rows were scored on leaderboard"
    print_rows(rows, command=["evaluate", *argv], as_json=args.json, title=title)
    return 0


def _policy(name: str, checkpoint: str, seed: int) -> tuple[BluePolicy, Cage2Settings]:
    """A baseline or the policy of a run, with the env settings it needs."""
    if name in POLICIES:
        return make_policy(name, seed), Cage2Settings()
    if name == "cage2":
        names = ", ".join([SHIPPED, *POLICIES])
        raise SettingsError(f"evaluate cage2 needs --policy: a run folder, or one of {names}.")
    from hundredfold.api import load

    path = shipped_run() if name == SHIPPED else Path(name)
    settings = RunFolder.open(path).settings()
    if not isinstance(settings.env_settings, Cage2Settings):
        raise SettingsError(f"{name} was trained on {settings.env}, not on cage2.")
    trained = load(path, checkpoint).policy

    def act(observation: Mapping[str, Array], mask: BoolArray | None = None) -> IntArray:
        return trained.act_deterministic(dict(observation), mask)

    return act, settings.env_settings
