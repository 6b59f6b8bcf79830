"""`hundredfold envs`: what can be trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tyro

from hundredfold.cli.output import print_rows
from hundredfold.envs.registry import ENVS, env_factory, settings_class


@dataclass(frozen=True, slots=True, kw_only=True)
class Envs:
    """List the envs that come with hundredfold. Any Gymnasium id is an env as well."""

    json: bool = False
    """Print one JSON object and nothing else."""


def run(arguments: Sequence[str]) -> int:
    """A row per env: what it shows, what it lets an agent do, its Gymnasium id."""
    args = tyro.cli(Envs, args=list(arguments), prog="hundredfold envs")
    rows = [_row(name) for name in ENVS]
    print_rows(rows, command=["envs", *arguments], as_json=args.json)
    if not args.json:
        print("Any Gymnasium id works too: hundredfold train CartPole-v1")
    return 0


def _row(name: str) -> dict[str, object]:
    spec = env_factory(name, settings_class(name)())(np.arange(1)).spec
    shapes = ", ".join(f"{key} {list(a.shape)}" for key, a in spec.observation.items())
    return {
        "env": name,
        "what": ENVS[name].summary,
        "observation": shapes,
        "actions": " x ".join(str(count) for count in spec.action_nvec)
        or f"box {spec.action_shape}",
        "masks": "yes" if spec.has_mask else "no",
        "gymnasium_id": ENVS[name].gymnasium_id,
    }
