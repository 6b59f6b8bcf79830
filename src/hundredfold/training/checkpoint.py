"""Atomic checkpoints: arrays in safetensors, everything else in JSON.

A checkpoint is written under a temporary name, fsynced and renamed, so that a folder without a
leading dot is always complete. Checksums detect damaged files.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from hundredfold.core.action_scaling import flat_bound
from hundredfold.core.batch import ActionInputs, Arrays, ArraySpec, EnvSpec, State
from hundredfold.core.errors import CheckpointError
from hundredfold.training.run_folder import RunFolder, versions, write_atomically

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"


@dataclass(slots=True)
class Checkpoint:
    """State of a run at the end of an epoch."""

    epoch: int
    counters: dict[str, Any]
    spec: EnvSpec
    parts: dict[str, Arrays]  # learner, collector, env, ...


def save_checkpoint(folder: RunFolder, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint; on failure earlier checkpoints stay untouched."""
    path = folder.checkpoints / f"{checkpoint.epoch:06d}"
    temporary = folder.checkpoints / f".{checkpoint.epoch:06d}.{os.getpid()}"
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        checksums = {}
        for name, arrays in checkpoint.parts.items():
            data = save({key: np.asarray(array, order="C") for key, array in arrays.items()})
            checksums[name] = hashlib.sha256(data).hexdigest()
            _write(temporary / f"{name}.safetensors", data)
        manifest = {
            "format": FORMAT,
            "epoch": checkpoint.epoch,
            "counters": checkpoint.counters,
            "spec": spec_table(checkpoint.spec),
            "checksums": checksums,
            "versions": versions(),
        }
        _write(temporary / MANIFEST, json.dumps(manifest, indent=2).encode())
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
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path} is not a checkpoint: {error.strerror}.") from error
    except ValueError as error:
        raise _damaged(path, MANIFEST) from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} is not a checkpoint of this version of hundredfold "
            f"(format {FORMAT}); use the version named in the run's versions.json."
        )
    try:
        arrays = {
            name: _read_arrays(path, name, checksum)
            for name, checksum in manifest["checksums"].items()
            if parts is None or name in parts
        }
        spec = read_spec(manifest["spec"])
        return Checkpoint(manifest["epoch"], manifest["counters"], spec, arrays)
    except (KeyError, TypeError, AttributeError) as error:
        raise _damaged(path, MANIFEST) from error


def saved_epochs(folder: RunFolder) -> list[int]:
    """Epochs that have a complete checkpoint, oldest first."""
    if not folder.checkpoints.is_dir():
        return []
    names = [path.name for path in folder.checkpoints.iterdir() if path.is_dir()]
    return sorted(int(name) for name in names if name.isdecimal())


def best_epoch(folder: RunFolder) -> tuple[int, float] | None:
    """Epoch and score of the best checkpoint so far, if one was marked."""
    if not folder.best_file.exists():
        return None
    try:
        table = json.loads(folder.best_file.read_bytes())
        return int(table["epoch"]), float(table["score"])
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{folder.best_file} is damaged; delete it to use the last checkpoint as `best`."
        ) from error


def mark_best(folder: RunFolder, epoch: int, score: float) -> None:
    """Record the epoch and score of the best evaluation."""
    write_atomically(folder.best_file, json.dumps({"epoch": epoch, "score": score}) + "\n")


def prune(folder: RunFolder, keep_last: int) -> None:
    """Delete all checkpoints but the last few and the best."""
    best = best_epoch(folder)
    for epoch in saved_epochs(folder)[:-keep_last]:
        if best is None or epoch != best[0]:
            shutil.rmtree(folder.checkpoints / f"{epoch:06d}")


def remove_leftovers(folder: RunFolder) -> None:
    """Delete incomplete files of a killed process."""
    for path in folder.checkpoints.glob(".*"):
        if path.is_dir():
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
    """The part of a spec that a policy needs, from its JSON table."""
    return EnvSpec(
        name=table["name"],
        action_nvec=tuple(table["action_nvec"]),
        has_mask=table["has_mask"],
        episode_steps=table["episode_steps"],
        logit_bias=table["logit_bias"],
        action_inputs=None if table["action_inputs"] is None else ActionInputs(**table["action_inputs"]),
        continuous_action=None if table["continuous_action"] is None else _read_box(table["continuous_action"]),
        observation={
            name: ArraySpec(
                tuple(array["shape"]),
                array["dtype"],
                categories=None if array["categories"] is None else tuple(array["categories"]),
            )
            for name, array in table["observation"].items()
        },
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
    return ArraySpec(tuple(table["shape"]), table["dtype"], low, high)


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


def _read_arrays(path: Path, name: str, checksum: str) -> Arrays:
    file = f"{name}.safetensors"
    try:
        data = (path / file).read_bytes()
        if hashlib.sha256(data).hexdigest() != checksum:
            raise _damaged(path, file)
        arrays: State = load(data)
    except (OSError, SafetensorError) as error:
        raise _damaged(path, file) from error
    return dict(arrays)


def _damaged(path: Path, file: str) -> CheckpointError:
    return CheckpointError(f"{path / file} is damaged or missing. Delete {path} to resume from an earlier one.")


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
