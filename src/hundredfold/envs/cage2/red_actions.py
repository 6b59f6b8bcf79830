"""Red's moves: discover systems, scan, exploit, escalate, impact.

Every move starts from red's permanent session on User0, so the user and enterprise subnets are
always in reach. The operational subnet is in reach while red holds a session of any level on one
of Enterprise0-2 (Defender is no bridge).

A move returns its success and the network events it leaves on its target: whether all ports were
touched (a scan), how many events hit a single service port, and whether a shell called home from a
port of its own (4444 events).
"""

from __future__ import annotations

from typing import Any, Final

from hundredfold.core.numba_kernels import inlined
from hundredfold.envs.cage2.network import (
    ABSENT,
    ENTERPRISE0,
    ENTERPRISE1,
    ENTERPRISE2,
    EXPLOIT_OPTIONS,
    FIRST_HOST,
    GENUINE,
    GIVES_ROOT,
    HARAKA_RCE,
    LINK,
    NOBODY,
    OP_SERVER0,
    OPERATIONAL,
    REFUSES,
    SSH_BRUTE_FORCE,
    SUBNET_OF,
    TRAPPING_DECOYS,
)
from hundredfold.envs.cage2.random_draws import (
    TOO_MANY_SESSIONS,
    is_detected,
    note_trouble,
    pick_exploit,
    pick_session,
)
from hundredfold.envs.cage2.state import (
    FALSE,
    MAX_SESSIONS,
    NO_ACCESS,
    PRIVILEGED_ACCESS,
    TRUE,
    UNKNOWN,
    USER_ACCESS,
)

SLEEP, DISCOVER, SCAN, EXPLOIT, ESCALATE, IMPACT = range(6)
RED_ACTIONS: Final = (
    "Sleep",
    "DiscoverRemoteSystems",
    "DiscoverNetworkServices",
    "ExploitRemoteService",
    "PrivilegeEscalate",
    "Impact",
)
SSH_TRIES: Final = 10


@inlined
def in_reach(game: Any, i: Any, subnet: Any) -> Any:
    """Whether red gets through to a subnet at this moment."""
    return (
        subnet != OPERATIONAL
        or game.n_sessions[i, ENTERPRISE0] > 0
        or game.n_sessions[i, ENTERPRISE1] > 0
        or game.n_sessions[i, ENTERPRISE2] > 0
    )


@inlined
def discover_systems(game: Any, i: Any, subnet: Any) -> Any:
    """Learn a subnet and the addresses of all its hosts, if it is in reach."""
    if not in_reach(game, i, subnet):
        return FALSE
    for host in range(FIRST_HOST[subnet], FIRST_HOST[subnet + 1]):
        game.known[i, host] = 1
    game.red_subnets[i] |= 1 << subnet
    return TRUE


@inlined
def scan(game: Any, i: Any, host: Any, adds_to_memory: Any) -> Any:
    """See the ports that are open now; whether the scan got through.

    Out of reach, red is told TRUE all the same and learns nothing: an empty scan. On the
    leaderboard ruleset red adds the ports to those it saw before, else it forgets the old ones.
    """
    if not in_reach(game, i, SUBNET_OF[host]):
        return False
    secrets = game.secrets[i]
    seen = EXPLOIT_OPTIONS[host, game.decoys[i, host]]
    secrets.options[host] = seen | secrets.options[host] if adds_to_memory else seen
    game.scanned[i, host] = 1
    return True


@inlined
def exploit(game: Any, i: Any, host: Any, leaderboard: Any) -> Any:
    """Attack a service that red saw at its last scan: (success, events on its port, shells seen).

    A genuine service is met before a decoy on the same port. Nobody there: a silent failure.
    """
    secrets = game.secrets[i]
    options = secrets.options[host]
    if options == 0:
        return FALSE, 0, 0
    chosen = pick_exploit(game, i, options)
    if not in_reach(game, i, SUBNET_OF[host]):
        return FALSE, 0, 0
    found = GENUINE[chosen, host]
    trapped = found == ABSENT
    if trapped and game.decoys[i, host] & TRAPPING_DECOYS[chosen] == 0:
        return FALSE, 0, 0

    if chosen == SSH_BRUTE_FORCE:
        if trapped or found == REFUSES:
            return FALSE, SSH_TRIES, 0
        open_session(game, i, host, 0, 0)
        return TRUE, SSH_TRIES + 1, 0

    if trapped:
        return FALSE, 2, 0
    if leaderboard and chosen == HARAKA_RCE and secrets.restored >> host & 1:
        return FALSE, 1, 0
    detected = 1 if is_detected(game, i) else 0
    secrets.malware |= 1 << host
    open_session(game, i, host, 1 if found == GIVES_ROOT else 0, detected)
    return TRUE, 1, detected


@inlined
def open_session(game: Any, i: Any, host: Any, privileged: Any, removable: Any) -> None:
    """Append red's newest session on a host."""
    secrets = game.secrets[i]
    position = game.n_sessions[i, host]
    if position == MAX_SESSIONS:
        note_trouble(game, i, TOO_MANY_SESSIONS)
        return
    secrets.privileged[host] |= privileged << position
    secrets.removable[host] |= removable << position
    game.n_sessions[i, host] = position + 1
    if removable and not privileged:
        game.user_removable[i, host] += 1
    level = PRIVILEGED_ACCESS if privileged else USER_ACCESS
    game.access[i, host] = max(game.access[i, host], level)
    if position == 0:
        game.access_first[i, host] = level


@inlined
def escalate(game: Any, i: Any, host: Any) -> Any:
    """Make a session privileged unless one is, then explore the host; FALSE without a session.

    The escalation leaves a malware file. Exploring tells red the host, its subnet, the address it
    is linked to and, on Op_Server0, the OT service.
    """
    if game.access[i, host] == NO_ACCESS:
        return FALSE
    secrets = game.secrets[i]
    if game.access[i, host] != PRIVILEGED_ACCESS:
        session = pick_session(game, i, game.n_sessions[i, host])
        secrets.privileged[host] |= 1 << session
        game.user_removable[i, host] -= secrets.removable[host] >> session & 1
        game.access[i, host] = PRIVILEGED_ACCESS
        if session == 0:
            game.access_first[i, host] = PRIVILEGED_ACCESS
        secrets.malware |= 1 << host
    game.known[i, host] = 1
    game.red_subnets[i] |= 1 << SUBNET_OF[host]
    if LINK[host] != NOBODY:
        game.known[i, LINK[host]] = 1
    if host == OP_SERVER0:
        secrets.ot_known = 1
    return TRUE


@inlined
def impact(game: Any, i: Any) -> Any:
    """Stop the OT service on Op_Server0; any session there will do, once red knows the service."""
    secrets = game.secrets[i]
    if game.n_sessions[i, OP_SERVER0] == 0 or not secrets.ot_known:
        return FALSE
    if secrets.ot_killable:
        game.ot_up[i] = 0
    return TRUE


@inlined
def play_red(game: Any, i: Any, action: Any, target: Any, leaderboard: Any) -> Any:
    """Execute a red move: (success, target scanned, events on one port, shells seen)."""
    secrets = game.secrets[i]
    secrets.empty_scan = 0
    success, scanned, hits, shells = UNKNOWN, False, 0, 0
    if action == IMPACT:
        success = impact(game, i)
    elif action == EXPLOIT:
        success, hits, shells = exploit(game, i, target, leaderboard)
    elif action == ESCALATE:
        success = escalate(game, i, target)
    elif action == SCAN:
        success = TRUE
        scanned = scan(game, i, target, leaderboard)
        secrets.empty_scan = 0 if scanned else 1
    elif action == DISCOVER:
        success = discover_systems(game, i, target)
    secrets.red_success = success
    return success, scanned, hits, shells
