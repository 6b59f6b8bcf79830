"""Packages that are there only where somebody asked for them."""

from __future__ import annotations

from importlib import util


def is_installed(package: str) -> bool:
    """Whether a package can be imported; a bare folder of its name in the way does not count."""
    spec = util.find_spec(package)
    return spec is not None and spec.origin is not None
