"""Action mask that excludes useless actions, from what blue itself knows.

Blue knows the network, its own actions and the bits it has observed. That excludes most actions without
excluding a useful one:

* Monitor does what Sleep does.
* Of the decoys a host can take, only the one whose exploit has the highest weight is allowed. A
  decoy whose exploit would hit a genuine service, or another decoy, traps nothing.
* Remove kills detected sessions, and then the compromised status is User (or, after an Analyse,
  Privileged). Where green scans, too, its scan can hide an exploit in the same step, so that Remove is
  allowed wherever activity was observed.
* Analyse and Restore do nothing where no activity was ever observed: red scans before it exploits.
  A host with the status Privileged needs no Analyse.
* Red never loses its entry host, and never gets into a host without a service that can be exploited
  (User0 and Defender in the standard network).

`update_mask` writes the env's mask; `sensible_mask` is the same for an agent outside of the env.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hundredfold.core.batch import Array, BoolArray
from hundredfold.core.numba_kernels import inlined
from hundredfold.envs.cage2.network import NONE, NUM_DECOYS
from hundredfold.envs.cage2.network_tables import ANALYSE_FIRST, SLEEP, NetworkTables


@inlined
def update_mask(state: Any, observation: Any, outputs: Any, i: Any, green_scans: Any) -> None:
    """Write the allowed actions, if the env has an action mask."""
    if outputs.mask.shape[0] == 0:
        return
    network = state.network
    hosts = network.num_hosts
    for action in range(outputs.mask.shape[1]):
        outputs.mask[i, action] = action == SLEEP
    activity_seen = state.hidden[i].activity_seen
    for host in range(hosts):
        decoy = network.next_decoy[host, state.decoys[i, host]]
        if decoy != NONE:
            outputs.mask[i, ANALYSE_FIRST + (2 + decoy) * hosts + host] = True
        if network.defendable[host] and activity_seen >> host & 1:
            detected = observation.bits[i, 4 * host + 3] == 1
            privileged = detected and observation.bits[i, 4 * host + 2] == 1
            outputs.mask[i, ANALYSE_FIRST + host] = not privileged
            outputs.mask[i, ANALYSE_FIRST + hosts + host] = detected or green_scans
            outputs.mask[i, ANALYSE_FIRST + (2 + NUM_DECOYS) * hosts + host] = True


def sensible_mask(
    bits: Array, decoys: Array, activity_seen: Array, network: NetworkTables, green_scans: bool
) -> BoolArray:
    """Action mask of one agent.

    Args:
        bits: (4 * hosts,) current observation.
        decoys: (hosts, 8) decoys placed on each host, 0 or 1.
        activity_seen: (hosts,) 1 where the agent has observed any activity.
        network: tables of the network.
        green_scans: green scans hosts, too.

    Returns:
        (actions,) True = allowed.
    """
    hosts = network.num_hosts
    compromised = np.asarray(bits).reshape(hosts, 4)[:, 2:] == 1
    exposed = network.defendable & (np.asarray(activity_seen) == 1)
    mask = np.zeros(len(network.action_kind), bool)
    mask[SLEEP] = True
    by_kind = mask[ANALYSE_FIRST:].reshape(-1, hosts)  # Analyse, Remove, the decoys, Restore
    by_kind[0] = exposed & ~compromised.all(axis=1)
    by_kind[1] = exposed & (compromised[:, 1] | green_scans)
    by_kind[-1] = exposed
    present = np.packbits(decoys, axis=1, bitorder="little")[:, 0]
    next_decoys = network.next_decoy[np.arange(hosts), present]
    (placeable,) = np.nonzero(next_decoys != NONE)
    by_kind[2 + next_decoys[placeable], placeable] = True
    return mask
