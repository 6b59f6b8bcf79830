"""Exceptions, and helpers for their messages: what arrived, what was expected, what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from importlib import util

# Begins the part of a warning that differs between workers.
EXAMPLE = " For example: "


class HundredfoldError(Exception):
    """Base class of all expected errors; the command line prints them without a traceback."""


class SettingsError(HundredfoldError):
    """An invalid setting, flag or settings file."""


class ShapeError(HundredfoldError):
    """An array has another shape or dtype than the env's spec says."""


class ActionError(HundredfoldError):
    """An action that is out of range or forbidden by the mask."""


class CallOrderError(HundredfoldError):
    """A backend was called out of order, for example `send` before `recv`."""


class EnvError(HundredfoldError):
    """A third-party env failed: it raised, or returned something invalid."""


class WorkerError(HundredfoldError):
    """A worker process could not start, died, or does not respond."""


class CheckpointError(HundredfoldError):
    """A run folder, checkpoint or snapshot is missing, damaged or of another kind."""


class TrainingError(HundredfoldError):
    """Training cannot continue, for example because gradients stay non-finite."""


class MissingExtraError(HundredfoldError):
    """An optional dependency is needed and not installed.

    Args:
        package: name of the package.
        extra: the extra of hundredfold that installs it.
        purpose: what needs it; the message starts with this.
    """

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs {package}, which is not installed; install it with: pip install 'hundredfold[{extra}]'"
        )


def describe_exception(error: BaseException) -> str:
    """Type and message of any exception, also of one whose message cannot be read."""
    try:
        text = str(error)
    except BaseException as unreadable:
        text = f"(its __str__ raised {type(unreadable).__name__})"
    return f"{type(error).__name__}: {text}"


def suggest(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """A hint for an unknown name: `did you mean ...?` if a known one is close, else all of them.

    Args:
        name: the name that is not known.
        known: the valid names.
        otherwise: the hint if no name is close; default: the list of valid names.
    """
    names = sorted(known)
    close = get_close_matches(name, names, n=3, cutoff=0.6)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return otherwise or f"known names: {', '.join(names)}."


def is_installed(package: str) -> bool:
    """Whether a package can be imported; a bare folder of the same name does not count."""
    spec = util.find_spec(package)
    return spec is not None and spec.origin is not None
