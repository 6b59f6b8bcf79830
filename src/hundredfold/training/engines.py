"""Who trains a run: our own loop, or somebody else's library on the same envs and settings.

An engine is three functions. `build` makes the parts from the settings, `start` opens the books in
a new run folder, `train` goes to the end and says whether it got there. Whoever adds one writes a
function that imports them, and a row in `ENGINES`.

The books of a training that another engine runs: the same folder, metrics and checkpoints.

A checkpoint holds what was learned as weights of our own network, so everything that reads a run
reads this one. What the engine itself would need to go on is not in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Final, NamedTuple

import numpy as np

from hundredfold.algorithms.weights import network_arrays
from hundredfold.config.run import EngineName, RunSettings
from hundredfold.core.batch import Array, BoolArray, State, with_prefix
from hundredfold.core.errors import SettingsError
from hundredfold.core.protocols import EnvFactory
from hundredfold.rollout.episode_stats import EpisodeStats, RunningReturns
from hundredfold.training.build import BELIEF_MODEL, Components, build
from hundredfold.training.checkpoint import Checkpoint
from hundredfold.training.loop import train
from hundredfold.training.run import Counters, Run
from hundredfold.training.run_folder import RunFolder


class EngineRun(Run):
    """Keeps the books of a training by another engine."""

    @classmethod
    def start(cls, folder: RunFolder, components: Components, **options: bool) -> Run:
        """Begin at epoch 0; the engine resets the envs itself."""
        if components.belief_model is not None:
            components.backend.broadcast(components.belief_model.params(exploring=True))
        return cls(folder, components, Counters(), **options)

    @property
    def resume_hint(self) -> str:
        return f"judge it with: hundredfold evaluate {self.folder.path}"

    def _snapshot(self) -> Checkpoint:
        belief_model = self.components.belief_model
        weights = network_arrays(self.components.learner.network)
        return Checkpoint(
            epoch=self.counters.epoch,
            counters=asdict(self.counters),
            spec=self.components.backend.spec,
            parts={
                "learner": with_prefix("network", weights),
                **({} if belief_model is None else {BELIEF_MODEL: belief_model.state()}),
            },
        )


class EpisodeTracker:
    """Follows the episodes of a vector env that only tells rewards and ends."""

    def __init__(self, num_envs: int) -> None:
        self.everyone = np.arange(num_envs)
        self.running_returns = RunningReturns(num_envs)
        self.episodes = EpisodeStats()

    def hear(self, reward: Array, ended: BoolArray, episode_info: State | None = None) -> None:
        """One step of every env; the infos count where episodes ended."""
        paid = np.asarray(reward, np.float64)
        self.running_returns.step(self.everyone, paid, ended, episode_info or {}, self.episodes)

    def taken(self) -> EpisodeStats:
        """The episodes that ended since this was asked last."""
        found, self.episodes = self.episodes, EpisodeStats()
        return found


class Engine(NamedTuple):
    """How a run is trained."""

    build: Callable[[RunSettings, EnvFactory | None], Components]
    start: Callable[..., Run]  # (folder, parts, *, wandb, quiet)
    train: Callable[[Run], bool]


def engine_for(settings: RunSettings) -> Engine:
    """The engine these settings ask for."""
    return ENGINES[settings.engine]()


def check_resumable(settings: RunSettings) -> None:
    """Only our own loop goes on where it was stopped."""
    if settings.engine != OWN:
        raise SettingsError(
            f"this run was trained by the engine {settings.engine}, whose own state is not in the "
            "checkpoints: it cannot go on bit for bit. Its policy can be evaluated, loaded and "
            "exported; start a new run to train longer."
        )


def _own() -> Engine:
    return Engine(build, Run.start, train)


def _stable_baselines() -> Engine:
    from hundredfold.interop.sb3 import require_stable_baselines

    require_stable_baselines()
    from hundredfold.interop.sb3 import engine

    return Engine(engine.build, EngineRun.start, engine.train)


def _rllib() -> Engine:
    from hundredfold.distributed.placement import load_ray

    load_ray()
    from hundredfold.interop.rllib import engine

    return Engine(engine.build, EngineRun.start, engine.train)


OWN: Final[EngineName] = "hundredfold"

ENGINES: Final[dict[EngineName, Callable[[], Engine]]] = {
    OWN: _own,
    "sb3": _stable_baselines,
    "rllib": _rllib,
}
