"""Training engines: the default loop, Stable-Baselines3 or RLlib, on the same envs and settings.

An engine is three functions: `build` creates the components from the settings, `start` opens a new
run folder, `train` runs to the end and returns whether it got there. Runs of other libraries have
the same folder, metrics and checkpoints; checkpoints hold the weights of the default network, so
everything that reads a run reads these, but not the library's own state, so they cannot be resumed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from hundredfold.algorithms.weights import network_arrays
from hundredfold.config.run import EngineName, RunSettings
from hundredfold.core.batch import Array, BoolArray, State, with_prefix, without_prefix
from hundredfold.core.errors import SettingsError
from hundredfold.core.protocols import EnvFactory
from hundredfold.rollout.episode_stats import EpisodeStats, RunningReturns
from hundredfold.training.build import BELIEF_MODEL, Components, build
from hundredfold.training.checkpoint import Checkpoint, load_checkpoint
from hundredfold.training.loop import train
from hundredfold.training.run import Counters, Run
from hundredfold.training.run_folder import RunFolder


class EngineRun(Run):
    """Bookkeeping of a training by another library."""

    @classmethod
    def start(cls, folder: RunFolder, components: Components, **options: bool) -> Run:
        """Start at epoch 0; the library resets the envs itself."""
        if components.belief_model is not None:
            components.backend.broadcast(components.belief_model.params(exploring=True))
        return cls(folder, components, Counters(), **options)

    @property
    def resume_hint(self) -> str:
        return f"evaluate it with: hundredfold evaluate {self.folder.path}"

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
    """Episode statistics of a vector env from its rewards and ends."""

    def __init__(self, num_envs: int) -> None:
        self.all_env_ids = np.arange(num_envs)
        self.running_returns = RunningReturns(num_envs)
        self.episodes = EpisodeStats()

    def record(self, reward: Array, ended: BoolArray, episode_info: State | None = None) -> None:
        """Record one step of every env.

        Args:
            reward: (envs,) rewards.
            ended: (envs,) True where an episode ended.
            episode_info: Arrays, each (envs, ...), that count where episodes ended.
        """
        rewards = np.asarray(reward, np.float64)
        self.running_returns.step(self.all_env_ids, rewards, ended, episode_info or {}, self.episodes)

    def drain(self) -> EpisodeStats:
        """Episodes that ended since the last call."""
        episodes, self.episodes = self.episodes, EpisodeStats()
        return episodes


class Engine(NamedTuple):
    """The three functions of a training engine."""

    build: Callable[[RunSettings, EnvFactory | None], Components]
    start: Callable[..., Run]  # (folder, components, *, wandb, quiet)
    train: Callable[[Run], bool]


def engine_for(settings: RunSettings) -> Engine:
    """The engine named by the settings."""
    if settings.engine != OWN:
        for name in settings.network.ppo_only:
            raise SettingsError(f"{name} works with --engine {OWN} only, not with {settings.engine}.")
    return ENGINES[settings.engine]()


def check_resumable(settings: RunSettings) -> None:
    """Raise a SettingsError for runs of engines that cannot be resumed."""
    if settings.engine != OWN:
        raise SettingsError(
            f"this run was trained with --engine {settings.engine}, whose own state is not in the "
            "checkpoints, so it cannot be resumed. Its policy can be evaluated, loaded and "
            "exported; `hundredfold train ENV --init-from RUN` starts a new run from its weights."
        )


def weights_of(run: Path, settings: RunSettings) -> State:
    """Weights of the best checkpoint of a run, to start another run on the same env from.

    Args:
        run: Run folder.
        settings: Settings of the new run.
    """
    folder = RunFolder.open(run)
    source = folder.settings()
    if source.env != settings.env or source.algo != settings.algo:
        raise SettingsError(
            f"{run} was trained with {source.algo} on {source.env}; its weights do not fit {settings.algo} on "
            f"{settings.env}."
        )
    if settings.engine != OWN:
        raise SettingsError(f"--init-from works with --engine {OWN} only, not with {settings.engine}.")
    return without_prefix("network", load_checkpoint(folder, "best", parts={"learner"}).parts["learner"])


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

ENGINES: Final[dict[EngineName, Callable[[], Engine]]] = {OWN: _own, "sb3": _stable_baselines, "rllib": _rllib}
