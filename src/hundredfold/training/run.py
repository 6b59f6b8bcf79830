"""A training run: counters, timing, metrics, evaluations and checkpoints of one folder."""

from __future__ import annotations

import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

from hundredfold.backends import make_backend
from hundredfold.core.batch import Array, StepBatch
from hundredfold.core.errors import CheckpointError, SettingsError
from hundredfold.core.protocols import Backend
from hundredfold.rollout.episode_stats import EpisodeStats
from hundredfold.training.build import BELIEF_MODEL, Components
from hundredfold.training.checkpoint import (
    Checkpoint,
    load_last_whole,
    mark_best,
    prune,
    remove_leftovers,
    save_checkpoint,
    saved_epochs,
)
from hundredfold.training.console import TrainingDisplay
from hundredfold.training.evaluate import evaluate, evaluation_backend
from hundredfold.training.metrics import MetricsLog, best_of, drop_after, read_metrics
from hundredfold.training.process_setup import Interruptible
from hundredfold.training.run_folder import RunFolder

MAX_EVALUATION_ENVS = 64
# Interval at which failures of envs are looked for during an epoch.
FAILURE_CHECK_SECONDS = 2.0


@dataclass(slots=True)
class Counters:
    """Progress of a run."""

    epoch: int = 0
    total_steps: int = 0
    total_episodes: int = 0
    wall_seconds: float = 0.0


class Run:
    """Bookkeeping of one training. Created by `start` or `resume`, ended by `close`.

    Args:
        folder: Run folder, claimed by this process.
        components: Backend, learner and collector of the training.
        counters: Progress so far.
        wandb: Also log to Weights & Biases.
        quiet: Print nothing.
    """

    def __init__(
        self, folder: RunFolder, components: Components, counters: Counters, *, wandb: bool = False, quiet: bool = False
    ) -> None:
        self.folder, self.components, self.counters = folder, components, counters
        self.settings = components.settings
        self.num_epochs = self.settings.length.epochs
        self.best = best_of(read_metrics(folder))
        self.last_complete = self._snapshot()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        # Cumulative seconds at the end of the last epoch.
        timings = components.backend.timings()
        self.previous_seconds: dict[str, float] = {"env": -sum(timings.values()), **timings}
        self.evaluation_envs: Backend | None = None
        self.metrics = MetricsLog(folder, self.settings, first_step=counters.total_steps, wandb=wandb)
        self.display = TrainingDisplay(
            total_steps=self.num_epochs * self.settings.rollout.samples_per_epoch,
            done_steps=counters.total_steps,
            quiet=quiet,
        )

    @classmethod
    def start(cls, folder: RunFolder, components: Components, **options: bool) -> Run:
        """Start at epoch 0."""
        if components.belief_model is not None:
            components.backend.broadcast(components.belief_model.params(exploring=True))
        components.collector.start(components.settings.seed)
        return cls(folder, components, Counters(), **options)

    @classmethod
    def resume(cls, folder: RunFolder, components: Components, **options: bool) -> Run:
        """Continue from the last checkpoint, bit for bit."""
        remove_leftovers(folder)
        if not saved_epochs(folder):
            # Killed before its first checkpoint: start over.
            drop_after(folder, 0)
            return cls.start(folder, components, **options)
        checkpoint, problems = load_last_whole(folder)
        for problem in problems:
            warnings.warn(f"{problem}; resuming from epoch {checkpoint.epoch}.", stacklevel=2)
        try:
            counters = Counters(**checkpoint.counters)
            components.learner.restore(checkpoint.parts["learner"])
            components.collector.restore(checkpoint.parts["collector"], checkpoint.parts["env"])
            if components.belief_model is not None:
                components.belief_model.restore(checkpoint.parts[BELIEF_MODEL])
            if not components.backend.spec.has_snapshots and components.collector.batch is not None:
                components.learner.buffer.truncate_here(components.collector.batch)
        except (KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
            raise CheckpointError(
                f"the checkpoint of epoch {checkpoint.epoch} in {folder.path} does not fit "
                f"({type(error).__name__}: {error}); it was saved by another version or with other settings."
            ) from error
        planned = components.settings.length.epochs
        if planned < counters.epoch:
            raise SettingsError(
                f"{folder.path} has already trained {counters.epoch} epochs ({counters.total_steps:,} steps), more "
                f"than the {planned} asked for; --steps, --episodes and --epochs set its total length."
            )
        drop_after(folder, counters.epoch, checkpoint.metrics_seal)
        return cls(folder, components, counters, **options)

    @property
    def finished(self) -> bool:
        return self.counters.epoch >= self.num_epochs

    def close(self) -> None:
        """Close files and evaluation envs, and release the folder."""
        self.display.close()
        self.metrics.close()
        if self.evaluation_envs is not None:
            self.evaluation_envs.close()
        self.folder.release()

    # -- during an epoch ------------------------------------------------------------------------

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Count the seconds of a phase of this epoch."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += time.perf_counter() - begin

    def progress_callback(self, signals: Interruptible) -> Callable[[], None]:
        """Callback after each batch of steps: advances the progress bar, checks for signals."""
        rows = self.settings.rollout.num_envs
        checked = time.monotonic()

        def on_progress() -> None:
            nonlocal checked
            self.display.advance(rows)
            signals.check()
            if time.monotonic() - checked > FAILURE_CHECK_SECONDS:
                self.failure_counts()
                checked = time.monotonic()

        return on_progress

    def split_collect_time(self) -> None:
        """Split the time of collecting into policy, env and learning in between."""
        collector = self.components.collector
        timings = self.components.backend.timings()
        env = collector.env_seconds - sum(timings.values())
        cumulative = {
            "policy": collector.policy_seconds,
            "env": env,
            "update": self.components.learner.learning_seconds,
            **timings,
        }
        for phase, seconds in cumulative.items():
            spent = seconds - self.previous_seconds.get(phase, 0.0)
            self.seconds[phase] += spent
            self.seconds["collect"] -= spent
        self.previous_seconds = cumulative

    @property
    def step_callbacks(self) -> list[Callable[[StepBatch], None]]:
        """Functions that receive every step batch."""
        return [] if self.components.belief_model is None else [self.components.belief_model.observe]

    def update_belief_model(self) -> dict[str, float]:
        """Update the belief model and broadcast its parameters to the envs."""
        belief_model = self.components.belief_model
        if belief_model is None:
            return {}
        metrics = belief_model.update()
        self.components.backend.broadcast(belief_model.params(exploring=True))
        return metrics

    def evaluate_if_due(self, signals: Interruptible) -> dict[str, float]:
        """Evaluate the policy at its interval and at the end; empty otherwise."""
        evaluation = self.settings.evaluation
        epoch = self.counters.epoch + 1
        if not evaluation.eval_interval or (epoch % evaluation.eval_interval and epoch < self.num_epochs):
            return {}
        if self.evaluation_envs is None:
            num_envs = min(evaluation.eval_episodes, MAX_EVALUATION_ENVS)
            if not self.components.backend.spec.has_snapshots:
                # Third-party envs may be costly: no more of them than for training.
                num_envs = min(num_envs, self.settings.rollout.num_envs)
            settings = self.settings
            if settings.machine.backend == "ray":
                # Actors are busy with training, and each of their steps is a round trip.
                here = "in_process" if self.components.backend.spec.has_snapshots else "processes"
                settings = replace(settings, machine=replace(settings.machine, backend=here))
            self.evaluation_envs = make_backend(*evaluation_backend(settings, self.components.make_envs, num_envs))
        if self.components.belief_model is not None:
            self.evaluation_envs.broadcast(self.components.belief_model.params(exploring=False))
        policy = self.components.learner.policy

        def act(batch: StepBatch) -> Array:
            return policy.act_deterministic(batch.observation, batch.mask)

        result = evaluate(
            self.evaluation_envs,
            act,
            evaluation.eval_episodes,
            evaluation.eval_seed,
            evaluation.eval_max_steps,
            on_progress=lambda done: signals.check(),
        ).metrics()
        return {f"eval/{name}": value for name, value in result.items()}

    # -- after an epoch -------------------------------------------------------------------------

    def record(self, episodes: EpisodeStats, learner_metrics: Mapping[str, float]) -> None:
        """Write the metrics of a complete epoch and remember the best evaluation."""
        counters, samples = self.counters, self.settings.rollout.samples_per_epoch
        spent = sum(self.seconds.values())
        counters.epoch += 1
        counters.total_steps += samples
        counters.total_episodes += len(episodes.returns)
        counters.wall_seconds += spent
        metrics = {
            "epoch": counters.epoch,
            "total_steps": counters.total_steps,
            "total_episodes": counters.total_episodes,
            **episodes.means(),
            **learner_metrics,
            **self.failure_counts(),
            "samples_per_second": samples / spent,
            "wall_seconds": counters.wall_seconds,
            **{f"time/{phase}": seconds for phase, seconds in self.seconds.items()},
        }
        self.seconds.clear()
        self.metrics.write(metrics)
        if counters.epoch % self.settings.saving.log_interval == 0 or self.finished:
            self.display.epoch(counters.epoch, self.num_epochs, metrics)
        score = learner_metrics.get("eval/return_mean")
        if score is not None and (self.best is None or score > self.best[1]):
            self.best = (counters.epoch, score)

    def failure_counts(self) -> dict[str, int]:
        """Failures of envs and workers so far, which are displayed; zeros only for third-party envs."""
        counts = self.components.health()
        if num_failures := counts.get("env_failures", 0):
            self.display.failures(num_failures, self.components.first_failure)
        third_party = not self.components.backend.spec.has_snapshots
        return {name: count for name, count in counts.items() if count or third_party}

    def save_if_due(self) -> None:
        """Save at the interval, at the end, and after the best evaluation so far."""
        with self.timed("save"):
            self.last_complete = replace(self._snapshot(), metrics_seal=self.metrics.seal())
            epoch, saving = self.counters.epoch, self.settings.saving
            is_best = self.best is not None and self.best[0] == epoch
            if not (epoch % saving.save_interval == 0 or self.finished or is_best):
                return
            save_checkpoint(self.folder, self.last_complete)
            if self.best is not None and is_best:
                mark_best(self.folder, *self.best)
            prune(self.folder, saving.keep_last)

    def save_last_complete(self) -> None:
        """Save the last complete epoch, for a run that stops in the middle of one."""
        if self.last_complete.epoch and self.last_complete.epoch not in saved_epochs(self.folder):
            try:
                save_checkpoint(self.folder, self.last_complete)
            except CheckpointError as error:
                self.display.print(f"the last epoch could not be saved: {error}")
                return
        self.display.print(f"stopped after epoch {self.last_complete.epoch}/{self.num_epochs}; {self.resume_hint}")

    @property
    def resume_hint(self) -> str:
        """How to continue a stopped run."""
        return f"continue with: hundredfold train --resume {self.folder.path}"

    def _snapshot(self) -> Checkpoint:
        belief_model = self.components.belief_model
        return Checkpoint(
            epoch=self.counters.epoch,
            counters=asdict(self.counters),
            spec=self.components.backend.spec,
            parts={
                "learner": self.components.learner.state(),
                "collector": self.components.collector.state(),
                "env": self.components.backend.state(),
                **({} if belief_model is None else {BELIEF_MODEL: belief_model.state()}),
            },
        )
