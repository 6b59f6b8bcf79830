"""Comparison of numbers of envs over several seeds.

Every arm plays the same number of episodes. A control arm collects as many samples per update as
the largest arm, but with the fewest envs: it separates the effect of more envs from that of larger
updates. Finished runs are reused and unfinished ones resumed, so an interrupted comparison
continues where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from hundredfold.config.run import LengthSettings, RunSettings
from hundredfold.config.toml import changed_settings
from hundredfold.core.batch import FloatArray
from hundredfold.core.errors import SettingsError
from hundredfold.core.statistics import NUM_RESAMPLES, bootstrap_interval
from hundredfold.training.checkpoint import saved_epochs
from hundredfold.training.metrics import read_metrics
from hundredfold.training.run_folder import RunFolder

SCORE: Final = "eval/avg_improvement_pct"
TARGET_PCT: Final = 5.0
DAYS_BETWEEN_REFITS: Final = 10

Evaluator = Callable[[Path], Mapping[str, FloatArray]]
"""Improvement of a run on each evaluation day, by split."""
Trainer = Callable[[RunSettings, Path, str], bool]
"""Train or resume a run in a folder of this name; False when the user stopped it."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One arm of the comparison."""

    name: str
    settings: RunSettings

    def run_name(self, seed: int) -> str:
        return f"{self.name}-seed-{seed}"


@dataclass(slots=True)
class Curve:
    """Learning curve of one run."""

    epochs: FloatArray  # (evaluations,)
    samples: FloatArray
    seconds: FloatArray
    score: FloatArray  # improvement in percent
    return_std: float  # standard deviation of episode returns in the last epochs


def make_arms(start: RunSettings, num_envs: Sequence[int], episode_steps: int) -> list[Arm]:
    """An arm per number of envs, and a control arm where there are at least two.

    All play the same number of episodes, are evaluated after the same numbers of them and refit
    their belief model after the same numbers of steps.

    Args:
        start: Settings of all arms.
        num_envs: Numbers of envs to compare.
        episode_steps: Steps of an episode.
    """
    few, many = min(num_envs), max(num_envs)
    if len(set(num_envs)) != len(num_envs) or few < 1:
        raise SettingsError(f"num_envs must be different and at least 1, got {list(num_envs)}.")
    if any(count % few for count in num_envs):
        raise SettingsError(
            f"num_envs must be multiples of the fewest ({few}), so that arms can be evaluated "
            f"after the same numbers of episodes; got {list(num_envs)}."
        )
    episodes, interval = start.length.episodes, start.evaluation.eval_interval
    if start.length != LengthSettings(episodes=max(episodes, 1)) or start.rollout.num_steps:
        raise SettingsError(
            "compare needs --episodes and collects whole days; remove --epochs, --steps and --num-steps."
        )
    if interval < 1:
        raise SettingsError("compare needs an --eval-interval of at least 1.")
    if start.belief_model is not None and not start.belief_model.acceptance_refit_interval:
        steps = DAYS_BETWEEN_REFITS * few * episode_steps
        belief_model = replace(start.belief_model, acceptance_refit_interval=steps)
        start = replace(start, belief_model=belief_model)
    shapes = {f"{count}-envs": (count, 1) for count in num_envs}
    if many % few == 0 and many > few:
        shapes[f"{few}-envs-x{many // few}"] = (few, many // few)
    # The largest update sets the evaluation interval.
    days_between = -(-interval * few // many) * many
    arms = []
    for name, (count, days) in shapes.items():
        per_epoch = count * days
        length = LengthSettings(epochs=-(-episodes // per_epoch))
        interval = max(1, days_between // per_epoch)
        rollout = replace(start.rollout, num_envs=count, num_steps=days * episode_steps)
        evaluation = replace(start.evaluation, eval_interval=interval)
        changed = replace(start, length=length, rollout=rollout, evaluation=evaluation)
        arms.append(Arm(name, changed))
    return arms


def train_all(
    arms: Sequence[Arm], seeds: Sequence[int], folder: Path, train: Trainer
) -> list[tuple[Arm, int, Path]] | None:
    """Train all runs to their end, seed by seed; None when the user stopped it."""
    done: list[tuple[Arm, int, Path]] = []
    for seed in seeds:
        for arm in arms:
            name = arm.run_name(seed)
            settings = replace(arm.settings, seed=seed)
            if not _is_finished(folder / name, settings) and not train(settings, folder, name):
                return None
            done.append((arm, seed, folder / name))
    return done


def _is_finished(path: Path, settings: RunSettings) -> bool:
    """Whether the run exists and has reached its last epoch; other settings are an error."""
    if not (path / "settings.toml").exists():
        return False
    folder = RunFolder.open(path)
    saved = folder.settings()
    requested = replace(settings, machine=saved.machine, saving=saved.saving, processes=saved.processes)
    changed = changed_settings(saved, requested)
    if changed:
        raise SettingsError(
            f"{path} was trained with other settings ({', '.join(changed)}); choose another --save-dir, or delete it."
        )
    return saved.length.epochs in saved_epochs(folder)


def read_curve(path: Path) -> Curve:
    """Learning curve from a run's metrics."""
    metrics = read_metrics(RunFolder.open(path))
    evaluations = [row for row in metrics if row.get(SCORE) is not None]
    return_stds = [row["return_std"] for row in metrics[-10:] if row.get("return_std")]
    return Curve(
        epochs=np.array([row["epoch"] for row in evaluations], float),
        samples=np.array([row["total_steps"] for row in evaluations], float),
        seconds=np.array([row["wall_seconds"] for row in evaluations], float),
        score=np.array([row[SCORE] for row in evaluations], float),
        return_std=float(np.mean(return_stds)) if return_stds else float("nan"),
    )


def highest_common_level(curves: Mapping[str, Sequence[Curve]]) -> float:
    """The target if every arm reaches it on average, else the highest level that all reach."""
    reached = min(float(mean_scores(arm).max()) for arm in curves.values())
    return TARGET_PCT if reached >= TARGET_PCT else np.floor(10 * reached) / 10


def mean_scores(curves: Sequence[Curve]) -> FloatArray:
    """(evaluations,) mean over seeds, up to the shortest run."""
    shortest = min(len(curve.score) for curve in curves)
    return np.asarray(np.mean([curve.score[:shortest] for curve in curves], axis=0), np.float64)


def first_reach(curves: Sequence[Curve], level: float) -> dict[str, float]:
    """Epochs, samples and seconds until the mean over seeds first reaches the level."""
    there = np.flatnonzero(mean_scores(curves) >= level)
    if not len(there):
        return {}
    at = int(there[0])
    return {
        "epochs_to_level": float(curves[0].epochs[at]),
        "samples_to_level": float(curves[0].samples[at]),
        "seconds_to_level": float(np.mean([curve.seconds[at] for curve in curves])),
    }


def summary(
    runs: Sequence[tuple[Arm, int, Path]], evaluate: Evaluator
) -> tuple[list[dict[str, Any]], dict[str, list[Curve]]]:
    """A row per arm, and the learning curves of all runs by arm."""
    curves: dict[str, list[Curve]] = {}
    scores: dict[str, list[Mapping[str, FloatArray]]] = {}
    for arm, _, path in runs:
        curves.setdefault(arm.name, []).append(read_curve(path))
        scores.setdefault(arm.name, []).append(evaluate(path))
    level = highest_common_level(curves)
    settings = {arm.name: arm.settings for arm, _, _ in runs}
    rows = []
    for name, arm_curves in curves.items():
        rollout = settings[name].rollout
        row: dict[str, Any] = {
            "arm": name,
            "num_envs": rollout.num_envs,
            "samples_per_update": rollout.samples_per_epoch,
            "epochs": int(arm_curves[0].epochs[-1]),
            "samples": int(arm_curves[0].samples[-1]),
            "seconds": float(np.mean([curve.seconds[-1] for curve in arm_curves])),
        }
        for split in scores[name][0]:
            days = np.stack([score[split] for score in scores[name]])  # (seeds, days)
            low, high = interval_over_seeds(days)
            row |= {split: float(days.mean()), f"{split}_low": low, f"{split}_high": high}
        known = np.stack([score["known"] for score in scores[name]])
        row |= {
            "return_std_within_seed": float(np.nanmean([c.return_std for c in arm_curves])),
            "std_across_seeds": float(known.mean(axis=1).std(ddof=1)) if len(known) > 1 else 0.0,
            "level": level,
            **first_reach(arm_curves, level),
        }
        rows.append(row)
    return rows, curves


def interval_over_seeds(days: FloatArray) -> tuple[float, float]:
    """95 % bootstrap interval of the mean of (seeds, days) scores.

    Seeds and days are resampled, the same days for all seeds. With one seed only days are
    resampled, and the interval says nothing about other seeds.
    """
    if len(days) == 1:
        return bootstrap_interval(days[0])
    generator = np.random.default_rng(0)
    seeds = generator.integers(0, len(days), (NUM_RESAMPLES, len(days)))
    which = generator.integers(0, days.shape[1], (NUM_RESAMPLES, days.shape[1]))
    means = [days[np.ix_(some, others)].mean() for some, others in zip(seeds, which, strict=True)]
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
