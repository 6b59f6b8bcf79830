"""`hundredfold envs`: the built-in envs with their observations and actions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tyro

from hundredfold.cli.output import Row, print_rows
from hundredfold.envs.registry import ENVS, env_factory, settings_class


@dataclass(frozen=True, slots=True, kw_only=True)
class Envs:
    """List the built-in envs. Any Gymnasium id can be trained as well."""

    json: bool = False
    """Print one JSON object and nothing else."""


def run(argv: Sequence[str]) -> int:
    """Print a row per built-in env."""
    args = tyro.cli(Envs, args=list(argv), prog="hundredfold envs")
    rows = [_row(name) for name in ENVS]
    print_rows(rows, command=["envs", *argv], as_json=args.json)
    if not args.json:
        print("Any Gymnasium id works too: hundredfold train CartPole-v1")
    return 0


def _row(name: str) -> Row:
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
