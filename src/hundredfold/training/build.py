"""From settings to parts that are ready to train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import torch

from hundredfold.backends import start_backend
from hundredfold.backends.choose import Choice
from hundredfold.backends.ray_backend import RayBackend
from hundredfold.core.batch import WorldSpec
from hundredfold.core.contracts import Backend, Companion, WorldFactory
from hundredfold.core.errors import SettingsError
from hundredfold.distributed.collector import RayCollector
from hundredfold.experience.collect import Collector
from hundredfold.learners.contract import Learner
from hundredfold.learners.dqn import DQN
from hundredfold.learners.ppo import PPO
from hundredfold.settings.devices import pick_device
from hundredfold.settings.run import Algorithm, RunSettings
from hundredfold.training.companions import make_companion
from hundredfold.training.memory import keep_freed_memory
from hundredfold.worlds import world_factory

# Who learns, by the name `--algo` has for it; all are made with the same words.
LEARNERS: Final[dict[Algorithm, Callable[..., Learner]]] = {"ppo": PPO, "dqn": DQN}


@dataclass(slots=True)
class Parts:
    """Everything a training loop moves."""

    settings: RunSettings
    backend: Backend
    learner: Learner
    collector: Collector | RayCollector
    make_world: WorldFactory
    choice: Choice
    companion: Companion | None = None

    @property
    def envs_in(self) -> object:
        """What runs the envs."""
        return self.backend

    def health(self) -> dict[str, int]:
        """What went wrong with envs so far."""
        return self.backend.health()

    def close(self) -> None:
        if self.companion is not None:
            self.companion.close()
        self.backend.close()


def build(settings: RunSettings, make_world: WorldFactory | None = None) -> Parts:
    """Make world, backend and learner; the returned settings have their length in epochs."""
    torch.set_num_threads(settings.machine.threads)
    keep_freed_memory()
    factory = make_world or world_factory(settings.world, settings.world_settings)
    if settings.machine.backend == "ray" and settings.algo != "ppo":
        raise SettingsError(
            f"Ray actors collect rollouts for ppo; train {settings.algo} with --backend processes."
        )
    backend, choice = start_backend(
        settings.machine.backend,
        factory,
        settings.rollout.num_envs,
        settings.processes,
        ray=partial(RayBackend, ray=settings.ray, collecting=True),
    )
    # What really runs goes into the record, whether it was chosen or fallen back to.
    settings = replace(
        settings,
        machine=replace(settings.machine, backend=choice.backend),
        processes=choice.settings,
    )
    try:
        settings = settings.resolved(backend.spec)
        device = pick_device(settings.machine.device)
        learner = make_learner(settings, backend.spec, device)
        return Parts(
            settings=settings,
            backend=backend,
            learner=learner,
            collector=make_collector(backend, settings.seed),
            make_world=factory,
            choice=choice,
            companion=make_companion(settings, device),
        )
    except BaseException:
        backend.close()
        raise


def make_collector(backend: Backend, seed: int) -> Collector | RayCollector:
    """Who gathers steps: this process, or actors that have a copy of the policy."""
    if isinstance(backend, RayBackend):
        return RayCollector(backend, seed)
    return Collector(backend, seed)


def make_learner(settings: RunSettings, spec: WorldSpec, device: torch.device) -> Learner:
    """Who learns, with nothing learned yet; the settings have their length in epochs."""
    return LEARNERS[settings.algo](
        spec,
        settings=settings.learner,
        network=settings.network,
        rollout=settings.rollout,
        num_updates=settings.length.epochs // settings.rollout.policy_update_interval,
        seed=settings.seed,
        device=device,
    )
