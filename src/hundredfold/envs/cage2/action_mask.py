"""Which actions are worth a thought: a mask made only of what blue knows.

Blue knows the network, its own moves and the bits it has seen. That rules out most of the 145
actions without taking anything useful away, as long as green sleeps:

* Monitor does what Sleep does.
* Of the decoys a host can take, one is the next: the one whose exploit red likes best. A decoy
  whose exploit would meet a genuine process, or another decoy, catches nothing.
* Remove kills what monitoring has caught, and then blue believes User (or, after an Analyse,
  Privileged).
* Analyse and Restore find nothing where no activity was ever seen: red scans before it breaks in.
  A host that is believed Privileged already needs no Analyse.
* Red never gets into Defender and never leaves User0, where nothing is at stake.

The rule `show_mask` fills the env's mask; `sensible` is the same for an agent outside of it.
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
    FITTING_DECOYS,
    GENUINE,
    NOBODY,
    NUM_DECOYS,
    NUM_HOSTS,
    USER0,
)


def next_decoy(host: int, decoys: int) -> int:
    """The decoy to place next on a host with these decoys, or NOBODY when none would help."""
    trapped = {DECOY_TRAPS[d] for d in range(NUM_DECOYS) if decoys >> d & 1}
    useful = [
        d
        for d in range(NUM_DECOYS)
        if FITTING_DECOYS[host, decoys] >> d & 1
        and DECOY_TRAPS[d] not in trapped
        and GENUINE[DECOY_TRAPS[d], host] == ABSENT
    ]
    return max(useful, key=lambda d: EXPLOIT_WEIGHT[DECOY_TRAPS[d]], default=NOBODY)


# (hosts, 256) so that the mask looks up instead of searching.
NEXT_DECOY: Final = np.array(
    [[next_decoy(host, decoys) for decoys in range(1 << NUM_DECOYS)] for host in range(NUM_HOSTS)]
)
AT_STAKE: Final = np.array([host not in (DEFENDER, USER0) for host in range(NUM_HOSTS)])
"""(hosts,) where red can get in and can be thrown out."""


@inlined
def show_mask(game: Any, seen: Any, report: Any, i: Any) -> None:
    """Write what blue may do next, where the env has a mask."""
    if report.mask.shape[0] == 0:
        return
    for action in range(NUM_ACTIONS):
        report.mask[i, action] = action == SLEEP
    touched = game.secrets[i].touched
    for host in range(NUM_HOSTS):
        decoy = NEXT_DECOY[host, game.decoys[i, host]]
        if decoy != NOBODY:
            report.mask[i, DECOY_FIRST + NUM_HOSTS * decoy + host] = True
        if AT_STAKE[host] and touched >> host & 1:
            caught = seen.bits[i, 4 * host + 3] == 1
            privileged = caught and seen.bits[i, 4 * host + 2] == 1
            report.mask[i, ANALYSE_FIRST + host] = not privileged
            report.mask[i, REMOVE_FIRST + host] = caught
            report.mask[i, RESTORE_FIRST + host] = True


def sensible(bits: Array, decoys: Array, touched: Array) -> BoolArray:
    """(145,) the mask of one blue, from 52 bits, (13, 8) decoys and (13,) where it saw activity."""
    belief = np.asarray(bits).reshape(NUM_HOSTS, 4)[:, 2:] == 1
    exposed = AT_STAKE & (np.asarray(touched) == 1)
    mask = np.zeros(NUM_ACTIONS, bool)
    mask[SLEEP] = True
    mask[ANALYSE_FIRST:REMOVE_FIRST] = exposed & ~belief.all(axis=1)
    mask[REMOVE_FIRST:DECOY_FIRST] = exposed & belief[:, 1]
    mask[RESTORE_FIRST:] = exposed
    present = np.packbits(decoys, axis=1, bitorder="little")[:, 0]
    nexts = NEXT_DECOY[np.arange(NUM_HOSTS), present]
    hosts = np.flatnonzero(nexts != NOBODY)
    mask[DECOY_FIRST + NUM_HOSTS * nexts[hosts] + hosts] = True
    return mask
