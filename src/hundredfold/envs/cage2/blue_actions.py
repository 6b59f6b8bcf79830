"""Blue's moves: Sleep, Monitor, Analyse, Remove, eight decoys, Restore.

A blue action is never invalid; a decoy may find no place. Monitoring is no move of its own: it
happens at the end of every step (`view`), so Monitor does what Sleep does.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from hundredfold.core.numba_kernels import inlined
from hundredfold.envs.cage2.network import (
    DECOYS,
    FITTING_DECOYS,
    HOSTS,
    NOBODY,
    NUM_DECOYS,
    NUM_HOSTS,
    OP_SERVER0,
    USER0,
)
from hundredfold.envs.cage2.state import (
    FALSE,
    NO_ACCESS,
    PRIVILEGED_ACCESS,
    TRUE,
    UNKNOWN,
    USER_ACCESS,
)

SLEEP, MONITOR, ANALYSE, REMOVE, DECOY, RESTORE = range(6)

# The 145 actions: Sleep, Monitor, Analyse h, Remove h, decoy d on h (d outer), Restore h.
_ACTIONS: Final = (
    (SLEEP, NOBODY, NOBODY),
    (MONITOR, NOBODY, NOBODY),
    *((ANALYSE, NOBODY, h) for h in range(NUM_HOSTS)),
    *((REMOVE, NOBODY, h) for h in range(NUM_HOSTS)),
    *((DECOY, d, h) for d in range(NUM_DECOYS) for h in range(NUM_HOSTS)),
    *((RESTORE, NOBODY, h) for h in range(NUM_HOSTS)),
)
NUM_ACTIONS: Final = len(_ACTIONS)
ACTION_KIND, ACTION_DECOY, ACTION_HOST = np.array(_ACTIONS, np.int64).T.copy()
ANALYSE_FIRST: Final = 2
REMOVE_FIRST: Final = ANALYSE_FIRST + NUM_HOSTS
DECOY_FIRST: Final = REMOVE_FIRST + NUM_HOSTS
RESTORE_FIRST: Final = DECOY_FIRST + NUM_DECOYS * NUM_HOSTS


def action_name(action: int) -> str:
    """How a person says an action: `Restore User2`, `DecoyTomcat Op_Server0`."""
    kind, decoy, host = _ACTIONS[action]
    verb = ("Sleep", "Monitor", "Analyse", "Remove", "Decoy", "Restore")[kind]
    if kind == DECOY:
        verb += DECOYS[decoy]
    return verb if host == NOBODY else f"{verb} {HOSTS[host]}"


@inlined
def analyse(game: Any, i: Any, host: Any) -> Any:
    """Whether the host holds a malware file now, before red moves."""
    return game.secrets[i].malware >> host & 1 == 1


@inlined
def remove(game: Any, i: Any, host: Any) -> None:
    """Kill red's user-level sessions whose process monitoring has caught.

    Privileged sessions, SSH sessions and undetected shells survive; a malware file stays.
    """
    if game.user_removable[i, host] == 0:
        return
    secrets = game.secrets[i]
    was_privileged, was_removable = secrets.privileged[host], secrets.removable[host]
    privileged, removable, kept = 0, 0, 0
    for session in range(game.n_sessions[i, host]):
        is_privileged = was_privileged >> session & 1
        is_removable = was_removable >> session & 1
        if is_privileged or not is_removable:
            privileged |= is_privileged << kept
            removable |= is_removable << kept
            kept += 1
    _keep_sessions(game, i, host, kept, privileged, removable)


@inlined
def place_decoy(game: Any, i: Any, decoy: Any, host: Any) -> Any:
    """Install a decoy if the system suits it and its port is free; whether it was."""
    if not FITTING_DECOYS[host, game.decoys[i, host]] >> decoy & 1:
        return False
    game.decoys[i, host] |= 1 << decoy
    game.n_decoys[i, host] += 1
    return True


@inlined
def restore(game: Any, i: Any, host: Any) -> None:
    """Reinstall the host: sessions, decoys and malware go, what red knows stays.

    Red's first session on User0 is permanent. A restored Op_Server0 runs its OT service again under
    a process id that no Impact finds: it cannot be stopped for the rest of the episode.
    """
    secrets = game.secrets[i]
    if host == USER0:
        _keep_sessions(game, i, host, 1, secrets.privileged[host] & 1, secrets.removable[host] & 1)
    else:
        _keep_sessions(game, i, host, 0, 0, 0)
    game.decoys[i, host] = 0
    game.n_decoys[i, host] = 0
    secrets.malware &= ~(1 << host)
    secrets.restored |= 1 << host
    if host == OP_SERVER0:
        game.ot_up[i] = 1
        secrets.ot_killable = 0


@inlined
def _keep_sessions(
    game: Any, i: Any, host: Any, kept: Any, privileged: Any, removable: Any
) -> None:
    """Leave `kept` sessions on a host, none of them open to Remove; the masks tell their kinds."""
    game.secrets[i].privileged[host] = privileged
    game.secrets[i].removable[host] = removable
    game.n_sessions[i, host] = kept
    game.user_removable[i, host] = 0
    if kept == 0:
        game.access[i, host] = NO_ACCESS
        game.access_first[i, host] = NO_ACCESS
    else:
        game.access[i, host] = PRIVILEGED_ACCESS if privileged else USER_ACCESS
        game.access_first[i, host] = PRIVILEGED_ACCESS if privileged & 1 else USER_ACCESS


@inlined
def play_blue(game: Any, i: Any, action: Any) -> Any:
    """Execute one of the 145 actions: (success, host with a new decoy, host with malware found).

    The hosts are NOBODY when there is none.
    """
    kind, host = ACTION_KIND[action], ACTION_HOST[action]
    success, placed, malware_at = TRUE, NOBODY, NOBODY
    if kind == DECOY:
        if place_decoy(game, i, ACTION_DECOY[action], host):
            placed = host
        else:
            success = FALSE
    elif kind == RESTORE:
        restore(game, i, host)
    elif kind == REMOVE:
        remove(game, i, host)
    elif kind == ANALYSE:
        if analyse(game, i, host):
            malware_at = host
    elif kind == SLEEP:
        success = UNKNOWN
    return success, placed, malware_at
