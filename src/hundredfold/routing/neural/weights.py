"""Weights of routing policies on disk: one safetensors file that also tells how it was made."""

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


def save_policy(path: Path, policy: RoutingPolicy, facts: dict[str, Any]) -> None:
    """Write the weights with their size and with `facts`: settings, seed, gaps."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.contiguous() for name, tensor in policy.state_dict().items()}
    told = {"size": json.dumps(asdict(policy.size)), "facts": json.dumps(facts)}
    partial = path.with_suffix(".partial")
    save_file(tensors, partial, metadata=told)
    partial.replace(path)


def load_policy(path: Path | str | None = None) -> RoutingPolicy:
    """The policy of a file, ready to route; without a path, the one that comes with the package."""
    file = SHIPPED if path is None else Path(path)
    if not file.exists():
        raise CheckpointError(
            f"there are no routing weights at {file}; "
            "make some with: hundredfold train-oracle --save-dir FOLDER"
        )
    return _loaded(file, file.stat().st_mtime_ns)


def weight_facts(path: Path | str | None = None) -> dict[str, Any]:
    """What a weights file says about how it was made."""
    with safe_open(SHIPPED if path is None else Path(path), "pt") as file:
        facts: dict[str, Any] = json.loads((file.metadata() or {}).get("facts", "{}"))
    return facts


@lru_cache(maxsize=4)
def _loaded(path: Path, changed: int) -> RoutingPolicy:
    # `changed` is part of the key alone: a file that was written anew is read again.
    try:
        with safe_open(path, "pt") as file:
            size = PolicySettings(**json.loads((file.metadata() or {})["size"]))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        # Whoever builds a policy draws first weights; nobody's random numbers shall notice.
        with torch.random.fork_rng(devices=[]):
            policy = RoutingPolicy(size)
        policy.load_state_dict(tensors)
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"{path} holds no routing weights ({error}); "
            "name a .safetensors file that hundredfold train-oracle wrote."
        ) from error
    for layer in policy.modules():
        if isinstance(layer, nn.Linear):
            # Laid out by columns: products of this shape take a quarter less time on a CPU.
            layer.weight.data = layer.weight.data.t().contiguous().t()
    return policy.eval().requires_grad_(False)
