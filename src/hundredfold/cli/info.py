"""`hundredfold envs` and `hundredfold doctor`: what can be trained, and on what."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata

import numpy as np
import psutil
import tyro

from hundredfold.cli.output import Row, machine, print_rows
from hundredfold.core.errors import is_installed
from hundredfold.envs.registry import ENVS, env_factory, settings_class

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
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Envs:
    """List the built-in envs. Any Gymnasium id can be trained as well."""

    json: bool = False
    """Print one JSON object and nothing else."""


def run_envs(argv: Sequence[str]) -> int:
    """Print a row per built-in env."""
    args = tyro.cli(Envs, args=list(argv), prog="hundredfold envs")
    rows = [_env_row(name) for name in ENVS]
    print_rows(rows, command=["envs", *argv], as_json=args.json)
    if not args.json:
        print("Any Gymnasium id works too: hundredfold train CartPole-v1")
    return 0


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
    args = tyro.cli(Doctor, args=list(argv), prog="hundredfold doctor")
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
