"""Red agents of CybORG: B_line, Meander and Sleep.

Red chooses after blue and green have acted, from the success of its last action and from what it
has learned. An agent returns an action and its target: a subnet to discover, else a host.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from hundredfold.core.numba_kernels import inlined
from hundredfold.envs.cage2.network import NONE
from hundredfold.envs.cage2.network_tables import VIA_FIRST, VIA_LINK
from hundredfold.envs.cage2.random_draws import (
    RED_ACTION_MISMATCH,
    RED_TARGET_MISMATCH,
    has_recorded_draws,
    pick_host,
    record_error,
)
from hundredfold.envs.cage2.red_actions import DISCOVER, ESCALATE, EXPLOIT, IMPACT, SCAN, SLEEP
from hundredfold.envs.cage2.state import FALSE, NOT_DRAWN, RED_ACTION, RED_TARGET, TRUE

B_LINE, MEANDER, SLEEP_AGENT = range(3)
RED_AGENTS: Final = ("b_line", "meander", "sleep")
OWN: Final = 3
"""Code of a red agent of the user's own (`own_red`)."""
MIX: Final = -1
"""Setting that draws the red agent for every episode."""

# B_line's script: action, and the step to continue with after a failure. Its targets depend on the network: the
# subnet of the entry host, three times the host it drew, three times the host that one reveals, the relay's subnet,
# three times the relay, four times the server.
B_LINE_SCRIPT: Final = (
    (DISCOVER, 0),
    (SCAN, 1),
    (EXPLOIT, 2),
    (ESCALATE, 2),
    (SCAN, 2),
    (EXPLOIT, 2),
    (ESCALATE, 5),
    (DISCOVER, 5),
    (SCAN, 5),
    (EXPLOIT, 5),
    (ESCALATE, 9),
    (SCAN, 9),
    (EXPLOIT, 9),
    (ESCALATE, 12),
    (IMPACT, 13),
)
SCRIPT_ACTION, SCRIPT_AFTER_FAILURE = np.array(B_LINE_SCRIPT, np.int64).T.copy()
LAST_SCRIPT_STEP: Final = len(B_LINE_SCRIPT) - 1
SCAN_FIRST: Final = 1
EXPLOIT_SERVER: Final = 12


@inlined
def b_line(state: Any, i: Any) -> Any:
    """B_line: follow a fixed script towards the server, going back where a step fails.

    It picks its first target (one of User1-4 in the standard network) once per episode. If the scan before
    its first attack on the server was empty, it starts over from its first target.
    """
    hidden, network = state.hidden[i], state.network
    position: Any = np.int64(hidden.b_line_step)
    position = min(position + 1, LAST_SCRIPT_STEP) if hidden.red_success == TRUE else SCRIPT_AFTER_FAILURE[position]
    if position == EXPLOIT_SERVER:
        if hidden.empty_scan and not hidden.b_line_reached_server:
            position = SCAN_FIRST
        else:
            hidden.b_line_reached_server = 1
    hidden.b_line_step = position

    if position == SCAN_FIRST and hidden.b_line_user_host == NONE:
        hidden.b_line_user_host = pick_host(state, i, network.first_targets)
    target: Any = network.script_target[position]
    if target == VIA_FIRST:
        target = np.int64(hidden.b_line_user_host)
    elif target == VIA_LINK:
        target = network.linked_host[hidden.b_line_user_host]
    return SCRIPT_ACTION[position], target


@inlined
def meander(state: Any, i: Any) -> Any:
    """Meander: discover, scan, escalate and exploit everything red knows, in that order.

    Each subnet is discovered and each host scanned once, even without success. After a failed
    exploit it attacks its deepest hosts again.
    """
    update_after_exploit(state, i)
    update_after_escalation(state, i)
    hidden, network = state.hidden[i], state.network
    if hidden.hosts_escalated >> network.server & 1:
        hidden.last_escalated = network.server
        return np.int64(IMPACT), np.int64(network.server)

    for subnet in range(network.num_subnets):
        if state.red_subnets[i] & ~hidden.subnets_tried & 1 << subnet:
            hidden.subnets_tried |= 1 << subnet
            return np.int64(DISCOVER), np.int64(subnet)

    known = known_hosts(state, i)
    unscanned = known & ~hidden.hosts_scanned
    if unscanned:
        host = pick_host(state, i, unscanned)
        hidden.hosts_scanned |= 1 << host
        return np.int64(SCAN), host

    ever_exploited = hidden.hosts_ever_exploited
    held = (1 << network.entry | ever_exploited) & (~ever_exploited | hidden.hosts_exploited)
    unescalated = held & ~hidden.hosts_escalated
    if unescalated:
        host = pick_host(state, i, unescalated)
        hidden.hosts_escalated |= 1 << host
        hidden.last_escalated = host
        return np.int64(ESCALATE), host

    # Never empty in the standard network: Defender is known as soon as its subnet is, and every attack on it fails.
    unexploited = known & ~hidden.hosts_exploited
    if not unexploited:
        return np.int64(SLEEP), np.int64(NONE)
    host = pick_host(state, i, unexploited)
    hidden.hosts_exploited |= 1 << host
    hidden.last_exploited = host
    return np.int64(EXPLOIT), host


@inlined
def known_hosts(state: Any, i: Any) -> Any:
    """Mask of the hosts whose address red knows."""
    mask: Any = 0
    for host in range(state.network.num_hosts):
        mask |= np.int64(state.known[i, host]) << host
    return mask


@inlined
def update_after_exploit(state: Any, i: Any) -> None:
    """Meander's memory after an exploit: remember a success, or retry the deepest hosts.

    After a failure these are the escalated hosts of the server's subnet or, if there are none, those that
    open it (Enterprise0-2 in the standard network); it will exploit and escalate them again.
    """
    hidden = state.hidden[i]
    if hidden.last_exploited == NONE:
        return
    target = 1 << hidden.last_exploited
    hidden.last_exploited = NONE
    if hidden.red_success == TRUE:
        hidden.hosts_ever_exploited |= target
        return
    to_retry = hidden.hosts_escalated & state.network.server_subnet
    if not to_retry:
        to_retry = hidden.hosts_escalated & state.network.openers
    hidden.hosts_escalated &= ~to_retry
    hidden.hosts_exploited &= ~(to_retry | target)


@inlined
def update_after_escalation(state: Any, i: Any) -> None:
    """Meander's memory after an escalation or Impact: retry a failure, with a new exploit first."""
    hidden = state.hidden[i]
    if hidden.last_escalated == NONE:
        return
    target = 1 << hidden.last_escalated
    hidden.last_escalated = NONE
    if hidden.red_success == FALSE:
        hidden.hosts_escalated &= ~target
        hidden.hosts_exploited &= ~(target & hidden.hosts_ever_exploited)


@inlined
def choose_red_action(state: Any, i: Any) -> Any:
    """Red's next action and target: forced from outside, or chosen by the episode's red agent."""
    if state.forced_red.shape[0] > 0:
        return np.int64(state.forced_red[i, 0]), np.int64(state.forced_red[i, 1])
    agent = state.hidden[i].red
    if agent == B_LINE:
        action, target = b_line(state, i)
    elif agent == MEANDER:
        action, target = meander(state, i)
    else:
        action, target = np.int64(SLEEP), np.int64(NONE)
    if has_recorded_draws(state):
        if state.draws[i, RED_ACTION] not in (NOT_DRAWN, action):
            record_error(state, i, RED_ACTION_MISMATCH)
        if state.draws[i, RED_TARGET] not in (NOT_DRAWN, target):
            record_error(state, i, RED_TARGET_MISMATCH)
    return action, target
