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
from hundredfold.algorithms.custom_network import make_actor_critic
from hundredfold.algorithms.dqn import DQN
from hundredfold.algorithms.futures import FuturesLearner
from hundredfold.algorithms.policies import NetworkPolicy, QPolicy
from hundredfold.algorithms.ppo import PPO, PPOSettings
from hundredfold.algorithms.pqn import PQN, make_q_network
from hundredfold.algorithms.protocols import EvaluationPolicy, Learner
from hundredfold.algorithms.q_network import QNetwork
from hundredfold.algorithms.weights import check_weights, load_network
from hundredfold.backends import start_backend
from hundredfold.backends.auto_select import BackendChoice
from hundredfold.backends.settings import usable_cores
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
from hundredfold.training.memory import env_bytes, spec_of
from hundredfold.training.process_setup import choose_threads, tune_malloc
from hundredfold.training.run_folder import RunFolder

# Name of the belief model in a checkpoint.
BELIEF_MODEL: Final = "belief_model"
# Envs from which on their memory is measured before they are created.
MANY_ENVS: Final = 2_000
# Rows times weights of a gradient step from which on more threads are tried.
MIN_MEASURED_WORK: Final = 2 * 10**8


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


def check_belief_inputs(settings: RunSettings) -> None:
    """Raise a SettingsError for observations or masks of a belief model that a run does not have."""
    needs = getattr(settings.env_settings, "belief_inputs", ())
    if needs and getattr(settings.belief_model, "acceptance_model", "none") == "none":
        raise SettingsError(
            f"{', '.join(needs)} need an acceptance model: with --acceptance-model none every offer would look certain "
            "to be accepted. Use --acceptance-model bayes, or do without: --no-acceptance-hint --mask-mode none, and "
            "--observation booking --architecture mlp --advantages gae instead of --observation offers."
        )


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
    return learner.build(spec, settings=settings, **arguments)


# Learning algorithms by `--algo`; all take the same arguments.
LEARNERS: Final[dict[Algorithm, Callable[..., Learner]]] = {"ppo": _ppo_learner, "dqn": DQN, "pqn": PQN}


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
    threads_note: str | None = None  # how the number of threads was chosen

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
    chosen_threads = settings.machine.threads
    torch.set_num_threads(1 if chosen_threads == "auto" else chosen_threads)
    tune_malloc()
    factory = make_envs or training_factory(settings)
    if settings.algo != "ppo":
        for name in settings.network.ppo_only:
            raise SettingsError(f"{name} works with --algo ppo only, not with {settings.algo}.")
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
        settings, threads_note = with_threads(settings, learner)
        return Components(
            settings=settings,
            backend=backend,
            learner=learner,
            collector=make_collector(backend, settings.seed),
            make_envs=factory,
            choice=choice,
            belief_model=make_belief_model(settings, device),
            threads_note=threads_note,
        )
    except BaseException:
        backend.close()
        raise


def with_threads(settings: RunSettings, learner: Learner) -> tuple[RunSettings, str | None]:
    """The settings with a number of threads, and how it was measured.

    Small updates are not measured: one thread is best for them, and equal settings give equal results.

    Args:
        settings: Run settings.
        learner: The learner of the run.
    """
    if settings.machine.threads != "auto":
        return settings, None
    threads, note, cores = 1, None, usable_cores()
    if type(learner) is PPO and learner.device.type == "cpu" and cores > 1:
        rows = learner.minibatch_rows
        if rows * sum(weight.numel() for weight in learner.network.parameters()) >= MIN_MEASURED_WORK:
            threads, times = choose_threads(learner.measured_pass(), torch.set_num_threads, cores)
            note = f"--threads auto: {threads} (a gradient step takes {times})"
    return replace(settings, machine=replace(settings.machine, threads=threads)), note


def training_factory(settings: RunSettings) -> EnvFactory:
    """The env factory of a training, with the arrays of a privileged critic if it has one."""
    return env_factory(settings.env, settings.env_settings, privileged=settings.network.critic == "privileged")


def check_many_envs(settings: RunSettings, make_envs: EnvFactory | None = None) -> None:
    """Raise a SettingsError if so many envs do not fit into memory, before they are created.

    Args:
        settings: Run settings.
        make_envs: Env factory; by default that of `settings.env`.
    """
    if settings.rollout.num_envs < MANY_ENVS or settings.machine.backend == "ray":
        return
    factory = make_envs or training_factory(settings)
    spec = spec_of(factory)
    check_memory(settings.resolved(spec), spec, env_bytes(settings.env, factory))


def check_memory(settings: RunSettings, spec: EnvSpec, bytes_per_env: int = 0) -> None:
    """Raise a SettingsError if networks and buffers do not fit into memory: allocating them could end the process.

    Args:
        settings: Run settings, with their length in epochs.
        spec: Observation and action spec of the env.
        bytes_per_env: Memory of an env; 0 if the envs have been created.
    """
    with torch.device("meta"):  # takes no memory
        network = POLICIES[settings.algo][0](settings, spec)
    # Weights, gradients and two moments, 4 bytes each.
    network_bytes = 16 * sum(weight.numel() for weight in network.parameters())
    rollout = settings.rollout
    rows = rollout.samples_per_epoch * rollout.policy_update_interval
    if settings.algo == "dqn":
        rows = settings.dqn.rows_per_env(spec, rollout.num_envs) * rollout.num_envs
    # The states of two memories, policy and value.
    memory_bytes = 8 * settings.network.memory_size if settings.network.memory == "gru" else 0
    parts = {
        "networks": network_bytes,
        "envs": rollout.num_envs * bytes_per_env,
        "buffers": rows * (row_bytes(spec) + memory_bytes),
    }
    needed, available = sum(parts.values()), available_memory()
    if needed > available:
        named = ", ".join(f"{format_bytes(size)} for {name}" for name, size in parts.items() if size)
        raise SettingsError(
            f"this run needs about {format_bytes(needed)} of memory ({named}), but {format_bytes(available)} are "
            "available; use fewer --num-envs or --num-steps, a smaller --replay-size or smaller --hidden-sizes."
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
    return make_actor_critic(spec, settings.network)


def _q_network(settings: RunSettings, spec: EnvSpec) -> QNetwork:
    return QNetwork(spec, settings.network, settings.dqn.dueling)


def _normalised_q_network(settings: RunSettings, spec: EnvSpec) -> QNetwork:
    return make_q_network(spec, settings.network)


# Network and policy of each algorithm.
POLICIES: Final[dict[Algorithm, tuple[Callable[..., nn.Module], Callable[..., EvaluationPolicy]]]] = {
    "ppo": (_actor_critic, NetworkPolicy),
    "dqn": (_q_network, QPolicy),
    "pqn": (_normalised_q_network, QPolicy),
}
