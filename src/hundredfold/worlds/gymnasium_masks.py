"""Where Gymnasium envs say which actions they allow, and whether what they say can be used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import gymnasium
import numpy as np

from hundredfold.core.errors import SettingsError
from hundredfold.worlds.gymnasium_spaces import MASK, ActionView, ObservationView

Source = Literal["observation", "info", "method"]


class Masks:
    """The masks of envs that have them, all in the same place."""

    def __init__(self, source: Source, choices: tuple[int, ...]) -> None:
        self.source = source
        self.choices = choices

    def told(self, env: gymnasium.Env[Any, Any], seen: Any, info: Mapping[str, Any]) -> Any:
        """What an env says it allows now, as it says it; a method may raise anything."""
        if self.source == "observation":
            return seen.get(MASK)
        if self.source == "info":
            return info.get(MASK)
        return env.get_wrapper_attr("action_masks")()

    def fault_in(self, mask: Any) -> str | None:
        """What is wrong with a mask, to follow the name of its env; None if nothing is."""
        size = sum(self.choices)
        if mask is None or np.shape(mask) != (size,):
            return (
                f"gave the action mask {mask!r}; expected {size} bools at every step and reset "
                "(True = allowed), one per action."
            )
        allowed, offset = np.asarray(mask, bool), 0
        for count in self.choices:
            if not allowed[offset : offset + count].any():
                return (
                    f"forbids all {count} actions; a mask must leave at least one. End the episode "
                    "where nothing can be done."
                )
            offset += count
        return None


def masks_of(
    env: gymnasium.Env[Any, Any],
    view: ObservationView,
    actions: ActionView,
    first_infos: Sequence[Mapping[str, Any]],
    name: str,
) -> Masks | None:
    """Find out where envs like this one say what is allowed, if anywhere."""
    source: Source
    if view.mask_space is not None:
        source = "observation"
    elif any(MASK in info for info in first_infos):
        source = "info"
    elif env.has_wrapper_attr("action_masks"):
        source = "method"
    else:
        return None
    if actions.box is not None:
        raise SettingsError(
            f"{name} has an action mask and the action space {env.action_space}; only choices can "
            f"be masked. Take {MASK} out, or wrap the env to offer choices."
        )
    return Masks(source, actions.choices)
