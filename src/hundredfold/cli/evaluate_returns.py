"""`hundredfold evaluate` for any env: the return of whole episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
import tyro
from rich.console import Console
from rich.progress import Progress

from hundredfold.api import evaluate
from hundredfold.cli.output import print_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluate:
    """Judge a policy on envs of its own, away from training data and streams."""

    target: Annotated[str, tyro.conf.Positional]
    """A run folder; or, with --policy, an env or Gymnasium id."""
    policy: str | None = None
    """Play this rule instead of a learned policy: random."""
    episodes: int = 100
    """Whole episodes to play; every env plays the same number."""
    max_steps: int = 10_000
    """Steps after which an episode is cut off."""
    seed: int = 9999
    """Seed of the evaluation envs; the same seed gives the same episodes."""
    checkpoint: str = "best"
    """Which checkpoint of the run: best, last or the number of an epoch."""
    backend: str = "auto"
    """Where envs run: auto, in_process or serial."""
    json: bool = False
    """Print one JSON object and nothing else."""


def run(arguments: Sequence[str]) -> int:
    """Print mean, standard error and a 95 % interval of the return."""
    args = tyro.cli(Evaluate, args=list(arguments), prog="hundredfold evaluate")
    torch.set_num_threads(1)  # two threads collapse when the machine is busy
    console = Console(stderr=True)
    with Progress(console=console, disable=args.json or not console.is_terminal) as progress:
        task = progress.add_task("episodes", total=args.episodes)
        found = evaluate(
            args.target,
            policy=args.policy,
            episodes=args.episodes,
            seed=args.seed,
            max_steps=args.max_steps,
            checkpoint=args.checkpoint,
            backend=args.backend,
            on_progress=lambda done: progress.update(task, completed=done),
        )
    summary = found.summary()
    row = {"policy": args.policy or args.target, **summary, "episodes": len(found.returns)}
    command = ["evaluate", *arguments]
    print_rows([row], command=command, as_json=args.json, title=f"{args.target}: return")
    return 0
