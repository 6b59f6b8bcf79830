"""A trained policy as a stand-alone blue agent for CybORG: bits in, one action out (52 and 145 on its network).

The policy also needs the channels and the action mask of the env. They follow from blue's actions
and the bits it has observed, so the agent computes them itself, one episode at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import ArrayLike

from hundredfold.core.batch import Arrays, BoolArray, IntArray
from hundredfold.core.errors import SettingsError, ShapeError
from hundredfold.envs.cage2.action_mask import sensible_mask
from hundredfold.envs.cage2.env import Cage2Settings, Ruleset
from hundredfold.envs.cage2.network import NUM_DECOYS, NUM_EXPLOITS
from hundredfold.envs.cage2.network_tables import ANALYSE, DECOY, REMOVE, RESTORE, network_tables
from hundredfold.envs.cage2.observation import TIME_UNIT_STEPS
from hundredfold.envs.cage2.raw_observation import read_connections, update_exploits
from hundredfold.envs.cage2.state import DID_ANALYSE, DID_REMOVE, DID_RESTORE, NUM_MEMORY_EVENTS, SAW_EXPLOIT, SAW_SCAN

SHIPPED: Final = "shipped"
"""Name of the policy in the package that sees the 52 bits and what follows from them."""
SHIPPED_EXPLOITS: Final = "shipped-exploits"
"""Name of the policy in the package that also sees the channel `exploits`."""
SHIPPED_POLICIES: Final = (SHIPPED, SHIPPED_EXPLOITS)
MEMORY_EVENT: Final = {ANALYSE: DID_ANALYSE, REMOVE: DID_REMOVE, RESTORE: DID_RESTORE}


class Policy(Protocol):
    """A policy with a deterministic action for each row of a batch of observations."""

    def act(self, observation: Arrays, mask: BoolArray | None) -> IntArray: ...

    def reset(self) -> None:
        """Forget the last episode."""
        ...


class BlueAgent:
    """Blue agent for one episode at a time: `reset()`, then `act(bits)` for every observation.

    The first observation is that of the simulator's reset, all zero.

    Args:
        policy: trained policy.
        settings: settings of the env it was trained on; the channel `remaining` is not possible.
    """

    def __init__(self, policy: Policy, settings: Cage2Settings) -> None:
        if "remaining" in settings.channels:
            raise SettingsError(
                "CybORG does not reveal the steps left, which the channel `remaining` holds; "
                "use a policy that was trained without it."
            )
        self.policy = policy
        self.network = settings.network
        self.tables = network_tables(self.network)
        self.channels = settings.channels
        self.green_scans = settings.green == "scan"
        self.masked = settings.action_mask == "sensible"
        self.reset()

    @classmethod
    def load(cls, run: str | Path = SHIPPED, checkpoint: str = "best", ruleset: Ruleset = "current") -> BlueAgent:
        """Load the agent of a run.

        Args:
            run: run folder, or a policy of the package: `shipped` or `shipped-exploits`.
            checkpoint: best, last or the number of an epoch.
            ruleset: version of the simulator that the policy of the package was trained for.
        """
        from hundredfold.api import load
        from hundredfold.training.run_folder import RunFolder

        path = shipped_run(str(run), ruleset) if str(run) in SHIPPED_POLICIES else Path(run)
        settings = RunFolder.open(path).settings().env_settings
        if not isinstance(settings, Cage2Settings):
            raise SettingsError(f"{run} was trained on another env, not on cage2.")
        return cls(load(path, checkpoint), settings)

    def reset(self) -> None:
        """Clear the memory for a new episode."""
        self.policy.reset()
        self.last_action: int | None = None
        self.steps = 0
        hosts = self.network.num_hosts
        self.decoys = np.zeros((hosts, NUM_DECOYS), np.uint8)
        self.decoy_counts = np.zeros(hosts, np.uint8)
        self.scans = np.zeros(hosts, np.uint8)
        self.activity_seen = np.zeros(hosts, np.uint8)
        self.scanned_decoys = np.zeros((hosts, NUM_DECOYS), np.uint8)
        self.recency = np.zeros((hosts, NUM_MEMORY_EVENTS), np.float32)
        self.exploits = np.zeros((hosts, NUM_EXPLOITS), np.uint8)

    def act(self, bits: ArrayLike, raw: Mapping[str, Any] | None = None) -> int:
        """Action for the current observation.

        Args:
            bits: the bits of CybORG's ChallengeWrapper, 52 on the standard network.
            raw: CybORG's raw observation, for policies with the channel `exploits`.
        """
        if "exploits" in self.channels and raw is None:
            raise ShapeError("this policy has the channel `exploits`: pass CybORG's raw observation, act(bits, raw).")
        current = np.asarray(bits)
        if current.shape != (self.network.num_bits,) or not np.isin(current, (0, 1)).all():
            raise ShapeError(
                f"act() got an observation of shape {current.shape}; expected {self.network.num_bits} zeros and "
                "ones, as CybORG's ChallengeWrapper returns."
            )
        if self.last_action is not None:
            self._update_memory(self.last_action, current)
            if raw is not None:
                update_exploits(self.exploits, read_connections(raw, self.network), self.last_action, self.network)
        mask = None
        if self.masked:
            mask = sensible_mask(current, self.decoys, self.activity_seen, self.tables, self.green_scans)[None]
        self.last_action = int(self.policy.act(self.observation(current), mask)[0])
        return self.last_action

    def observation(self, bits: ArrayLike) -> Arrays:
        """Observation of the policy: named arrays with one row, as in the env."""
        arrays: Arrays = {
            "bits": np.asarray(bits, np.uint8),
            "decoys": self.decoys,
            "decoy_counts": self.decoy_counts,
            "scans": self.scans,
            "scanned_decoys": self.scanned_decoys,
            "recency": self.recency,
            "elapsed": np.array([self.steps / TIME_UNIT_STEPS], np.float32),
            "exploits": self.exploits,
        }
        return {name: arrays[name][None] for name in ("bits", *self.channels)}

    def _update_memory(self, action: int, bits: IntArray) -> None:
        """Record an action and the bits observed after it, as `observation.update_memory`."""
        self.steps += 1
        self.recency /= 1 + self.recency
        tables = self.tables
        kind, host, decoy = tables.action_kind[action], tables.action_host[action], tables.action_decoy[action]
        if kind == RESTORE:
            self.decoys[host] = 0
            self.decoy_counts[host] = 0
        elif kind == DECOY:
            # Blue knows the network and its own decoys, so it knows whether this one was installed.
            present = int(np.packbits(self.decoys[host], bitorder="little")[0])
            if tables.installable_decoys[host, present] >> decoy & 1:
                self.decoys[host, decoy] = 1
                self.decoy_counts[host] += 1
        if kind in MEMORY_EVENT:
            self.recency[host, MEMORY_EVENT[kind]] = 1
        activity = bits.reshape(-1, 4)[:, :2] == 1
        exploited = activity[:, 1]
        scanned = activity[:, 0] & ~exploited
        first_scan = scanned & (self.scans == 0)
        self.scanned_decoys[first_scan] = self.decoys[first_scan]
        self.scans[scanned] = 1
        self.activity_seen[activity[:, 0]] = 1
        self.recency[scanned, SAW_SCAN] = 1
        self.recency[exploited, SAW_EXPLOIT] = 1


def shipped_run(name: str = SHIPPED, ruleset: Ruleset = "current") -> Path:
    """Run folder of a policy in the package: the one trained for this ruleset, else that of `current`.

    Args:
        name: one of `SHIPPED_POLICIES`. Folders are named after the ruleset, and after the channel if it has one:
            `shipped/leaderboard`, `shipped/leaderboard-exploits`.
        ruleset: version of the simulator.
    """
    folder = Path(str(resources.files("hundredfold.envs.cage2") / "shipped"))
    suffix = name.removeprefix(SHIPPED)
    for trained_for in dict.fromkeys((ruleset, "current")):
        if (path := folder / f"{trained_for}{suffix}").is_dir():
            return path
    raise SettingsError(f"this installation has no policy {name!r} of cage2: {folder / f'current{suffix}'} is missing.")
