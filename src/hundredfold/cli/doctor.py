"""`hundredfold doctor`: what this machine offers, and how to get what is missing."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata

import tyro

from hundredfold.cli.output import Row, machine, print_rows
from hundredfold.core.errors import is_installed

CORE = ("hundredfold", "numpy", "numba", "torch", "gymnasium", "tyro", "rich", "safetensors")
# Module that is imported, extra that brings it, what it is for.
EXTRAS = (
    ("stable_baselines3", "sb3", "Stable-Baselines3 on built-in envs, and beside us in bench"),
    ("sb3_contrib", "sb3", "its masked PPO"),
    ("ray", "ray", "more than one machine"),
    ("ortools", "routing", "reference prices of routes"),
    ("pyvrp", "routing", "reference prices of routes"),
    ("onnxscript", "export", "policies as ONNX files"),
    ("onnxruntime", "export", "playing them before they are called done"),
    ("wandb", "wandb", "logging to Weights & Biases"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Doctor:
    """Cores, memory, device, versions, and which optional extras are installed."""

    json: bool = False
    """Print one JSON object and nothing else."""


def run(arguments: Sequence[str]) -> int:
    """A row per finding."""
    args = tyro.cli(Doctor, args=list(arguments), prog="hundredfold doctor")
    rows = [*_machine_rows(), *_package_rows(), *_extra_rows()]
    print_rows(rows, command=["doctor", *arguments], as_json=args.json)
    return 0


def _machine_rows() -> list[Row]:
    found = machine()
    disk = shutil.disk_usage(".")
    return [
        {"what": "python", "found": f"{found['python']} ({sys.executable})"},
        {"what": "platform", "found": found["platform"]},
        {"what": "processor", "found": f"{found['processor']}, {found['cores']} cores"},
        {"what": "load", "found": f"{found['load']} (1 minute)"},
        {"what": "memory", "found": _memory()},
        {"what": "disk here", "found": f"{disk.free / 2**30:.1f} GiB free"},
        {"what": "device", "found": _device()},
    ]


def _memory() -> str:
    """Total and available, from the system where it tells."""
    try:
        with open("/proc/meminfo") as file:
            sizes = dict(line.split(":", 1) for line in file)
    except OSError:
        return "unknown"
    total, free = (int(sizes[name].split()[0]) / 2**20 for name in ("MemTotal", "MemAvailable"))
    return f"{total:.1f} GiB, {free:.1f} GiB available"


def _device() -> str:
    import torch

    if not torch.cuda.is_available():
        return "cpu (no CUDA device; --device cuda would fall back with a warning)"
    free, total = torch.cuda.mem_get_info()
    name = torch.cuda.get_device_name()
    return f"cuda: {name}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free"


def _package_rows() -> list[Row]:
    return [{"what": name, "found": metadata.version(name)} for name in CORE]


def _extra_rows() -> list[Row]:
    rows: list[Row] = []
    for module, extra, purpose in EXTRAS:
        present = is_installed(module)
        rows.append(
            {
                "what": f"[{extra}] {module}",
                "found": metadata.version(module.replace("_", "-")) if present else "missing",
                "advice": purpose if present else f"{purpose}: pip install 'hundredfold[{extra}]'",
            }
        )
    return rows
