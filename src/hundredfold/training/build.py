"""From settings to parts that are ready to train."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import torch

from hundredfold.backends import start_backend
from hundredfold.backends.choose import Choice
from hundredfold.core.contracts import Backend, Companion, WorldFactory
from hundredfold.core.errors import SettingsError
from hundredfold.experience.collect import Collector
from hundredfold.learners.ppo import PPO
from hundredfold.settings.run import RunSettings
from hundredfold.training.companions import make_companion
from hundredfold.worlds import world_factory


@dataclass(slots=True)
class Parts:
    """Everything a training loop moves."""

    settings: RunSettings
    backend: Backend
    learner: PPO
    collector: Collector
    make_world: WorldFactory
    choice: Choice
    companion: Companion | None = None

    def close(self) -> None:
        if self.companion is not None:
            self.companion.close()
        self.backend.close()


def build(settings: RunSettings, make_world: WorldFactory | None = None) -> Parts:
    """Make world, backend and learner; the returned settings have their length in epochs."""
    torch.set_num_threads(settings.machine.threads)
    factory = make_world or world_factory(settings.world, settings.world_settings)
    backend, choice = start_backend(
        settings.machine.backend, factory, settings.rollout.num_envs, settings.processes
    )
    # What really runs goes into the record, whether it was chosen or fallen back to.
    settings = replace(
        settings,
        machine=replace(settings.machine, backend=choice.backend),
        processes=choice.settings,
    )
    try:
        settings = settings.resolved(backend.spec)
        interval = settings.rollout.policy_update_interval
        device = pick_device(settings.machine.device)
        learner = PPO(
            backend.spec,
            settings=settings.ppo,
            network=settings.network,
            rollout=settings.rollout,
            num_updates=settings.length.epochs // interval,
            seed=settings.seed,
            device=device,
        )
        return Parts(
            settings=settings,
            backend=backend,
            learner=learner,
            collector=Collector(backend, settings.seed),
            make_world=factory,
            choice=choice,
            companion=make_companion(settings, device),
        )
    except BaseException:
        backend.close()
        raise


def pick_device(name: str) -> torch.device:
    """`auto` takes CUDA when it works; asking for CUDA without one falls back with a warning."""
    available = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if available else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise SettingsError(f"there is no device {name!r}; use auto, cpu or cuda.") from error
    if device.type == "cuda" and not available:
        warnings.warn("no CUDA device was found; the networks run on the CPU.", stacklevel=2)
        return torch.device("cpu")
    return device
