"""Judging a policy: whole episodes on envs of its own, away from training data and streams.

Every env plays the same number of episodes. Taking the first episodes to end would favour short
ones.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from hundredfold.backends.settings import WorkerSettings
from hundredfold.config.run import RunSettings
from hundredfold.core import rng
from hundredfold.core.action_scaling import random_actions
from hundredfold.core.batch import Array, EnvSpec, FloatArray, IntArray, StepBatch
from hundredfold.core.protocols import Backend, EnvFactory
from hundredfold.core.statistics import bootstrap_interval, standard_error
from hundredfold.rollout.episode_stats import mean_name

Actor = Callable[[StepBatch], Array]

# Evaluation envs live under a branch of their own: no seed makes them play training's episodes.
EVALUATION_BRANCH = 0x6576616C
# Of these the worst and the best episode are told as well.
SPREAD_TOLD = ("improvement_pct",)


@dataclass(slots=True)
class Evaluation:
    """What came of some whole episodes, in a fixed order: by env, then by episode."""

    returns: FloatArray  # (episodes,)
    lengths: IntArray  # (episodes,)
    info: dict[str, Array] = field(default_factory=dict)  # each (episodes, ...)

    def summary(self) -> dict[str, float]:
        """Mean, standard error and a 95 % bootstrap interval of the return, and other means."""
        low, high = bootstrap_interval(self.returns)
        summary = {
            "episodes": float(len(self.returns)),
            "mean": float(self.returns.mean()),
            "stderr": standard_error(self.returns),
            "ci_low": low,
            "ci_high": high,
            "min": float(self.returns.min()),
            "max": float(self.returns.max()),
            "episode_steps": float(self.lengths.mean()),
        }
        for name, values in self.info.items():
            key = f"info_{name}" if name in summary else name
            summary[key] = float(np.mean(values, dtype=np.float64))
        return summary

    def metrics(self) -> dict[str, float]:
        """The summary under the names of a run's metrics."""
        found = self.summary()
        metrics = {key: found[key] for key in ("episodes", "stderr", "ci_low", "ci_high")}
        metrics |= {
            "return_mean": found["mean"],
            "min": found["min"],
            "max": found["max"],
            "episode_steps": found["episode_steps"],
        }
        for name, values in self.info.items():
            metrics[mean_name(name)] = float(np.mean(values, dtype=np.float64))
            if name in SPREAD_TOLD:
                metrics[f"min_{name}"] = float(values.min())
                metrics[f"max_{name}"] = float(values.max())
        return metrics


def evaluation_backend(
    settings: RunSettings, make_envs: EnvFactory, num_envs: int
) -> tuple[str, EnvFactory, int, WorkerSettings]:
    """How to start the envs of an evaluation: like training's, but in step with each other.

    How many to wait for and how many threads to use was fitted to the number of envs in training.
    """
    name = settings.machine.backend
    workers = replace(settings.processes, batch_envs=0, env_threads=0)
    return "processes" if name == "first_ready" else name, make_envs, num_envs, workers


def evaluate(
    backend: Backend,
    act: Actor,
    episodes: int,
    seed: int,
    max_steps: int,
    on_progress: Callable[[int], None] = lambda done: None,
) -> Evaluation:
    """Play whole episodes, as many from each env; `tick` hears after each step how many are done.

    An episode that reaches `max_steps` counts as it stands: not every env ends by itself.
    """
    spec, num_envs = backend.spec, backend.num_envs
    rounds = -(-episodes // num_envs)
    returns = np.zeros((num_envs, rounds))
    lengths = np.zeros((num_envs, rounds), np.int64)
    info = {
        name: np.zeros((num_envs, rounds, *array.shape), array.dtype)
        for name, array in spec.episode_info.items()
    }
    played = np.zeros(num_envs, np.int64)
    cut_short = 0
    branch = rng.spawn(rng.seed_key(seed), EVALUATION_BRANCH)
    backend.reset(int(branch))
    batch = backend.recv()
    while played.min() < rounds:
        backend.send(act(batch))
        batch = backend.recv()
        ids = batch.env_ids
        counting = played[ids] < rounds
        rows = ids[counting]
        returns[rows, played[rows]] += batch.reward[counting]
        lengths[rows, played[rows]] += 1
        too_long = counting & ~batch.ended
        too_long[counting] &= lengths[rows, played[rows]] >= max_steps
        cut_short += int(too_long.sum())
        over = counting & (batch.ended | too_long)
        for name, values in info.items():
            values[ids[over], played[ids[over]]] = batch.episode_info[name][over]
        played[ids[over]] += 1
        on_progress(int(played.sum()))
    if cut_short:
        warnings.warn(
            f"{cut_short} evaluation episodes were cut off after {max_steps} steps.", stacklevel=2
        )
    return Evaluation(
        returns.reshape(-1)[:episodes],
        lengths.reshape(-1)[:episodes],
        {name: values.reshape(-1, *values.shape[2:])[:episodes] for name, values in info.items()},
    )


def random_actor(spec: EnvSpec, seed: int) -> Actor:
    """Any allowed action, all equally likely; the yardstick every policy must beat.

    Of a box without bounds, what a policy would try first.
    """
    key = rng.spawn(rng.seed_key(seed), 0x72616E646F6D)
    counts = np.zeros(1, np.int64)

    def act(batch: StepBatch) -> Array:
        keys = rng.spawn(key, batch.env_ids)[:, None]
        uniforms = rng.uniforms(keys, counts + np.arange(spec.num_logits))
        counts[0] += spec.num_logits
        return random_actions(spec, uniforms, batch.mask)

    return act
