"""`hundredfold worlds`: what can be trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tyro

from hundredfold.cli.output import print_rows
from hundredfold.envs.registry import WORLDS, settings_class, world_factory


@dataclass(frozen=True, slots=True, kw_only=True)
class Worlds:
    """List the worlds that come with hundredfold. Any Gymnasium id is a world as well."""

    json: bool = False
    """Print one JSON object and nothing else."""


def run(arguments: Sequence[str]) -> int:
    """A row per world: what it shows, what it lets an agent do, its Gymnasium id."""
    asked = tyro.cli(Worlds, args=list(arguments), prog="hundredfold worlds")
    rows = [_row(name) for name in WORLDS]
    print_rows(rows, command=["worlds", *arguments], as_json=asked.json)
    if not asked.json:
        print("Any Gymnasium id works too: hundredfold train CartPole-v1")
    return 0


def _row(name: str) -> dict[str, object]:
    spec = world_factory(name, settings_class(name)())(np.arange(1)).spec
    shapes = ", ".join(f"{key} {list(a.shape)}" for key, a in spec.observation.items())
    return {
        "world": name,
        "what": WORLDS[name].summary,
        "observation": shapes,
        "actions": " x ".join(str(count) for count in spec.choices) or f"box {spec.action_shape}",
        "masks": "yes" if spec.has_mask else "no",
        "gymnasium_id": WORLDS[name].gymnasium_id,
    }
