"""Atomic checkpoints: arrays in safetensors, everything else in JSON.

A checkpoint is written under a temporary name, fsynced and renamed, so that a folder without a
leading dot is always complete. Checksums over every byte detect damaged files; sizes and shapes are
checked before memory is taken. Links are not followed.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from hundredfold.config.devices import available_memory
from hundredfold.core.action_scaling import flat_bound
from hundredfold.core.batch import ActionInputs, Arrays, ArraySpec, EnvSpec, State
from hundredfold.core.errors import CheckpointError
from hundredfold.core.files import Seal, read_bounded, read_sealed_json, sealed_json, write_atomically
from hundredfold.training.run_folder import RunFolder, versions

FORMAT: Final = 2
# Checkpoints without a checksum of the manifest, as the first versions wrote them.
UNSEALED_FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
MAX_MANIFEST_BYTES: Final = 16 * 2**20
# No array of an observation, and no dimension of an action, is larger.
MAX_SIZE: Final = 2**31
EPOCH_NAME: Final = re.compile(r"[0-9]{6,12}")
# Moved-aside checkpoints have this suffix.
DAMAGED: Final = ".damaged"


class DamagedCheckpointError(CheckpointError):
    """A checkpoint that was changed after it was written, or is incomplete."""


@dataclass(slots=True)
class Checkpoint:
    """State of a run at the end of an epoch."""

    epoch: int
    counters: dict[str, Any]
    spec: EnvSpec
    parts: dict[str, Arrays]  # learner, collector, env, ...
    metrics_seal: Seal | None = None  # of metrics.jsonl at that time


def save_checkpoint(folder: RunFolder, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint; on failure earlier checkpoints stay untouched."""
    path = folder.checkpoints / f"{checkpoint.epoch:06d}"
    temporary = folder.checkpoints / f".{checkpoint.epoch:06d}.{os.getpid()}"
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        checksums, sizes = {}, {}
        for name, arrays in checkpoint.parts.items():
            data = save({key: np.asarray(array, order="C") for key, array in arrays.items()})
            checksums[name], sizes[name] = hashlib.sha256(data).hexdigest(), len(data)
            _write(temporary / f"{name}.safetensors", data)
        manifest = {
            "format": FORMAT,
            "epoch": checkpoint.epoch,
            "counters": checkpoint.counters,
            "spec": spec_table(checkpoint.spec),
            "checksums": checksums,
            "sizes": sizes,
            "metrics": None if checkpoint.metrics_seal is None else asdict(checkpoint.metrics_seal),
            "versions": versions(),
        }
        _write(temporary / MANIFEST, sealed_json(manifest).encode())
        _sync(temporary)
        shutil.rmtree(path, ignore_errors=True)
        temporary.rename(path)
        _sync(folder.checkpoints)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        saved = ", ".join(str(epoch) for epoch in saved_epochs(folder)) or "none"
        raise CheckpointError(
            f"cannot save epoch {checkpoint.epoch} to {folder.checkpoints}: {error.strerror}. "
            f"Saved checkpoints: {saved}. Free some space, then use --resume {folder.path}."
        ) from error
    return path


def load_checkpoint(folder: RunFolder, which: str = "last", parts: set[str] | None = None) -> Checkpoint:
    """Read a checkpoint.

    Args:
        folder: Run folder.
        which: "last", "best" or an epoch.
        parts: Names of the parts to read; all by default.
    """
    path = folder.checkpoints / f"{_epoch_of(folder, which):06d}"
    manifest = _read_manifest(path)
    try:
        seal = manifest.get("metrics")
        return Checkpoint(
            epoch=_count(manifest["epoch"]),
            counters=_read_counters(manifest["counters"]),
            spec=read_spec(manifest["spec"]),
            parts={
                name: _read_arrays(path, name, checksum, manifest.get("sizes", {}).get(name))
                for name, checksum in manifest["checksums"].items()
                if parts is None or name in parts
            },
            metrics_seal=None if seal is None else Seal(_count(seal["size"]), str(seal["sha256"])),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise _damaged(path, MANIFEST) from error


def load_last_whole(folder: RunFolder) -> tuple[Checkpoint, list[str]]:
    """Read the newest checkpoint that is not damaged; damaged ones are moved aside.

    Returns:
        The checkpoint, and a sentence for each newer one that is damaged.
    """
    problems: list[str] = []
    damaged: list[Path] = []
    for epoch in reversed(saved_epochs(folder)):
        try:
            checkpoint = load_checkpoint(folder, str(epoch))
        except DamagedCheckpointError as error:
            problems.append(f"the checkpoint of epoch {epoch} is damaged ({error})")
            damaged.append(folder.checkpoints / f"{epoch:06d}")
            continue
        for path in damaged:
            aside = path.with_name(path.name + DAMAGED)
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)
        return checkpoint, problems
    raise CheckpointError(
        f"{folder.path} has no checkpoint that can be read: {'; '.join(problems) or 'none was saved'}. "
        "Start a new run, for example with --config and the settings.toml of this one."
    )


def saved_epochs(folder: RunFolder) -> list[int]:
    """Epochs that have a complete checkpoint, oldest first."""
    folder.check_links()
    if not folder.checkpoints.is_dir():
        return []
    names = [path.name for path in folder.checkpoints.iterdir() if path.is_dir() and not path.is_symlink()]
    return sorted(int(name) for name in names if EPOCH_NAME.fullmatch(name))


def best_epoch(folder: RunFolder) -> tuple[int, float] | None:
    """Epoch and score of the best checkpoint so far, if one was marked."""
    try:
        table = read_sealed_json(folder.best_file, required=False)
        if table.keys() != {"epoch", "score"}:
            raise ValueError(f"unknown entries {', '.join(table)}")
        return _count(table["epoch"]), float(table["score"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise CheckpointError(
            f"{folder.best_file} is damaged; delete it to use the last checkpoint as `best`."
        ) from error


def mark_best(folder: RunFolder, epoch: int, score: float) -> None:
    """Record the epoch and score of the best evaluation."""
    write_atomically(folder.best_file, sealed_json({"epoch": epoch, "score": score}))


def prune(folder: RunFolder, keep_last: int) -> None:
    """Delete all checkpoints but the last few and the best."""
    best = best_epoch(folder)
    for epoch in saved_epochs(folder)[:-keep_last]:
        if best is None or epoch != best[0]:
            shutil.rmtree(folder.checkpoints / f"{epoch:06d}")


def remove_leftovers(folder: RunFolder) -> None:
    """Delete incomplete files of a killed process."""
    folder.check_links()
    for path in folder.checkpoints.glob(".*"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def spec_table(spec: EnvSpec) -> dict[str, Any]:
    """The spec as JSON, so that a policy can be loaded where its env is not installed."""
    return {
        "name": spec.name,
        "action_nvec": list(spec.action_nvec),
        "has_mask": spec.has_mask,
        "episode_steps": spec.episode_steps,
        "logit_bias": spec.logit_bias,
        "privileged": list(spec.privileged),
        "action_inputs": None if spec.action_inputs is None else asdict(spec.action_inputs),
        "continuous_action": None if spec.continuous_action is None else _box_table(spec.continuous_action),
        "observation": {
            name: {
                "shape": list(array.shape),
                "dtype": array.dtype,
                "categories": None if array.categories is None else list(array.categories),
            }
            for name, array in spec.observation.items()
        },
    }


def read_spec(table: Mapping[str, Any]) -> EnvSpec:
    """The part of a spec that a policy needs, from its JSON table; a ValueError if it is not one."""
    box, logit_bias = table["continuous_action"], table["logit_bias"]
    episode_steps, inputs = table["episode_steps"], table.get("action_inputs")
    return EnvSpec(
        name=str(table["name"]),
        action_nvec=_shape(table["action_nvec"]),
        has_mask=bool(table["has_mask"]),
        episode_steps=None if episode_steps is None else _count(episode_steps),
        logit_bias=None if logit_bias is None else str(logit_bias),
        privileged=tuple(str(name) for name in table.get("privileged", ())),
        action_inputs=None if inputs is None else ActionInputs(**inputs),
        continuous_action=None if box is None else _read_box(box),
        observation={
            name: ArraySpec(
                _shape(array["shape"]),
                np.dtype(str(array["dtype"])).name,
                categories=None if array["categories"] is None else _shape(array["categories"]),
            )
            for name, array in table["observation"].items()
        },
    )


def _count(value: Any) -> int:
    """A whole number that is not negative; a ValueError for everything else."""
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"expected a whole number, got {value!r}")
    return value


def _shape(values: Any) -> tuple[int, ...]:
    shape = tuple(_count(value) for value in values)
    if math.prod(shape) > MAX_SIZE or sum(shape) > MAX_SIZE:
        raise ValueError(f"shape {shape} is too large")
    return shape


def _read_counters(table: Mapping[str, Any]) -> dict[str, Any]:
    """Counters are whole numbers, times are finite."""
    seconds = {name: float(value) for name, value in table.items() if name.endswith("_seconds")}
    if not all(math.isfinite(value) and value >= 0 for value in seconds.values()):
        raise ValueError(f"expected seconds, got {seconds}")
    return {name: seconds[name] if name in seconds else _count(value) for name, value in table.items()}


def _read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a checkpoint, after its checksum was checked."""
    try:
        manifest = read_sealed_json(path / MANIFEST, MAX_MANIFEST_BYTES, required=False)
    except OSError as error:
        raise DamagedCheckpointError(f"{path / MANIFEST} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise _damaged(path, MANIFEST) from error
    if manifest.get("format") == UNSEALED_FORMAT:
        return manifest
    try:
        return read_sealed_json(path / MANIFEST, MAX_MANIFEST_BYTES)
    except ValueError as error:
        if manifest.get("format", FORMAT) == FORMAT:
            raise _damaged(path, MANIFEST) from error
    raise CheckpointError(
        f"{path} is not a checkpoint of this version of hundredfold (format {FORMAT}, not "
        f"{manifest['format']!r}); use the version named in the run's versions.json."
    )


def _box_table(box: ArraySpec) -> dict[str, Any]:
    """Bounds entry by entry, as text: JSON has no infinity."""
    bounds = {"low": flat_bound(box.low, box), "high": flat_bound(box.high, box)}
    return {
        "shape": list(box.shape),
        "dtype": box.dtype,
        **{name: [repr(float(value)) for value in values] for name, values in bounds.items()},
    }


def _read_box(table: Mapping[str, Any]) -> ArraySpec:
    low, high = (tuple(float(value) for value in table[name]) for name in ("low", "high"))
    return ArraySpec(_shape(table["shape"]), np.dtype(str(table["dtype"])).name, low, high)


def _epoch_of(folder: RunFolder, which: str) -> int:
    epochs = saved_epochs(folder)
    if not epochs:
        raise CheckpointError(f"{folder.path} has no checkpoint yet.")
    if which == "last":
        return epochs[-1]
    if which == "best":
        best = best_epoch(folder)
        return best[0] if best is not None and best[0] in epochs else epochs[-1]
    if which.isdecimal() and int(which) in epochs:
        return int(which)
    raise CheckpointError(f"{folder.path} has no checkpoint {which!r}; it has last, best and {epochs}.")


def _read_arrays(path: Path, name: str, checksum: str, size: int | None) -> Arrays:
    """Arrays of one part.

    Args:
        path: Folder of the checkpoint.
        name: Name of the part.
        checksum: SHA-256 of its file.
        size: Bytes of its file; None in checkpoints of the first versions.
    """
    if not name.isidentifier():
        raise ValueError(f"{name!r} is not the name of a part")
    file = f"{name}.safetensors"
    try:
        data = read_bounded(path / file, available_memory() if size is None else min(_count(size), available_memory()))
        if hashlib.sha256(data).hexdigest() != checksum:
            raise _damaged(path, file)
        arrays: State = load(data)
    except OSError as error:
        if error.errno == errno.EFBIG and size is not None and size > available_memory():
            raise CheckpointError(f"{path / file} does not fit into memory: {error.strerror}.") from error
        raise _damaged(path, file) from error
    except SafetensorError as error:
        raise _damaged(path, file) from error
    return dict(arrays)


def _damaged(path: Path, file: str) -> CheckpointError:
    return DamagedCheckpointError(
        f"{path / file} is damaged or missing. Use another checkpoint; --resume finds the newest whole one by itself."
    )


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
