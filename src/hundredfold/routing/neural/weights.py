"""Weights files of the routing policy: one safetensors file that also records its provenance."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from hundredfold.core.errors import CheckpointError
from hundredfold.routing.neural.model import PolicySettings, RoutingPolicy

SHIPPED: Final = Path(__file__).parent / "shipped" / "city.safetensors"


def save_policy(path: Path, policy: RoutingPolicy, provenance: dict[str, Any]) -> None:
    """Write weights, network size and `provenance` (settings, seed, validation gaps) atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.contiguous() for name, tensor in policy.state_dict().items()}
    metadata = {"policy_settings": json.dumps(asdict(policy.settings)), "provenance": json.dumps(provenance)}
    partial = path.with_suffix(".partial")
    save_file(tensors, partial, metadata=metadata)
    partial.replace(path)


def load_policy(path: Path | str | None = None) -> RoutingPolicy:
    """Load a policy for inference; without a path, the shipped one."""
    file = SHIPPED if path is None else Path(path)
    if not file.exists():
        raise CheckpointError(
            f"there is no weights file at {file}; train one with: hundredfold train-oracle --save-dir FOLDER"
        )
    return _load_cached(file, file.stat().st_mtime_ns)


def read_provenance(path: Path | str | None = None) -> dict[str, Any]:
    """How a weights file was trained: settings, seed, validation gaps."""
    with safe_open(SHIPPED if path is None else Path(path), "pt") as file:
        provenance: dict[str, Any] = json.loads((file.metadata() or {}).get("provenance", "{}"))
    return provenance


@lru_cache(maxsize=4)
def _load_cached(path: Path, modified_ns: int) -> RoutingPolicy:
    # `modified_ns` only belongs to the cache key: a file that changed is read again.
    try:
        with safe_open(path, "pt") as file:
            settings = PolicySettings(**json.loads((file.metadata() or {})["policy_settings"]))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        # Initial weights are drawn and overwritten; the global generator must not notice.
        with torch.random.fork_rng(devices=[]):
            policy = RoutingPolicy(settings)
        policy.load_state_dict(tensors)
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"{path} is not a routing policy's weights file ({error}); "
            "pass a .safetensors file written by hundredfold train-oracle."
        ) from error
    for layer in policy.modules():
        if isinstance(layer, nn.Linear):
            # Column-major weights: products of these shapes take a quarter less time on a CPU.
            layer.weight.data = layer.weight.data.t().contiguous().t()
    return policy.eval().requires_grad_(False)
