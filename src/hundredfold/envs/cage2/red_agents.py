"""Red's agents: how B_line, Meander and Sleep choose their next move.

Red decides after blue and green have moved, from the success of its own last move and from what it
has learned. An agent returns an action and its target: a subnet for discoveries, a host else.
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
    LINK,
    NOBODY,
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
    OTHER_RED_ACTION,
    OTHER_RED_TARGET,
    is_recorded,
    note_trouble,
    pick_host,
)
from hundredfold.envs.cage2.red_actions import DISCOVER, ESCALATE, EXPLOIT, IMPACT, SCAN, SLEEP
from hundredfold.envs.cage2.state import FALSE, NOT_DRAWN, RED_ACTION, RED_TARGET, TRUE

B_LINE, MEANDER, ASLEEP = range(3)
RED_AGENTS: Final = ("b_line", "meander", "sleep")
MIX: Final = 3
"""Red's setting when the agent is drawn anew for every episode."""

# B_line's plan, step by step, and where it goes on after a step that did not succeed. `VIA_USER` is
# the user host it picked, `VIA_LINK` the enterprise host that one is linked to.
VIA_USER, VIA_LINK = -1, -2
B_LINE_PLAN: Final = (
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
PLAN_ACTION, PLAN_TARGET, PLAN_AFTER_FAILURE = np.array(B_LINE_PLAN, np.int64).T.copy()
LAST_PLAN_STEP: Final = len(B_LINE_PLAN) - 1
SCAN_USER: Final = 1
EXPLOIT_SERVER: Final = 12

USER_TARGETS: Final = 1 << USER1 | 1 << USER2 | 1 << USER3 | 1 << USER4
ENTERPRISE_SERVERS: Final = 1 << ENTERPRISE0 | 1 << ENTERPRISE1 | 1 << ENTERPRISE2
OPERATIONAL_HOSTS: Final = 1 << OP_HOST0 | 1 << OP_HOST1 | 1 << OP_HOST2 | 1 << OP_SERVER0


@inlined
def b_line(game: Any, i: Any) -> Any:
    """Climb a fixed plan towards Op_Server0, falling back where a step fails.

    It picks its way in, one of User1-4, once per episode. When it is about to attack Op_Server0 for
    the first time and the scan before came back empty, it starts over from its user host.
    """
    secrets = game.secrets[i]
    position: Any = np.int64(secrets.b_line)
    if secrets.red_success == TRUE:
        position = min(position + 1, LAST_PLAN_STEP)
    else:
        position = PLAN_AFTER_FAILURE[position]
    if position == EXPLOIT_SERVER:
        if secrets.empty_scan and not secrets.b_line_reached_server:
            position = SCAN_USER
        else:
            secrets.b_line_reached_server = 1
    secrets.b_line = position

    if position == SCAN_USER and secrets.b_line_user == NOBODY:
        secrets.b_line_user = pick_host(game, i, USER_TARGETS)
    target: Any = PLAN_TARGET[position]
    if target == VIA_USER:
        target = np.int64(secrets.b_line_user)
    elif target == VIA_LINK:
        target = LINK[secrets.b_line_user]
    return PLAN_ACTION[position], target


@inlined
def meander(game: Any, i: Any) -> Any:
    """Wander through everything red knows: discover, scan, escalate, exploit, in that order.

    Subnets and hosts are tried and scanned once, even in vain. A failed exploit makes it doubt what
    it holds deepest in the network and take it again.
    """
    learn_from_last_exploit(game, i)
    learn_from_last_escalation(game, i)
    secrets = game.secrets[i]
    if secrets.hosts_escalated >> OP_SERVER0 & 1:
        secrets.last_escalated = OP_SERVER0
        return np.int64(IMPACT), np.int64(OP_SERVER0)

    for subnet in range(len(SUBNETS)):
        if game.red_subnets[i] & ~secrets.subnets_tried & 1 << subnet:
            secrets.subnets_tried |= 1 << subnet
            return np.int64(DISCOVER), np.int64(subnet)

    known = known_hosts(game, i)
    unscanned = known & ~secrets.hosts_scanned
    if unscanned:
        host = pick_host(game, i, unscanned)
        secrets.hosts_scanned |= 1 << host
        return np.int64(SCAN), host

    mastered = secrets.hosts_mastered
    held = (1 << USER0 | mastered) & (~mastered | secrets.hosts_exploited)
    unescalated = held & ~secrets.hosts_escalated
    if unescalated:
        host = pick_host(game, i, unescalated)
        secrets.hosts_escalated |= 1 << host
        secrets.last_escalated = host
        return np.int64(ESCALATE), host

    # Never empty: Defender is known as soon as its subnet is, and every attack on it fails.
    host = pick_host(game, i, known & ~secrets.hosts_exploited)
    secrets.hosts_exploited |= 1 << host
    secrets.last_exploited = host
    return np.int64(EXPLOIT), host


@inlined
def known_hosts(game: Any, i: Any) -> Any:
    """The set of hosts whose address red knows."""
    mask: Any = 0
    for host in range(NUM_HOSTS):
        mask |= np.int64(game.known[i, host]) << host
    return mask


@inlined
def learn_from_last_exploit(game: Any, i: Any) -> None:
    """After a success the host is mastered; after a failure Meander doubts its deepest conquests.

    The doubted hosts are those it escalated in the operational subnet or, if there are none, among
    Enterprise0-2; it will exploit and escalate them again.
    """
    secrets = game.secrets[i]
    if secrets.last_exploited == NOBODY:
        return
    target = 1 << secrets.last_exploited
    secrets.last_exploited = NOBODY
    if secrets.red_success == TRUE:
        secrets.hosts_mastered |= target
        return
    doubted = secrets.hosts_escalated & OPERATIONAL_HOSTS
    if not doubted:
        doubted = secrets.hosts_escalated & ENTERPRISE_SERVERS
    secrets.hosts_escalated &= ~doubted
    secrets.hosts_exploited &= ~(doubted | target)


@inlined
def learn_from_last_escalation(game: Any, i: Any) -> None:
    """A failed escalation or impact is to be repeated; a host once mastered is exploited before."""
    secrets = game.secrets[i]
    if secrets.last_escalated == NOBODY:
        return
    target = 1 << secrets.last_escalated
    secrets.last_escalated = NOBODY
    if secrets.red_success == FALSE:
        secrets.hosts_escalated &= ~target
        secrets.hosts_exploited &= ~(target & secrets.hosts_mastered)


@inlined
def choose_red(game: Any, i: Any) -> Any:
    """Red's next action and target: forced from outside, or chosen by the episode's agent."""
    if game.forced_red.shape[0] > 0:
        return np.int64(game.forced_red[i, 0]), np.int64(game.forced_red[i, 1])
    agent = game.secrets[i].red
    if agent == B_LINE:
        action, target = b_line(game, i)
    elif agent == MEANDER:
        action, target = meander(game, i)
    else:
        action, target = np.int64(SLEEP), np.int64(NOBODY)
    if is_recorded(game):
        if game.draws[i, RED_ACTION] not in (NOT_DRAWN, action):
            note_trouble(game, i, OTHER_RED_ACTION)
        if game.draws[i, RED_TARGET] not in (NOT_DRAWN, target):
            note_trouble(game, i, OTHER_RED_TARGET)
    return action, target
