"""Console output of a training: a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from hundredfold.config.devices import memory_used
from hundredfold.config.run import RunSettings
from hundredfold.core.failures import Failure
from hundredfold.core.formatting import format_bytes, format_count, format_duration, format_large_number
from hundredfold.core.terminal import note, wrap
from hundredfold.envs.registry import ATARI, ENVS
from hundredfold.training.run_folder import RunFolder
from hundredfold.training.stop import Stop, read_stop

TYPE_SHARE = "acceptance/type_share_"


class TrainingDisplay:
    """Progress display: epochs, steps per second, time left, mean return.

    Args:
        total_steps: Steps of the whole run.
        done_steps: Steps before this process started.
        done_seconds: Seconds of training before this process started.
        quiet: Print nothing.
    """

    def __init__(self, *, total_steps: int, done_steps: int, done_seconds: float = 0.0, quiet: bool = False) -> None:
        self.total_steps = total_steps
        self.done_steps = self.start_steps = done_steps
        self.start_seconds = done_seconds
        self.epoch_rate: float | None = None
        self.quiet = quiet
        self.started = time.perf_counter()
        self.console = Console(stderr=True, highlight=False)
        self.progress: Progress | None = None
        self.task = TaskID(0)
        self.return_text = "-"
        self.num_failures = 0
        if not quiet and self.console.is_terminal:
            self.progress = progress_bar(self.console)
            self.task = self.progress.add_task("training", total=total_steps, **self._fields())
            self.progress.start()

    def start_clock(self) -> None:
        """Measure the rate from now on, for engines whose set-up takes long; the summary does not count it either."""
        self.started, self.start_steps = time.perf_counter(), self.done_steps

    @property
    def steps_per_second(self) -> float:
        """Steps per second of this process: by the metrics after an epoch, as in the summary, by the clock within."""
        if self.epoch_rate is not None:
            return self.epoch_rate
        return (self.done_steps - self.start_steps) / max(time.perf_counter() - self.started, 1e-9)

    def advance(self, steps: int) -> None:
        """Count newly collected steps."""
        self.done_steps += steps
        self.epoch_rate = None
        if self.progress is not None:
            self.progress.update(self.task, completed=self.done_steps, **self._fields())

    def epoch(self, number: int, num_epochs: int, metrics: Mapping[str, float]) -> None:
        """Show the metrics of a complete epoch."""
        seconds = metrics.get("wall_seconds", 0.0) - self.start_seconds
        # Asynchronous envs are some steps ahead of the rollout, which count in the next epoch, as in the summary.
        self.done_steps = int(metrics.get("total_steps", self.done_steps))
        self.epoch_rate = (self.done_steps - self.start_steps) / seconds if seconds > 0 else None
        shown = metrics.get("return_mean")
        self.return_text = self.return_text if shown is None else f"{shown:.2f}"
        if self.progress is not None:
            description = f"epoch {number}/{num_epochs}"
            self.progress.update(self.task, description=description, completed=self.done_steps, **self._fields())
        else:
            self.print(self.line(number, num_epochs, metrics))
        if "avg_cost" in metrics:
            self.print(routing_summary(metrics))

    def failures(self, num_failures: int, first: Failure | None) -> None:
        """Show the first failure of an env with its traceback, and from then on their number."""
        if not self.num_failures and first is not None:
            above = " The env's own traceback is above." if first.traceback else ""
            if first.traceback and not self.quiet:
                self.console.print(first.traceback, markup=False, soft_wrap=True, end="")
            self.print(
                "warning: an env failed; failed envs are restarted and their episodes truncated. Further failures are "
                f"only counted.\n  {first}{above}"
            )
        self.num_failures = num_failures

    @property
    def failure_text(self) -> str:
        return format_count(self.num_failures, "env failure")

    def line(self, number: int, num_epochs: int, metrics: Mapping[str, float]) -> str:
        """An epoch as one line of text."""
        left = (self.total_steps - self.done_steps) / max(self.steps_per_second, 1e-9)
        parts = [
            f"epoch {number}/{num_epochs}",
            f"steps {self.done_steps:,}",
            f"{self.steps_per_second:,.0f} steps/s",
            f"left {format_duration(left) if left >= 1 else '0 s'}",
            f"return {self.return_text}",
        ]
        if "eval/return_mean" in metrics:
            parts.append(f"evaluated {metrics['eval/return_mean']:.2f}")
        if self.num_failures:
            parts.append(self.failure_text)
        return "  ".join(parts)

    def print(self, text: str) -> None:
        if not self.quiet:
            self.console.print(wrap(text, self.console.width), markup=False, soft_wrap=True)

    def close(self) -> None:
        if self.progress is not None:
            self.progress.stop()
        sys.stderr.flush()

    def _fields(self) -> dict[str, Any]:
        return {
            "steps": format_large_number(self.done_steps),
            "rate": format_large_number(round(self.steps_per_second)),
            "return_mean": self.return_text,
            "failures": self.failure_text.replace("env ", "") if self.num_failures else "",
        }


def progress_bar(console: Console) -> Progress:
    """Progress bar of a training, no wider than the terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[steps]} steps"),
        TextColumn("{task.fields[rate]}/s"),
        TimeRemainingColumn(compact=True),
        TextColumn("return {task.fields[return_mean]}"),
        TextColumn("{task.fields[failures]}"),
        console=console,
        expand=True,
    )


def routing_summary(metrics: Mapping[str, float]) -> str:
    """Metrics of a dial-a-ride epoch, under the names of `meta_train.py`."""
    shown = (
        ("Avg Cost", "avg_cost", "{:.2f} minutes"),
        ("Improvement", "avg_improvement_pct", "{:.2f} %"),
        ("Failure Rate", "failure_rate", "{:.1f} %"),
        ("Policy Loss", "policy_loss", "{:.4f}"),
        ("Value Loss", "value_loss", "{:.4f}"),
        ("Entropy", "entropy", "{:.4f}"),
        ("Total Steps", "total_steps", "{:,}"),
        ("Epsilon", "epsilon", "{:.3f}"),
    )
    values = {**metrics, "failure_rate": 100 * metrics.get("failure_rate", 0.0)}
    lines = [f"  {label}: {form.format(values[key])}" for label, key, form in shown if key in metrics]
    if "acceptance/loss" in metrics:
        shares = (
            f"{key.removeprefix(TYPE_SHARE)} {share:.2f}"
            for key, share in metrics.items()
            if key.startswith(TYPE_SHARE)
        )
        lines += [
            f"  Acceptance model: refit on {metrics['acceptance/responses']:,.0f} responses, "
            f"loss {metrics['acceptance/loss']:.4f}, types {', '.join(shares)}"
        ]
    return "\n".join(lines)


def announce(settings: RunSettings, quiet: bool) -> None:
    """Announce the start of a run; the first one compiles kernels."""
    if quiet:
        return
    if settings.env.startswith(ATARI) and not settings.env_settings.atari:
        note(
            "note: without --atari the policy sees single frames as the game returns them, in colour and full size, "
            "and cannot see motion. --atari repeats every action for 4 frames and shows the last 4 of them in grey, "
            "84 x 84 pixels, as published results do."
        )
    if settings.env in ENVS:
        note(f"preparing {settings.env} (kernels are compiled once, then cached)")
        notes = ENVS[settings.env].data_notes
        for text in resolve_name(notes)(settings.env_settings) if notes else ():
            note(f"note: {text}")


def finished_note(path: Path, settings: RunSettings, stop: Stop | None = None) -> str:
    """That a run is finished, and how to extend it."""
    if stop is not None:
        return (
            f"{path} was stopped after epoch {stop.epoch}: {stop.reason}. To continue, change or remove the rule, for "
            f"example: hundredfold train --resume {path} --stop-at None --stop-after None --stop-on-plateau 0"
        )
    steps = settings.length.epochs * settings.rollout.samples_per_epoch
    return (
        f"{path} is finished: {settings.length.epochs} epochs, {steps:,} steps. To train it longer, give a larger "
        f"total length, for example: hundredfold train --resume {path} --steps {2 * steps}"
    )


def extension_note(settings: RunSettings) -> str:
    """Where an extended run differs from one that had its length from the start."""
    return (
        f"note: schedules ({', '.join(settings.length_schedules)}) now end with the new length. The epochs so far were "
        "trained with the old one, so the result is not that of a run of the new length from the start."
    )


def evaluation_note(path: Path, metrics: Mapping[str, Any]) -> str:
    """That an evaluation ended before its episodes did, and how to play them to their ends."""
    return (
        f"{metrics['eval/truncated']:.0f} of these episodes were truncated (after "
        f"{metrics['eval/episode_steps']:,.0f} steps on average), as evaluations during training are limited; "
        f"whole ones: hundredfold evaluate {path}"
    )


def run_banner(path: Path, settings: RunSettings, env_runner: str, device: torch.device) -> str:
    """Start banner of a run: size, batch sizes, networks, device, backend."""
    rollout, epochs = settings.rollout, settings.length.epochs
    layers = "-".join(map(str, settings.network.hidden_sizes))
    used = format_bytes(memory_used(device))
    return (
        f"run {path}: {rollout.num_envs} envs x {rollout.num_steps} steps x {format_count(epochs, 'epoch')} "
        f"= {rollout.samples_per_epoch * epochs:,} steps\n"
        f"  {settings.algo}: {batch_sizes(settings)}, networks {layers} on {device} ({used} of its "
        f"memory in use), envs in {env_runner}"
    )


def batch_sizes(settings: RunSettings) -> str:
    """Batch sizes of a gradient step."""
    if settings.algo == "dqn":
        dqn = settings.dqn
        return f"batches of {dqn.batch_size} from a replay buffer of {dqn.replay_size:,}"
    samples = settings.rollout.samples_per_epoch * settings.rollout.policy_update_interval
    if settings.algo == "pqn":
        size = -(-samples // settings.pqn.num_minibatches)
    else:
        size = settings.ppo.minibatch_size or -(-samples // settings.ppo.num_minibatches)
    return f"minibatches of {min(size, samples):,} from rollouts of {samples:,}"


def describe_run(path: Path, metrics: Sequence[Mapping[str, Any]]) -> str:
    """Summary of a finished run: length, best evaluation, where to find it."""
    if not metrics:
        return f"{path}: nothing was trained."
    last = metrics[-1]
    evaluations = [row for row in metrics if row.get("eval/return_mean") is not None]
    lines = [
        f"trained {last['total_steps']:,} steps in {format_count(last['epoch'], 'epoch')}, "
        f"{format_duration(last['wall_seconds'])}, "
        f"{last['total_steps'] / last['wall_seconds']:,.0f} steps/s"
    ]
    if evaluations:
        best = max(evaluations, key=lambda row: row["eval/return_mean"])
        lines.append(
            f"best evaluated return {best['eval/return_mean']:.2f} "
            f"(95 % interval {best['eval/ci_low']:.2f} to {best['eval/ci_high']:.2f}, "
            f"{best['eval/episodes']:.0f} episodes, epoch {best['epoch']})"
        )
        if best.get("eval/truncated"):
            lines.append(evaluation_note(path, best))
    if (stop := read_stop(RunFolder(path))) is not None:
        lines.append(f"stopped after epoch {stop.epoch}: {stop.reason}")
    if last.get("env_failures"):
        lines.append(
            f"env failures: {last['env_failures']:,} ({last['env_restarts']:,} envs and "
            f"{last['worker_restarts']:,} workers restarted); their episodes count as truncated"
        )
    lines += [f"report    {path / 'report.html'}", f"evaluate  hundredfold evaluate {path}"]
    return "\n".join(lines)
