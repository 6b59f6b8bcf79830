"""Names of every number in cage2: actions, hosts, observation bits, true-state and info codes.

One source for docs, `hundredfold envs cage2`, episode logs and replay pages, made from the tables
of the env itself.
"""

from __future__ import annotations

from typing import Any, Final

from hundredfold.core.batch import Array, IntArray
from hundredfold.envs.cage2.blue_actions import action_names as names_of_actions
from hundredfold.envs.cage2.env import Cage2Settings
from hundredfold.envs.cage2.network import DECOY_PORT, DECOY_TRAPS, DECOYS, EXPLOITS, NONE, NUM_DECOYS, Network
from hundredfold.envs.cage2.network_file import STANDARD
from hundredfold.envs.cage2.network_tables import ANALYSE, DECOY, MONITOR, REMOVE, RESTORE, SLEEP, action_triples
from hundredfold.envs.cage2.red_actions import DISCOVER, RED_ACTIONS
from hundredfold.envs.cage2.red_actions import SLEEP as RED_SLEEP
from hundredfold.envs.cage2.state import true_state_specs

Row = dict[str, Any]

ACTION_NAMES: Final = names_of_actions(STANDARD)
"""Names of the actions on the standard network."""
ACCESS: Final = ("none", "user", "privileged")
"""Names of red's access to a host, by code."""
SUCCESS: Final = ("no", "yes", "unknown")
"""Names of the success of an action, by code."""
ACTIVITY: Final = {(0, 0): "none", (1, 0): "scan", (1, 1): "exploit"}
"""Activity on a host in this step, by the first two of its four bits."""
COMPROMISED: Final = {(0, 0): "no", (1, 0): "unknown", (0, 1): "user", (1, 1): "privileged"}
"""Compromised status of a host, by the last two of its four bits."""
TRUE_STATE_MEANINGS: Final = {
    "known": "1: red knows the address of the host",
    "scanned": "1: red has scanned the ports of the host",
    "access": "highest access of red's sessions: 0 none, 1 user, 2 privileged",
    "access_first": "access of red's oldest session on the host, same codes",
    "n_sessions": "number of red's sessions",
    "user_removable": "user-level sessions that Remove would end",
    "decoys": "sum of 2^d over the decoys d on the host, numbered as in the table of decoys",
    "n_decoys": "number of decoy processes",
    "ot_up": "1: the OT service of {server} runs",
    "red_subnets": "sum of 2^s over the subnets s that red knows: {subnets}",
}
INFO_MEANINGS: Final = {
    "red_action": "; ".join(f"{code} {name}" for code, name in enumerate(RED_ACTIONS)),
    "red_target": "subnet of DiscoverRemoteSystems, else host; 255 none",
    "red_success": "; ".join(f"{code} {name}" for code, name in enumerate(SUCCESS)),
    "blue_success": "the same; a decoy fails where its port is taken or the operating system is another",
}
ACTION_MEANINGS: Final = {
    SLEEP: "do nothing",
    MONITOR: "the same as Sleep: monitoring runs in every step",
    ANALYSE: "look for malware on the host; sets its status to privileged if there is any",
    REMOVE: "end red's detected user-level sessions on the host",
    DECOY: "start a decoy service on the host; it traps ",
    RESTORE: "set the host up again: ends all sessions and decoys; costs 1",
}


def action_names(settings: Cage2Settings) -> tuple[str, ...]:
    """Names of the actions on the network of these settings."""
    return names_of_actions(settings.network)


def host_rows(network: Network = STANDARD) -> list[Row]:
    """One row per host: number, subnet, operating system, cost of a privileged session, ports, link."""
    return [
        {
            "host": number,
            "name": host.name,
            "subnet": network.subnets[host.subnet],
            "system": "Windows" if host.windows else "Linux",
            "cost_per_step": host.cost_tenths / 10,
            "ports": " ".join(str(port) for port in dict.fromkeys(host.ports)),
            "reveals": "" if host.reveals == NONE else network.hosts[host.reveals].name,
        }
        for number, host in enumerate(network.hosts)
    ]


def decoy_rows(network: Network = STANDARD) -> list[Row]:
    """One row per decoy: number, port, the exploit it traps, the hosts that can take it at the start."""
    return [
        {
            "decoy": decoy,
            "name": name,
            "port": str(DECOY_PORT[decoy]),
            "traps": EXPLOITS[DECOY_TRAPS[decoy]],
            "hosts": ", ".join(host.name for host in network.hosts if host.installable_decoys(0) >> decoy & 1),
        }
        for decoy, name in enumerate(DECOYS)
    ]


def verb_rows(network: Network = STANDARD) -> list[Row]:
    """One row per kind of action: its numbers, in the order of the hosts, and its meaning."""
    rows: list[Row] = []
    triples = action_triples(network.num_hosts)
    for action, (name, (kind, decoy, host)) in enumerate(zip(names_of_actions(network), triples, strict=True)):
        verb = name.split()[0]
        if not rows or rows[-1]["action"] != verb:
            numbers = str(action) if host == NONE else f"{action} + host"
            meaning = ACTION_MEANINGS[kind]
            if kind == DECOY:
                meaning += EXPLOITS[DECOY_TRAPS[decoy]]
            rows.append({"action": verb, "number": numbers, "meaning": meaning})
    return rows


def action_table(network: Network = STANDARD) -> list[Row]:
    """Numbers of the actions on each host, one row per host; Sleep is 0 and Monitor 1."""
    rows: list[Row] = [{"host": name} for name in network.host_names]
    triples = action_triples(network.num_hosts)
    for action, (name, (kind, decoy, host)) in enumerate(zip(names_of_actions(network), triples, strict=True)):
        if host != NONE:
            rows[host][DECOYS[decoy] if kind == DECOY else name.split()[0]] = action
    return rows


def bit_rows(network: Network = STANDARD) -> list[Row]:
    """Positions of the observation bits, one row per host."""
    return [
        {"host": name, "activity": f"{4 * host}, {4 * host + 1}", "compromised": f"{4 * host + 2}, {4 * host + 3}"}
        for host, name in enumerate(network.host_names)
    ]


def true_state_rows(network: Network = STANDARD) -> list[Row]:
    """One row per array of the true state: shape, largest value, meaning."""
    names = {
        "server": network.hosts[network.server].name,
        "subnets": ", ".join(f"{number} {name}" for number, name in enumerate(network.subnets)),
    }
    return [
        {
            "array": name,
            "per": "host" if spec.shape else "env",
            "largest": int(spec.high) if isinstance(spec.high, int | float) else "",
            "meaning": TRUE_STATE_MEANINGS[name].format(**names),
        }
        for name, spec in true_state_specs(network).items()
    ]


def info_rows() -> list[Row]:
    """One row per info of a step: its codes."""
    return [{"info": name, "codes": meaning} for name, meaning in INFO_MEANINGS.items()]


def tables(settings: Cage2Settings | None = None) -> dict[str, list[Row]]:
    """All tables of the legend by title.

    Args:
        settings: settings of the env, for its network; by default the standard one.
    """
    network = STANDARD if settings is None else settings.network
    activity, compromised = (
        ", ".join(f"{first}{second} {name}" for (first, second), name in names.items())
        for names in (ACTIVITY, COMPROMISED)
    )
    bits = f"Positions of the {network.num_bits} observation bits"
    return {
        "Hosts: cost of each step with a privileged red session; the host that red learns by escalating": host_rows(
            network
        ),
        "Decoys: the exploit that each one traps; hosts that can take it at the start": decoy_rows(network),
        "Actions: the number of an action on a host is a first number plus the number of the host": verb_rows(network),
        f"{bits}; activity: {activity}; compromised status: {compromised}": bit_rows(network),
        "True state (`true_state` of a vector env)": true_state_rows(network),
        "Infos of a step": info_rows(),
    }


def markdown() -> str:
    """The tables as Markdown, for docs/cage2.md."""
    parts = []
    grid = {"Numbers of all actions on hosts (decoys by name); 0 is Sleep, 1 is Monitor": action_table()}
    for title, rows in {**tables(), **grid}.items():
        columns = list(rows[0])
        lines = [f"**{title}**", "", f"| {' | '.join(name.replace('_', ' ') for name in columns)} |"]
        lines += [f"|{'---|' * len(columns)}", *(f"| {' | '.join(str(row[c]) for c in columns)} |" for row in rows)]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def red_action_name(action: int, target: int, network: Network = STANDARD) -> str:
    """A red action with its target, such as `ExploitRemoteService User3`."""
    if action == RED_SLEEP:
        return RED_ACTIONS[action]
    return f"{RED_ACTIONS[action]} {(network.subnets if action == DISCOVER else network.host_names)[target]}"


def decoy_names(mask: int) -> list[str]:
    """Names of the decoys in a bit mask."""
    return [DECOYS[decoy] for decoy in range(NUM_DECOYS) if mask >> decoy & 1]


def host_bits(bits: Array) -> IntArray:
    """(..., hosts, 4) the bits of each host, from (..., 4 * hosts)."""
    return bits.reshape(*bits.shape[:-1], bits.shape[-1] // 4, 4).astype(int)
