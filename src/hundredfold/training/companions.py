"""The models that learn beside a policy: made for a run, or brought back from its checkpoints."""

from __future__ import annotations

from importlib import import_module
from typing import Final

import torch

from hundredfold.core.contracts import Companion
from hundredfold.core.errors import CheckpointError
from hundredfold.settings.run import RunSettings
from hundredfold.training.checkpoint import load_checkpoint
from hundredfold.training.run_folder import RunFolder
from hundredfold.worlds import WORLDS

# Where a checkpoint keeps the companion.
COMPANION: Final = "companion"


def make_companion(settings: RunSettings, device: torch.device) -> Companion | None:
    """The model that learns beside the policy on this world: most worlds have none."""
    entry = WORLDS.get(settings.world)
    if entry is None or entry.companion is None or settings.companion is None:
        return None
    found: Companion | None = import_module(entry.companion).companion_for(
        settings.companion,
        settings.world_settings,
        num_envs=settings.rollout.num_envs,
        num_epochs=settings.length.epochs,
        seed=settings.seed,
        device=str(device),
    )
    return found


def saved_companion(folder: RunFolder, checkpoint: str) -> Companion | None:
    """The companion of a run as it was at a checkpoint, at rest; None where there was none."""
    companion = make_companion(folder.settings(), torch.device("cpu"))
    if companion is None:
        return None
    saved = load_checkpoint(folder, checkpoint, parts={COMPANION})
    try:
        companion.restore(saved.parts[COMPANION])
    except KeyError as error:
        raise CheckpointError(f"{folder.path} keeps no companion in its checkpoints.") from error
    finally:
        companion.close()
    return companion
