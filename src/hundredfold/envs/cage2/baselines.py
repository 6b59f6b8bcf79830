"""Baseline policies of blue without learning: `sleep`, `random` and `reactive`.

A policy is a callable from an observation (named arrays, one row per env), and the action mask in
envs that have one, to one action per row. If it has a method `reset(num_envs)`, that is called
before the first step of a batch of episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from hundredfold.core import rng
from hundredfold.core.batch import Array, IntArray
from hundredfold.core.errors import SettingsError, suggest
from hundredfold.envs.cage2.network import Network
from hundredfold.envs.cage2.network_file import STANDARD
from hundredfold.envs.cage2.network_tables import ANALYSE_FIRST, num_actions

BluePolicy = Callable[..., IntArray]

# RNG branch of blue's actions, apart from the keys of the envs under the same seed.
BLUE_BRANCH: Final = 0x626C7565


def sleep(observation: Mapping[str, Array]) -> IntArray:
    """Sleep in every step."""
    return np.zeros(len(observation["bits"]), np.int64)


class ReactiveBlue:
    """Restore the first compromised host, else analyse the first scanned one, else sleep.

    Compromised means the status User or Privileged; hosts are ordered by value (`Network.hosts_by_value`).
    """

    def __init__(self, network: Network = STANDARD) -> None:
        self.hosts = np.array(network.hosts_by_value)
        self.restore_first = num_actions(network.num_hosts) - network.num_hosts

    def __call__(self, observation: Mapping[str, Array]) -> IntArray:
        bits = observation["bits"].reshape(-1, observation["bits"].shape[1] // 4, 4)[:, self.hosts]
        compromised = bits[:, :, 3] == 1
        scanned = (bits[:, :, 0] == 1) & (bits[:, :, 1] == 0)
        restore = self.restore_first + self.hosts[compromised.argmax(axis=1)]
        analyse = ANALYSE_FIRST + self.hosts[scanned.argmax(axis=1)]
        analyse_or_sleep = np.where(scanned.any(axis=1), analyse, 0)
        return np.where(compromised.any(axis=1), restore, analyse_or_sleep)


class RandomBlue:
    """Uniformly random actions, from one RNG stream per row."""

    def __init__(self, seed: int = 0, network: Network = STANDARD) -> None:
        self.key = rng.spawn(rng.seed_key(seed), BLUE_BRANCH)
        self.num_actions = num_actions(network.num_hosts)
        self.step = 0

    def __call__(self, observation: Mapping[str, Array]) -> IntArray:
        rows = np.arange(len(observation["bits"]))
        actions = rng.integers(rng.spawn(self.key, rows), self.step, self.num_actions)
        self.step += 1
        return actions


POLICIES: Final[dict[str, Callable[[int, Network], BluePolicy]]] = {
    "sleep": lambda seed, network: sleep,
    "random": RandomBlue,
    "reactive": lambda seed, network: ReactiveBlue(network),
}


def make_policy(name: str, seed: int = 0, network: Network = STANDARD) -> BluePolicy:
    """Baseline policy by name.

    Args:
        name: sleep, random or reactive.
        seed: seed of `random`.
        network: the network that it defends.
    """
    if name not in POLICIES:
        raise SettingsError(f"unknown blue policy {name!r}; {suggest(name, POLICIES)}")
    return POLICIES[name](seed, network)
