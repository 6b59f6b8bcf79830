"""The books of a training that another engine runs: the same folder, metrics and checkpoints.

A checkpoint holds what was learned as weights of our own network, so everything that reads a run
reads this one. What the engine itself would need to go on is not in it.
"""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from hundredfold.core.batch import Array, Arrays, BoolArray, State, with_prefix
from hundredfold.experience.collect import Episodes
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
        self.returns = np.zeros(num_envs)
        self.lengths = np.zeros(num_envs, np.int64)
        self.episodes = Episodes()

    def hear(self, reward: Array, ended: BoolArray, episode_info: State | None = None) -> None:
        """One step of every env; the infos count where episodes ended."""
        self.returns += reward
        self.lengths += 1
        if not ended.any():
            return
        self.episodes.returns.extend(self.returns[ended].tolist())
        self.episodes.lengths.extend(self.lengths[ended].tolist())
        told: Arrays = {name: array[ended] for name, array in (episode_info or {}).items()}
        for name, values in told.items():
            self.episodes.info.setdefault(name, []).append(values)
        self.returns[ended] = 0.0
        self.lengths[ended] = 0

    def taken(self) -> Episodes:
        """The episodes that ended since this was asked last."""
        found, self.episodes = self.episodes, Episodes()
        return found
