"""From the weights of a checkpoint to a policy that acts, whoever learned them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from hundredfold.core.batch import State, WorldSpec
from hundredfold.learners.contract import JudgedPolicy
from hundredfold.learners.networks import ActorCritic
from hundredfold.learners.policy import NetworkPolicy
from hundredfold.learners.q_network import QNetwork
from hundredfold.learners.q_policy import QPolicy
from hundredfold.learners.weights import load_network
from hundredfold.settings.run import Algorithm, RunSettings


def saved_policy(
    settings: RunSettings, spec: WorldSpec, network: State, device: torch.device
) -> JudgedPolicy:
    """The policy of a run of these settings, with these weights."""
    with torch.random.fork_rng(devices=[]):  # first weights are drawn, then overwritten
        return POLICIES[settings.algo](settings, spec, network, device)


def _ppo_policy(
    settings: RunSettings, spec: WorldSpec, weights: State, device: torch.device
) -> NetworkPolicy:
    network = ActorCritic(spec, settings.network).to(device)
    load_network(network, weights)
    return NetworkPolicy(network, device)


def _dqn_policy(
    settings: RunSettings, spec: WorldSpec, weights: State, device: torch.device
) -> QPolicy:
    network = QNetwork(spec, settings.network, settings.dqn.dueling).to(device)
    load_network(network, weights)
    return QPolicy(network, device)


POLICIES: Final[dict[Algorithm, Callable[..., JudgedPolicy]]] = {
    "ppo": _ppo_policy,
    "dqn": _dqn_policy,
}
