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
from hundredfold.envs.cage2.blue_actions import ANALYSE_FIRST, NUM_ACTIONS, RESTORE_FIRST
from hundredfold.envs.cage2.network import (
    DEFENDER,
    ENTERPRISE0,
    ENTERPRISE1,
    ENTERPRISE2,
    OP_HOST0,
    OP_HOST1,
    OP_HOST2,
    OP_SERVER0,
    USER1,
    USER2,
    USER3,
    USER4,
)

BluePolicy = Callable[..., IntArray]

# RNG branch of blue's actions, apart from the keys of the envs under the same seed.
BLUE_BRANCH: Final = 0x626C7565

# Most valuable first, without User0: red's session there cannot be removed.
_BY_VALUE: Final = np.array(
    [
        *(OP_SERVER0, ENTERPRISE2, ENTERPRISE1, ENTERPRISE0),
        *(OP_HOST0, OP_HOST1, OP_HOST2),
        *(USER1, USER2, USER3, USER4),
        DEFENDER,
    ]
)


def sleep(observation: Mapping[str, Array]) -> IntArray:
    """Sleep in every step."""
    return np.zeros(len(observation["bits"]), np.int64)


def reactive(observation: Mapping[str, Array]) -> IntArray:
    """Restore the first compromised host, else analyse the first scanned one, else sleep.

    Compromised means the status User or Privileged; hosts are ordered by value.
    """
    bits = observation["bits"].reshape(-1, observation["bits"].shape[1] // 4, 4)[:, _BY_VALUE]
    compromised = bits[:, :, 3] == 1
    scanned = (bits[:, :, 0] == 1) & (bits[:, :, 1] == 0)
    restore = RESTORE_FIRST + _BY_VALUE[compromised.argmax(axis=1)]
    analyse = ANALYSE_FIRST + _BY_VALUE[scanned.argmax(axis=1)]
    analyse_or_sleep = np.where(scanned.any(axis=1), analyse, 0)
    return np.where(compromised.any(axis=1), restore, analyse_or_sleep)


class RandomBlue:
    """Uniformly random actions, from one RNG stream per row."""

    def __init__(self, seed: int = 0) -> None:
        self.key = rng.spawn(rng.seed_key(seed), BLUE_BRANCH)
        self.step = 0

    def __call__(self, observation: Mapping[str, Array]) -> IntArray:
        rows = np.arange(len(observation["bits"]))
        actions = rng.integers(rng.spawn(self.key, rows), self.step, NUM_ACTIONS)
        self.step += 1
        return actions


POLICIES: Final[dict[str, Callable[[int], BluePolicy]]] = {
    "sleep": lambda seed: sleep,
    "random": RandomBlue,
    "reactive": lambda seed: reactive,
}


def make_policy(name: str, seed: int = 0) -> BluePolicy:
    """Baseline policy by name; the seed matters to `random` only."""
    if name not in POLICIES:
        raise SettingsError(f"unknown blue policy {name!r}; {suggest(name, POLICIES)}")
    return POLICIES[name](seed)
