"""Evaluation of a policy: whole episodes on separate envs with random streams of their own.

Every env plays the same number of episodes; taking the first episodes to end would favour short
ones.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from hundredfold.algorithms.policies import BatchActor
from hundredfold.backends.processes.env_threads import MAX_THREADS
from hundredfold.backends.settings import WorkerSettings
from hundredfold.config.run import RunSettings
from hundredfold.core import rng
from hundredfold.core.action_scaling import random_actions
from hundredfold.core.batch import Array, EnvSpec, FloatArray, IntArray, StepBatch
from hundredfold.core.protocols import Backend, EnvFactory
from hundredfold.core.statistics import bootstrap_interval, standard_error
from hundredfold.rollout.episode_stats import mean_name

Actor = Callable[[StepBatch], Array]

# Separates the random streams of evaluation envs from those of training, whatever the seed.
EVALUATION_STREAM = 0x6576616C
# Episode infos whose minimum and maximum are reported, too.
EXTREMES_REPORTED = ("improvement_pct",)


@dataclass(slots=True)
class Evaluation:
    """Results of whole episodes, ordered by env, then by episode."""

    returns: FloatArray  # (episodes,)
    lengths: IntArray  # (episodes,)
    info: dict[str, Array] = field(default_factory=dict)  # each (episodes, ...)
    num_truncated: int = 0  # episodes that the evaluation ended, not the env

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
        summary = self.summary()
        metrics = {key: summary[key] for key in ("episodes", "stderr", "ci_low", "ci_high")}
        metrics |= {
            "return_mean": summary["mean"],
            "min": summary["min"],
            "max": summary["max"],
            "episode_steps": summary["episode_steps"],
            **({"truncated": float(self.num_truncated)} if self.num_truncated else {}),
        }
        for name, values in self.info.items():
            metrics[mean_name(name)] = float(np.mean(values, dtype=np.float64))
            if name in EXTREMES_REPORTED:
                metrics[f"min_{name}"] = float(values.min())
                metrics[f"max_{name}"] = float(values.max())
        return metrics


def evaluation_backend(
    settings: RunSettings, make_envs: EnvFactory, num_envs: int
) -> tuple[str, EnvFactory, int, WorkerSettings]:
    """Arguments of `make_backend` for evaluation: the training backend, but synchronous.

    The batch size is chosen anew, and envs that had threads have one each: training's numbers were fitted to
    another number of envs.

    Args:
        settings: Settings of the run.
        make_envs: Env factory.
        num_envs: Number of evaluation envs.
    """
    name = settings.machine.backend
    threads = settings.processes.env_threads
    workers = replace(settings.processes, batch_envs=0, env_threads=MAX_THREADS if threads > 1 else threads)
    return "processes" if name == "first_ready" else name, make_envs, num_envs, workers


def evaluate(
    backend: Backend,
    act: Actor,
    episodes: int,
    seed: int,
    max_steps: int,
    on_progress: Callable[[int], None] = lambda done: None,
    total_steps: int = 0,
) -> Evaluation:
    """Play whole episodes, the same number in each env.

    After `total_steps` the episodes of a round count only if every env has finished its own: those of
    some envs would favour short ones. The first round counts in any case, truncated.

    Args:
        backend: Envs to play on; they are reset.
        act: Policy, from a step batch to one action per row; reset first if it has a memory.
        episodes: Number of episodes to count.
        seed: Seed of the episodes.
        max_steps: Steps after which an episode is truncated and counts as it stands.
        on_progress: Called after each step with the number of finished episodes.
        total_steps: Steps of all envs after which the evaluation ends; 0 plays all episodes.
    """
    spec, num_envs = backend.spec, backend.num_envs
    rounds = -(-episodes // num_envs)
    returns = np.zeros((num_envs, rounds))
    lengths = np.zeros((num_envs, rounds), np.int64)
    info = {name: np.zeros((num_envs, rounds, *array.shape), array.dtype) for name, array in spec.episode_info.items()}
    played = np.zeros(num_envs, np.int64)
    num_truncated = num_steps = 0
    failures_before = backend.health()["env_failures"]
    backend.reset(int(rng.spawn(rng.seed_key(seed), EVALUATION_STREAM)))
    if isinstance(act, BatchActor):
        act.reset()
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
        num_truncated += int(too_long.sum())
        finished = counting & (batch.ended | too_long)
        for name, values in info.items():
            values[ids[finished], played[ids[finished]]] = batch.episode_info[name][finished]
        played[ids[finished]] += 1
        on_progress(int(played.sum()))
        num_steps += len(batch)
        if total_steps and num_steps >= total_steps:
            break
    if num_truncated:
        warnings.warn(f"{num_truncated} evaluation episodes were truncated after {max_steps} steps.", stacklevel=2)
    num_truncated += int((played == 0).sum())
    rounds = max(int(played.min()), 1)
    if num_failures := backend.health()["env_failures"] - failures_before:
        warnings.warn(
            f"envs failed {num_failures} times during the evaluation; these episodes are truncated and count as they "
            f"stand. First failure: {backend.first_failure}",
            stacklevel=2,
        )
    return Evaluation(
        returns[:, :rounds].reshape(-1)[:episodes],
        lengths[:, :rounds].reshape(-1)[:episodes],
        {name: values[:, :rounds].reshape(-1, *values.shape[2:])[:episodes] for name, values in info.items()},
        num_truncated,
    )


def random_actor(spec: EnvSpec, seed: int) -> Actor:
    """Uniformly random allowed actions; for an unbounded Box those of an untrained policy."""
    key = rng.spawn(rng.seed_key(seed), 0x72616E646F6D)
    counts = np.zeros(1, np.int64)

    def act(batch: StepBatch) -> Array:
        keys = rng.spawn(key, batch.env_ids)[:, None]
        uniforms = rng.uniforms(keys, counts + np.arange(spec.num_logits))
        counts[0] += spec.num_logits
        return random_actions(spec, uniforms, batch.mask)

    return act
