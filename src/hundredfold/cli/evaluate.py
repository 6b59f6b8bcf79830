"""`hundredfold evaluate RUN`: by the env's own evaluation if it has one, else by episode return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated

import torch
import tyro
from rich.console import Console
from rich.progress import Progress

from hundredfold.api import evaluate
from hundredfold.cli.output import print_rows
from hundredfold.envs.registry import ENVS, EVALUATE_RETURNS, canonical_name
from hundredfold.training.run_folder import RunFolder


def run(argv: Sequence[str]) -> int:
    """Run the evaluate command of the env."""
    code: int = resolve_name(_entry_point(argv))(argv)
    return code


def _entry_point(argv: Sequence[str]) -> str:
    """The evaluate command for the first argument that is a run folder or a built-in env."""
    for argument in argv:
        name = argument
        if (Path(argument) / "settings.toml").is_file():
            name = RunFolder.open(Path(argument)).settings().env
        if canonical_name(name) in ENVS:
            return ENVS[canonical_name(name)].evaluate
    return EVALUATE_RETURNS


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluate:
    """Evaluate a policy on separate envs, whose random streams are not those of training."""

    target: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN|ENV")]
    """Run folder; with --policy a built-in env or a Gymnasium id."""
    policy: str | None = None
    """Baseline to evaluate instead of a trained policy: random."""
    episodes: int = 100
    """Number of complete episodes, the same number from every env."""
    max_steps: int = 10_000
    """Steps after which an episode is truncated."""
    seed: int = 9999
    """Seed of the evaluation envs; the same seed gives the same episodes."""
    checkpoint: str = "best"
    """Checkpoint of the run: best, last or an epoch."""
    backend: str = "auto"
    """Backend that runs the envs: auto, in_process or serial."""
    trust_run: bool = False
    """Import the module of an env that only the run folder names, if the run was not made here."""
    json: bool = False
    """Print one JSON object and nothing else."""


def run_by_return(argv: Sequence[str]) -> int:
    """Print mean, standard error and 95 % confidence interval of the return."""
    args = tyro.cli(Evaluate, args=list(argv), prog="hundredfold evaluate")
    torch.set_num_threads(1)  # more threads are far slower on a busy machine
    console = Console(stderr=True)
    with Progress(console=console, disable=args.json or not console.is_terminal) as progress:
        task = progress.add_task("episodes", total=args.episodes)
        evaluation = evaluate(
            args.target,
            policy=args.policy,
            episodes=args.episodes,
            seed=args.seed,
            max_steps=args.max_steps,
            checkpoint=args.checkpoint,
            backend=args.backend,
            trust_run=args.trust_run,
            on_progress=lambda done: progress.update(task, completed=done),
        )
    row = {"policy": args.policy or args.target, **evaluation.summary(), "episodes": len(evaluation.returns)}
    command = ["evaluate", *argv]
    print_rows([row], command=command, as_json=args.json, title=f"{args.target}: return")
    return 0
