"""The books of a training that another engine runs: the same folder, metrics and checkpoints.

A checkpoint holds what was learned as weights of our own network, so everything that reads a run
reads this one. What the engine itself would need to go on is not in it.
"""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from hundredfold.core.batch import Array, BoolArray, State, with_prefix
from hundredfold.experience.episodes import Episodes, Unfinished
from hundredfold.learners.weights import network_arrays
from hundredfold.training.build import Parts
from hundredfold.training.checkpoint import Checkpoint
from hundredfold.training.companions import COMPANION
from hundredfold.training.run import Counters, Run
from hundredfold.training.run_folder import RunFolder


class EngineRun(Run):
    """Keeps the books of a training by another engine."""

    @classmethod
    def start(cls, folder: RunFolder, parts: Parts, **options: bool) -> Run:
        """Begin at epoch 0; the engine resets the envs itself."""
        if parts.companion is not None:
            parts.backend.broadcast(parts.companion.knowledge(exploring=True))
        return cls(folder, parts, Counters(), **options)

    @property
    def advice(self) -> str:
        return f"judge it with: hundredfold evaluate {self.folder.path}"

    def _snapshot(self) -> Checkpoint:
        companion = self.parts.companion
        weights = network_arrays(self.parts.learner.network)
        return Checkpoint(
            epoch=self.counters.epoch,
            counters=asdict(self.counters),
            spec=self.parts.backend.spec,
            parts={
                "learner": with_prefix("network", weights),
                **({} if companion is None else {COMPANION: companion.state()}),
            },
        )


class EpisodesHeard:
    """Follows the episodes of a vector env that only tells rewards and ends."""

    def __init__(self, num_envs: int) -> None:
        self.everyone = np.arange(num_envs)
        self.unfinished = Unfinished(num_envs)
        self.episodes = Episodes()

    def hear(self, reward: Array, ended: BoolArray, episode_info: State | None = None) -> None:
        """One step of every env; the infos count where episodes ended."""
        paid = np.asarray(reward, np.float64)
        self.unfinished.step(self.everyone, paid, ended, episode_info or {}, self.episodes)

    def taken(self) -> Episodes:
        """The episodes that ended since this was asked last."""
        found, self.episodes = self.episodes, Episodes()
        return found
