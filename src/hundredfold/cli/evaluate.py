"""`hundredfold evaluate RUN`: how good a policy is. Some envs have a way of their own to say."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from hundredfold.envs.registry import ENVS, EVALUATE_RETURNS, canonical_name
from hundredfold.training.run_folder import RunFolder


def run(arguments: Sequence[str]) -> int:
    """Hand on to the command that fits the env, which is the target's or the target itself."""
    code: int = import_module(_command_for(arguments)).run(arguments)
    return code


def _command_for(arguments: Sequence[str]) -> str:
    for word in arguments:
        if (Path(word) / "settings.toml").is_file():
            word = RunFolder.open(Path(word)).settings().env
        if canonical_name(word) in ENVS:
            return ENVS[canonical_name(word)].evaluate
    return EVALUATE_RETURNS
