"""Arrays of a cage2 batch: true state, hidden state, observation and step outputs.

The kernels work directly on the arrays that users read as `true_state`. Everything else an episode
needs (red's memory, the order of sessions) is one `HIDDEN` record per env. The first axis of every
array is the env; shapes follow from the network.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from hundredfold.core.batch import Array, Arrays, ArraySpec, BoolArray, FloatArray, IntArray
from hundredfold.envs.cage2.network import MAX_HOSTS, NUM_DECOYS, NUM_EXPLOITS, Network
from hundredfold.envs.cage2.network_file import STANDARD
from hundredfold.envs.cage2.network_tables import NetworkTables

MAX_SESSIONS: Final = 64
"""Most red sessions on one host: one bit each in the session masks of `HIDDEN`."""

MAX_DECOYS: Final = 2**15 - 1
"""Most decoy processes on one host, and so the longest horizon: blue can place one per step."""

NO_ACCESS, USER_ACCESS, PRIVILEGED_ACCESS = range(3)
# Success of an action, as CybORG reports it to the agent.
FALSE, TRUE, UNKNOWN = range(3)

# Events whose recency the channel `recency` holds for each host.
NUM_MEMORY_EVENTS: Final = 5
SAW_SCAN, SAW_EXPLOIT, DID_ANALYSE, DID_REMOVE, DID_RESTORE = range(NUM_MEMORY_EVENTS)

# Kinds of the channel `exploits`: none since the last Restore, failed (or a decoy), breach without
# and with a shell that connects back.
NO_EXPLOIT, FAILED_EXPLOIT, SILENT_BREACH, SHELL_BREACH = range(4)

HOST_FACTS: Final = 7
"""Facts about each host that a privileged critic sees."""


def true_state_specs(network: Network) -> dict[str, ArraySpec]:
    """Arrays of the true state."""
    by_host = (network.num_hosts,)
    return {
        "known": ArraySpec(by_host, "uint8", 0, 1),
        "scanned": ArraySpec(by_host, "uint8", 0, 1),
        "access": ArraySpec(by_host, "uint8", 0, PRIVILEGED_ACCESS),
        "access_first": ArraySpec(by_host, "uint8", 0, PRIVILEGED_ACCESS),
        "n_sessions": ArraySpec(by_host, "uint8", 0, MAX_SESSIONS),
        "user_removable": ArraySpec(by_host, "uint8", 0, MAX_SESSIONS),
        "decoys": ArraySpec(by_host, "uint8", 0, 2**NUM_DECOYS - 1),
        "n_decoys": ArraySpec(by_host, "int16", 0, MAX_DECOYS),
        "ot_up": ArraySpec((), "uint8", 0, 1),
        "red_subnets": ArraySpec((), "uint8", 0, 2 ** len(network.subnets) - 1),
    }


def channel_specs(network: Network) -> dict[str, ArraySpec]:
    """Optional observation channels.

    Each follows from blue's own actions, the step count and what it has observed, so an agent in the original
    simulator can compute the same (`blue_agent`).
    """
    hosts = network.num_hosts
    return {
        "decoys": ArraySpec((hosts, NUM_DECOYS), "uint8", 0, 1),
        "decoy_counts": ArraySpec((hosts,), "int16", 0, MAX_DECOYS),
        "scans": ArraySpec((hosts,), "uint8", 0, 1),
        "scanned_decoys": ArraySpec((hosts, NUM_DECOYS), "uint8", 0, 1),
        "recency": ArraySpec((hosts, NUM_MEMORY_EVENTS), "float32", 0, 1),
        "elapsed": ArraySpec((1,), "float32", 0),
        "remaining": ArraySpec((1,), "float32", 0),
        # From CybORG's raw observation: kind of the last exploit seen on each host, by exploited port.
        "exploits": ArraySpec((hosts, NUM_EXPLOITS), "uint8", 0, SHELL_BREACH),
    }


def privileged_specs(network: Network) -> dict[str, ArraySpec]:
    """What only a privileged critic sees, scaled to about 1 (`write_privileged`).

    HOST_FACTS of every host, then ot_up, red's subnets, the red agent, its position in the script of b_line, and the
    time.
    """
    return {"true_state": ArraySpec((HOST_FACTS * network.num_hosts + 1 + len(network.subnets) + 3 + 3,))}


def bits_spec(network: Network) -> ArraySpec:
    """The bits of the observation."""
    return ArraySpec((network.num_bits,), "uint8", 0, 1)


TRUE_STATE: Final = true_state_specs(STANDARD)
CHANNELS: Final = channel_specs(STANDARD)
PRIVILEGED: Final = privileged_specs(STANDARD)

INFO: Final = {
    "red_action": ArraySpec((), "uint8", 0, 5),
    "red_target": ArraySpec((), "uint8", 0, 255),
    "red_success": ArraySpec((), "uint8", 0, UNKNOWN),
    "blue_success": ArraySpec((), "uint8", 0, UNKNOWN),
}
EPISODE_INFO: Final = {"red": ArraySpec((), "uint8", 0, 3), "horizon": ArraySpec((), "int64", 1)}

# Purposes of random draws, and columns of a recording. The draw of each step and purpose has its
# own counter in the episode's stream, whether or not the other draws of the step are used.
DRAWS: Final = (
    "red_target",
    "exploit",
    "exploit_detected",
    "escalate_choice",
    "green_action",
    "green_target",
    "red_action",  # never drawn; checked if a recording holds it
)
(RED_TARGET, EXPLOIT, EXPLOIT_DETECTED, ESCALATE_CHOICE, GREEN_ACTION, GREEN_TARGET, RED_ACTION) = range(len(DRAWS))
DRAWS_PER_STEP: Final = 8
NOT_DRAWN: Final = 255


def hidden_dtype(num_hosts: int, host_mask: type[np.integer[Any]]) -> np.dtype[Any]:
    """Record of the hidden state of one env.

    Args:
        num_hosts: hosts that it has room for.
        host_mask: integer type of a set of hosts.
    """
    fields = [
        ("key", np.uint64),  # RNG stream of the episode
        ("step", np.int32),  # steps taken
        ("horizon", np.int32),
        ("error", np.uint8),  # code of the first error, see `random_draws`
        # Blue's memory, tracked where the action mask or a channel needs it.
        ("activity_seen", host_mask),  # hosts on which blue has observed any activity
        ("scan_seen", host_mask),  # hosts on which blue has observed a scan
        # Red's sessions: bit j is the j-th oldest on the host.
        ("privileged", np.int64, (num_hosts,)),
        ("removable", np.int64, (num_hosts,)),
        ("exploit_options", np.uint8, (num_hosts,)),  # exploits suggested by red's last scan
        ("malware", host_mask),  # hosts with a malware file
        ("restored", host_mask),  # hosts that blue has restored in this episode
        ("ot_stoppable", np.uint8),
        ("ot_known", np.uint8),
        # Memory of the red agent.
        ("red", np.uint8),  # index of the episode's agent
        ("red_success", np.uint8),
        ("empty_scan", np.uint8),  # red's last action was a scan of an unreachable host
        ("b_line_step", np.uint8),  # position in the script
        ("b_line_user_host", np.uint8),  # the user host it attacks first
        ("b_line_reached_server", np.uint8),  # has tried to exploit the server
        ("subnets_tried", np.uint8),
        ("hosts_scanned", host_mask),
        ("hosts_exploited", host_mask),
        ("hosts_escalated", host_mask),
        ("hosts_ever_exploited", host_mask),  # exploited successfully at least once
        ("last_exploited", np.uint8),
        ("last_escalated", np.uint8),
    ]
    return np.dtype(fields, align=True)


HIDDEN: Final = hidden_dtype(STANDARD.num_hosts, np.uint16)
"""Hidden state of the standard network."""
LARGE_HIDDEN: Final = hidden_dtype(MAX_HOSTS, np.int64)
"""Hidden state of other networks, with room for the largest."""


def write_privileged(observation: Arrays, true_state: Arrays, hidden: Array, num_subnets: int) -> None:
    """Write the array of `privileged_specs`.

    Args:
        observation: where to write.
        true_state: arrays of the true state.
        hidden: (envs,) records of the hidden state.
        num_subnets: number of subnets.
    """
    facts = observation["true_state"]
    access, sessions = true_state["access"], true_state["n_sessions"]
    hosts = access.shape[1]
    by_host = (
        true_state["known"],
        true_state["scanned"],
        access >= USER_ACCESS,
        access == PRIVILEGED_ACCESS,
        true_state["access_first"] == PRIVILEGED_ACCESS,
        np.minimum(sessions, 4) * np.float32(0.25),
        # Whether Remove would throw red out.
        (access == USER_ACCESS) & (true_state["user_removable"] == sessions),
    )
    for number, fact in enumerate(by_host):
        facts[:, number * hosts : (number + 1) * hosts] = fact
    facts[:, HOST_FACTS * hosts] = true_state["ot_up"]
    rest = facts[:, HOST_FACTS * hosts + 1 :]
    for subnet in range(num_subnets):
        rest[:, subnet] = true_state["red_subnets"] >> subnet & 1
    for red in range(3):
        rest[:, num_subnets + red] = hidden["red"] == red
    rest[:, -3] = hidden["b_line_step"] / np.float32(16)
    rest[:, -2] = hidden["step"] / np.float32(100)
    rest[:, -1] = (hidden["horizon"] - hidden["step"]) / np.float32(100)


class GameState(NamedTuple):
    """True and hidden state of a batch, with the draws and red actions given from outside."""

    known: Array  # (envs, hosts) red knows the address
    scanned: Array  # (envs, hosts) red has scanned the host
    access: Array  # (envs, hosts) highest level of red's sessions
    access_first: Array  # (envs, hosts) level of red's oldest session
    n_sessions: Array  # (envs, hosts)
    user_removable: Array  # (envs, hosts) user-level sessions that Remove would kill
    decoys: Array  # (envs, hosts) mask of decoy types
    n_decoys: Array  # (envs, hosts) decoy processes; Vsftpd can be stacked
    ot_up: Array  # (envs,) the OT service of the server runs
    red_subnets: Array  # (envs,) mask of the subnets red knows
    hidden: Array  # (envs,) `HIDDEN` records
    draws: Array  # (envs, 7) recorded draws; no rows: drawn from the episode's stream
    forced_red: Array  # (envs, 2) red action and target; no rows: the red agent chooses
    network: NetworkTables


class Observation(NamedTuple):
    """Observation of blue. A channel that is switched off has no rows."""

    bits: Array  # (envs, bits)
    decoys: Array  # (envs, hosts, 8)
    decoy_counts: Array  # (envs, hosts)
    scans: Array  # (envs, hosts)
    scanned_decoys: Array  # (envs, hosts, 8)
    recency: Array  # (envs, hosts, 5)
    elapsed: Array  # (envs, 1)
    remaining: Array  # (envs, 1)
    exploits: Array  # (envs, hosts, 8)


class StepOutputs(NamedTuple):
    """Outputs of a step besides the observation and the true state."""

    reward: FloatArray  # (envs,)
    terminated: BoolArray  # (envs,)
    red_action: Array  # (envs,)
    red_target: Array  # (envs,)
    red_success: Array  # (envs,)
    blue_success: Array  # (envs,)
    red: Array  # (envs,) red agent of the episode that ended
    horizon: IntArray  # (envs,) its horizon
    mask: BoolArray  # (envs, actions) allowed actions; no rows without an action mask
