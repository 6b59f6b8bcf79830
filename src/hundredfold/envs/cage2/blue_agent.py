"""A trained blue policy as an agent of its own: 52 bits in, one of 145 actions out.

This is what plays against the original simulator. The env gives a policy more than the 52 bits:
its own decoys, what it saw and did and when, the time, a mask. All of that follows from what blue
did and saw, so the agent keeps the same books for one episode.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from numpy.typing import ArrayLike

from hundredfold.core.batch import Arrays, BoolArray, IntArray
from hundredfold.core.errors import SettingsError, ShapeError
from hundredfold.envs.cage2.action_mask import sensible
from hundredfold.envs.cage2.blue_actions import (
    ACTION_DECOY,
    ACTION_HOST,
    ACTION_KIND,
    ANALYSE,
    DECOY,
    REMOVE,
    RESTORE,
)
from hundredfold.envs.cage2.env import Cage2Settings
from hundredfold.envs.cage2.network import FITTING_DECOYS, NUM_BITS, NUM_DECOYS, NUM_HOSTS
from hundredfold.envs.cage2.observation import TIME_UNIT_STEPS
from hundredfold.envs.cage2.state import (
    DID_ANALYSE,
    DID_REMOVE,
    DID_RESTORE,
    NUM_MEMORIES,
    SAW_EXPLOIT,
    SAW_SCAN,
)

SHIPPED: Final = "shipped"
MEMORY_OF: Final = {ANALYSE: DID_ANALYSE, REMOVE: DID_REMOVE, RESTORE: DID_RESTORE}


class Policy(Protocol):
    """Whatever takes the best action for a batch of observations."""

    def act_deterministic(self, observation: Arrays, mask: BoolArray | None) -> IntArray: ...


class BlueAgent:
    """Plays one episode at a time: `reset()`, then `act(bits)` for every observation.

    The first observation is the one of the simulator's own reset, all zero.
    """

    def __init__(self, policy: Policy, settings: Cage2Settings) -> None:
        if "remaining" in settings.channels:
            raise SettingsError(
                "a policy that sees the steps left cannot play where nobody tells them; "
                "train one without the channel `remaining`."
            )
        self.policy = policy
        self.channels = settings.channels
        self.masked = settings.action_mask == "sensible"
        self.reset()

    @classmethod
    def load(cls, run: str | Path = SHIPPED, checkpoint: str = "best") -> BlueAgent:
        """The agent of a run folder; by default the one that comes with the package."""
        from hundredfold.api import load
        from hundredfold.training.run_folder import RunFolder

        path = shipped_run() if str(run) == SHIPPED else Path(run)
        settings = RunFolder.open(path).settings().env_settings
        if not isinstance(settings, Cage2Settings):
            raise SettingsError(f"{run} was not trained on cage2.")
        return cls(load(path, checkpoint).policy, settings)

    def reset(self) -> None:
        """Forget the last episode."""
        self.last_action: int | None = None
        self.steps = 0
        self.decoys = np.zeros((NUM_HOSTS, NUM_DECOYS), np.uint8)
        self.decoy_counts = np.zeros(NUM_HOSTS, np.uint8)
        self.scans = np.zeros(NUM_HOSTS, np.uint8)
        self.touched = np.zeros(NUM_HOSTS, np.uint8)
        self.baits = np.zeros((NUM_HOSTS, NUM_DECOYS), np.uint8)
        self.recency = np.zeros((NUM_HOSTS, NUM_MEMORIES), np.float32)

    def act(self, bits: ArrayLike) -> int:
        """The action for the latest 52-bit observation."""
        seen = np.asarray(bits)
        if seen.shape != (NUM_BITS,) or not np.isin(seen, (0, 1)).all():
            raise ShapeError(
                f"act() got an observation of shape {seen.shape}; expected {NUM_BITS} zeros and "
                "ones, as the challenge wrapper gives them."
            )
        if self.last_action is not None:
            self._remember(self.last_action, seen)
        mask = sensible(seen, self.decoys, self.touched)[None] if self.masked else None
        self.last_action = int(self.policy.act_deterministic(self.observation(seen), mask)[0])
        return self.last_action

    def observation(self, bits: ArrayLike) -> Arrays:
        """What the policy sees: one row of named arrays, as the env would give it."""
        known: Arrays = {
            "bits": np.asarray(bits, np.uint8),
            "decoys": self.decoys,
            "decoy_counts": self.decoy_counts,
            "scans": self.scans,
            "baits": self.baits,
            "recency": self.recency,
            "elapsed": np.array([self.steps / TIME_UNIT_STEPS], np.float32),
        }
        return {name: known[name][None] for name in ("bits", *self.channels)}

    def _remember(self, action: int, seen: IntArray) -> None:
        """Keep the books after a step: what blue did, and what monitoring then showed."""
        self.steps += 1
        self.recency /= 1 + self.recency
        kind, host, decoy = ACTION_KIND[action], ACTION_HOST[action], ACTION_DECOY[action]
        if kind == RESTORE:
            self.decoys[host] = 0
            self.decoy_counts[host] = 0
        elif kind == DECOY:
            # Blue knows the hosts and its own decoys, so it knows whether this one found a place.
            present = int(np.packbits(self.decoys[host], bitorder="little")[0])
            if FITTING_DECOYS[host, present] >> decoy & 1:
                self.decoys[host, decoy] = 1
                self.decoy_counts[host] += 1
        if kind in MEMORY_OF:
            self.recency[host, MEMORY_OF[kind]] = 1
        activity = seen.reshape(NUM_HOSTS, 4)[:, :2] == 1
        exploited = activity[:, 1]
        scanned = activity[:, 0] & ~exploited
        # What red found at its first scan is what it will believe for long, if not for ever.
        first = scanned & (self.scans == 0)
        self.baits[first] = self.decoys[first]
        self.scans[scanned] = 1
        self.touched[activity[:, 0]] = 1
        self.recency[scanned, SAW_SCAN] = 1
        self.recency[exploited, SAW_EXPLOIT] = 1


def shipped_run() -> Path:
    """Where the policy that comes with the package lies."""
    path = Path(str(resources.files("hundredfold.envs.cage2") / "shipped"))
    if not path.is_dir():
        raise SettingsError("this installation carries no trained cage2 policy.")
    return path
