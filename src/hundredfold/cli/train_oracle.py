"""`hundredfold train-oracle`: make weights for the neural oracle, for your own city or fleet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from hundredfold.cli.output import Row, note, print_rows
from hundredfold.cli.train import spelled
from hundredfold.core.errors import SettingsError
from hundredfold.core.formatting import format_duration
from hundredfold.core.rng import Keys
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.envs.dvrp.training_instances import PracticeBooks, env_instances
from hundredfold.routing.neural.model import PolicySettings
from hundredfold.routing.neural.training import BEST, OracleTraining
from hundredfold.routing.neural.training_settings import TrainingSettings
from hundredfold.routing.neural.weights import load_policy, weight_facts
from hundredfold.routing.problem import RouteProblems
from hundredfold.training.process_setup import Interrupted, Interruptible, keep_freed_memory

DONE, INTERRUPTED = 0, 130


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOracle:
    """Train the policy behind `--oracle neural` on days of a dvrp env.

    First it imitates plans that large neighbourhood search finds, then it practises on its own. The
    folder holds weights, optimiser and curve; the same command again goes on where it stopped.
    """

    save_dir: Path = Path("runs/oracle")
    """Folder of this training; best.safetensors in it is what --oracle-weights takes."""
    start_from: Path | None = None
    """Weights to start from instead of random ones."""
    variety: float = 0.0
    """Share of updates on other cities and fleets, for weights that shall work in many."""
    quiet: bool = False
    """Show nothing but errors and the table at the end."""
    json: bool = False
    """Print one JSON object and nothing else."""
    training: TrainingSettings = field(default_factory=TrainingSettings)
    policy: PolicySettings = field(default_factory=PolicySettings)
    env: DvrpSettings = field(default_factory=DvrpSettings)

    def __post_init__(self) -> None:
        if not 0.0 <= self.variety <= 1.0:
            raise SettingsError(f"variety must lie in 0..1, got {self.variety}.")


def run(arguments: Sequence[str]) -> int:
    """Train or go on; 130 when the user stopped it, after saving."""
    args = tyro.cli(
        TrainOracle,
        args=spelled(arguments),
        prog="hundredfold train-oracle",
        config=(tyro.conf.OmitArgPrefixes,),
    )
    # Several threads do not pay for matrices of this size, and they disturb whoever else computes.
    torch.set_num_threads(1)
    keep_freed_memory()
    training = training_of(args)
    with Interruptible() as stop, _Display(training, args.quiet) as display:
        try:
            training.run(say=display.tell, after_update=lambda: display.advance(stop))
        except Interrupted:
            training.save()
            note(f"stopped and saved; the same command goes on from update {training.update}.")
            return INTERRUPTED
    rows = gap_rows(training)
    title = f"percent above 100 rounds of search, {args.training.validation_books} held-out books"
    command = ["train-oracle", *arguments]
    print_rows(rows, command=command, as_json=args.json, title=title)
    if not args.json and not args.quiet:
        best = args.save_dir / BEST
        print(f"use it: hundredfold train dvrp --oracle neural --oracle-weights {best}")
    return DONE


def training_of(args: TrainOracle) -> OracleTraining:
    """The training that these flags describe, resumed where its folder has begun."""
    books = PracticeBooks(args.env, args.variety)

    def held_out(key: Keys, num_books: int, num_requests: int) -> RouteProblems:
        return env_instances(args.env, key, num_books, num_requests, offered=False)

    before = weight_facts(args.start_from) if args.start_from else None
    return OracleTraining(
        args.save_dir,
        books.draw,
        held_out,
        args.env.num_customers,
        args.training,
        size=args.policy,
        facts={"variety": args.variety, "env": asdict(args.env), "start_from": before},
        start=load_policy(args.start_from) if args.start_from else None,
    )


def gap_rows(training: OracleTraining) -> list[Row]:
    """One row per book size: gaps of the last look at held-out books."""
    last = training.curve()[-1]
    return [
        {
            "requests": int(size),
            "greedy_gap_pct": gap,
            "relocated_gap_pct": last["relocated_gap_pct"][size],
        }
        for size, gap in last["greedy_gap_pct"].items()
    ]


class _Display:
    """A bar on a terminal, and a line after every look at held-out books."""

    def __init__(self, training: OracleTraining, quiet: bool) -> None:
        self.training, self.quiet = training, quiet
        self.total = training.settings.num_updates
        self.first, self.seconds = training.update, training.seconds
        console = Console(stderr=True, highlight=False)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed} of {task.total} updates"),
            TimeRemainingColumn(),
            console=console,
            disable=quiet or not console.is_terminal,
        )
        self.task = self.progress.add_task("imitation", total=self.total, completed=self.first)

    def __enter__(self) -> _Display:
        self.progress.start()
        return self

    def __exit__(self, *trouble: object) -> None:
        self.progress.stop()

    def advance(self, stop: Interruptible) -> None:
        lesson = "practice" if self.training.practising else "imitation"
        self.progress.update(self.task, completed=self.training.update, description=lesson)
        stop.check()

    def tell(self, row: dict[str, Any]) -> None:
        if self.quiet:
            return
        done = self.training.update - self.first
        pace = (self.training.seconds - self.seconds) / max(1, done)
        left = format_duration(pace * (self.total - self.training.update))
        self.progress.console.print(
            f"{row['lesson']} {row['update']}/{self.total}, {left} left, loss {row['loss']:.3f}; "
            f"gap % greedy {_by_size(row['greedy_gap_pct'])}; "
            f"relocated {_by_size(row['relocated_gap_pct'])}",
            soft_wrap=True,
        )


def _by_size(gaps: dict[str, float]) -> str:
    return ", ".join(f"{gap:.1f} at {size}" for size, gap in gaps.items())
