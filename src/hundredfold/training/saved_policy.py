"""From the weights of a checkpoint to a policy that acts, whoever learned them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from hundredfold.algorithms.actor_critic import ActorCritic
from hundredfold.algorithms.policies import NetworkPolicy, QPolicy
from hundredfold.algorithms.protocols import EvaluationPolicy
from hundredfold.algorithms.q_network import QNetwork
from hundredfold.algorithms.weights import load_network
from hundredfold.config.run import Algorithm, RunSettings
from hundredfold.core.batch import EnvSpec, State


def saved_policy(
    settings: RunSettings, spec: EnvSpec, network: State, device: torch.device
) -> EvaluationPolicy:
    """The policy of a run of these settings, with these weights."""
    with torch.random.fork_rng(devices=[]):  # first weights are drawn, then overwritten
        return POLICIES[settings.algo](settings, spec, network, device)


def _ppo_policy(
    settings: RunSettings, spec: EnvSpec, weights: State, device: torch.device
) -> NetworkPolicy:
    network = ActorCritic(spec, settings.network).to(device)
    load_network(network, weights)
    return NetworkPolicy(network, device)


def _dqn_policy(
    settings: RunSettings, spec: EnvSpec, weights: State, device: torch.device
) -> QPolicy:
    network = QNetwork(spec, settings.network, settings.dqn.dueling).to(device)
    load_network(network, weights)
    return QPolicy(network, device)


POLICIES: Final[dict[Algorithm, Callable[..., EvaluationPolicy]]] = {
    "ppo": _ppo_policy,
    "dqn": _dqn_policy,
}
