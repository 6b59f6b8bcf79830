"""Does a larger batch of envs help? Settings against each other, over several seeds.

Every arm plays the same number of episodes. A control collects as many samples per update as the
largest arm, but with the fewest envs: it tells whether more envs help, or only larger updates.
Finished runs are kept and unfinished ones resumed, so an interrupted comparison goes on where it
stopped.
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

Judge = Callable[[Path], Mapping[str, FloatArray]]
"""From a run to its improvement on each evaluation day, by split."""
Trainer = Callable[[RunSettings, Path, str], bool]
"""Train (or go on training) a run in a folder of this name; False when the user stopped it."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One setting that is compared."""

    name: str
    settings: RunSettings

    def run_name(self, seed: int) -> str:
        return f"{self.name}-seed-{seed}"


@dataclass(slots=True)
class Curve:
    """The evaluations of one run."""

    epochs: FloatArray  # (evaluations,)
    samples: FloatArray
    seconds: FloatArray
    score: FloatArray  # improvement in percent
    reward_std: float  # standard deviation of episode returns in the last epochs


def make_arms(start: RunSettings, num_envs: Sequence[int], episode_steps: int) -> list[Arm]:
    """An arm per number of envs, and the control where there are at least two.

    All play the same number of episodes, are evaluated after the same numbers of them and refit
    their belief model after the same numbers of steps; nothing else differs.
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
            "arms are compared over --episodes and collect whole days; leave --epochs, --steps and "
            "--num-steps away."
        )
    if interval < 1:
        raise SettingsError("a comparison needs an --eval-interval of at least 1.")
    if start.belief_model is not None and not start.belief_model.acceptance_refit_interval:
        steps = DAYS_BETWEEN_REFITS * few * episode_steps
        belief_model = replace(start.belief_model, acceptance_refit_interval=steps)
        start = replace(start, belief_model=belief_model)
    shapes = {f"{count}-envs": (count, 1) for count in num_envs}
    if many % few == 0 and many > few:
        shapes[f"{few}-envs-x{many // few}"] = (few, many // few)
    # The largest update sets the pace.
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
    """Bring every run to its end, seed by seed; None when the user stopped it."""
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
    """Whether the run is there, is the one that is wanted, and has reached its last epoch."""
    if not (path / "settings.toml").exists():
        return False
    folder = RunFolder.open(path)
    kept = folder.settings()
    asked = replace(settings, machine=kept.machine, saving=kept.saving, processes=kept.processes)
    other = changed_settings(kept, asked)
    if other:
        raise SettingsError(
            f"{path} was trained with other settings ({', '.join(other)}); name another folder "
            "with --save-dir, or remove it."
        )
    return kept.length.epochs in saved_epochs(folder)


def read_curve(path: Path) -> Curve:
    """What a run's metrics say about its way."""
    metrics = read_metrics(RunFolder.open(path))
    judged = [row for row in metrics if row.get(SCORE) is not None]
    spreads = [row["reward_std"] for row in metrics[-10:] if row.get("reward_std")]
    return Curve(
        epochs=np.array([row["epoch"] for row in judged], float),
        samples=np.array([row["total_steps"] for row in judged], float),
        seconds=np.array([row["wall_seconds"] for row in judged], float),
        score=np.array([row[SCORE] for row in judged], float),
        reward_std=float(np.mean(spreads)) if spreads else float("nan"),
    )


def highest_common_level(curves: Mapping[str, Sequence[Curve]]) -> float:
    """The target where every arm reaches it on average, else the most that all of them reach."""
    reached = min(float(mean_scores(arm).max()) for arm in curves.values())
    return TARGET_PCT if reached >= TARGET_PCT else np.floor(10 * reached) / 10


def mean_scores(curves: Sequence[Curve]) -> FloatArray:
    """(evaluations,) the mean over seeds, as far as all of them have come."""
    shortest = min(len(curve.score) for curve in curves)
    return np.asarray(np.mean([curve.score[:shortest] for curve in curves], axis=0), np.float64)


def first_reach(curves: Sequence[Curve], level: float) -> dict[str, float]:
    """Epochs, samples and seconds until the mean over seeds is at the level for the first time."""
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
    runs: Sequence[tuple[Arm, int, Path]], judge: Judge
) -> tuple[list[dict[str, Any]], dict[str, list[Curve]]]:
    """A row per arm, and every run's curve by arm."""
    curves: dict[str, list[Curve]] = {}
    scores: dict[str, list[Mapping[str, FloatArray]]] = {}
    for arm, _, path in runs:
        curves.setdefault(arm.name, []).append(read_curve(path))
        scores.setdefault(arm.name, []).append(judge(path))
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
            days = np.stack([judged[split] for judged in scores[name]])  # (seeds, days)
            low, high = interval_over_seeds(days)
            row |= {split: float(days.mean()), f"{split}_low": low, f"{split}_high": high}
        known = np.stack([judged["known"] for judged in scores[name]])
        row |= {
            "reward_std_within_seed": float(np.nanmean([c.reward_std for c in arm_curves])),
            "std_across_seeds": float(known.mean(axis=1).std(ddof=1)) if len(known) > 1 else 0.0,
            "level": level,
            **first_reach(arm_curves, level),
        }
        rows.append(row)
    return rows, curves


def interval_over_seeds(days: FloatArray) -> tuple[float, float]:
    """A 95 % interval for (seeds, days): both are drawn anew, the days alike for all seeds.

    With one seed only the days can vary, and the interval says nothing about other seeds.
    """
    if len(days) == 1:
        return bootstrap_interval(days[0])
    luck = np.random.default_rng(0)
    seeds = luck.integers(0, len(days), (NUM_RESAMPLES, len(days)))
    which = luck.integers(0, days.shape[1], (NUM_RESAMPLES, days.shape[1]))
    means = [days[np.ix_(some, others)].mean() for some, others in zip(seeds, which, strict=True)]
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
