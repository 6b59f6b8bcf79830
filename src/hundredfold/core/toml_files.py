"""TOML files of users and strangers: bounded in size and depth, with errors that name the file."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, Final

from hundredfold.core.errors import SettingsError
from hundredfold.core.files import read_bounded

MAX_BYTES: Final = 2**20
# Keys of many parts (`a.b.c...`): tomllib takes memory by the square of their number.
_LONG_KEY: Final = re.compile(rb"""(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){32}""")


def read_toml(path: Path, kind: str = "settings file") -> dict[str, Any]:
    """The tables of a TOML file; errors name the file and the line.

    Args:
        path: The file.
        kind: What it should be, for error messages.
    """
    try:
        # A file that the user names may be a link.
        data = read_bounded(path.resolve(), MAX_BYTES)
    except OSError as error:
        raise SettingsError(f"cannot read {kind} {path}: {error.strerror}.") from error
    return parse_toml(data, path, kind)


def parse_toml(data: bytes, path: Path, kind: str = "settings file") -> dict[str, Any]:
    """The tables of a TOML document.

    Args:
        data: The document.
        path: Where it comes from, for error messages.
        kind: What it should be, for error messages.
    """
    if _LONG_KEY.search(data):
        raise SettingsError(f"{path} is not a {kind}: it is nested too deeply.")
    try:
        return tomllib.loads(data.decode())
    except RecursionError:
        raise SettingsError(f"{path} is not a {kind}: it is nested too deeply.") from None
    except ValueError as error:  # not UTF-8, not TOML, or a number of thousands of digits
        raise SettingsError(f"{path} is not valid TOML: {error}.") from error
