"""Comparison of settings (arms) over several seeds.

Every arm is trained with the same seeds and evaluated on the same episodes. Finished runs are
reused and unfinished ones resumed, so an interrupted comparison continues where it stopped.

Arms may be numbers of envs: these play the same number of episodes, and a control arm collects as
many samples per update as the largest, but with the fewest envs. It separates the effect of more
envs from that of larger updates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np

from hundredfold.config.run import LengthSettings, RunSettings
from hundredfold.config.toml import changed_settings
from hundredfold.core.batch import EnvSpec, FloatArray
from hundredfold.core.errors import SettingsError
from hundredfold.core.files import read_sealed_json, sealed_json, write_atomically
from hundredfold.core.statistics import (
    improvement_probability,
    improvement_probability_interval,
    interquartile_mean,
    interval_over_seeds,
)
from hundredfold.training.checkpoint import saved_epochs
from hundredfold.training.metrics import read_metrics
from hundredfold.training.run_folder import RunFolder
from hundredfold.training.stop import is_complete

RETURN: Final = "eval/return_mean"
SCORES_FILE: Final = "compare_scores.json"
DAYS_BETWEEN_REFITS: Final = 10

Row = dict[str, Any]
Scores = Mapping[str, FloatArray]
"""Scores of a run on each evaluation episode, by split of the env ("all" where it has none)."""
Trainer = Callable[[RunSettings, Path, str], bool]
"""Train or resume a run in this folder, announced as `3 of 10`; False when the user stopped it."""


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
    score: FloatArray
    return_std: float | None  # standard deviation of episode returns in the last epochs


@dataclass(slots=True)
class Comparison:
    """Results of a comparison."""

    scores: list[Row]  # by split and arm: means, intervals, differences from the first arm
    training: list[Row]  # by arm: samples, time, when the level was reached
    curves: dict[str, list[Curve]]  # by arm, one per seed
    verdicts: dict[str, str]  # by split


def num_envs_arms(start: RunSettings, num_envs: Sequence[int], spec: EnvSpec) -> list[Arm]:
    """An arm per number of envs, and a control arm where there are at least two.

    All play the same number of steps, are evaluated after the same numbers of them and refit
    their belief model after the same numbers of steps.

    Args:
        start: Settings of all arms.
        num_envs: Numbers of envs to compare.
        spec: Observation and action spec of the env.
    """
    few, many = min(num_envs), max(num_envs)
    if len(set(num_envs)) != len(num_envs) or few < 1:
        raise SettingsError(f"num_envs must be different and at least 1, got {list(num_envs)}.")
    if any(count % few for count in num_envs):
        raise SettingsError(
            f"num_envs must be multiples of the fewest ({few}), so that arms can be evaluated "
            f"after the same numbers of steps; got {list(num_envs)}."
        )
    if start.algo != "ppo":
        raise SettingsError("numbers of envs are compared with --algo ppo; for others name arms by --arm.")
    if start.length.epochs:
        raise SettingsError("numbers of envs are compared at equal --steps or --episodes; remove --epochs.")
    in_epochs = replace(start, rollout=replace(start.rollout, num_envs=1)).resolved(spec)
    num_steps, total_steps = in_epochs.rollout.num_steps, in_epochs.length.epochs * in_epochs.rollout.num_steps
    if start.belief_model is not None and not start.belief_model.acceptance_refit_interval:
        steps = DAYS_BETWEEN_REFITS * few * num_steps
        start = replace(start, belief_model=replace(start.belief_model, acceptance_refit_interval=steps))
    shapes = {f"{count}-envs": (count, 1) for count in num_envs}
    if many > few:
        shapes[f"{few}-envs-x{many // few}"] = (few, many // few)
    # The largest update sets the evaluation interval.
    rollouts_between = -(-start.evaluation.eval_interval * few // many) * many
    arms = []
    for name, (count, rollouts) in shapes.items():
        rollout = replace(start.rollout, num_envs=count, num_steps=rollouts * num_steps)
        interval = max(1, rollouts_between // (count * rollouts))
        changed = replace(
            start,
            length=LengthSettings(epochs=-(-total_steps // rollout.samples_per_epoch)),
            rollout=rollout,
            evaluation=replace(start.evaluation, eval_interval=interval),
        )
        arms.append(Arm(name, changed))
    return arms


def train_all(
    arms: Sequence[Arm], seeds: Sequence[int], folder: Path, train: Trainer
) -> list[tuple[Arm, int, Path]] | None:
    """Train all runs to their end, seed by seed; None when the user stopped it."""
    runs = [(arm, seed, folder / arm.run_name(seed)) for seed, arm in product(seeds, arms)]
    for number, (arm, seed, path) in enumerate(runs, 1):
        settings = replace(arm.settings, seed=seed)
        if not _is_finished(path, settings) and not train(settings, path, f"{number} of {len(runs)}"):
            return None
    return runs


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
    return is_complete(folder, saved)


def scores_of(path: Path, evaluate: Callable[[Path], Scores], conditions: Mapping[str, int]) -> Scores:
    """Scores of a run, from its folder if it was evaluated under the same conditions before.

    Args:
        path: Run folder.
        evaluate: Evaluates the run.
        conditions: Number and seed of the episodes.
    """
    file, last = path / SCORES_FILE, saved_epochs(RunFolder.open(path))[-1]
    key = {**conditions, "epoch": last}
    try:
        table = read_sealed_json(file)
    except (FileNotFoundError, ValueError):  # not evaluated, or the file was not written to its end
        table = {}
    if table.get("conditions") != key:
        scores = {split: values.tolist() for split, values in evaluate(path).items()}
        table = {"conditions": key, "scores": scores}
        write_atomically(file, sealed_json(table, indent=None))
    return {split: np.array(values, np.float64) for split, values in table["scores"].items()}


def read_curve(path: Path, metric: str) -> Curve:
    """Learning curve from a run's metrics.

    Args:
        path: Run folder.
        metric: Name of the evaluated metric.
    """
    metrics = read_metrics(RunFolder.open(path))
    evaluations = [row for row in metrics if row.get(metric) is not None]
    return_stds = [row["return_std"] for row in metrics[-10:] if row.get("return_std")]
    return Curve(
        epochs=np.array([row["epoch"] for row in evaluations], float),
        samples=np.array([row["total_steps"] for row in evaluations], float),
        seconds=np.array([row["wall_seconds"] for row in evaluations], float),
        score=np.array([row[metric] for row in evaluations], float),
        return_std=float(np.mean(return_stds)) if return_stds else None,
    )


def highest_common_level(curves: Mapping[str, Sequence[Curve]], target: float | None = None) -> float:
    """The target if every arm reaches it on average, else the highest level that all reach.

    The level is rounded down to two digits.

    Args:
        curves: Learning curves of each arm, one per seed.
        target: Level to prefer.
    """
    reached = min(float(AlignedCurves.of(arm).mean.max()) for arm in curves.values())
    if target is not None and reached >= target:
        return target
    unit = 10.0 ** (math.floor(math.log10(abs(reached))) - 1) if reached else 1.0
    return float(np.floor(reached / unit) * unit)


@dataclass(frozen=True, slots=True)
class AlignedCurves:
    """Learning curves of one arm at the same evaluations, as many as its longest run has.

    A run that a stop rule ended earlier keeps its last score, and its clock stands still.
    """

    epochs: FloatArray  # (evaluations,)
    samples: FloatArray  # (evaluations,)
    seconds: FloatArray  # (evaluations,) mean over seeds
    scores: FloatArray  # (seeds, evaluations)

    @classmethod
    def of(cls, curves: Sequence[Curve]) -> AlignedCurves:
        """The curves of an arm, one per seed."""
        longest = max(curves, key=lambda curve: len(curve.score))
        missing = [len(longest.score) - len(curve.score) for curve in curves]

        def continued(values: Sequence[FloatArray]) -> FloatArray:
            return np.stack([np.pad(row, (0, gap), "edge") for row, gap in zip(values, missing, strict=True)])

        return cls(
            epochs=longest.epochs,
            samples=longest.samples,
            seconds=continued([curve.seconds for curve in curves]).mean(axis=0),
            scores=continued([curve.score for curve in curves]),
        )

    @property
    def mean(self) -> FloatArray:
        """(evaluations,) mean score over seeds."""
        return np.asarray(self.scores.mean(axis=0), np.float64)


def first_reach(curves: Sequence[Curve], level: float) -> dict[str, float]:
    """Epochs, samples and seconds until the mean over seeds first reaches the level."""
    aligned = AlignedCurves.of(curves)
    there = np.flatnonzero(aligned.mean >= level)
    if not len(there):
        return {}
    at = int(there[0])
    return {
        "epochs_to_level": float(aligned.epochs[at]),
        "samples_to_level": float(aligned.samples[at]),
        "seconds_to_level": float(aligned.seconds[at]),
    }


def compare_runs(
    arms: Sequence[Arm], scores: Mapping[str, Sequence[Scores]], curves: dict[str, list[Curve]], level: float
) -> Comparison:
    """Statistics of all runs.

    Args:
        arms: The arms; differences are from the first.
        scores: Scores of each arm, one per seed, on the same episodes.
        curves: Learning curves of each arm, one per seed.
        level: Evaluated score whose first reach is reported.
    """
    rows: list[Row] = []
    verdicts: dict[str, str] = {}
    for split in scores[arms[0].name][0]:
        of_arms = {arm.name: np.stack([run[split] for run in scores[arm.name]]) for arm in arms}  # (seeds, episodes)
        first = of_arms[arms[0].name]
        of_split = [
            {"arm": name, "split": split, **_score_row(runs), **({} if runs is first else _difference_row(runs, first))}
            for name, runs in of_arms.items()
        ]
        verdicts[split] = verdict(of_split)
        rows += of_split
    return Comparison(rows, [_training_row(arm, curves[arm.name], level) for arm in arms], curves, verdicts)


def _score_row(runs: FloatArray) -> Row:
    """Mean, interquartile mean and their intervals of (seeds, episodes) scores."""
    low, high = interval_over_seeds(runs)
    iqm_low, iqm_high = interval_over_seeds(runs, interquartile_mean)
    of_runs = runs.mean(axis=1)
    return {
        "seeds": runs.shape[0],
        "episodes": runs.shape[1],
        "mean": float(runs.mean()),
        "ci_low": low,
        "ci_high": high,
        "iqm": float(interquartile_mean(of_runs)),
        "iqm_low": iqm_low,
        "iqm_high": iqm_high,
        "std_across_seeds": float(of_runs.std(ddof=1)) if len(runs) > 1 else 0.0,
    }


def _difference_row(runs: FloatArray, first: FloatArray) -> Row:
    """Paired differences, by seed and episode, and the probability of improvement."""
    low, high = interval_over_seeds(runs - first)
    row: Row = {"difference": float((runs - first).mean()), "difference_low": low, "difference_high": high}
    if len(runs) == 1:  # says nothing about other seeds
        return row
    of_runs = runs.mean(axis=1), first.mean(axis=1)
    low, high = improvement_probability_interval(*of_runs)
    return row | {
        "improvement_probability": improvement_probability(*of_runs),
        "improvement_probability_low": low,
        "improvement_probability_high": high,
    }


def verdict(rows: Sequence[Row]) -> str:
    """The arm that is better than all others, if the intervals allow to name one.

    Args:
        rows: Mean and interval of each arm.
    """
    best = max(rows, key=lambda row: float(row["mean"]))
    rivals = [row["arm"] for row in rows if row is not best and row["ci_high"] >= best["ci_low"]]
    if len(rows) == 1:
        return "one arm: nothing to compare it with"
    if best["seeds"] == 1:
        return "no winner: one seed says nothing about others"
    if rivals:
        others = f"that of {rivals[0]}"
        if len(rivals) > 1:
            others = f"those of {', '.join(rivals[:-1])} and {rivals[-1]}"
        return f"no winner: the interval of {best['arm']} overlaps with {others}"
    return f"winner: {best['arm']}, whose interval overlaps with no other"


def _training_row(arm: Arm, curves: Sequence[Curve], level: float) -> Row:
    rollout = arm.settings.rollout
    return_stds = [curve.return_std for curve in curves if curve.return_std is not None]
    return {
        "arm": arm.name,
        "num_envs": rollout.num_envs,
        "samples_per_update": rollout.samples_per_epoch * rollout.policy_update_interval,
        "epochs": round(float(np.mean([curve.epochs[-1] for curve in curves]))),
        "samples": round(float(np.mean([curve.samples[-1] for curve in curves]))),
        "seconds": float(np.mean([curve.seconds[-1] for curve in curves])),
        "return_std_within_seed": float(np.mean(return_stds)) if return_stds else None,
        "level": level,
        **first_reach(curves, level),
    }
