"""CybORG's raw blue observation: connections by host and port, and the channel `exploits` from them.

The table wrapper's 52 bits do not tell which service was attacked. The raw observation does: it lists
the connections of the last step under the processes of each host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from hundredfold.core.batch import Array, BoolArray
from hundredfold.envs.cage2.blue_actions import ACTION_HOST, ACTION_KIND, RESTORE
from hundredfold.envs.cage2.network import EXPLOIT_PORT, HOSTS, NUM_HOSTS, SSH_ATTEMPTS, SSH_BRUTE_FORCE
from hundredfold.envs.cage2.state import FAILED_EXPLOIT, NO_EXPLOIT, SHELL_BREACH, SILENT_BREACH

RAW_PORTS: Final = (21, 22, 25, 53, 68, 80, 135, 139, 443, 445, 3389, 3390)
SHELL_PORT: Final = 4444
"""Remote port to which a detected shell connects back."""
EXPLOIT_OF_PORT: Final = {RAW_PORTS.index(port): exploit for exploit, port in enumerate(EXPLOIT_PORT)}


class Connections(NamedTuple):
    """Connections that blue sees after a step."""

    ports: Array  # (hosts, ports) number by local port, in the order of RAW_PORTS
    shells: BoolArray  # (hosts,) whether one has the remote port of a shell


def read_connections(raw: Mapping[str, Any]) -> Connections:
    """Connections of a raw observation.

    Args:
        raw: what `CybORG.get_observation("Blue")` returns: per host name a dictionary whose `Processes`
            have `Connections`; other entries are ignored.
    """
    found = Connections(np.zeros((NUM_HOSTS, len(RAW_PORTS)), np.int64), np.zeros(NUM_HOSTS, bool))
    for host, name in enumerate(HOSTS):
        for process in raw.get(name, {}).get("Processes", ()):
            for connection in process.get("Connections", ()):
                if connection.get("local_port") in RAW_PORTS:
                    found.ports[host, RAW_PORTS.index(connection["local_port"])] += 1
                found.shells[host] |= connection.get("remote_port") == SHELL_PORT
    return found


def update_exploits(exploits: Array, connections: Connections, action: int) -> None:
    """Update the channel `exploits` in place, as the env does.

    Args:
        exploits: (hosts, exploits) kinds of the last exploits.
        connections: connections after blue's action.
        action: blue's action, 0..144.
    """
    if ACTION_KIND[action] == RESTORE:
        exploits[ACTION_HOST[action]] = NO_EXPLOIT
    for host in np.flatnonzero((connections.ports > 0).sum(axis=1) == 1):
        (port,) = np.flatnonzero(connections.ports[host])
        exploit, count = EXPLOIT_OF_PORT.get(int(port)), connections.ports[host, port]
        if exploit is None:
            continue
        if connections.shells[host]:
            exploits[host, exploit] = SHELL_BREACH
        elif exploit == SSH_BRUTE_FORCE:
            if count >= SSH_ATTEMPTS:  # fewer are those of a scan
                exploits[host, exploit] = SILENT_BREACH if count > SSH_ATTEMPTS else FAILED_EXPLOIT
        else:
            exploits[host, exploit] = SILENT_BREACH if count == 1 else FAILED_EXPLOIT
