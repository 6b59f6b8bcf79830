"""Blue's actions: Sleep, Monitor, Analyse, Remove, eight decoys, Restore.

A blue action is never invalid, but a decoy may fail to install. Monitor runs implicitly at the end
of every step (`observation`), so as an action it does what Sleep does.
"""

from __future__ import annotations

from typing import Any, Final

from hundredfold.core.numba_kernels import inlined
from hundredfold.envs.cage2.network import DECOYS, NONE, Network
from hundredfold.envs.cage2.network_tables import ANALYSE, DECOY, REMOVE, RESTORE, SLEEP, action_triples
from hundredfold.envs.cage2.state import FALSE, NO_ACCESS, PRIVILEGED_ACCESS, TRUE, UNKNOWN, USER_ACCESS

VERBS: Final = ("Sleep", "Monitor", "Analyse", "Remove", "Decoy", "Restore")


def action_names(network: Network) -> tuple[str, ...]:
    """Readable names of all actions, such as `Restore User2` or `DecoyTomcat Op_Server0`."""
    return tuple(
        VERBS[kind]
        + (DECOYS[decoy] if kind == DECOY else "")
        + ("" if host == NONE else f" {network.hosts[host].name}")
        for kind, decoy, host in action_triples(network.num_hosts)
    )


@inlined
def analyse(state: Any, i: Any, host: Any) -> Any:
    """Whether the host holds a malware file, before red acts."""
    return state.hidden[i].malware >> host & 1 == 1


@inlined
def remove(state: Any, i: Any, host: Any) -> None:
    """Kill red's user-level sessions whose process Monitor has detected.

    Privileged sessions, SSH sessions and undetected shells survive; a malware file stays.
    """
    if state.user_removable[i, host] == 0:
        return
    hidden = state.hidden[i]
    old_privileged, old_removable = hidden.privileged[host], hidden.removable[host]
    privileged, removable, count = 0, 0, 0
    for session in range(state.n_sessions[i, host]):
        is_privileged = old_privileged >> session & 1
        is_removable = old_removable >> session & 1
        if is_privileged or not is_removable:
            privileged |= is_privileged << count
            removable |= is_removable << count
            count += 1
    _set_sessions(state, i, host, count, privileged, removable)


@inlined
def place_decoy(state: Any, i: Any, decoy: Any, host: Any) -> Any:
    """Install a decoy if the OS suits it and its port is free; returns whether it was installed."""
    if not state.network.installable_decoys[host, state.decoys[i, host]] >> decoy & 1:
        return False
    state.decoys[i, host] |= 1 << decoy
    state.n_decoys[i, host] += 1
    return True


@inlined
def restore(state: Any, i: Any, host: Any) -> None:
    """Restore the host: removes sessions, decoys and malware; red keeps its knowledge.

    Red's first session on the entry host is permanent. A restored server runs its OT service under a
    process id that Impact does not find: it cannot be stopped for the rest of the episode.
    """
    hidden = state.hidden[i]
    if host == state.network.entry:
        _set_sessions(state, i, host, 1, hidden.privileged[host] & 1, hidden.removable[host] & 1)
    else:
        _set_sessions(state, i, host, 0, 0, 0)
    state.decoys[i, host] = 0
    state.n_decoys[i, host] = 0
    hidden.malware &= ~(1 << host)
    hidden.restored |= 1 << host
    if host == state.network.server:
        state.ot_up[i] = 1
        hidden.ot_stoppable = 0


@inlined
def _set_sessions(state: Any, i: Any, host: Any, count: Any, privileged: Any, removable: Any) -> None:
    """Set the sessions of a host by count and masks; none of them is removable at user level."""
    state.hidden[i].privileged[host] = privileged
    state.hidden[i].removable[host] = removable
    state.n_sessions[i, host] = count
    state.user_removable[i, host] = 0
    if count == 0:
        state.access[i, host] = NO_ACCESS
        state.access_first[i, host] = NO_ACCESS
    else:
        state.access[i, host] = PRIVILEGED_ACCESS if privileged else USER_ACCESS
        state.access_first[i, host] = PRIVILEGED_ACCESS if privileged & 1 else USER_ACCESS


@inlined
def execute_blue_action(state: Any, i: Any, action: Any) -> Any:
    """Execute an action.

    Returns:
        Success, host on which a decoy was placed, host on which Analyse found malware; the hosts
        are NONE if there is none.
    """
    network = state.network
    kind, host = network.action_kind[action], network.action_host[action]
    success, placed_at, malware_at = TRUE, NONE, NONE
    if kind == DECOY:
        if place_decoy(state, i, network.action_decoy[action], host):
            placed_at = host
        else:
            success = FALSE
    elif kind == RESTORE:
        restore(state, i, host)
    elif kind == REMOVE:
        remove(state, i, host)
    elif kind == ANALYSE:
        if analyse(state, i, host):
            malware_at = host
    elif kind == SLEEP:
        success = UNKNOWN
    return success, placed_at, malware_at
