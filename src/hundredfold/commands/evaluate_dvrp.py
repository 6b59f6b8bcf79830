"""`hundredfold evaluate dvrp`: minutes saved on fixed days, beside rules that need no learning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro
from rich.console import Console
from rich.progress import Progress

from hundredfold.commands.output import Row, print_rows
from hundredfold.core.errors import SettingsError
from hundredfold.training.run_folder import RunFolder
from hundredfold.worlds.dvrp.evaluation import SPLITS, evaluate_policy
from hundredfold.worlds.dvrp.policies import POLICIES, OfferPolicy
from hundredfold.worlds.dvrp.settings import DvrpSettings, Split


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateDvrp:
    """Improvement over the same days without offers, in percent of the driving minutes.

    Days are fixed and paired; one closing oracle prices all of them, with a bootstrap interval.
    """

    target: Annotated[str, tyro.conf.Positional]
    """A run folder on dvrp; or the word dvrp, with --policy."""
    policy: str | None = None
    """A run folder, or a rule: none, random, always_max, greedy_blind, greedy_expected,
    greedy_known, largest_known, hindsight, fully_flexible."""
    beside: tuple[str, ...] = ()
    """Rules to play on the same days, for comparison."""
    days: int = 256
    """Days per split."""
    splits: tuple[Split, ...] = SPLITS
    """Who calls: known people and trips, unseen trips of known people, unseen customers."""
    seed: int = 9999
    """Seed of the days; the same seed gives the same days."""
    checkpoint: str = "best"
    """Which checkpoint of a run: best, last or the number of an epoch."""
    json: bool = False
    """Print one JSON object and nothing else."""


def run(arguments: Sequence[str]) -> int:
    """A row per policy and split."""
    asked = tyro.cli(EvaluateDvrp, args=list(arguments), prog="hundredfold evaluate")
    if asked.days < 1 or not asked.splits:
        raise SettingsError(f"days ({asked.days}) must be at least 1, and splits not empty.")
    torch.set_num_threads(1)  # two threads collapse when the machine is busy
    name = asked.policy or asked.target
    policy, settings = _policy(name, asked.checkpoint)
    played: dict[str, str | OfferPolicy] = {name: policy, **{rule: rule for rule in asked.beside}}
    rows: list[Row] = []
    console = Console(stderr=True)
    with Progress(console=console, disable=asked.json or not console.is_terminal) as progress:
        task = progress.add_task("days", total=len(played) * len(asked.splits) * asked.days)
        for number, (label, act) in enumerate(played.items()):
            before = number * len(asked.splits) * asked.days
            rows += evaluate_policy(
                act,
                settings,
                days=asked.days,
                seed=asked.seed,
                splits=asked.splits,
                name=label,
                tick=lambda done, before=before: progress.update(task, completed=before + done),  # type: ignore[misc]
            )
    title = "dvrp: improvement in percent (mean, 95 % interval), driving minutes, offers per day"
    print_rows(rows, command=["evaluate", *arguments], as_json=asked.json, title=title)
    return 0


def _policy(name: str, checkpoint: str) -> tuple[str | OfferPolicy, DvrpSettings]:
    """A rule by name, or the policy of a run with the days it was trained for."""
    if name in POLICIES:
        return name, DvrpSettings()
    if name == "dvrp":
        raise SettingsError(f"say which policy to play: --policy RUN, or {', '.join(POLICIES)}.")
    from hundredfold.api import load

    settings = RunFolder.open(Path(name)).settings()
    if not isinstance(settings.world_settings, DvrpSettings):
        raise SettingsError(f"{name} was trained on {settings.world}, not on dvrp.")
    return load(name, checkpoint).actor, settings.world_settings
