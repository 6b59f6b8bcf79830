"""`--engine sb3`: training with Stable-Baselines3.

`engine` translates the settings, runs the training and logs it, `envs` has the vector envs,
`networks` builds equal networks and copies weights back. These modules import Stable-Baselines3;
`training.engines` imports them when this engine is chosen.
"""

from __future__ import annotations

from hundredfold.core.errors import MissingExtraError, is_installed


def require_stable_baselines() -> None:
    """Raise a MissingExtraError if Stable-Baselines3 is not installed."""
    if not is_installed("stable_baselines3"):
        raise MissingExtraError("stable-baselines3", "sb3", "training with --engine sb3")


def require_contrib() -> None:
    """Raise a MissingExtraError if sb3-contrib, which has MaskablePPO, is not installed."""
    if not is_installed("sb3_contrib"):
        raise MissingExtraError("sb3-contrib", "sb3", "a masked env with --engine sb3 (MaskablePPO)")
