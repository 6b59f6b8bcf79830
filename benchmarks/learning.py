"""Sample efficiency: samples until an env is solved, compared with Stable-Baselines3.

Both libraries train the same settings and are evaluated alike: deterministic actions, on the same
episodes, at the same intervals. The result is the number of samples at the first evaluation that
reaches the target; a run that never does counts with its whole budget and as not solved. PQN is
compared with DQN and PPO, each with its own settings, and with the DQN of Stable-Baselines3; these
runs end at the target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.measure import summarise
from benchmarks.tasks import TASKS, Task
from hundredfold.api import start_run
from hundredfold.config.run import Algorithm, EngineName, StopSettings
from hundredfold.core.errors import SettingsError, is_installed
from hundredfold.profiling.scaling import HUNDREDFOLD


@dataclass(frozen=True, slots=True)
class LearningResult:
    """Result of one training run."""

    samples: int  # until it was solved, or all of them
    solved: bool
    best: float  # highest evaluated return
    steps_per_second: float  # of training, without evaluations
    seconds: float  # of training until it was solved, or all, without evaluations


def bench_learning(
    name: str, algo: Algorithm, seeds: int, on_progress: Callable[[str], None] = print, first_seed: int = 0
) -> list[dict[str, Any]]:
    """A row per library: median and range of the samples to the target over consecutive seeds."""
    if (name, algo) not in TASKS:
        known = ", ".join(f"{env} ({kind})" for env, kind in TASKS)
        raise SettingsError(f"{name} is not a task for {algo}; tasks are {known}.")
    systems = _systems(name, algo)
    results: dict[str, list[LearningResult]] = {system: [] for system in systems}
    for seed in range(first_seed, first_seed + seeds):
        for system, (task, engine) in systems.items():
            result = train_once(task, engine, seed, stop=algo == "pqn")
            results[system].append(result)
            status = "solved" if result.solved else "not solved"
            on_progress(f"{name}, {algo}, seed {seed}: {system} {status}, {result.samples:,} samples")
    reference = summarise([float(run.samples) for run in results[HUNDREDFOLD]]).median
    target = TASKS[name, algo].target
    return [_row(name, algo, target, system, runs, reference) for system, runs in results.items()]


def _systems(name: str, algo: Algorithm) -> dict[str, tuple[Task, EngineName]]:
    """What is trained, by the name of its row."""
    task = TASKS[name, algo]
    systems: dict[str, tuple[Task, EngineName]] = {HUNDREDFOLD: (task, "hundredfold")}
    if algo == "pqn":
        systems["hundredfold, DQN"] = (TASKS[name, "dqn"], "hundredfold")
        systems["hundredfold, PPO"] = (TASKS[name, "ppo"], "hundredfold")
    if is_installed("stable_baselines3"):
        if algo == "pqn":
            systems["stable-baselines3, DQN"] = (TASKS[name, "dqn"], "sb3")
        else:
            systems["stable-baselines3"] = (task, "sb3")
    return systems


def train_once(task: Task, engine: EngineName, seed: int, stop: bool = False) -> LearningResult:
    """Train a task from scratch in a temporary run folder, with `stop` only until it is solved."""
    settings = replace(task.settings(), seed=seed, engine=engine)
    if stop:
        settings = replace(settings, stop=StopSettings(stop_at=task.target))
    with TemporaryDirectory() as folder:
        run = start_run(settings, save_dir=Path(folder), quiet=True, report=False)
        if not run.finished:
            raise KeyboardInterrupt  # stopping one run stops the benchmark
        return learning_result(run.metrics, task.target)


def learning_result(metrics: Sequence[dict[str, Any]], target: float) -> LearningResult:
    """Result of a run from its metrics."""
    evaluations = [row for row in metrics if row.get("eval/return_mean") is not None]
    solved = [row for row in evaluations if row["eval/return_mean"] >= target]
    last = metrics[-1]
    end = solved[0] if solved else last
    return LearningResult(
        samples=end["total_steps"],
        solved=bool(solved),
        best=max(row["eval/return_mean"] for row in evaluations),
        steps_per_second=last["total_steps"] / _training_seconds(metrics, last),
        seconds=_training_seconds(metrics, end),
    )


def _training_seconds(metrics: Sequence[dict[str, Any]], end: dict[str, Any]) -> float:
    """Seconds of training up to the end of this epoch, without evaluations."""
    evaluations = sum(row.get("time/evaluate", 0.0) for row in metrics if row["total_steps"] <= end["total_steps"])
    return float(end["wall_seconds"] - evaluations)


def _row(
    name: str, algo: Algorithm, target: float, system: str, runs: Sequence[LearningResult], reference: float
) -> dict[str, Any]:
    samples = summarise([float(run.samples) for run in runs])
    return {
        "system": system,
        "env": name,
        "algo": algo,
        "target": target,
        "solved": sum(run.solved for run in runs),
        "seeds": len(runs),
        "samples_to_target": samples.median,
        "low": samples.low,
        "high": samples.high,
        "ratio_to_hundredfold": samples.median / reference,
        "best": max(run.best for run in runs),
        "seconds": summarise([run.seconds for run in runs]).median,
        "seconds_low": min(run.seconds for run in runs),
        "seconds_high": max(run.seconds for run in runs),
        "steps_per_second": summarise([run.steps_per_second for run in runs]).median,
    }
