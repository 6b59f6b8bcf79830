"""The errors people meet. Each message says what arrived, what was expected and what to try.

Packages that are there only where somebody asked for them.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from importlib import util


class HundredfoldError(Exception):
    """Anything hundredfold refuses on purpose; the command line shows it without a traceback."""


class SettingsError(HundredfoldError):
    """A setting, flag or settings file asks for something that cannot be."""


class ShapeError(HundredfoldError):
    """An array has another shape or type than the env announced."""


class ActionError(HundredfoldError):
    """An action that is out of range, or that the mask forbids."""


class CallOrderError(HundredfoldError):
    """A backend was called out of turn, for example `send` before `recv`."""


class EnvError(HundredfoldError):
    """An env of somebody else's making misbehaved: it raised, or returned what cannot be used."""


class WorkerError(HundredfoldError):
    """A worker process could not start, died, or no longer answers."""


class CheckpointError(HundredfoldError):
    """A run folder or checkpoint is missing, damaged or of another kind."""


class TrainingError(HundredfoldError):
    """Training cannot go on, for example because gradients stay non-finite."""


class MissingExtraError(HundredfoldError):
    """An optional dependency is needed here and is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs {package}, which is not installed; "
            f"install it with: pip install 'hundredfold[{extra}]'"
        )


def suggest(word: str, known: Iterable[str], otherwise: str = "") -> str:
    """A ready-made hint: `did you mean ...?` when a known name is close, else all known names."""
    names = sorted(known)
    close = get_close_matches(word, names, n=3, cutoff=0.6)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return otherwise or f"known names: {', '.join(names)}."


def is_installed(package: str) -> bool:
    """Whether a package can be imported; a bare folder of its name in the way does not count."""
    spec = util.find_spec(package)
    return spec is not None and spec.origin is not None
