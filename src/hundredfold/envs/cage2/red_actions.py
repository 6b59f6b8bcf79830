"""Red's actions: discover systems, discover services (scan), exploit, escalate, impact.

Every action starts from red's permanent session on the entry host. Some subnets are always reachable
(User and Enterprise in the standard network), others while red holds a session of any level on one of
the hosts that open it (Operational: Enterprise0-2; Defender does not count).

An action returns its success and the network events on its target: whether all ports were scanned,
how many events concern a single service port, and whether a detected shell connected back from a
port of its own (events on port 4444).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

from hundredfold.core.batch import Array
from hundredfold.core.numba_kernels import inlined
from hundredfold.envs.cage2.network import (
    ABSENT,
    ALWAYS_FAILS,
    GIVES_ROOT,
    HARAKA_RCE,
    NONE,
    SSH_ATTEMPTS,
    SSH_BRUTE_FORCE,
    Network,
)
from hundredfold.envs.cage2.network_tables import TRAPPING_DECOYS
from hundredfold.envs.cage2.random_draws import (
    TOO_MANY_SESSIONS,
    RecordedDrawError,
    byte_column,
    is_detected,
    pick_exploit,
    pick_session,
    record_error,
)
from hundredfold.envs.cage2.state import FALSE, MAX_SESSIONS, NO_ACCESS, PRIVILEGED_ACCESS, TRUE, UNKNOWN, USER_ACCESS

SLEEP, DISCOVER, SCAN, EXPLOIT, ESCALATE, IMPACT = range(6)
RED_ACTIONS: Final = (
    "Sleep",
    "DiscoverRemoteSystems",
    "DiscoverNetworkServices",
    "ExploitRemoteService",
    "PrivilegeEscalate",
    "Impact",
)


@inlined
def is_reachable(state: Any, i: Any, subnet: Any) -> Any:
    """Whether red can reach a subnet now."""
    network = state.network
    first, last = network.opener_first[subnet], network.opener_first[subnet + 1]
    sessions = 0
    for opener in range(first, last):
        sessions += state.n_sessions[i, network.opener_hosts[opener]]
    return first == last or sessions > 0


@inlined
def discover_systems(state: Any, i: Any, subnet: Any) -> Any:
    """Learn a subnet and the addresses of all its hosts, if it is reachable."""
    if not is_reachable(state, i, subnet):
        return FALSE
    for host in range(state.network.first_host[subnet], state.network.first_host[subnet + 1]):
        state.known[i, host] = 1
    state.red_subnets[i] |= 1 << subnet
    return TRUE


@inlined
def scan(state: Any, i: Any, host: Any, leaderboard: Any) -> Any:
    """Learn which exploits the open ports suggest; returns whether the host was reached.

    For an unreachable host red still gets TRUE, but learns nothing: an empty scan. In the
    leaderboard ruleset the ports are added to those of earlier scans; else they replace them.
    """
    if not is_reachable(state, i, state.network.subnet_of[host]):
        return False
    hidden = state.hidden[i]
    options = state.network.exploit_options[host, state.decoys[i, host]]
    hidden.exploit_options[host] = options | hidden.exploit_options[host] if leaderboard else options
    state.scanned[i, host] = 1
    return True


@inlined
def exploit(state: Any, i: Any, host: Any, leaderboard: Any) -> Any:
    """Exploit a service that red's last scan of the host suggested.

    A genuine service is hit before a decoy on the same port. Without either, the exploit fails
    without events.

    Returns:
        Success, events on the service port, events of a detected shell, exploit used.
    """
    hidden = state.hidden[i]
    options = hidden.exploit_options[host]
    if options == 0:
        return FALSE, 0, 0, np.int64(NONE)
    chosen = pick_exploit(state, i, options)
    if not is_reachable(state, i, state.network.subnet_of[host]):
        return FALSE, 0, 0, np.int64(chosen)
    service = state.network.genuine_service[chosen, host]
    trapped = service == ABSENT
    if trapped and state.decoys[i, host] & TRAPPING_DECOYS[chosen] == 0:
        return FALSE, 0, 0, np.int64(chosen)

    if chosen == SSH_BRUTE_FORCE:
        if trapped or service == ALWAYS_FAILS:
            return FALSE, SSH_ATTEMPTS, 0, np.int64(chosen)
        open_session(state, i, host, 0, 0)
        return TRUE, SSH_ATTEMPTS + 1, 0, np.int64(chosen)

    if trapped:
        return FALSE, 2, 0, np.int64(chosen)
    if leaderboard and chosen == HARAKA_RCE and hidden.restored >> host & 1:
        return FALSE, 1, 0, np.int64(chosen)
    detected = 1 if is_detected(state, i) else 0
    hidden.malware |= 1 << host
    open_session(state, i, host, 1 if service == GIVES_ROOT else 0, detected)
    return TRUE, 1, detected, np.int64(chosen)


@inlined
def open_session(state: Any, i: Any, host: Any, privileged: Any, removable: Any) -> None:
    """Append red's newest session on a host."""
    hidden = state.hidden[i]
    position = state.n_sessions[i, host]
    if position == MAX_SESSIONS:
        record_error(state, i, TOO_MANY_SESSIONS)
        return
    hidden.privileged[host] |= privileged << position
    hidden.removable[host] |= removable << position
    state.n_sessions[i, host] = position + 1
    if removable and not privileged:
        state.user_removable[i, host] += 1
    level = PRIVILEGED_ACCESS if privileged else USER_ACCESS
    state.access[i, host] = max(state.access[i, host], level)
    if position == 0:
        state.access_first[i, host] = level


@inlined
def escalate(state: Any, i: Any, host: Any) -> Any:
    """Make a session privileged unless one is, then explore the host; FALSE without a session.

    The escalation leaves a malware file. By exploring red learns the host, its subnet, the address
    of the linked host and, on the server, the OT service.
    """
    if state.access[i, host] == NO_ACCESS:
        return FALSE
    hidden = state.hidden[i]
    if state.access[i, host] != PRIVILEGED_ACCESS:
        session = pick_session(state, i, state.n_sessions[i, host])
        hidden.privileged[host] |= 1 << session
        state.user_removable[i, host] -= hidden.removable[host] >> session & 1
        state.access[i, host] = PRIVILEGED_ACCESS
        if session == 0:
            state.access_first[i, host] = PRIVILEGED_ACCESS
        hidden.malware |= 1 << host
    state.known[i, host] = 1
    state.red_subnets[i] |= 1 << state.network.subnet_of[host]
    linked = state.network.linked_host[host]
    if linked != NONE:
        state.known[i, linked] = 1
    if host == state.network.server:
        hidden.ot_known = 1
    return TRUE


@inlined
def impact(state: Any, i: Any) -> Any:
    """Stop the OT service; needs any session on the server and knowledge of the service."""
    hidden = state.hidden[i]
    if state.n_sessions[i, state.network.server] == 0 or not hidden.ot_known:
        return FALSE
    if hidden.ot_stoppable:
        state.ot_up[i] = 0
    return TRUE


@inlined
def execute_red_action(state: Any, i: Any, action: Any, target: Any, leaderboard: Any) -> Any:
    """Execute a red action.

    Returns:
        Success, whether the target was scanned, events on one service port, events of a detected
        shell, exploit used or NONE.
    """
    hidden = state.hidden[i]
    hidden.empty_scan = 0
    success, scanned, service_events, shell_events, used = UNKNOWN, False, 0, 0, np.int64(NONE)
    if action == IMPACT:
        success = impact(state, i)
    elif action == EXPLOIT:
        success, service_events, shell_events, used = exploit(state, i, target, leaderboard)
    elif action == ESCALATE:
        success = escalate(state, i, target)
    elif action == SCAN:
        success = TRUE
        scanned = scan(state, i, target, leaderboard)
        hidden.empty_scan = 0 if scanned else 1
    elif action == DISCOVER:
        success = discover_systems(state, i, target)
    hidden.red_success = success
    return success, scanned, service_events, shell_events, used


def forced_red_columns(force_red: tuple[ArrayLike, ArrayLike], num_envs: int, network: Network, source: str) -> Array:
    """(envs, 2) uint8 red action and target; raises if red has no such action.

    Args:
        force_red: action and target, for all envs or (envs,) each.
        num_envs: number of envs.
        network: the network.
        source: where they come from, for error messages.
    """
    columns = np.empty((num_envs, 2), np.uint8)
    for column, (name, values) in enumerate(zip(("action", "target"), force_red, strict=True)):
        per_env = np.broadcast_to(values, (num_envs,)) if np.ndim(values) == 0 else values
        columns[:, column] = byte_column(f"{source}'s {name}", per_env, num_envs)
    allowed = _forcible(network)[np.minimum(columns[:, 0], len(RED_ACTIONS)), columns[:, 1]]
    if not allowed.all():
        action, target = columns[np.flatnonzero(~allowed)[0]]
        raise RecordedDrawError(
            f"{source}=({action}, {target}) is not a red action: actions are 0..5; discoveries "
            f"(1) take a subnet 0..{len(network.subnets) - 1}, Impact (5) host {network.server}, the others a "
            f"host 0..{network.num_hosts - 1}."
        )
    return columns


@lru_cache(maxsize=16)
def _forcible(network: Network) -> Array:
    """(actions + 1, 256) True where red has such an action; the last row is for invalid ones."""
    table = np.zeros((len(RED_ACTIONS) + 1, 256), bool)
    table[: len(RED_ACTIONS), : network.num_hosts] = True
    table[SLEEP] = True
    table[DISCOVER] = np.arange(256) < len(network.subnets)
    table[IMPACT] = np.arange(256) == network.server
    return table
