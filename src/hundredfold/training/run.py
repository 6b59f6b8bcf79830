"""A training run: counters, timing, metrics, evaluations and checkpoints of one folder."""

from __future__ import annotations

import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Final

from hundredfold.algorithms.custom_network import NetworkFunction
from hundredfold.algorithms.loaded_policy import LoadedPolicy
from hundredfold.algorithms.policies import BatchActor
from hundredfold.backends import make_backend
from hundredfold.core.batch import StepBatch
from hundredfold.core.errors import CheckpointError, HundredfoldError, SettingsError
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
from hundredfold.training.stop import CLOCK, Stop, StopAfter, StopRule, stop_rules, write_stop
from hundredfold.training.video import record_video, require_video

MAX_EVALUATION_ENVS = 64
# Steps after which the episode of a video is cut off.
MAX_VIDEO_STEPS = 1000
# Interval at which failures of envs are looked for during an epoch.
FAILURE_CHECK_SECONDS = 2.0


@dataclass(slots=True)
class Counters:
    """Progress of a run."""

    epoch: int = 0
    total_steps: int = 0
    total_episodes: int = 0
    wall_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Epoch:
    """A complete epoch of a training, for a user's `on_epoch` function."""

    number: int  # 1 after the first
    metrics: Mapping[str, float]  # as in metrics.jsonl
    policy: LoadedPolicy  # with the present weights; they change as training goes on
    path: Path  # the run folder


@dataclass(frozen=True, slots=True)
class Hooks:
    """Functions of the user that take part in a training."""

    stop: StopRule | None = None
    on_epoch: Callable[[Epoch], None] | None = None
    network: NetworkFunction | None = None


NO_HOOKS: Final = Hooks()


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
        history = read_metrics(folder)
        self.best = best_of(history)
        self.hooks = NO_HOOKS
        self.stop: Stop | None = None
        self.stop_rules = stop_rules(self.settings.stop)
        for rule, metrics in product(self.stop_rules, history):
            rule(metrics)
        self.last_complete = self._snapshot()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        # Cumulative seconds at the end of the last epoch.
        timings = components.backend.timings()
        self.previous_seconds: dict[str, float] = {"env": -sum(timings.values()), **timings}
        self.evaluation_envs: Backend | None = None
        self.records_videos = self.settings.saving.video_interval > 0
        if self.records_videos:
            require_video()
        self.metrics = MetricsLog(folder, self.settings, first_step=counters.total_steps, wandb=wandb)
        self.display = TrainingDisplay(
            total_steps=self.num_epochs * self.settings.rollout.samples_per_epoch,
            done_steps=counters.total_steps,
            done_seconds=counters.wall_seconds,
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
        return self.counters.epoch >= self.num_epochs or self.stop is not None

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
        if not evaluation.eval_interval:
            return {}
        is_last = epoch >= self.num_epochs or self._time_is_up
        if epoch % evaluation.eval_interval and not is_last:
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
        result = evaluate(
            self.evaluation_envs,
            BatchActor(self.components.learner.policy),
            evaluation.eval_episodes,
            evaluation.eval_seed,
            evaluation.eval_max_steps,
            on_progress=lambda done: signals.check(),
            total_steps=evaluation.eval_steps,
        ).metrics()
        return {f"eval/{name}": value for name, value in result.items()}

    def record_video_if_due(self) -> None:
        """Record an episode of the policy at the video interval and at the end."""
        epoch, interval = self.counters.epoch + 1, self.settings.saving.video_interval
        if not self.records_videos or (epoch % interval and epoch < self.num_epochs):
            return
        belief_model, evaluation = self.components.belief_model, self.settings.evaluation
        with self.timed("video"):
            try:
                video = record_video(
                    self.settings.env,
                    self.components.make_envs,
                    lambda spec: BatchActor(self.components.learner.policy),
                    episodes=1,
                    seed=evaluation.eval_seed,
                    max_steps=min(evaluation.eval_max_steps, MAX_VIDEO_STEPS),
                    shared_params=None if belief_model is None else belief_model.params(exploring=False),
                )
            except HundredfoldError as error:
                # The training is worth more than its videos.
                self.display.print(f"no videos are recorded: {error}")
                self.records_videos = False
                return
            mp4, gif = video.write(self.folder.videos / f"epoch{epoch:06d}")
            self.metrics.log_video(mp4, gif, self.counters.total_steps + self.settings.rollout.samples_per_epoch)

    @property
    def _time_is_up(self) -> bool:
        """Whether this epoch will be the last one because of the wall clock."""
        clock = {CLOCK: self.counters.wall_seconds + sum(self.seconds.values())}
        return any(isinstance(rule, StopAfter) and rule(clock) for rule in self.stop_rules)

    # -- after an epoch -------------------------------------------------------------------------

    def end_epoch(self, episodes: EpisodeStats, learner_metrics: Mapping[str, float]) -> None:
        """Record a complete epoch with its video if due, save it if due, and call the user's function."""
        self.record_video_if_due()
        metrics = self.record(episodes, learner_metrics)
        self.save_if_due()
        if self.hooks.on_epoch is not None:
            learner, epoch = self.components.learner, self.counters.epoch
            policy = LoadedPolicy(learner.policy, self.components.backend.spec, epoch, self.settings.seed)
            self.hooks.on_epoch(Epoch(epoch, metrics, policy, self.folder.path))

    def record(self, episodes: EpisodeStats, learner_metrics: Mapping[str, float]) -> dict[str, float]:
        """Write the metrics of a complete epoch, remember the best evaluation, and apply the stop rules."""
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
        self.stop = self._stop_by(metrics)
        if counters.epoch % self.settings.saving.log_interval == 0 or self.finished:
            self.display.epoch(counters.epoch, self.num_epochs, metrics)
        score = learner_metrics.get("eval/return_mean")
        if score is not None and (self.best is None or score > self.best[1]):
            self.best = (counters.epoch, score)
        if self.stop is not None:
            self.display.print(f"stopped after epoch {counters.epoch}/{self.num_epochs}: {self.stop.reason}")
        return metrics

    def _stop_by(self, metrics: Mapping[str, float]) -> Stop | None:
        """The first rule that ends the run here; all of them see every epoch."""
        reasons = [rule(metrics) for rule in self.stop_rules]
        own = self.hooks.stop(metrics) if self.hooks.stop is not None else None
        for reason, by_settings in [*((reason, True) for reason in reasons), (own, False)]:
            if reason:
                text = reason if isinstance(reason, str) else "the stop function returned True"
                return Stop(self.counters.epoch, text, by_settings)
        return None

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
            if self.stop is not None:
                # First: without the checkpoint it does not count, and the epoch is trained again.
                write_stop(self.folder, self.stop)
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
