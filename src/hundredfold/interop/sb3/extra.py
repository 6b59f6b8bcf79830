"""Whether Stable-Baselines3 is there; looked at before anything of it is imported."""

from __future__ import annotations

import importlib.util

from hundredfold.core.errors import MissingExtraError


def require_stable_baselines() -> None:
    """Refuse `--engine sb3` early, in one line, when it cannot work."""
    if importlib.util.find_spec("stable_baselines3") is None:
        raise MissingExtraError("stable-baselines3", "sb3", "training with --engine sb3")


def require_contrib() -> None:
    """MaskablePPO lives in a package of its own."""
    if importlib.util.find_spec("sb3_contrib") is None:
        raise MissingExtraError(
            "sb3-contrib", "sb3", "a masked world with --engine sb3 (MaskablePPO)"
        )
