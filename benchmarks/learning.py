"""Sample efficiency: samples until an env is solved, compared with Stable-Baselines3.

Both libraries train the same settings and are evaluated alike: deterministic actions, on the same
episodes, at the same intervals. The result is the number of samples at the first evaluation that
reaches the target; a run that never does counts with its whole budget and as not solved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.measure import summarise
from benchmarks.tasks import TASKS, Task
from hundredfold.api import start_run
from hundredfold.config.run import Algorithm, EngineName
from hundredfold.core.errors import SettingsError, is_installed
from hundredfold.profiling.scaling import HUNDREDFOLD

ENGINES: Final[dict[str, EngineName]] = {HUNDREDFOLD: "hundredfold", "stable-baselines3": "sb3"}


@dataclass(frozen=True, slots=True)
class LearningResult:
    """Result of one training run."""

    samples: int  # until it was solved, or all of them
    solved: bool
    best: float  # highest evaluated return
    steps_per_second: float  # of training, without evaluations


def bench_learning(
    name: str, algo: Algorithm, seeds: int, on_progress: Callable[[str], None] = print
) -> list[dict[str, Any]]:
    """A row per library: median and range of the samples to the target over seeds."""
    if (name, algo) not in TASKS:
        known = ", ".join(f"{env} ({kind})" for env, kind in TASKS)
        raise SettingsError(f"{name} is not a task for {algo}; tasks are {known}.")
    task = TASKS[name, algo]
    systems = [HUNDREDFOLD]
    if is_installed("stable_baselines3"):
        systems.append("stable-baselines3")
    results: dict[str, list[LearningResult]] = {system: [] for system in systems}
    for seed in range(seeds):
        for system in systems:
            result = train_once(task, ENGINES[system], seed)
            results[system].append(result)
            status = "solved" if result.solved else "not solved"
            on_progress(f"{name}, {algo}, seed {seed}: {system} {status}, {result.samples:,} samples")
    reference = summarise([float(run.samples) for run in results[HUNDREDFOLD]]).median
    return [_row(name, algo, task, system, runs, reference) for system, runs in results.items()]


def train_once(task: Task, engine: EngineName, seed: int) -> LearningResult:
    """Train a task from scratch in a temporary run folder."""
    settings = replace(task.settings(), seed=seed, engine=engine)
    with TemporaryDirectory() as folder:
        run = start_run(settings, save_dir=Path(folder), quiet=True, report=False)
        if not run.finished:
            raise KeyboardInterrupt  # stopping one run stops the benchmark
        return learning_result(run.metrics, task.target)


def learning_result(metrics: Sequence[dict[str, Any]], target: float) -> LearningResult:
    """Result of a run from its metrics."""
    evaluations = [row for row in metrics if row.get("eval/return_mean") is not None]
    solved = [row["total_steps"] for row in evaluations if row["eval/return_mean"] >= target]
    last = metrics[-1]
    evaluation_seconds = sum(row.get("time/evaluate", 0.0) for row in metrics)
    return LearningResult(
        samples=solved[0] if solved else last["total_steps"],
        solved=bool(solved),
        best=max(row["eval/return_mean"] for row in evaluations),
        steps_per_second=last["total_steps"] / (last["wall_seconds"] - evaluation_seconds),
    )


def _row(
    name: str, algo: Algorithm, task: Task, system: str, runs: Sequence[LearningResult], reference: float
) -> dict[str, Any]:
    samples = summarise([float(run.samples) for run in runs])
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
        "ratio_to_hundredfold": samples.median / reference,
        "best": max(run.best for run in runs),
        "steps_per_second": summarise([run.steps_per_second for run in runs]).median,
    }
