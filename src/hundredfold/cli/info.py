"""`hundredfold envs` and `hundredfold doctor`: what can be trained, and on what."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pkgutil import resolve_name
from typing import Annotated, Final

import numpy as np
import psutil
import tyro

from hundredfold.cli.flags import parse_flags
from hundredfold.cli.output import Column, Row, machine, print_rows
from hundredfold.core.batch import ArraySpec
from hundredfold.core.errors import SettingsError, is_installed, suggest
from hundredfold.envs.registry import ENVS, action_names, canonical_name, env_factory, settings_class

CORE = ("hundredfold", "numpy", "numba", "torch", "gymnasium", "tyro", "rich", "safetensors")
# Module, extra that installs it, purpose.
EXTRAS = (
    ("stable_baselines3", "sb3", "training with Stable-Baselines3 (--engine sb3)"),
    ("sb3_contrib", "sb3", "MaskablePPO of Stable-Baselines3"),
    ("ray", "ray", "training on several machines, RLlib"),
    ("ortools", "routing", "reference solver for routes"),
    ("pyvrp", "routing", "reference solver for routes"),
    ("onnxscript", "export", "export of policies to ONNX"),
    ("onnxruntime", "export", "checking exported ONNX files"),
    ("wandb", "wandb", "logging to Weights & Biases"),
    ("fastapi", "serve", "the booking desk"),
    ("optuna", "sweep", "searching for settings"),
    ("imageio", "video", "videos of episodes (watch, --video-interval)"),
    ("imageio_ffmpeg", "video", "MP4 files"),
    ("pygame", "video", "pictures of Gymnasium's classic envs"),
    ("ale_py", "atari", "Atari games (train ALE/Pong-v5 --atari)"),
)


ENV_COLUMNS: Final = (
    Column("env"),
    Column("summary"),
    Column("actions", priority=2),
    Column("masks", "action masks", priority=4),
    Column("gymnasium_id", priority=3),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Envs:
    """List the built-in envs, or describe one. Any Gymnasium id can be trained as well."""

    env: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[ENV]")] = None
    """Env to describe: its arrays, actions and, for cage2 and dvrp, what every number means."""
    network_file: str | None = None
    """Network of cage2 to describe, a TOML file; `standard` prints the file of the standard network, to
    start your own from."""
    wide: bool = False
    """Show all columns, however wide the table gets."""
    json: bool = False
    """Print one JSON object and nothing else."""


def run_envs(argv: Sequence[str]) -> int:
    """Print a row per built-in env, or the tables of one env."""
    args = parse_flags(Envs, argv, "hundredfold envs")
    if args.network_file is not None and canonical_name(args.env or "") != "cage2":
        raise SettingsError("--network-file is for cage2: hundredfold envs cage2 --network-file FILE.")
    if args.network_file == "standard":
        from hundredfold.envs.cage2.network_file import STANDARD_FILE

        print(STANDARD_FILE.read_text(), end="")
        return 0
    if args.env is not None:
        tables = _env_tables(args.env, {} if args.network_file is None else {"network_file": args.network_file})
        if args.json:
            listed = [{"table": title, **row} for title, table in tables.items() for row in table]
            print_rows(listed, command=["envs", *argv], as_json=True)
            return 0
        for title, table in tables.items():
            print_rows(table, command=["envs", *argv], as_json=False, title=title, wide=args.wide)
            print()
        return 0
    rows = [_env_row(name) for name in ENVS]
    print_rows(rows, command=["envs", *argv], as_json=args.json, columns=ENV_COLUMNS, wide=args.wide)
    if not args.json:
        print("Any Gymnasium id works too: hundredfold train CartPole-v1")
    return 0


def _env_tables(given: str, changed: Mapping[str, str]) -> dict[str, Sequence[Row]]:
    """Tables that describe a built-in env, by title.

    Args:
        given: name of the env.
        changed: settings of the env that are not the default.
    """
    name = canonical_name(given)
    if name not in ENVS:
        raise SettingsError(f"there is no built-in env {given!r}, and only those are described; {suggest(given, ENVS)}")
    entry, settings = ENVS[name], settings_class(name)(**changed)
    spec = env_factory(name, settings)(np.arange(1)).spec
    title = f"{name}: {entry.summary}; its observation with default settings"
    found: dict[str, Sequence[Row]] = {title: _array_rows(spec.observation)}
    if entry.legend is not None:
        return {**found, **resolve_name(entry.legend)(settings)}
    if names := action_names(name, settings):
        found["Actions"] = [{"action": number, "name": action} for number, action in enumerate(names)]
    found["True state"] = _array_rows(spec.true_state)
    return found


def _array_rows(arrays: Mapping[str, ArraySpec]) -> list[Row]:
    return [{"array": key, "shape": str(list(array.shape)), "type": array.dtype} for key, array in arrays.items()]


def _env_row(name: str) -> Row:
    entry = ENVS[name]
    spec = env_factory(name, settings_class(name)())(np.arange(1)).spec
    shapes = ", ".join(f"{key} {list(array.shape)}" for key, array in spec.observation.items())
    discrete = " x ".join(str(count) for count in spec.action_nvec)
    return {
        "env": name,
        "summary": entry.summary,
        "observation": shapes,
        "actions": discrete or f"box {spec.action_shape}",
        "masks": "yes" if spec.has_mask else "no",
        "gymnasium_id": entry.gymnasium_id,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Doctor:
    """Show cores, memory, device, package versions and optional extras."""

    json: bool = False
    """Print one JSON object and nothing else."""


def run_doctor(argv: Sequence[str]) -> int:
    """Print a row per item."""
    args = parse_flags(Doctor, argv, "hundredfold doctor")
    rows = [*_machine_rows(), *_package_rows(), *_extra_rows()]
    print_rows(rows, command=["doctor", *argv], as_json=args.json)
    return 0


def _machine_rows() -> list[Row]:
    info = machine()
    disk = shutil.disk_usage(".")
    return [
        {"item": "python", "value": f"{info['python']} ({sys.executable})"},
        {"item": "platform", "value": info["platform"]},
        {"item": "processor", "value": f"{info['processor']}, {info['cores']} cores"},
        {"item": "load", "value": f"{info['load']} (1 minute)"},
        {"item": "memory", "value": _memory()},
        {"item": "disk", "value": f"{disk.free / 2**30:.1f} GiB free in the working directory"},
        {"item": "device", "value": _device()},
    ]


def _memory() -> str:
    memory = psutil.virtual_memory()
    return f"{memory.total / 2**30:.1f} GiB, {memory.available / 2**30:.1f} GiB available"


def _device() -> str:
    import torch

    if not torch.cuda.is_available():
        return "cpu (no CUDA device was found; --device cuda falls back to the CPU)"
    free, total = torch.cuda.mem_get_info()
    name = torch.cuda.get_device_name()
    return f"cuda: {name}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free"


def _package_rows() -> list[Row]:
    return [{"item": name, "value": metadata.version(name)} for name in CORE]


def _extra_rows() -> list[Row]:
    rows: list[Row] = []
    for module, extra, purpose in EXTRAS:
        item = f"[{extra}] {module}"
        if is_installed(module):
            version = metadata.version(module.replace("_", "-"))
            rows.append({"item": item, "value": version, "purpose": purpose})
        else:
            install = f"{purpose}: pip install 'hundredfold[{extra}]'"
            rows.append({"item": item, "value": "missing", "purpose": install})
    return rows
