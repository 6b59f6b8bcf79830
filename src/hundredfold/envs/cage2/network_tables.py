"""Look-up tables of a network for the kernels, and the numbers of blue's actions on it."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from hundredfold.core.batch import Array
from hundredfold.envs.cage2.network import DECOY_TRAPS, EXPLOIT_WEIGHT, NONE, NUM_DECOYS, NUM_EXPLOITS, Host, Network
from hundredfold.envs.cage2.network_file import STANDARD

# Blue's kinds of actions, in the order of their numbers: Sleep, Monitor, Analyse h, Remove h, decoy d on h (d outer),
# Restore h.
SLEEP, MONITOR, ANALYSE, REMOVE, DECOY, RESTORE = range(6)
ANALYSE_FIRST: Final = 2
ACTIONS_PER_HOST: Final = 3 + NUM_DECOYS
DECOY_SETS: Final = 1 << NUM_DECOYS

# Targets in the script of b_line that depend on the episode: the host it draws first, and the host that one reveals.
VIA_FIRST, VIA_LINK = -1, -2


class NetworkTables(NamedTuple):
    """Tables of one network; sets of hosts are masks."""

    num_hosts: int
    num_subnets: int
    num_openers: int
    num_green_hosts: int
    entry: int
    server: int
    entry_subnet: int
    first_targets: int  # mask of b_line's first targets
    server_subnet: int  # mask of the hosts of the server's subnet
    openers: int  # mask of the hosts that open it
    # Arrays of int64.
    subnet_of: Array  # (hosts,)
    first_host: Array  # (subnets + 1,) the hosts of subnet s are first_host[s] .. first_host[s + 1] - 1
    opener_first: Array  # (subnets + 1,) subnet s is opened by opener_hosts[opener_first[s] : opener_first[s + 1]]
    opener_hosts: Array  # (openers,)
    green_hosts: Array  # (green hosts,)
    cost_tenths: Array  # (hosts,)
    linked_host: Array  # (hosts,) or NONE
    base_events: Array  # (hosts,) network events of a scan without decoys: one per open port, duplicates included
    genuine_service: Array  # (exploits, hosts)
    script_target: Array  # (script steps,) targets in the script of b_line
    action_kind: Array  # (actions,)
    action_decoy: Array  # (actions,)
    action_host: Array  # (actions,)
    # Arrays of uint8, (hosts, 256): by the mask of decoys on the host.
    installable_decoys: Array
    exploit_options: Array
    distinct_ports: Array
    next_decoy: Array
    # Array of bool.
    defendable: Array  # (hosts,) red can get in and can be removed again


NUMBERS: Final = NetworkTables._fields[: NetworkTables._fields.index("subnet_of")]
ARRAYS: Final = NetworkTables._fields[len(NUMBERS) :]


def num_actions(num_hosts: int) -> int:
    """Number of blue's actions: Sleep, Monitor and 11 per host."""
    return ANALYSE_FIRST + ACTIONS_PER_HOST * num_hosts


def action_triples(num_hosts: int) -> list[tuple[int, int, int]]:
    """Kind, decoy and host of every action, NONE where it has none."""
    hosts = range(num_hosts)
    return [
        (SLEEP, NONE, NONE),
        (MONITOR, NONE, NONE),
        *((ANALYSE, NONE, h) for h in hosts),
        *((REMOVE, NONE, h) for h in hosts),
        *((DECOY, d, h) for d in range(NUM_DECOYS) for h in hosts),
        *((RESTORE, NONE, h) for h in hosts),
    ]


@lru_cache(maxsize=16)
def network_tables(network: Network) -> NetworkTables:
    """The tables of a network."""
    hosts = network.hosts
    server_subnet = hosts[network.server].subnet
    openers = [host for subnet in network.opened_by for host in subnet]
    kinds, decoys, targets = np.array(action_triples(len(hosts)), np.int64).T.copy()
    return NetworkTables(
        num_hosts=len(hosts),
        num_subnets=len(network.subnets),
        num_openers=len(openers),
        num_green_hosts=len(network.green_hosts),
        entry=network.entry,
        server=network.server,
        entry_subnet=hosts[network.entry].subnet,
        first_targets=_mask(network.first_targets),
        server_subnet=_mask(network.hosts_of(server_subnet)),
        openers=_mask(network.opened_by[server_subnet]),
        subnet_of=_integers(host.subnet for host in hosts),
        first_host=_integers([*(network.hosts_of(s)[0] for s in range(len(network.subnets))), len(hosts)]),
        opener_first=np.cumsum([0, *map(len, network.opened_by)], dtype=np.int64),
        opener_hosts=_integers(openers),
        green_hosts=_integers(network.green_hosts),
        cost_tenths=_integers(host.cost_tenths for host in hosts),
        linked_host=_integers(host.reveals for host in hosts),
        base_events=_integers(len(host.ports) for host in hosts),
        genuine_service=np.array([host.services for host in hosts], np.int64).T.copy(),
        script_target=_integers(b_line_targets(network)),
        action_kind=kinds,
        action_decoy=decoys,
        action_host=targets,
        installable_decoys=_for_every_decoy_set(network, Host.installable_decoys),
        exploit_options=_for_every_decoy_set(network, Host.exploit_options),
        distinct_ports=_for_every_decoy_set(network, lambda host, decoys: len(set(host.open_ports(decoys)))),
        next_decoy=_for_every_decoy_set(network, Host.next_decoy),
        defendable=np.array([host.can_be_entered and h != network.entry for h, host in enumerate(hosts)]),
    )


def b_line_targets(network: Network) -> list[int]:
    """Target of every step in the script of b_line (`red_agents.B_LINE_SCRIPT`)."""
    hosts = network.hosts
    return [
        hosts[network.entry].subnet,
        *[VIA_FIRST] * 3,
        *[VIA_LINK] * 3,
        hosts[network.relay].subnet,
        *[network.relay] * 3,
        *[network.server] * 4,
    ]


def _mask(hosts: Any) -> int:
    return sum(1 << host for host in hosts)


def _integers(values: Any) -> Array:
    return np.array(list(values), np.int64)


def _for_every_decoy_set(network: Network, function: Callable[[Host, int], int]) -> Array:
    """(hosts, 256) table of `function(host, decoys)` for every set of decoys."""
    return np.array([[function(host, decoys) for decoys in range(DECOY_SETS)] for host in network.hosts], np.uint8)


# (exploits,) mask of the decoys that trap each exploit.
TRAPPING_DECOYS: Final = np.array(
    [sum(1 << d for d in range(NUM_DECOYS) if DECOY_TRAPS[d] == e) for e in range(NUM_EXPLOITS)]
)
# (256,) exploit of the highest weight in each set of options.
TOP_EXPLOIT: Final = np.array(
    [
        max((e for e in range(NUM_EXPLOITS) if options >> e & 1), key=EXPLOIT_WEIGHT.__getitem__) if options else NONE
        for options in range(1 << NUM_EXPLOITS)
    ]
)

STANDARD_TABLES: Final = network_tables(STANDARD)
