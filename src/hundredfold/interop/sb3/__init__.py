"""`--engine sb3`: built-in envs and settings, trained by Stable-Baselines3.

`engine` runs the training and keeps our books, `envs` shows envs as vector envs, `options`
translates settings, `networks` brings weights home. Only `hundredfold.training.engines` comes here,
when someone chooses this engine by name.

Whether Stable-Baselines3 is there; looked at before anything of it is imported.
"""

from __future__ import annotations

from hundredfold.core.errors import MissingExtraError, is_installed


def require_stable_baselines() -> None:
    """Refuse `--engine sb3` early, in one line, when it cannot work."""
    if not is_installed("stable_baselines3"):
        raise MissingExtraError("stable-baselines3", "sb3", "training with --engine sb3")


def require_contrib() -> None:
    """MaskablePPO lives in a package of its own."""
    if not is_installed("sb3_contrib"):
        raise MissingExtraError(
            "sb3-contrib", "sb3", "a masked env with --engine sb3 (MaskablePPO)"
        )
