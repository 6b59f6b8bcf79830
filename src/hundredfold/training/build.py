"""From settings to parts that are ready to train.

The models that learn beside a policy: made for a run, or brought back from its checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Final

import torch

from hundredfold.algorithms.dqn import DQN
from hundredfold.algorithms.ppo import PPO
from hundredfold.algorithms.protocols import Learner
from hundredfold.backends import start_backend
from hundredfold.backends.auto_select import BackendChoice
from hundredfold.config.devices import torch_device
from hundredfold.config.run import Algorithm, RunSettings
from hundredfold.core.batch import EnvSpec
from hundredfold.core.errors import CheckpointError, SettingsError
from hundredfold.core.protocols import Backend, BeliefModel, EnvFactory
from hundredfold.distributed.ray_backend import RayBackend
from hundredfold.distributed.ray_collector import RayCollector
from hundredfold.envs.registry import ENVS, env_factory
from hundredfold.rollout.collector import Collector
from hundredfold.training.checkpoint import load_checkpoint
from hundredfold.training.process_setup import tune_malloc
from hundredfold.training.run_folder import RunFolder

# Where a checkpoint keeps the belief model.
BELIEF_MODEL: Final = "belief_model"


def make_belief_model(settings: RunSettings, device: torch.device) -> BeliefModel | None:
    """The model that learns beside the policy on this env: most envs have none."""
    entry = ENVS.get(settings.env)
    if entry is None or entry.belief_model is None or settings.belief_model is None:
        return None
    found: BeliefModel | None = import_module(entry.belief_model).make_belief_model(
        settings.belief_model,
        settings.env_settings,
        num_envs=settings.rollout.num_envs,
        num_epochs=settings.length.epochs,
        seed=settings.seed,
        device=str(device),
    )
    return found


def load_belief_model(folder: RunFolder, checkpoint: str) -> BeliefModel | None:
    """The belief model of a run as it was at a checkpoint, at rest; None where there was none."""
    belief_model = make_belief_model(folder.settings(), torch.device("cpu"))
    if belief_model is None:
        return None
    saved = load_checkpoint(folder, checkpoint, parts={BELIEF_MODEL})
    try:
        belief_model.restore(saved.parts[BELIEF_MODEL])
    except KeyError as error:
        raise CheckpointError(f"{folder.path} keeps no belief model in its checkpoints.") from error
    finally:
        belief_model.close()
    return belief_model


# Who learns, by the name `--algo` has for it; all are made with the same words.
LEARNERS: Final[dict[Algorithm, Callable[..., Learner]]] = {"ppo": PPO, "dqn": DQN}


@dataclass(slots=True)
class Components:
    """Everything a training loop moves."""

    settings: RunSettings
    backend: Backend
    learner: Learner
    collector: Collector | RayCollector
    make_envs: EnvFactory
    choice: BackendChoice
    belief_model: BeliefModel | None = None

    @property
    def env_runner(self) -> object:
        """What runs the envs."""
        return self.backend

    def health(self) -> dict[str, int]:
        """What went wrong with envs so far."""
        return self.backend.health()

    def close(self) -> None:
        if self.belief_model is not None:
            self.belief_model.close()
        self.backend.close()


def build(settings: RunSettings, make_envs: EnvFactory | None = None) -> Components:
    """Make env, backend and learner; the returned settings have their length in epochs."""
    torch.set_num_threads(settings.machine.threads)
    tune_malloc()
    factory = make_envs or env_factory(settings.env, settings.env_settings)
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
        device = torch_device(settings.machine.device)
        learner = make_learner(settings, backend.spec, device)
        return Components(
            settings=settings,
            backend=backend,
            learner=learner,
            collector=make_collector(backend, settings.seed),
            make_envs=factory,
            choice=choice,
            belief_model=make_belief_model(settings, device),
        )
    except BaseException:
        backend.close()
        raise


def make_collector(backend: Backend, seed: int) -> Collector | RayCollector:
    """Who gathers steps: this process, or actors that have a copy of the policy."""
    if isinstance(backend, RayBackend):
        return RayCollector(backend, seed)
    return Collector(backend, seed)


def make_learner(settings: RunSettings, spec: EnvSpec, device: torch.device) -> Learner:
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
