"""`hundredfold evaluate RUN`: calls the evaluate command of the env."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from hundredfold.envs.registry import ENVS, EVALUATE_RETURNS, canonical_name
from hundredfold.training.run_folder import RunFolder


def run(argv: Sequence[str]) -> int:
    """Run the evaluate command of the env."""
    code: int = import_module(_evaluate_module(argv)).run(argv)
    return code


def _evaluate_module(argv: Sequence[str]) -> str:
    """Module for the first argument that is a run folder or a built-in env."""
    for argument in argv:
        name = argument
        if (Path(argument) / "settings.toml").is_file():
            name = RunFolder.open(Path(argument)).settings().env
        if canonical_name(name) in ENVS:
            return ENVS[canonical_name(name)].evaluate
    return EVALUATE_RETURNS
