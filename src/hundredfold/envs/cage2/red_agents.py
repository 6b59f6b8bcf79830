"""Red agents of CybORG: B_line, Meander and Sleep.

Red chooses after blue and green have acted, from the success of its last action and from what it
has learned. An agent returns an action and its target: a subnet to discover, else a host.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from hundredfold.core.numba_kernels import inlined
from hundredfold.envs.cage2.network import (
    ENTERPRISE,
    ENTERPRISE0,
    ENTERPRISE1,
    ENTERPRISE2,
    LINKED_HOST,
    NONE,
    NUM_HOSTS,
    OP_HOST0,
    OP_HOST1,
    OP_HOST2,
    OP_SERVER0,
    SUBNETS,
    USER,
    USER0,
    USER1,
    USER2,
    USER3,
    USER4,
)
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
MIX: Final = 3
"""Setting that draws the red agent for every episode."""

# B_line's script: action, target, and the step to continue with after a failure. `VIA_USER` is the
# user host it picked, `VIA_LINK` the enterprise host linked to it.
VIA_USER, VIA_LINK = -1, -2
B_LINE_SCRIPT: Final = (
    (DISCOVER, USER, 0),
    (SCAN, VIA_USER, 1),
    (EXPLOIT, VIA_USER, 2),
    (ESCALATE, VIA_USER, 2),
    (SCAN, VIA_LINK, 2),
    (EXPLOIT, VIA_LINK, 2),
    (ESCALATE, VIA_LINK, 5),
    (DISCOVER, ENTERPRISE, 5),
    (SCAN, ENTERPRISE2, 5),
    (EXPLOIT, ENTERPRISE2, 5),
    (ESCALATE, ENTERPRISE2, 9),
    (SCAN, OP_SERVER0, 9),
    (EXPLOIT, OP_SERVER0, 9),
    (ESCALATE, OP_SERVER0, 12),
    (IMPACT, OP_SERVER0, 13),
)
SCRIPT_ACTION, SCRIPT_TARGET, SCRIPT_AFTER_FAILURE = np.array(B_LINE_SCRIPT, np.int64).T.copy()
LAST_SCRIPT_STEP: Final = len(B_LINE_SCRIPT) - 1
SCAN_USER: Final = 1
EXPLOIT_SERVER: Final = 12

USER_TARGETS: Final = 1 << USER1 | 1 << USER2 | 1 << USER3 | 1 << USER4
ENTERPRISE_SERVERS: Final = 1 << ENTERPRISE0 | 1 << ENTERPRISE1 | 1 << ENTERPRISE2
OPERATIONAL_HOSTS: Final = 1 << OP_HOST0 | 1 << OP_HOST1 | 1 << OP_HOST2 | 1 << OP_SERVER0


@inlined
def b_line(state: Any, i: Any) -> Any:
    """B_line: follow a fixed script towards Op_Server0, going back where a step fails.

    It picks its first target, one of User1-4, once per episode. If the scan before its first attack
    on Op_Server0 was empty, it starts over from its user host.
    """
    hidden = state.hidden[i]
    position: Any = np.int64(hidden.b_line_step)
    position = min(position + 1, LAST_SCRIPT_STEP) if hidden.red_success == TRUE else SCRIPT_AFTER_FAILURE[position]
    if position == EXPLOIT_SERVER:
        if hidden.empty_scan and not hidden.b_line_reached_server:
            position = SCAN_USER
        else:
            hidden.b_line_reached_server = 1
    hidden.b_line_step = position

    if position == SCAN_USER and hidden.b_line_user_host == NONE:
        hidden.b_line_user_host = pick_host(state, i, USER_TARGETS)
    target: Any = SCRIPT_TARGET[position]
    if target == VIA_USER:
        target = np.int64(hidden.b_line_user_host)
    elif target == VIA_LINK:
        target = LINKED_HOST[hidden.b_line_user_host]
    return SCRIPT_ACTION[position], target


@inlined
def meander(state: Any, i: Any) -> Any:
    """Meander: discover, scan, escalate and exploit everything red knows, in that order.

    Each subnet is discovered and each host scanned once, even without success. After a failed
    exploit it attacks its deepest hosts again.
    """
    update_after_exploit(state, i)
    update_after_escalation(state, i)
    hidden = state.hidden[i]
    if hidden.hosts_escalated >> OP_SERVER0 & 1:
        hidden.last_escalated = OP_SERVER0
        return np.int64(IMPACT), np.int64(OP_SERVER0)

    for subnet in range(len(SUBNETS)):
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
    held = (1 << USER0 | ever_exploited) & (~ever_exploited | hidden.hosts_exploited)
    unescalated = held & ~hidden.hosts_escalated
    if unescalated:
        host = pick_host(state, i, unescalated)
        hidden.hosts_escalated |= 1 << host
        hidden.last_escalated = host
        return np.int64(ESCALATE), host

    # Never empty: Defender is known as soon as its subnet is, and every attack on it fails.
    host = pick_host(state, i, known & ~hidden.hosts_exploited)
    hidden.hosts_exploited |= 1 << host
    hidden.last_exploited = host
    return np.int64(EXPLOIT), host


@inlined
def known_hosts(state: Any, i: Any) -> Any:
    """Mask of the hosts whose address red knows."""
    mask: Any = 0
    for host in range(NUM_HOSTS):
        mask |= np.int64(state.known[i, host]) << host
    return mask


@inlined
def update_after_exploit(state: Any, i: Any) -> None:
    """Meander's memory after an exploit: remember a success, or retry the deepest hosts.

    After a failure these are the escalated hosts of the operational subnet or, if there are none,
    those of Enterprise0-2; it will exploit and escalate them again.
    """
    hidden = state.hidden[i]
    if hidden.last_exploited == NONE:
        return
    target = 1 << hidden.last_exploited
    hidden.last_exploited = NONE
    if hidden.red_success == TRUE:
        hidden.hosts_ever_exploited |= target
        return
    to_retry = hidden.hosts_escalated & OPERATIONAL_HOSTS
    if not to_retry:
        to_retry = hidden.hosts_escalated & ENTERPRISE_SERVERS
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
