"""How many samples it takes to solve an env: our learners beside Stable-Baselines3's.

Both train the same settings in run folders of our own and are judged alike: the best actions, on
the same episodes, at the same intervals. Samples to the first interval that reaches the target are
what counts; a run that never does counts as its whole budget and as not solved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.tasks import TASKS, Task
from hundredfold.api import start_run
from hundredfold.config.run import Algorithm, EngineName
from hundredfold.core.errors import SettingsError, is_installed
from hundredfold.profiling.measure import OURS, spread_of

ENGINES: Final[dict[str, EngineName]] = {OURS: "hundredfold", "stable-baselines3": "sb3"}


@dataclass(frozen=True, slots=True)
class Learned:
    """What became of one training."""

    samples: int  # until it was solved, or all of them
    solved: bool
    best: float  # highest judged return
    steps_per_second: float  # of training, evaluations left out


def bench_learning(
    name: str, algo: Algorithm, seeds: int, on_progress: Callable[[str], None] = print
) -> list[dict[str, Any]]:
    """A row per system: the median of samples to the target over seeds, and their spread."""
    if (name, algo) not in TASKS:
        known = ", ".join(f"{env} ({kind})" for env, kind in TASKS)
        raise SettingsError(f"{name} is not among the tasks for {algo}; there are {known}.")
    task = TASKS[name, algo]
    systems = [OURS]
    if is_installed("stable_baselines3"):
        systems.append("stable-baselines3")
    found: dict[str, list[Learned]] = {system: [] for system in systems}
    for seed in range(seeds):
        for system in systems:
            learned = train_once(task, ENGINES[system], seed)
            found[system].append(learned)
            outcome = "solved" if learned.solved else "not solved"
            on_progress(
                f"{name}, {algo}, seed {seed}: {system} {outcome}, {learned.samples:,} samples"
            )
    ours = spread_of([float(learned.samples) for learned in found[OURS]]).median
    return [_row(name, algo, task, system, runs, ours) for system, runs in found.items()]


def train_once(task: Task, engine: EngineName, seed: int) -> Learned:
    """Train a task from scratch, in a folder that is thrown away."""
    settings = replace(task.settings(), seed=seed, engine=engine)
    with TemporaryDirectory() as folder:
        run = start_run(settings, save_dir=Path(folder), quiet=True, report=False)
        if not run.finished:
            raise KeyboardInterrupt  # who stops a training here has had enough of all of them
        return learned_from(run.metrics, task.target)


def learned_from(metrics: Sequence[dict[str, Any]], target: float) -> Learned:
    """When a run first reached the target, as its metrics tell."""
    judged = [row for row in metrics if row.get("eval/return_mean") is not None]
    solved = [row["total_steps"] for row in judged if row["eval/return_mean"] >= target]
    last = metrics[-1]
    judging = sum(row.get("time/evaluate", 0.0) for row in metrics)
    return Learned(
        samples=solved[0] if solved else last["total_steps"],
        solved=bool(solved),
        best=max(row["eval/return_mean"] for row in judged),
        steps_per_second=last["total_steps"] / (last["wall_seconds"] - judging),
    )


def _row(
    name: str, algo: Algorithm, task: Task, system: str, runs: Sequence[Learned], ours: float
) -> dict[str, Any]:
    samples = spread_of([float(run.samples) for run in runs])
    return {
        "system": system,
        "env": name,
        "algo": algo,
        "target": task.target,
        "solved": sum(run.solved for run in runs),
        "seeds": len(runs),
        "samples_to_target": samples.median,
        "low": samples.low,
        "high": samples.high,
        "ratio_to_ours": samples.median / ours,
        "best": max(run.best for run in runs),
        "steps_per_second": spread_of([run.steps_per_second for run in runs]).median,
    }
