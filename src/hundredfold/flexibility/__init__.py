"""Learning how flexible each customer is, from nothing but answers to offers.

`companion` listens while a policy trains and tells the worlds what it believes; it asks a model
(`counting` or `embedding`) to learn from the `answers` it has kept, and `judge` says how well that
went.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hundredfold.flexibility.companion import FlexibilityCompanion


def make_companions(settings: Any, device: object) -> list[FlexibilityCompanion]:
    """The companion that a run's settings ask for, if any; `settings` is a `RunSettings`."""
    from hundredfold.flexibility.companion import companion_for

    found = companion_for(
        settings.companion,
        settings.world_settings,
        num_envs=settings.rollout.num_envs,
        num_epochs=settings.length.epochs,
        seed=settings.seed,
        device=str(device),
    )
    return [] if found is None else [found]
