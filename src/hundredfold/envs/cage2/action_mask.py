"""Action mask that excludes useless actions, from what blue itself knows.

Blue knows the network, its own actions and the bits it has observed. As long as green sleeps, that
excludes most of the 145 actions without excluding a useful one:

* Monitor does what Sleep does.
* Of the decoys a host can take, only the one whose exploit has the highest weight is allowed. A
  decoy whose exploit would hit a genuine service, or another decoy, traps nothing.
* Remove kills detected sessions, and then the compromised status is User (or, after an Analyse,
  Privileged).
* Analyse and Restore do nothing where no activity was ever observed: red scans before it exploits.
  A host with the status Privileged needs no Analyse.
* Red never gets into Defender and never loses User0, whose confidentiality value is 0.

`update_mask` writes the env's mask; `sensible_mask` is the same for an agent outside of the env.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from hundredfold.core.batch import Array, BoolArray
from hundredfold.core.numba_kernels import inlined
from hundredfold.envs.cage2.blue_actions import (
    ANALYSE_FIRST,
    DECOY_FIRST,
    NUM_ACTIONS,
    REMOVE_FIRST,
    RESTORE_FIRST,
    SLEEP,
)
from hundredfold.envs.cage2.network import (
    ABSENT,
    DECOY_TRAPS,
    DEFENDER,
    EXPLOIT_WEIGHT,
    GENUINE_SERVICE,
    INSTALLABLE_DECOYS,
    NONE,
    NUM_DECOYS,
    NUM_HOSTS,
    USER0,
)


def next_decoy(host: int, decoys: int) -> int:
    """The decoy to place next on a host with these decoys, or NONE if none would trap anything."""
    trapped = {DECOY_TRAPS[d] for d in range(NUM_DECOYS) if decoys >> d & 1}
    useful = [
        d
        for d in range(NUM_DECOYS)
        if INSTALLABLE_DECOYS[host, decoys] >> d & 1
        and DECOY_TRAPS[d] not in trapped
        and GENUINE_SERVICE[DECOY_TRAPS[d], host] == ABSENT
    ]
    return max(useful, key=lambda d: EXPLOIT_WEIGHT[DECOY_TRAPS[d]], default=NONE)


# (hosts, 256) `next_decoy` of every set of decoys.
NEXT_DECOY: Final = np.array(
    [[next_decoy(host, decoys) for decoys in range(1 << NUM_DECOYS)] for host in range(NUM_HOSTS)]
)
DEFENDABLE: Final = np.array([host not in (DEFENDER, USER0) for host in range(NUM_HOSTS)])
"""(hosts,) red can get in and can be removed again."""


@inlined
def update_mask(state: Any, observation: Any, outputs: Any, i: Any) -> None:
    """Write the allowed actions, if the env has an action mask."""
    if outputs.mask.shape[0] == 0:
        return
    for action in range(NUM_ACTIONS):
        outputs.mask[i, action] = action == SLEEP
    activity_seen = state.hidden[i].activity_seen
    for host in range(NUM_HOSTS):
        decoy = NEXT_DECOY[host, state.decoys[i, host]]
        if decoy != NONE:
            outputs.mask[i, DECOY_FIRST + NUM_HOSTS * decoy + host] = True
        if DEFENDABLE[host] and activity_seen >> host & 1:
            detected = observation.bits[i, 4 * host + 3] == 1
            privileged = detected and observation.bits[i, 4 * host + 2] == 1
            outputs.mask[i, ANALYSE_FIRST + host] = not privileged
            outputs.mask[i, REMOVE_FIRST + host] = detected
            outputs.mask[i, RESTORE_FIRST + host] = True


def sensible_mask(bits: Array, decoys: Array, activity_seen: Array) -> BoolArray:
    """Action mask of one agent.

    Args:
        bits: (52,) current observation.
        decoys: (13, 8) decoys placed on each host, 0 or 1.
        activity_seen: (13,) 1 where the agent has observed any activity.

    Returns:
        (145,) True = allowed.
    """
    compromised = np.asarray(bits).reshape(NUM_HOSTS, 4)[:, 2:] == 1
    exposed = DEFENDABLE & (np.asarray(activity_seen) == 1)
    mask = np.zeros(NUM_ACTIONS, bool)
    mask[SLEEP] = True
    mask[ANALYSE_FIRST:REMOVE_FIRST] = exposed & ~compromised.all(axis=1)
    mask[REMOVE_FIRST:DECOY_FIRST] = exposed & compromised[:, 1]
    mask[RESTORE_FIRST:] = exposed
    present = np.packbits(decoys, axis=1, bitorder="little")[:, 0]
    next_decoys = NEXT_DECOY[np.arange(NUM_HOSTS), present]
    hosts = np.flatnonzero(next_decoys != NONE)
    mask[DECOY_FIRST + NUM_HOSTS * next_decoys[hosts] + hosts] = True
    return mask
