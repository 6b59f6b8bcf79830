"""Recorded episodes of cage2: actions, truth and observation of every step, and where points are lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from hundredfold.core.batch import Array, Arrays, FloatArray, IntArray
from hundredfold.envs.cage2.baselines import BluePolicy
from hundredfold.envs.cage2.blue_actions import action_names
from hundredfold.envs.cage2.env import Cage2, Cage2Settings
from hundredfold.envs.cage2.legend import (
    ACCESS,
    ACTIVITY,
    COMPROMISED,
    SUCCESS,
    decoy_names,
    host_bits,
    red_action_name,
)
from hundredfold.envs.cage2.network import DECOYS, Network
from hundredfold.envs.cage2.network_file import STANDARD
from hundredfold.envs.cage2.network_tables import RESTORE, network_tables
from hundredfold.envs.cage2.observation import OT_DOWN_TENTHS, RESTORE_TENTHS
from hundredfold.envs.cage2.red_actions import DISCOVER, RED_ACTIONS
from hundredfold.envs.cage2.red_agents import RED_AGENTS
from hundredfold.envs.cage2.state import INFO, NO_ACCESS, PRIVILEGED_ACCESS

Record = dict[str, Any]

CAUSES: Final = ("red holds it", "OT service stopped", "Restore")
"""Ways to lose points on a host."""
HELD, OT_STOPPED, RESTORED = range(len(CAUSES))
TRUTH: Final = ("known", "scanned", "access", "n_sessions", "decoys", "n_decoys", "ot_up")


@dataclass(frozen=True, slots=True)
class RecordedEpisodes:
    """Episodes of equal length. States have one more entry than steps: the one before the first step."""

    settings: Cage2Settings
    seed: int
    red: IntArray  # (episodes,) index of the red agent
    actions: IntArray  # (episodes, steps)
    rewards: FloatArray  # (episodes, steps)
    info: Arrays  # each (episodes, steps)
    truth: Arrays  # each (episodes, steps + 1, ...)
    bits: Array  # (episodes, steps + 1, 4 * hosts) what blue observes

    @property
    def num_steps(self) -> int:
        return int(self.actions.shape[1])

    @property
    def network(self) -> Network:
        return self.settings.network

    def red_name(self, episode: int) -> str:
        """Name of the red agent of an episode."""
        return (*RED_AGENTS, self.settings.red)[self.red[episode]]

    def lost_tenths(self) -> IntArray:
        """(episodes, steps, hosts, causes) tenths of a point lost; their sum is minus the reward."""
        tables = network_tables(self.network)
        lost = np.zeros((*self.actions.shape, tables.num_hosts, len(CAUSES)), np.int64)
        lost[..., HELD] = (self.truth["access"][:, 1:] == PRIVILEGED_ACCESS) * tables.cost_tenths
        lost[..., tables.server, OT_STOPPED] = (self.truth["ot_up"][:, 1:] == 0) * OT_DOWN_TENTHS
        episode, step = np.nonzero(tables.action_kind[self.actions] == RESTORE)
        lost[episode, step, tables.action_host[self.actions[episode, step]], RESTORED] = RESTORE_TENTHS
        return lost


def record_episodes(
    policy: BluePolicy, settings: Cage2Settings, episodes: int, seed: int, first: int = 0
) -> RecordedEpisodes:
    """Play and record the first episodes of some envs.

    Args:
        policy: blue policy.
        settings: env settings with a single horizon.
        episodes: number of episodes.
        seed: seed of the envs.
        first: id of the first env; episode e is that of env `first + e`, as in `step_rewards`.
    """
    (horizon,) = settings.horizons
    env = Cage2(np.arange(first, first + episodes), settings)
    out = env.reset(seed)
    reset = getattr(policy, "reset", None)
    if reset is not None:
        reset(episodes)
    actions, rewards = np.zeros((episodes, horizon), np.int64), np.zeros((episodes, horizon))
    info = {name: np.zeros((episodes, horizon), spec.dtype) for name, spec in INFO.items()}
    truth = {name: np.zeros((horizon + 1, *out.true_state[name].shape), np.int64) for name in TRUTH}
    bits = np.zeros((horizon + 1, *out.observation["bits"].shape), np.uint8)
    red = env.hidden["red"].astype(np.int64)

    def record_state(step: int) -> None:
        bits[step] = out.observation["bits"]
        for name, array in truth.items():
            array[step] = out.true_state[name]

    record_state(0)
    for step in range(horizon):
        inputs = (out.observation,) if out.mask is None else (out.observation, out.mask)
        actions[:, step] = policy(*inputs)
        if step == horizon - 1:
            # The last step would start the next episode, whose state would replace this one's.
            env.hidden["horizon"] += 1
        env.step(actions[:, step])
        rewards[:, step] = out.reward
        for name, array in info.items():
            array[:, step] = out.info[name]
        record_state(step + 1)
    truth = {name: np.moveaxis(array, 0, 1) for name, array in truth.items()}
    return RecordedEpisodes(settings, seed, red, actions, rewards, info, truth, np.moveaxis(bits, 0, 1))


def replay_record(recorded: RecordedEpisodes, policy: str, episode: int = 0) -> Record:
    """One episode for a replay page; names of codes are in `replay_legend`."""
    activity, compromised = (
        _indices(host_bits(recorded.bits[episode])[..., part], list(names))
        for part, names in ((slice(0, 2), ACTIVITY), (slice(2, 4), COMPROMISED))
    )
    truth = {name: array[episode].tolist() for name, array in recorded.truth.items()}
    return {
        "policy": policy,
        "red": recorded.red_name(episode),
        "seed": recorded.seed,
        "actions": recorded.actions[episode].tolist(),
        "rewards": recorded.rewards[episode].round(1).tolist(),
        **{name: array[episode].tolist() for name, array in recorded.info.items()},
        **truth,
        "activity": activity.tolist(),
        "compromised": compromised.tolist(),
    }


# What a reader of a page should know of those who play, by name.
RED_DESCRIPTIONS: Final = {
    "b_line": "red agent b_line: knows the way to the operational server and takes it",
    "meander": "red agent meander: takes every host it finds, subnet by subnet",
    "sleep": "red agent sleep: does nothing",
}
BLUE_DESCRIPTIONS: Final = {
    "shipped": "shipped: the trained policy of this package",
    "shipped-exploits": "shipped-exploits: the trained policy that also observes exploits by port",
    "sleep": "sleep: no defence",
    "random": "random: any action, all equally often",
    "reactive": "reactive: restores hosts that look compromised",
}


def replay_legend(network: Network = STANDARD) -> Record:
    """Names of the codes in `replay_record`."""
    return {
        "subnets": list(network.subnets),
        "subnet_order": list(network.subnet_order),
        "hosts": [{"name": host.name, "subnet": host.subnet} for host in network.hosts],
        "decoys": list(DECOYS),
        "actions": list(action_names(network)),
        "action_hosts": network_tables(network).action_host.tolist(),
        "red_actions": list(RED_ACTIONS),
        "discover": DISCOVER,
        "start_host": network.entry,
        "ot_host": network.server,
        "access": list(ACCESS),
        "success": list(SUCCESS),
        "activity": list(ACTIVITY.values()),
        "compromised": list(COMPROMISED.values()),
    }


def log_rows(recorded: RecordedEpisodes) -> Iterator[Record]:
    """One row per episode and step in words; hosts with nothing to report are left out."""
    lost, network = recorded.lost_tenths(), recorded.network
    names, hosts = action_names(network), network.host_names
    for episode in range(len(recorded.actions)):
        for step in range(recorded.num_steps):
            codes = {name: int(array[episode, step]) for name, array in recorded.info.items()}
            yield {
                "episode": episode,
                "red_agent": recorded.red_name(episode),
                "step": step + 1,
                "blue": names[recorded.actions[episode, step]],
                "blue_success": SUCCESS[codes["blue_success"]],
                "red": red_action_name(codes["red_action"], codes["red_target"], network),
                "red_success": SUCCESS[codes["red_success"]],
                "reward": round(float(recorded.rewards[episode, step]), 1),
                "return": round(float(recorded.rewards[episode, : step + 1].sum()), 1),
                "lost": {
                    f"{hosts[host]}: {CAUSES[cause]}": lost[episode, step, host, cause] / 10
                    for host, cause in np.argwhere(lost[episode, step])
                },
                "truth": _true_hosts(recorded, episode, step + 1),
                "observed": _observed_hosts(recorded.bits[episode, step + 1], hosts),
            }


def _true_hosts(recorded: RecordedEpisodes, episode: int, step: int) -> Record:
    hosts: Record = {}
    truth = {name: array[episode, step] for name, array in recorded.truth.items()}
    for host, name in enumerate(recorded.network.host_names):
        found: Record = {}
        if truth["access"][host] != NO_ACCESS:
            found |= {"red_access": ACCESS[truth["access"][host]], "red_sessions": int(truth["n_sessions"][host])}
        if truth["decoys"][host]:
            found["decoys"] = decoy_names(int(truth["decoys"][host]))
        if host == recorded.network.server and not truth["ot_up"]:
            found["ot_service"] = "stopped"
        if found:
            hosts[name] = found
    return hosts


def _observed_hosts(bits: Array, names: Sequence[str]) -> Record:
    hosts: Record = {}
    for name, four in zip(names, host_bits(bits).tolist(), strict=True):
        if any(four):
            hosts[name] = {"activity": ACTIVITY[four[0], four[1]], "compromised": COMPROMISED[four[2], four[3]]}
    return hosts


def _indices(bits: IntArray, values: list[tuple[int, int]]) -> IntArray:
    """(...) position of each pair of bits in `values`, from (..., 2)."""
    found = np.full((2, 2), -1)
    for index, pair in enumerate(values):
        found[pair] = index
    return found[bits[..., 0], bits[..., 1]]
