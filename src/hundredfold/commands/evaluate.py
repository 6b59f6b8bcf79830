"""`hundredfold evaluate RUN`: how good a policy is. Some worlds have a way of their own to say."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from hundredfold.training.run_folder import RunFolder
from hundredfold.worlds import WORLDS, WorldEntry


def run(arguments: Sequence[str]) -> int:
    """Hand on to the command that fits the world, which is the target's or the target itself."""
    code: int = import_module(_command_for(arguments)).run(arguments)
    return code


def _command_for(arguments: Sequence[str]) -> str:
    target = next((word for word in arguments if not word.startswith("-")), "")
    if (Path(target) / "settings.toml").is_file():
        target = RunFolder.open(Path(target)).settings().world
    entry = WORLDS.get(target)
    return entry.evaluate if entry else str(WorldEntry.__dataclass_fields__["evaluate"].default)
