"""Components of a training from its settings; policies and belief models from checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch import nn

from hundredfold.algorithms.actor_critic import ActorCritic
from hundredfold.algorithms.dqn import DQN
from hundredfold.algorithms.futures import FuturesLearner
from hundredfold.algorithms.policies import NetworkPolicy, QPolicy
from hundredfold.algorithms.ppo import PPO, PPOSettings
from hundredfold.algorithms.protocols import EvaluationPolicy, Learner
from hundredfold.algorithms.q_network import QNetwork
from hundredfold.algorithms.weights import check_weights, load_network
from hundredfold.backends import start_backend
from hundredfold.backends.auto_select import BackendChoice
from hundredfold.config.devices import available_memory, torch_device
from hundredfold.config.run import Algorithm, RunSettings
from hundredfold.core.batch import EnvSpec, State
from hundredfold.core.errors import CheckpointError, SettingsError
from hundredfold.core.failures import Failure
from hundredfold.core.formatting import format_bytes
from hundredfold.core.protocols import Backend, BeliefModel, EnvFactory
from hundredfold.distributed.ray_backend import RayBackend
from hundredfold.distributed.ray_collector import RayCollector
from hundredfold.envs.registry import ENVS, env_factory
from hundredfold.rollout.collector import Collector
from hundredfold.rollout.replay_buffer import row_bytes
from hundredfold.training.checkpoint import load_checkpoint
from hundredfold.training.process_setup import tune_malloc
from hundredfold.training.run_folder import RunFolder

# Name of the belief model in a checkpoint.
BELIEF_MODEL: Final = "belief_model"


def make_belief_model(settings: RunSettings, device: torch.device) -> BeliefModel | None:
    """The belief model of a run; None for envs without one."""
    entry = ENVS.get(settings.env)
    if entry is None or entry.belief_model is None or settings.belief_model is None:
        return None
    belief_model: BeliefModel | None = import_module(entry.belief_model).make_belief_model(
        settings.belief_model,
        settings.env_settings,
        num_envs=settings.rollout.num_envs,
        num_epochs=settings.length.epochs,
        seed=settings.seed,
        device=str(device),
    )
    return belief_model


def load_belief_model(folder: RunFolder, checkpoint: str) -> BeliefModel | None:
    """The belief model of a run at a checkpoint, without background work; None without one."""
    belief_model = make_belief_model(folder.settings(), torch.device("cpu"))
    if belief_model is None:
        return None
    saved = load_checkpoint(folder, checkpoint, parts={BELIEF_MODEL})
    if BELIEF_MODEL not in saved.parts:
        belief_model.close()
        raise CheckpointError(f"{folder.path} has no belief model in its checkpoints.")
    try:
        belief_model.restore(saved.parts[BELIEF_MODEL])
    except KeyError as error:
        raise CheckpointError(
            f"the belief model in {folder.path} has no {error}; it was saved by another version of hundredfold."
        ) from error
    finally:
        belief_model.close()
    return belief_model


def _ppo_learner(spec: EnvSpec, *, settings: PPOSettings, **arguments: Any) -> Learner:
    learner = FuturesLearner if settings.advantages == "futures" else PPO
    return learner(spec, settings=settings, **arguments)


# Learning algorithms by `--algo`; all take the same arguments.
LEARNERS: Final[dict[Algorithm, Callable[..., Learner]]] = {"ppo": _ppo_learner, "dqn": DQN}


class ExternalEnvs(Protocol):
    """Envs that another training library steps."""

    @property
    def name(self) -> str: ...

    def health(self) -> dict[str, int]: ...

    @property
    def first_failure(self) -> Failure | None: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class Components:
    """Everything a training loop works with."""

    settings: RunSettings
    backend: Backend
    learner: Learner
    collector: Collector | RayCollector
    make_envs: EnvFactory
    choice: BackendChoice
    belief_model: BeliefModel | None = None
    external_envs: ExternalEnvs | None = None  # None: the backend steps the envs

    @property
    def env_runner_name(self) -> str:
        """What steps the envs, for display."""
        envs = self.external_envs
        return type(self.backend).__name__ if envs is None else envs.name

    def health(self) -> dict[str, int]:
        """Failures of envs and workers so far."""
        return (self.external_envs or self.backend).health()

    @property
    def first_failure(self) -> Failure | None:
        """The first of these failures."""
        return (self.external_envs or self.backend).first_failure

    def close(self) -> None:
        if self.external_envs is not None:
            self.external_envs.close()
        if self.belief_model is not None:
            self.belief_model.close()
        self.backend.close()


def build(settings: RunSettings, make_envs: EnvFactory | None = None) -> Components:
    """Create envs, backend, learner and collector.

    Args:
        settings: Run settings.
        make_envs: Env factory; by default that of `settings.env`.

    Returns:
        Components whose settings have the chosen backend and the length in epochs filled in.
    """
    torch.set_num_threads(settings.machine.threads)
    tune_malloc()
    factory = make_envs or env_factory(settings.env, settings.env_settings)
    if settings.machine.backend == "ray" and settings.algo != "ppo":
        raise SettingsError(f"--backend ray works with --algo ppo only; use --backend processes for {settings.algo}.")
    backend, choice = start_backend(
        settings.machine.backend,
        factory,
        settings.rollout.num_envs,
        settings.processes,
        ray=partial(RayBackend, ray=settings.ray, collecting=True),
    )
    # The settings record the backend that runs, chosen or fallen back to.
    settings = replace(settings, machine=replace(settings.machine, backend=choice.backend), processes=choice.settings)
    try:
        settings = settings.resolved(backend.spec)
        device = torch_device(settings.machine.device)
        check_memory(settings, backend.spec)
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


def check_memory(settings: RunSettings, spec: EnvSpec) -> None:
    """Raise a SettingsError if networks and buffers do not fit into memory: allocating them could end the process.

    Args:
        settings: Run settings, with their length in epochs.
        spec: Observation and action spec of the env.
    """
    with torch.device("meta"):  # takes no memory
        network = POLICIES[settings.algo][0](settings, spec)
    # Weights, gradients and two moments, 4 bytes each.
    network_bytes = 16 * sum(weight.numel() for weight in network.parameters())
    rollout = settings.rollout
    rows = rollout.samples_per_epoch * rollout.policy_update_interval
    if settings.algo == "dqn":
        rows = settings.dqn.rows_per_env(spec, rollout.num_envs) * rollout.num_envs
    needed, available = network_bytes + rows * row_bytes(spec), available_memory()
    if needed > available:
        raise SettingsError(
            f"this run needs about {format_bytes(needed)} of memory ({format_bytes(network_bytes)} for networks), but "
            f"{format_bytes(available)} are available; use fewer --num-envs or --num-steps, a smaller --replay-size "
            "or smaller --hidden-sizes."
        )


def make_collector(backend: Backend, seed: int) -> Collector | RayCollector:
    """A collector in this process, or one of Ray actors with copies of the policy."""
    if isinstance(backend, RayBackend):
        return RayCollector(backend, seed)
    return Collector(backend, seed)


def make_learner(settings: RunSettings, spec: EnvSpec, device: torch.device) -> Learner:
    """An untrained learner; the settings have their length in epochs."""
    return LEARNERS[settings.algo](
        spec,
        settings=settings.learner,
        network=settings.network,
        rollout=settings.rollout,
        num_updates=settings.length.epochs // settings.rollout.policy_update_interval,
        seed=settings.seed,
        device=device,
    )


def policy_from_weights(settings: RunSettings, spec: EnvSpec, network: State, device: torch.device) -> EvaluationPolicy:
    """The trained policy of a run.

    Args:
        settings: Settings of the run.
        spec: Observation and action spec of its env.
        network: Weights of the network.
        device: Where it is to run.
    """
    _check_numbers(network)
    make_network, make_policy = POLICIES[settings.algo]
    with torch.device("meta"):  # takes no memory, however large a damaged spec says the network is
        check_weights(make_network(settings, spec), network)
    with torch.random.fork_rng(devices=[]):  # initial weights are drawn, then overwritten
        loaded = make_network(settings, spec).to(device)
    load_network(loaded, network)
    return make_policy(loaded, device)


def _check_numbers(weights: State) -> None:
    """Refuse weights that are not numbers: every action would be the first one."""
    bad = [name for name, array in weights.items() if array.dtype.kind == "f" and np.isnan(array).any()]
    if bad:
        raise CheckpointError(
            f"{len(bad)} of {len(weights)} weight arrays of this checkpoint contain NaN (the first: {bad[0]}), so its "
            "policy cannot act: training had diverged. Use an earlier checkpoint, or train again with a lower "
            "learning rate."
        )


def _actor_critic(settings: RunSettings, spec: EnvSpec) -> ActorCritic:
    return ActorCritic(spec, settings.network)


def _q_network(settings: RunSettings, spec: EnvSpec) -> QNetwork:
    return QNetwork(spec, settings.network, settings.dqn.dueling)


# Network and policy of each algorithm.
POLICIES: Final[dict[Algorithm, tuple[Callable[..., nn.Module], Callable[..., EvaluationPolicy]]]] = {
    "ppo": (_actor_critic, NetworkPolicy),
    "dqn": (_q_network, QPolicy),
}
