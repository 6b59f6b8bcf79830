"""`hundredfold train-oracle`: train weights of the neural oracle for a city and fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import tyro
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from hundredfold.cli.flags import parse_flags
from hundredfold.cli.output import Column, Row, note, print_rows, print_text
from hundredfold.cli.train import SaveDir, num_customers_flag
from hundredfold.core.bounds import Fraction, check_bounds
from hundredfold.core.formatting import format_count, format_duration
from hundredfold.core.rng import Keys
from hundredfold.core.terminal import wrap
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.envs.dvrp.training_instances import TrainingInstances, env_instances
from hundredfold.routing.neural.model import PolicySettings, load_policy, read_provenance
from hundredfold.routing.neural.training import BEST, REFERENCE, OracleTraining, TrainingSettings
from hundredfold.routing.problem import RouteProblems
from hundredfold.training.process_setup import Interrupted, Interruptible, tune_malloc

DONE, INTERRUPTED = 0, 130
COLUMNS = (
    Column("requests"),
    Column("greedy_gap_pct", "greedy %", decimals=1),
    Column("improved_gap_pct", "local search %", decimals=1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOracle:
    """Train the policy of `--oracle neural` on instances of a dvrp env.

    It first imitates solutions of large neighbourhood search, then trains by REINFORCE. The folder
    holds weights, optimizer state and learning curve; the same command again resumes.
    """

    save_dir: SaveDir = Path("runs/oracle")
    """Folder of this training; its best.safetensors is for --oracle-weights."""
    initial_weights: Path | None = None
    """Weights file to start from instead of random weights."""
    domain_randomization: Fraction = 0.0
    """Share of updates on other cities and fleets, for weights that generalise."""
    quiet: bool = False
    """Print only errors and the final table."""
    json: bool = False
    """Print one JSON object and nothing else."""
    training: TrainingSettings = field(default_factory=TrainingSettings)
    policy: PolicySettings = field(default_factory=PolicySettings)
    env: DvrpSettings = field(default_factory=DvrpSettings)

    def __post_init__(self) -> None:
        check_bounds(self)


def run(argv: Sequence[str]) -> int:
    """Train or resume; returns 130 after an interrupt, which saves first."""
    flags = num_customers_flag(argv)
    args = parse_flags(TrainOracle, flags, "hundredfold train-oracle", config=(tyro.conf.OmitArgPrefixes,))
    # More threads do not pay for matrices of this size, and they slow down other processes.
    torch.set_num_threads(1)
    tune_malloc()
    training = make_training(args)
    with Interruptible() as stop, _Display(training, args.quiet) as display:
        try:
            training.run(display.on_validation, on_update=lambda: display.on_update(stop))
        except Interrupted:
            training.save()
            note(f"stopped and saved; the same command resumes at update {training.update}.")
            return INTERRUPTED
    instances = args.training.validation_instances
    title = (
        f"cost above the reference (large neighbourhood search, {REFERENCE.lns_iterations} iterations), in %, "
        f"{format_count(instances, 'validation instance')} per size: greedy, and after local search"
    )
    command = ["train-oracle", *argv]
    print_rows(gap_rows(training), command=command, as_json=args.json, title=title, columns=COLUMNS)
    if not args.json and not args.quiet:
        best = args.save_dir / BEST
        print_text(f"use it: hundredfold train dvrp --oracle neural --oracle-weights {best}")
    return DONE


def make_training(args: TrainOracle) -> OracleTraining:
    """The training that these flags describe, resumed if its folder holds one."""

    def validation_sample(key: Keys, num_instances: int, num_requests: int) -> RouteProblems:
        return env_instances(args.env, key, num_instances, num_requests, with_offers=False)

    weights = args.initial_weights
    return OracleTraining(
        args.save_dir,
        TrainingInstances(args.env, args.domain_randomization).sample,
        validation_sample,
        args.env.num_customers,
        args.training,
        policy_settings=args.policy,
        provenance={
            "domain_randomization": args.domain_randomization,
            "env": asdict(args.env),
            "initial_weights": read_provenance(weights) if weights else None,
        },
        initial_policy=load_policy(weights) if weights else None,
    )


def gap_rows(training: OracleTraining) -> list[Row]:
    """One row per instance size: gaps of the last validation."""
    last = training.learning_curve()[-1]
    return [
        {"requests": int(size), "greedy_gap_pct": gap, "improved_gap_pct": last["improved_gap_pct"][size]}
        for size, gap in last["greedy_gap_pct"].items()
    ]


class _Display:
    """Progress bar on a terminal, and a line after every validation."""

    def __init__(self, training: OracleTraining, quiet: bool) -> None:
        self.training, self.quiet = training, quiet
        self.total = training.settings.num_updates
        self.first_update, self.first_seconds = training.update, training.seconds
        console = Console(stderr=True, highlight=False)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed} of {task.total} updates"),
            TimeRemainingColumn(),
            console=console,
            disable=quiet or not console.is_terminal,
        )
        self.task = self.progress.add_task("imitation", total=self.total, completed=training.update)

    def __enter__(self) -> _Display:
        self.progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.progress.stop()

    def on_update(self, stop: Interruptible) -> None:
        phase = "reinforce" if self.training.is_reinforce else "imitation"
        self.progress.update(self.task, completed=self.training.update, description=phase)
        stop.check()

    def on_validation(self, row: dict[str, Any]) -> None:
        if self.quiet:
            return
        done = self.training.update - self.first_update
        seconds_per_update = (self.training.seconds - self.first_seconds) / max(1, done)
        seconds = seconds_per_update * (self.total - self.training.update)
        left = format_duration(seconds) if seconds >= 1 else "0 s"
        console = self.progress.console
        console.print(wrap(validation_text(row, self.total, left), console.width), markup=False, soft_wrap=True)


def validation_text(row: Mapping[str, Any], num_updates: int, left: str) -> str:
    """A validation in words: progress, then how far costs are above the reference."""
    greedy, improved = (_by_size(row[key]) for key in ("greedy_gap_pct", "improved_gap_pct"))
    return (
        f"{row['phase']} {row['update']}/{num_updates}  loss {row['loss']:.3f}  left {left}\n"
        f"  cost above the reference: {greedy}; after local search: {improved}"
    )


def _by_size(gaps: Mapping[str, float]) -> str:
    texts = [f"{gap:.1f} % with {size}" for size, gap in gaps.items()]
    return ", ".join([f"{texts[0]} request{'' if next(iter(gaps)) == '1' else 's'}", *texts[1:]])
