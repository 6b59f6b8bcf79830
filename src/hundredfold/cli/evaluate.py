"""`hundredfold evaluate RUN`: by the env's own evaluation if it has one, else by episode return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Annotated, Final

import torch
import tyro
from rich.console import Console
from rich.progress import Progress

from hundredfold.api import evaluate
from hundredfold.cli.flags import parse_flags
from hundredfold.cli.output import Column, print_rows
from hundredfold.envs.registry import ENVS, EVALUATE_RETURNS, canonical_name
from hundredfold.training.run_folder import RunFolder

COLUMNS: Final = (
    Column("policy"),
    Column("episodes", priority=2),
    Column("mean"),
    Column("stderr", priority=3),
    Column(("ci_low", "ci_high"), "95 % interval", priority=2),
)


HELP: Final = """usage: hundredfold evaluate RUN [flags]
       hundredfold evaluate ENV --policy NAME [flags]

RUN is a run folder, ENV a built-in env or a Gymnasium id. The flags depend on
the env:
  hundredfold evaluate dvrp --help    savings against heuristics, on fixed days
  hundredfold evaluate cage2 --help   the evaluation of CAGE Challenge 2
  hundredfold evaluate RUN --help     those of the run's env
Flags for all other envs:
"""


def run(argv: Sequence[str]) -> int:
    """Run the evaluate command of the env."""
    entry_point = _entry_point(argv)
    if set(argv) & {"-h", "--help"}:
        if all(argument.startswith("-") for argument in argv):
            print(HELP)
        # With its target, help would not show that there is one.
        argv = ["--help"]
    code: int = resolve_name(entry_point)(argv)
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
    """Evaluate a policy on envs with random streams of their own."""

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
    backend: str | None = None
    """Backend that runs the envs: in_process, serial, processes or auto; by default that of the run."""
    trust_run: bool = False
    """Import the module of an env that only the run folder names, if the run was not made here."""
    wide: bool = False
    """Show all columns, however wide the table gets."""
    json: bool = False
    """Print one JSON object and nothing else."""


def run_by_return(argv: Sequence[str]) -> int:
    """Print mean, standard error and 95 % confidence interval of the return."""
    args = parse_flags(Evaluate, argv, "hundredfold evaluate")
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
    title = f"{args.target}: mean return per episode, with its standard error"
    print_rows([row], command=command, as_json=args.json, title=title, columns=COLUMNS, wide=args.wide)
    return 0
