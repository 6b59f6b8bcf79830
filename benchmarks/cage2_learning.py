"""Samples and time until a defender of cage2 reaches a score: plain, privileged critic, memory, both.

The score is the total of the official evaluation, three red agents by three horizons, of the deterministic policy and
always on the same episodes. It is computed between epochs and is not part of the time. Run folders stay, so that an
interrupted benchmark continues where it stopped.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.measure import summarise
from hundredfold.api import resume_run, start_run
from hundredfold.cli.cage2 import TrainedPolicy
from hundredfold.cli.train import base_settings, parse
from hundredfold.config.run import RunSettings
from hundredfold.core.errors import SettingsError, suggest
from hundredfold.core.formatting import format_duration
from hundredfold.envs.cage2.evaluation import evaluate_table
from hundredfold.training.run import Epoch, Hooks

ARMS: Final = {
    "plain": "",
    "privileged": "--critic privileged",
    "memory": "--memory gru",
    "both": "--critic privileged --memory gru",
}
TARGETS: Final = (-60.0, -54.57)
SCORES_FILE: Final = "nine_cells.jsonl"
REACHED: Final = "the total reached the last target"

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cage2LearningSettings:
    """What is trained and how it is evaluated."""

    arms: tuple[str, ...] = tuple(ARMS)
    seeds: int = 3
    first_seed: int = 0
    targets: tuple[float, ...] = TARGETS
    episodes: int = 100  # per red agent and horizon
    interval: int = 5  # epochs between evaluations
    evaluation_seed: int = 9999
    flags: str = ""  # of `hundredfold train cage2`, for all arms
    save_dir: Path = Path("runs/cage2-learning")


@dataclass(frozen=True, slots=True)
class _NoFlags:
    """The arms have flags of train only."""


def bench_cage2_learning(settings: Cage2LearningSettings, on_progress: Callable[[str], None] = print) -> list[Row]:
    """A row per arm and target: median and range over seeds of samples and seconds until it is reached."""
    unknown = [name for name in settings.arms if name not in ARMS]
    if unknown:
        raise SettingsError(f"there is no arm {unknown[0]!r}; {suggest(unknown[0], ARMS)}")
    arms = {name: arm_settings(name, settings.flags) for name in settings.arms}
    compile_kernels(arms[settings.arms[0]])
    results: dict[str, list[list[Row]]] = {name: [] for name in arms}
    for seed in range(settings.first_seed, settings.first_seed + settings.seeds):
        for name, arm in arms.items():
            path = settings.save_dir / f"{name}-seed-{seed}"
            scores = train_until(replace(arm, seed=seed), path, settings)
            results[name].append(scores)
            best = max(scores, key=lambda row: float(row["total"]))
            on_progress(
                f"{path}: best total {best['total']:.2f} after {best['samples']:,} samples, "
                f"{format_duration(best['seconds'])}"
            )
    return [target_row(name, runs, target) for target in settings.targets for name, runs in results.items()]


def arm_settings(name: str, flags: str = "") -> RunSettings:
    """Settings of an arm: those of `hundredfold train cage2` with its flags, without evaluations of their own."""
    argv = ["--eval-interval", "0", *shlex.split(flags), *shlex.split(ARMS[name])]
    return parse(argv, base_settings("cage2", argv), _NoFlags, f"train, arm {name}:")[1]


def compile_kernels(run: RunSettings) -> None:
    """Compile the kernels of the env, which takes a minute the first time and is not learning."""
    evaluate_table(lambda observation, mask: mask.argmax(axis=1), episodes=1, settings=run.env_settings)


def train_until(run: RunSettings, path: Path, settings: Cage2LearningSettings) -> list[Row]:
    """Train or continue a run until it reaches the last target or its end; its evaluations."""
    file = path / SCORES_FILE
    scores = read_scores(file)
    last = max(settings.targets)

    def on_epoch(epoch: Epoch) -> None:
        if epoch.number % settings.interval:
            return
        table = evaluate_table(
            TrainedPolicy(epoch.policy), settings.episodes, settings.evaluation_seed, run.env_settings
        )
        (total,) = (row for row in table if row["policy"] == "policy" and row["red"] == "total")
        row = {
            "samples": int(epoch.metrics["total_steps"]),
            "seconds": epoch.metrics["wall_seconds"],
            "total": total["mean"],
            "stderr": total["stderr"],
        }
        # An epoch that is repeated after an interruption counts once.
        scores[:] = [*(old for old in scores if old["samples"] < row["samples"]), row]
        file.write_text("".join(json.dumps(line) + "\n" for line in scores))

    def stop(metrics: object) -> str | None:
        return REACHED if any(row["total"] >= last for row in scores) else None

    hooks = Hooks(stop, on_epoch)
    if stop({}) is None:
        if (path / "settings.toml").exists():
            finished = resume_run(path, quiet=True, report=False, hooks=hooks).finished
        else:
            finished = start_run(
                run, save_dir=path.parent, name=path.name, quiet=True, report=False, hooks=hooks
            ).finished
        if not finished:
            raise KeyboardInterrupt  # stopping one run stops the benchmark
    if not scores:
        raise SettingsError(
            f"{path} ended before its first evaluation, after {settings.interval} epochs; set a smaller --interval."
        )
    return scores


def read_scores(file: Path) -> list[Row]:
    """Evaluations that earlier processes of a run have written."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def target_row(arm: str, runs: Sequence[Sequence[Row]], target: float) -> Row:
    """Samples and seconds until runs first reach a target; one that never does counts with its whole length."""
    first = [next((row for row in run if row["total"] >= target), None) for run in runs]
    until = [reached or run[-1] for reached, run in zip(first, runs, strict=True)]
    samples = summarise([float(row["samples"]) for row in until])
    seconds = summarise([float(row["seconds"]) for row in until])
    return {
        "arm": arm,
        "target": target,
        "reached": f"{sum(row is not None for row in first)} of {len(runs)}",
        "samples_to_target": samples.median,
        "low": samples.low,
        "high": samples.high,
        "seconds": seconds.median,
        "seconds_low": seconds.low,
        "seconds_high": seconds.high,
        "samples_per_second": summarise([run[-1]["samples"] / run[-1]["seconds"] for run in runs]).median,
        "best_total": max(float(row["total"]) for run in runs for row in run),
    }
