"""CybORG's raw blue observation: connections by host and port, and the channel `exploits` from them.

The table wrapper's 52 bits do not tell which service was attacked. The raw observation does: it lists
the connections of the last step under the processes of each host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from hundredfold.core.batch import Array, BoolArray
from hundredfold.envs.cage2.network import DECOY_PORT, EXPLOIT_PORT, SSH_ATTEMPTS, SSH_BRUTE_FORCE, Network
from hundredfold.envs.cage2.network_file import STANDARD
from hundredfold.envs.cage2.network_tables import RESTORE, network_tables
from hundredfold.envs.cage2.state import FAILED_EXPLOIT, NO_EXPLOIT, SHELL_BREACH, SILENT_BREACH


def raw_ports(network: Network) -> tuple[int, ...]:
    """Ports of a network in which connections are counted: those of services and decoys, in order."""
    return tuple(sorted({*EXPLOIT_PORT, *DECOY_PORT, *(port for host in network.hosts for port in host.ports)}))


RAW_PORTS: Final = raw_ports(STANDARD)
SHELL_PORT: Final = 4444
"""Remote port to which a detected shell connects back."""
EXPLOIT_OF_PORT: Final = {port: exploit for exploit, port in enumerate(EXPLOIT_PORT)}


class Connections(NamedTuple):
    """Connections that blue sees after a step."""

    ports: Array  # (hosts, ports) number by local port, in the order of `raw_ports`
    shells: BoolArray  # (hosts,) whether one has the remote port of a shell


def read_connections(raw: Mapping[str, Any], network: Network = STANDARD) -> Connections:
    """Connections of a raw observation.

    Args:
        raw: what `CybORG.get_observation("Blue")` returns: per host name a dictionary whose `Processes`
            have `Connections`; other entries are ignored.
        network: the network.
    """
    ports = raw_ports(network)
    found = Connections(np.zeros((network.num_hosts, len(ports)), np.int64), np.zeros(network.num_hosts, bool))
    for host, name in enumerate(network.host_names):
        for process in raw.get(name, {}).get("Processes", ()):
            for connection in process.get("Connections", ()):
                if connection.get("local_port") in ports:
                    found.ports[host, ports.index(connection["local_port"])] += 1
                found.shells[host] |= connection.get("remote_port") == SHELL_PORT
    return found


def update_exploits(exploits: Array, connections: Connections, action: int, network: Network = STANDARD) -> None:
    """Update the channel `exploits` in place, as the env does.

    Args:
        exploits: (hosts, exploits) kinds of the last exploits.
        connections: connections after blue's action.
        action: blue's action.
        network: the network.
    """
    tables, ports = network_tables(network), raw_ports(network)
    if tables.action_kind[action] == RESTORE:
        exploits[tables.action_host[action]] = NO_EXPLOIT
    for host in np.flatnonzero((connections.ports > 0).sum(axis=1) == 1):
        (port,) = np.flatnonzero(connections.ports[host])
        exploit, count = EXPLOIT_OF_PORT.get(ports[port]), connections.ports[host, port]
        if exploit is None:
            continue
        if connections.shells[host]:
            exploits[host, exploit] = SHELL_BREACH
        elif exploit == SSH_BRUTE_FORCE:
            if count >= SSH_ATTEMPTS:  # fewer are those of a scan
                exploits[host, exploit] = SILENT_BREACH if count > SSH_ATTEMPTS else FAILED_EXPLOIT
        else:
            exploits[host, exploit] = SILENT_BREACH if count == 1 else FAILED_EXPLOIT
