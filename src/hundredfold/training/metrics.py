"""Metrics of a run: a line of JSON per epoch, TensorBoard, and Weights & Biases on request.

Reports and comparisons read `metrics.jsonl`. Keys under `time/`,
`samples_per_second` and `wall_seconds` depend on the machine; all others repeat for a seed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import socket
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from hundredfold.config.run import RunSettings
from hundredfold.config.toml import to_table
from hundredfold.core.errors import CheckpointError, MissingExtraError, is_installed
from hundredfold.core.files import Seal, open_no_follow, parse_json, read_bounded, write_atomically
from hundredfold.training.run_folder import RunFolder

Metrics = Mapping[str, float]

# Metrics are float64; integers in a damaged file may be larger.
MAX_METRIC: Final = 1e308


class Tracker(Protocol):
    """An experiment tracker."""

    def log(self, metrics: Metrics, step: int) -> None: ...

    def log_video(self, mp4: Path, gif: Path, step: int) -> None: ...

    def close(self) -> None: ...


class MetricsLog:
    """Writes every epoch's metrics to the run folder and to the trackers.

    Args:
        folder: Run folder.
        settings: Run settings, for the trackers.
        first_step: Steps before this process started.
        wandb: Also log to Weights & Biases.
    """

    def __init__(self, folder: RunFolder, settings: RunSettings, *, first_step: int = 0, wandb: bool = False) -> None:
        self.folder = folder
        before = _read_lines(folder)
        self.size, self.digest = len(before), hashlib.sha256(before)
        # Unbuffered: nothing is left to write when the file is closed.
        descriptor = open_no_follow(folder.metrics_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.file = os.fdopen(descriptor, "ab", buffering=0)
        self.trackers: list[Tracker] = [TensorBoard(folder.path, first_step)]
        if wandb:
            self.trackers.append(WeightsAndBiases(folder, settings))

    def write(self, metrics: Metrics) -> None:
        """Append one line; numbers that are not finite become null."""
        row = {key: value if math.isfinite(value) else None for key, value in metrics.items()}
        try:
            self._append(json.dumps(row).encode() + b"\n")
            for tracker in self.trackers:
                tracker.log(metrics, int(metrics["total_steps"]))
        except OSError as error:
            raise CheckpointError(
                f"cannot write metrics to {self.folder.path}: {error.strerror}. Saved "
                f"checkpoints are complete; free some space, then use --resume {self.folder.path}."
            ) from error

    def log_video(self, mp4: Path, gif: Path, step: int) -> None:
        """Send a video of an episode to the trackers.

        Args:
            mp4: Video file.
            gif: The same as a GIF.
            step: Steps of all envs so far.
        """
        for tracker in self.trackers:
            tracker.log_video(mp4, gif, step)

    def seal(self) -> Seal:
        """Size and checksum of everything written so far."""
        return Seal(self.size, self.digest.hexdigest())

    def close(self) -> None:
        self.file.close()
        for tracker in self.trackers:
            # A full disk was already reported when a line could not be written.
            with contextlib.suppress(OSError):
                tracker.close()

    def _append(self, line: bytes) -> None:
        self.size += len(line)
        self.digest.update(line)
        while line:
            line = line[self.file.write(line) :]


class TensorBoard:
    """TensorBoard event files; a resumed run purges steps after its checkpoint."""

    def __init__(self, path: Path, first_step: int) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self.writer = SummaryWriter(str(path), purge_step=first_step + 1)

    def log(self, metrics: Metrics, step: int) -> None:
        for key, value in metrics.items():
            if math.isfinite(value):
                self.writer.add_scalar(key, value, step)
        self.writer.flush()

    def log_video(self, mp4: Path, gif: Path, step: int) -> None:
        """TensorBoard shows a GIF as a moving image."""
        from PIL import Image
        from tensorboard.compat.proto.summary_pb2 import Summary

        with Image.open(gif) as picture:
            width, height = picture.size
        image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=gif.read_bytes())
        summary = Summary(value=[Summary.Value(tag="episode", image=image)])
        writer: Any = self.writer
        writer.file_writer.add_summary(summary, step)
        writer.flush()

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases:
    """Weights & Biases run of the same name; offline where the server cannot be reached."""

    def __init__(self, folder: RunFolder, settings: RunSettings) -> None:
        require_wandb()
        import wandb

        mode: Any = os.environ.get("WANDB_MODE")
        if mode is None and not _reaches_wandb():
            mode = "offline"
            warnings.warn(
                f"W&B cannot be reached; metrics are kept in {folder.path}/wandb for `wandb sync`.", stacklevel=2
            )
        self.run = wandb.init(
            project="hundredfold",
            name=folder.path.name,
            id=re.sub(r"[^A-Za-z0-9_-]", "-", folder.path.name),
            dir=str(folder.path),
            config=to_table(settings),
            mode=mode,
            resume="allow",
        )

    def log(self, metrics: Metrics, step: int) -> None:
        self.run.log(dict(metrics), step=step)

    def log_video(self, mp4: Path, gif: Path, step: int) -> None:
        import wandb

        self.run.log({"episode": wandb.Video(str(mp4), format="mp4")}, step=step)

    def close(self) -> None:
        self.run.finish()


def require_wandb() -> None:
    """Raise MissingExtraError if wandb is not installed."""
    if not is_installed("wandb"):
        raise MissingExtraError("wandb", "wandb", "logging to Weights & Biases (--wandb)")


def read_metrics(folder: RunFolder, seal: Seal | None = None) -> list[dict[str, Any]]:
    """One dictionary per epoch; an incomplete last line is skipped.

    Args:
        folder: Run folder.
        seal: Size and checksum of the file when a checkpoint was saved.
    """
    data = _read_lines(folder)
    if seal is not None and folder.metrics_file.exists() and not seal.fits(data):
        raise CheckpointError(
            f"{folder.metrics_file} is damaged: its first {seal.size:,} bytes are not those that the last checkpoint "
            "was saved with. Move the file away to continue without its epochs."
        )
    lines = data.splitlines()
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(_checked_row(parse_json(line)))
        except ValueError as error:
            if number < len(lines) or data.endswith(b"\n"):
                raise CheckpointError(
                    f"line {number} of {folder.metrics_file} is damaged ({error}). Move the file away to continue "
                    "without its epochs."
                ) from error
    return rows


def _read_lines(folder: RunFolder) -> bytes:
    try:
        return read_bounded(folder.metrics_file)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise CheckpointError(f"cannot read {folder.metrics_file}: {error.strerror}.") from error


def _checked_row(row: Any) -> dict[str, Any]:
    """The metrics of an epoch; a ValueError if they are something else."""
    if not isinstance(row, dict) or type(row.get("epoch")) is not int:
        raise ValueError("it is not an object with an `epoch`")
    for key, value in row.items():
        if value is not None and not (isinstance(value, int | float) and abs(value) < MAX_METRIC):
            raise ValueError(f"{key} is not a number")
    return row


def best_of(rows: list[dict[str, Any]]) -> tuple[int, float] | None:
    """Epoch and score of the first best evaluation, if there was one."""
    evaluations = [row for row in rows if row.get("eval/return_mean") is not None]
    if not evaluations:
        return None
    best = max(evaluations, key=lambda row: float(row["eval/return_mean"]))
    return int(best["epoch"]), float(best["eval/return_mean"])


def drop_after(folder: RunFolder, epoch: int, seal: Seal | None = None) -> None:
    """Delete metrics of epochs after this one, which a killed run wrote after its checkpoint.

    Args:
        folder: Run folder.
        epoch: Last epoch to keep.
        seal: Size and checksum of the file when that epoch was saved.
    """
    rows = [row for row in read_metrics(folder, seal) if row["epoch"] <= epoch]
    write_atomically(folder.metrics_file, "".join(json.dumps(row) + "\n" for row in rows))


def _reaches_wandb() -> bool:
    try:
        socket.create_connection(("api.wandb.ai", 443), timeout=2).close()
    except OSError:
        return False
    return True
