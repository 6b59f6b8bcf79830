"""Arrays of a cage2 batch: true state, hidden state, observation and step outputs.

The kernels work directly on the arrays that users read as `true_state`. Everything else an episode
needs (red's memory, the order of sessions) is one `HIDDEN` record per env. The first axis of every
array is the env.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from hundredfold.core.batch import Array, Arrays, ArraySpec, BoolArray, FloatArray, IntArray
from hundredfold.envs.cage2.network import NUM_BITS, NUM_DECOYS, NUM_EXPLOITS, NUM_HOSTS, SUBNETS

MAX_SESSIONS: Final = 64
"""Most red sessions on one host: one bit each in the session masks of `HIDDEN`."""

MAX_DECOYS: Final = 2**15 - 1
"""Most decoy processes on one host, and so the longest horizon: blue can place one per step."""

NO_ACCESS, USER_ACCESS, PRIVILEGED_ACCESS = range(3)
# Success of an action, as CybORG reports it to the agent.
FALSE, TRUE, UNKNOWN = range(3)

TRUE_STATE: Final = {
    "known": ArraySpec((NUM_HOSTS,), "uint8", 0, 1),
    "scanned": ArraySpec((NUM_HOSTS,), "uint8", 0, 1),
    "access": ArraySpec((NUM_HOSTS,), "uint8", 0, PRIVILEGED_ACCESS),
    "access_first": ArraySpec((NUM_HOSTS,), "uint8", 0, PRIVILEGED_ACCESS),
    "n_sessions": ArraySpec((NUM_HOSTS,), "uint8", 0, MAX_SESSIONS),
    "user_removable": ArraySpec((NUM_HOSTS,), "uint8", 0, MAX_SESSIONS),
    "decoys": ArraySpec((NUM_HOSTS,), "uint8", 0, 2**NUM_DECOYS - 1),
    "n_decoys": ArraySpec((NUM_HOSTS,), "int16", 0, MAX_DECOYS),
    "ot_up": ArraySpec((), "uint8", 0, 1),
    "red_subnets": ArraySpec((), "uint8", 0, 2 ** len(SUBNETS) - 1),
}

# Events whose recency the channel `recency` holds for each host.
NUM_MEMORY_EVENTS: Final = 5
SAW_SCAN, SAW_EXPLOIT, DID_ANALYSE, DID_REMOVE, DID_RESTORE = range(NUM_MEMORY_EVENTS)

BITS: Final = ArraySpec((NUM_BITS,), "uint8", 0, 1)
# Optional observation channels. Each follows from blue's own actions, the step count and what it has
# observed, so an agent in the original simulator can compute the same (`blue_agent`).
CHANNELS: Final = {
    "decoys": ArraySpec((NUM_HOSTS, NUM_DECOYS), "uint8", 0, 1),
    "decoy_counts": ArraySpec((NUM_HOSTS,), "int16", 0, MAX_DECOYS),
    "scans": ArraySpec((NUM_HOSTS,), "uint8", 0, 1),
    "scanned_decoys": ArraySpec((NUM_HOSTS, NUM_DECOYS), "uint8", 0, 1),
    "recency": ArraySpec((NUM_HOSTS, NUM_MEMORY_EVENTS), "float32", 0, 1),
    "elapsed": ArraySpec((1,), "float32", 0),
    "remaining": ArraySpec((1,), "float32", 0),
    # From CybORG's raw observation: kind of the last exploit seen on each host, by exploited port.
    "exploits": ArraySpec((NUM_HOSTS, NUM_EXPLOITS), "uint8", 0, 3),
}
# Kinds of the channel `exploits`: none since the last Restore, failed (or a decoy), breach without
# and with a shell that connects back.
NO_EXPLOIT, FAILED_EXPLOIT, SILENT_BREACH, SHELL_BREACH = range(4)

# What only a privileged critic sees, scaled to about 1: HOST_FACTS of every host, then ot_up, red's
# subnets, the red agent, its position in the script of b_line, and the time.
HOST_FACTS: Final = 7
NUM_FACTS: Final = HOST_FACTS * NUM_HOSTS + 1 + len(SUBNETS) + 3 + 3
PRIVILEGED: Final = {"true_state": ArraySpec((NUM_FACTS,))}

INFO: Final = {
    "red_action": ArraySpec((), "uint8", 0, 5),
    "red_target": ArraySpec((), "uint8", 0, 255),
    "red_success": ArraySpec((), "uint8", 0, UNKNOWN),
    "blue_success": ArraySpec((), "uint8", 0, UNKNOWN),
}
EPISODE_INFO: Final = {"red": ArraySpec((), "uint8", 0, 2), "horizon": ArraySpec((), "int64", 1)}

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

HIDDEN: Final = np.dtype(
    [
        ("key", np.uint64),  # RNG stream of the episode
        ("step", np.int32),  # steps taken
        ("horizon", np.int32),
        ("error", np.uint8),  # code of the first error, see `random_draws`
        # Blue's memory, tracked where the action mask or a channel needs it.
        ("activity_seen", np.uint16),  # hosts on which blue has observed any activity
        ("scan_seen", np.uint16),  # hosts on which blue has observed a scan
        # Red's sessions: bit j is the j-th oldest on the host.
        ("privileged", np.int64, (NUM_HOSTS,)),
        ("removable", np.int64, (NUM_HOSTS,)),
        ("exploit_options", np.uint8, (NUM_HOSTS,)),  # exploits suggested by red's last scan
        ("malware", np.uint16),  # hosts with a malware file
        ("restored", np.uint16),  # hosts that blue has restored in this episode
        ("ot_stoppable", np.uint8),
        ("ot_known", np.uint8),
        # Memory of the red agent.
        ("red", np.uint8),  # index of the episode's agent
        ("red_success", np.uint8),
        ("empty_scan", np.uint8),  # red's last action was a scan of an unreachable host
        ("b_line_step", np.uint8),  # position in the script
        ("b_line_user_host", np.uint8),  # the user host it attacks first
        ("b_line_reached_server", np.uint8),  # has tried to exploit Op_Server0
        ("subnets_tried", np.uint8),
        ("hosts_scanned", np.uint16),
        ("hosts_exploited", np.uint16),
        ("hosts_escalated", np.uint16),
        ("hosts_ever_exploited", np.uint16),  # exploited successfully at least once
        ("last_exploited", np.uint8),
        ("last_escalated", np.uint8),
    ],
    align=True,
)


def write_privileged(observation: Arrays, true_state: Arrays, hidden: Array) -> None:
    """Write the arrays of `PRIVILEGED`.

    Args:
        observation: where to write.
        true_state: arrays of `TRUE_STATE`.
        hidden: (envs,) `HIDDEN` records.
    """
    facts = observation["true_state"]
    access, sessions = true_state["access"], true_state["n_sessions"]
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
        facts[:, number * NUM_HOSTS : (number + 1) * NUM_HOSTS] = fact
    rest = facts[:, HOST_FACTS * NUM_HOSTS :]
    rest[:, 0] = true_state["ot_up"]
    for subnet in range(len(SUBNETS)):
        rest[:, 1 + subnet] = true_state["red_subnets"] >> subnet & 1
    for red in range(3):
        rest[:, 4 + red] = hidden["red"] == red
    rest[:, 7] = hidden["b_line_step"] / np.float32(16)
    rest[:, 8] = hidden["step"] / np.float32(100)
    rest[:, 9] = (hidden["horizon"] - hidden["step"]) / np.float32(100)


class GameState(NamedTuple):
    """True and hidden state of a batch, with the draws and red actions given from outside."""

    known: Array  # (envs, 13) red knows the address
    scanned: Array  # (envs, 13) red has scanned the host
    access: Array  # (envs, 13) highest level of red's sessions
    access_first: Array  # (envs, 13) level of red's oldest session
    n_sessions: Array  # (envs, 13)
    user_removable: Array  # (envs, 13) user-level sessions that Remove would kill
    decoys: Array  # (envs, 13) mask of decoy types
    n_decoys: Array  # (envs, 13) decoy processes; Vsftpd can be stacked
    ot_up: Array  # (envs,) the OT service of Op_Server0 runs
    red_subnets: Array  # (envs,) mask of the subnets red knows
    hidden: Array  # (envs,) `HIDDEN` records
    draws: Array  # (envs, 7) recorded draws; no rows: drawn from the episode's stream
    forced_red: Array  # (envs, 2) red action and target; no rows: the red agent chooses


class Observation(NamedTuple):
    """Observation of blue. A channel that is switched off has no rows."""

    bits: Array  # (envs, 52)
    decoys: Array  # (envs, 13, 8)
    decoy_counts: Array  # (envs, 13)
    scans: Array  # (envs, 13)
    scanned_decoys: Array  # (envs, 13, 8)
    recency: Array  # (envs, 13, 5)
    elapsed: Array  # (envs, 1)
    remaining: Array  # (envs, 1)
    exploits: Array  # (envs, 13, 8)


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
    mask: BoolArray  # (envs, 145) allowed actions; no rows without an action mask
