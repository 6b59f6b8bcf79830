"""Reward and observation of blue: the bits, the optional channels and blue's memory.

The bits are those of CybORG's table wrapper, four per host: two for the activity in this step, two
for the compromised status, which persists from step to step in the observation itself. Channels and
memory follow from blue's own actions and the bits it has observed, so an agent in the original
simulator can compute the same (`blue_agent`).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from hundredfold.core.numba_kernels import inlined
from hundredfold.envs.cage2.network import NONE, NUM_DECOYS, NUM_EXPLOITS, SSH_ATTEMPTS, SSH_BRUTE_FORCE
from hundredfold.envs.cage2.network_tables import ANALYSE, REMOVE, RESTORE
from hundredfold.envs.cage2.state import (
    DID_ANALYSE,
    DID_REMOVE,
    DID_RESTORE,
    FAILED_EXPLOIT,
    NO_EXPLOIT,
    NUM_MEMORY_EVENTS,
    PRIVILEGED_ACCESS,
    SAW_EXPLOIT,
    SAW_SCAN,
    SHELL_BREACH,
    SILENT_BREACH,
)

OT_DOWN_TENTHS: Final = 100
RESTORE_TENTHS: Final = 10
MONITOR_THRESHOLD: Final = 3
"""Events on a host, and distinct ports among them, that Monitor counts as many."""
TIME_UNIT_STEPS: Final = 100
"""Unit of the channels `elapsed` and `remaining`: 100 steps."""

ACTIVITY_NONE, ACTIVITY_SCAN, ACTIVITY_EXPLOIT = range(3)
ONE: Final = np.float32(1.0)


@inlined
def reward_tenths(state: Any, i: Any, action: Any) -> Any:
    """Reward in tenths, never positive.

    Each host with a privileged red session costs its confidentiality value, a stopped OT service
    10, a Restore 1. User-level sessions cost nothing.
    """
    tenths = 0
    for host in range(state.network.num_hosts):
        if state.access[i, host] == PRIVILEGED_ACCESS:
            tenths -= state.network.cost_tenths[host]
    if not state.ot_up[i]:
        tenths -= OT_DOWN_TENTHS
    if state.network.action_kind[action] == RESTORE:
        tenths -= RESTORE_TENTHS
    return tenths


@inlined
def update_observation(
    state: Any,
    observation: Any,
    i: Any,
    action: Any,
    placed_at: Any,
    malware_at: Any,
    green_target: Any,
    red_host: Any,
    red_scanned: Any,
    service_events: Any,
    shell_events: Any,
    cardiff: Any,
) -> None:
    """Rebuild the observation after blue, green and red have acted.

    Args:
        state: game state.
        observation: observation to update.
        i: row of the env.
        action: blue's action.
        placed_at: host on which blue placed a decoy, or NONE.
        malware_at: host on which Analyse found malware, or NONE. Overrides the exploit status.
        green_target: host that green scanned, or NONE.
        red_host: host with events caused by red, or NONE.
        red_scanned: red scanned `red_host`.
        service_events: events of red's exploit on one service port.
        shell_events: events of a detected shell, on a port of its own.
        cardiff: use the corrected table wrapper.
    """
    for host in range(state.network.num_hosts):
        observation.bits[i, 4 * host] = 0
        observation.bits[i, 4 * host + 1] = 0
    apply_own_action(state, observation, i, action, placed_at)
    for host in (red_host, green_target, placed_at):
        if host == NONE:
            continue
        by_red = host == red_host
        scans = (1 if by_red and red_scanned else 0) + (1 if host == green_target else 0)
        activity = classify_activity(
            scans * (state.network.base_events[host] + state.n_decoys[i, host]),
            state.network.distinct_ports[host, state.decoys[i, host]],
            service_events if by_red else 0,
            shell_events if by_red else 0,
            1 if host == placed_at else 0,
            cardiff,
        )
        set_activity(observation, i, host, activity)
    if malware_at != NONE:
        set_compromised(observation, i, malware_at, 1, 1)
    set_time_channels(state, observation, i)


@inlined
def classify_activity(
    scan_events: Any, open_ports: Any, service_events: Any, shell_events: Any, placed: Any, cardiff: Any
) -> Any:
    """Activity that Monitor infers from the events on one host: None, Scan or Exploit.

    A decoy placed in this step counts as one more event without a port: it hides a scan of fewer
    than three ports, except with the corrected (`cardiff`) wrapper.
    """
    events = scan_events + service_events + shell_events
    ports = (open_ports if scan_events else 1 if service_events else 0) + shell_events
    many = events + placed >= MONITOR_THRESHOLD
    if many and ports >= MONITOR_THRESHOLD:
        return ACTIVITY_SCAN
    if shell_events or (many and ports == 1):
        return ACTIVITY_EXPLOIT
    if placed and not (cardiff and events):
        return ACTIVITY_NONE
    return ACTIVITY_SCAN


@inlined
def set_activity(observation: Any, i: Any, host: Any, activity: Any) -> None:
    """Set the activity bits: None 00, Scan 10, Exploit 11; an exploit sets the status to User."""
    if activity == ACTIVITY_NONE:
        return
    observation.bits[i, 4 * host] = 1
    if activity == ACTIVITY_EXPLOIT:
        observation.bits[i, 4 * host + 1] = 1
        set_compromised(observation, i, host, 0, 1)
    elif observation.scans.shape[0] > 0:
        observation.scans[i, host] = 1


@inlined
def set_compromised(observation: Any, i: Any, host: Any, first: Any, second: Any) -> None:
    """Set the compromised bits: No 00, Unknown 10, User 01, Privileged 11."""
    observation.bits[i, 4 * host + 2] = first
    observation.bits[i, 4 * host + 3] = second


@inlined
def apply_own_action(state: Any, observation: Any, i: Any, action: Any, placed_at: Any) -> None:
    """Effect of blue's own action: Restore sets the status to No, Remove any other to Unknown."""
    network = state.network
    kind, host = network.action_kind[action], network.action_host[action]
    if kind == RESTORE:
        set_compromised(observation, i, host, 0, 0)
        clear_decoys(observation, i, host)
    elif kind == REMOVE:
        if observation.bits[i, 4 * host + 2] or observation.bits[i, 4 * host + 3]:
            set_compromised(observation, i, host, 1, 0)
    elif placed_at != NONE:
        if observation.decoys.shape[0] > 0:
            observation.decoys[i, host, network.action_decoy[action]] = 1
        if observation.decoy_counts.shape[0] > 0:
            observation.decoy_counts[i, host] += 1


@inlined
def clear_decoys(observation: Any, i: Any, host: Any) -> None:
    """Set the decoy channels of a host to none."""
    if observation.decoys.shape[0] > 0:
        for decoy in range(NUM_DECOYS):
            observation.decoys[i, host, decoy] = 0
    if observation.decoy_counts.shape[0] > 0:
        observation.decoy_counts[i, host] = 0


@inlined
def update_exploits(
    state: Any,
    observation: Any,
    i: Any,
    action: Any,
    green_target: Any,
    host: Any,
    exploit: Any,
    service_events: Any,
    shell_events: Any,
) -> None:
    """Update the channel `exploits` as the connections of the raw observation show it.

    Connections on one port are an exploit of it (those of a shell have ports of their own), on
    several ports a scan, which hides an exploit of the same host in the same step.

    Args:
        state: game state.
        observation: observation to update.
        i: row of the env.
        action: blue's action.
        green_target: host that green scanned, or NONE.
        host: host that red attacked.
        exploit: exploit that red used, or NONE.
        service_events: its events on one service port.
        shell_events: events of a detected shell.
    """
    if state.network.action_kind[action] == RESTORE:
        for port in range(NUM_EXPLOITS):
            observation.exploits[i, state.network.action_host[action], port] = NO_EXPLOIT
    if service_events == 0:
        return
    events = service_events
    if host == green_target:
        if exploit != SSH_BRUTE_FORCE or state.network.distinct_ports[host, state.decoys[i, host]] != 1:
            return
        events += state.network.base_events[host] + state.n_decoys[i, host]
    observation.exploits[i, host, exploit] = exploit_kind(exploit, events, shell_events)


@inlined
def exploit_kind(exploit: Any, events: Any, shell_events: Any) -> Any:
    """Kind of an exploit from its connections: one alone, or an eleventh to SSH, is a breach."""
    if shell_events:
        return SHELL_BREACH
    if exploit == SSH_BRUTE_FORCE:
        return SILENT_BREACH if events > SSH_ATTEMPTS else FAILED_EXPLOIT
    return SILENT_BREACH if events == 1 else FAILED_EXPLOIT


@inlined
def clear_exploits(observation: Any, i: Any) -> None:
    """Set the channel `exploits` to none for a new episode."""
    if observation.exploits.shape[0] > 0:
        for host in range(observation.bits.shape[1] // 4):
            for port in range(NUM_EXPLOITS):
                observation.exploits[i, host, port] = NO_EXPLOIT


@inlined
def set_time_channels(state: Any, observation: Any, i: Any) -> None:
    """Set the channels `elapsed` and `remaining`."""
    hidden = state.hidden[i]
    if observation.elapsed.shape[0] > 0:
        observation.elapsed[i, 0] = hidden.step / TIME_UNIT_STEPS
    if observation.remaining.shape[0] > 0:
        observation.remaining[i, 0] = (hidden.horizon - hidden.step) / TIME_UNIT_STEPS


@inlined
def reset_observation(state: Any, observation: Any, i: Any) -> None:
    """First observation of an episode: all zero except the steps left."""
    for bit in range(observation.bits.shape[1]):
        observation.bits[i, bit] = 0
    for host in range(state.network.num_hosts):
        clear_decoys(observation, i, host)
        if observation.scans.shape[0] > 0:
            observation.scans[i, host] = 0
    clear_exploits(observation, i)
    set_time_channels(state, observation, i)


@inlined
def save_final_observation(observation: Any, final_observation: Any, i: Any) -> None:
    """Copy the observation to the final observation, without the memory channels."""
    # Element by element: a row-to-row assignment makes Numba compile ten seconds of error messages.
    for bit in range(observation.bits.shape[1]):
        final_observation.bits[i, bit] = observation.bits[i, bit]
    for host in range(observation.bits.shape[1] // 4):
        if observation.decoys.shape[0] > 0:
            for decoy in range(NUM_DECOYS):
                final_observation.decoys[i, host, decoy] = observation.decoys[i, host, decoy]
        if observation.decoy_counts.shape[0] > 0:
            final_observation.decoy_counts[i, host] = observation.decoy_counts[i, host]
        if observation.scans.shape[0] > 0:
            final_observation.scans[i, host] = observation.scans[i, host]
        if observation.exploits.shape[0] > 0:
            for port in range(NUM_EXPLOITS):
                final_observation.exploits[i, host, port] = observation.exploits[i, host, port]
    if observation.elapsed.shape[0] > 0:
        final_observation.elapsed[i, 0] = observation.elapsed[i, 0]
    if observation.remaining.shape[0] > 0:
        final_observation.remaining[i, 0] = observation.remaining[i, 0]


@inlined
def update_memory(state: Any, observation: Any, i: Any, action: Any) -> None:
    """Record blue's action and the bits it observed after it."""
    hidden = state.hidden[i]
    decay_memory(observation, i)
    network = state.network
    kind, host = network.action_kind[action], network.action_host[action]
    if kind == ANALYSE:
        mark_event(observation, i, host, DID_ANALYSE)
    elif kind == REMOVE:
        mark_event(observation, i, host, DID_REMOVE)
    elif kind == RESTORE:
        mark_event(observation, i, host, DID_RESTORE)
    for host in range(state.network.num_hosts):
        if not observation.bits[i, 4 * host]:
            continue
        hidden.activity_seen |= 1 << host
        if observation.bits[i, 4 * host + 1]:
            mark_event(observation, i, host, SAW_EXPLOIT)
            continue
        mark_event(observation, i, host, SAW_SCAN)
        if not hidden.scan_seen >> host & 1:
            hidden.scan_seen |= 1 << host
            record_decoys(state, observation, i, host)


@inlined
def decay_memory(observation: Any, i: Any) -> None:
    """Age every recency by one step: from 1 / n to 1 / (n + 1)."""
    if observation.recency.shape[0] > 0:
        for host in range(observation.bits.shape[1] // 4):
            for event in range(NUM_MEMORY_EVENTS):
                recency = observation.recency[i, host, event]
                observation.recency[i, host, event] = recency / (ONE + recency)


@inlined
def mark_event(observation: Any, i: Any, host: Any, event: Any) -> None:
    """Set the recency of an event to 1; it decays as 1/2, 1/3, 1/4, ..."""
    if observation.recency.shape[0] > 0:
        observation.recency[i, host, event] = ONE


@inlined
def record_decoys(state: Any, observation: Any, i: Any, host: Any) -> None:
    """Record the decoys present at the first scan of a host: red may attack them for long."""
    if observation.scanned_decoys.shape[0] > 0:
        for decoy in range(NUM_DECOYS):
            observation.scanned_decoys[i, host, decoy] = state.decoys[i, host] >> decoy & 1


@inlined
def reset_memory(state: Any, observation: Any, i: Any) -> None:
    """Clear blue's memory for a new episode."""
    state.hidden[i].activity_seen = 0
    state.hidden[i].scan_seen = 0
    for host in range(state.network.num_hosts):
        if observation.scanned_decoys.shape[0] > 0:
            for decoy in range(NUM_DECOYS):
                observation.scanned_decoys[i, host, decoy] = 0
        if observation.recency.shape[0] > 0:
            for event in range(NUM_MEMORY_EVENTS):
                observation.recency[i, host, event] = 0


@inlined
def save_final_memory(observation: Any, final_observation: Any, i: Any) -> None:
    """Copy the memory channels to the final observation."""
    for host in range(observation.bits.shape[1] // 4):
        if observation.scanned_decoys.shape[0] > 0:
            for decoy in range(NUM_DECOYS):
                final_observation.scanned_decoys[i, host, decoy] = observation.scanned_decoys[i, host, decoy]
        if observation.recency.shape[0] > 0:
            for event in range(NUM_MEMORY_EVENTS):
                final_observation.recency[i, host, event] = observation.recency[i, host, event]
