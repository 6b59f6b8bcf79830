"""The arrays of a cage2 batch: what the rules read and write, and what they report.

The true state is no report of the state, it is the state: the rules work directly on the arrays
that users read in `true_state`. What nobody needs to see (red's memory, the order of sessions)
lives in one record per env, `SECRETS`. Every array's first axis is the env.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from hundredfold.core.batch import Array, ArraySpec, BoolArray, FloatArray, IntArray
from hundredfold.envs.cage2.network import NUM_BITS, NUM_DECOYS, NUM_HOSTS, SUBNETS

MAX_SESSIONS: Final = 64
"""Red sessions that one host can hold: one bit each in the masks of `SECRETS`."""

MAX_DECOYS: Final = 2**15 - 1
"""Decoy processes on one host, and with them the longest horizon: blue can stack one per step."""

NO_ACCESS, USER_ACCESS, PRIVILEGED_ACCESS = range(3)
# How a move ended, as its player is told.
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

# What the channel `recency` remembers of each host: what blue saw there and what it did there.
NUM_MEMORIES: Final = 5
SAW_SCAN, SAW_EXPLOIT, DID_ANALYSE, DID_REMOVE, DID_RESTORE = range(NUM_MEMORIES)

BITS: Final = ArraySpec((NUM_BITS,), "uint8", 0, 1)
# What blue may see besides the bits. All of it follows from blue's own actions, the bits it has
# seen and the clock, so a blue that plays the original game can keep the same books.
CHANNELS: Final = {
    "decoys": ArraySpec((NUM_HOSTS, NUM_DECOYS), "uint8", 0, 1),
    "decoy_counts": ArraySpec((NUM_HOSTS,), "int16", 0, MAX_DECOYS),
    "scans": ArraySpec((NUM_HOSTS,), "uint8", 0, 1),
    "baits": ArraySpec((NUM_HOSTS, NUM_DECOYS), "uint8", 0, 1),
    "recency": ArraySpec((NUM_HOSTS, NUM_MEMORIES), "float32", 0, 1),
    "elapsed": ArraySpec((1,), "float32", 0),
    "remaining": ArraySpec((1,), "float32", 0),
}

INFO: Final = {
    "red_action": ArraySpec((), "uint8", 0, 5),
    "red_target": ArraySpec((), "uint8", 0, 255),
    "red_success": ArraySpec((), "uint8", 0, UNKNOWN),
    "blue_success": ArraySpec((), "uint8", 0, UNKNOWN),
}
EPISODE_INFO: Final = {
    "red": ArraySpec((), "uint8", 0, 2),
    "horizon": ArraySpec((), "int64", 1),
}

# Chance has seven columns in a recording. A draw from the episode's stream is numbered by the same
# columns, so each step has its own draw for each purpose, whether others were needed or not.
DRAWS: Final = (
    "red_target",
    "exploit",
    "exploit_detected",
    "escalate_choice",
    "green_action",
    "green_target",
    "red_action",  # never drawn: a recording may name it, to be checked
)
(
    RED_TARGET,
    EXPLOIT,
    EXPLOIT_DETECTED,
    ESCALATE_CHOICE,
    GREEN_ACTION,
    GREEN_TARGET,
    RED_ACTION,
) = range(len(DRAWS))
DRAWS_PER_STEP: Final = 8
NOT_DRAWN: Final = 255

SECRETS: Final = np.dtype(
    [
        ("key", np.uint64),  # the episode's stream
        ("step", np.int32),  # steps played
        ("horizon", np.int32),
        ("trouble", np.uint8),  # what went wrong first, see `troubles`
        # Blue's own books, kept where a mask or a channel needs them: see `books`.
        ("touched", np.uint16),  # hosts on which blue has seen any activity
        ("seen_scanned", np.uint16),  # hosts on which blue has seen a scan
        # Red's sessions in order: bit j speaks of the j-th oldest on the host.
        ("privileged", np.int64, (NUM_HOSTS,)),
        ("removable", np.int64, (NUM_HOSTS,)),
        ("options", np.uint8, (NUM_HOSTS,)),  # exploits that red's last scan of the host suggests
        ("malware", np.uint16),  # hosts with a malware file
        ("restored", np.uint16),  # hosts that blue has restored in this episode
        ("ot_killable", np.uint8),
        ("ot_known", np.uint8),
        # Red's mind.
        ("red", np.uint8),  # which agent plays this episode
        ("red_success", np.uint8),
        ("empty_scan", np.uint8),  # red's last action was a scan that reached nobody
        ("b_line", np.uint8),  # position in the plan
        ("b_line_user", np.uint8),  # the user host it goes through
        ("b_line_reached_server", np.uint8),  # has tried to exploit Op_Server0
        ("subnets_tried", np.uint8),
        ("hosts_scanned", np.uint16),
        ("hosts_exploited", np.uint16),
        ("hosts_escalated", np.uint16),
        ("hosts_mastered", np.uint16),  # ever successfully exploited
        ("last_exploited", np.uint8),
        ("last_escalated", np.uint8),
    ],
    align=True,
)


class Game(NamedTuple):
    """What the rules play on: the arrays of the true state, and what is behind them."""

    known: Array  # (envs, 13) red knows the address
    scanned: Array  # (envs, 13)
    access: Array  # (envs, 13) the highest level of red's sessions
    access_first: Array  # (envs, 13) the level of red's oldest session
    n_sessions: Array  # (envs, 13)
    user_removable: Array  # (envs, 13) user-level sessions that a Remove would kill
    decoys: Array  # (envs, 13) mask of decoy types
    n_decoys: Array  # (envs, 13) decoy processes; Vsftpd can be stacked
    ot_up: Array  # (envs,)
    red_subnets: Array  # (envs,) mask of subnets that red knows
    secrets: Array  # (envs,) records
    draws: Array  # (envs, 7) recorded outcomes, or no rows: then the streams decide
    forced_red: Array  # (envs, 2) action and target, or no rows: then red's agent decides


class Observation(NamedTuple):
    """What blue sees. A channel that is switched off has no rows."""

    bits: Array  # (envs, 52)
    decoys: Array  # (envs, 13, 8)
    decoy_counts: Array  # (envs, 13)
    scans: Array  # (envs, 13)
    baits: Array  # (envs, 13, 8)
    recency: Array  # (envs, 13, 5)
    elapsed: Array  # (envs, 1)
    remaining: Array  # (envs, 1)


class Report(NamedTuple):
    """What a step leaves besides observations and the true state."""

    reward: FloatArray  # (envs,)
    terminated: BoolArray  # (envs,)
    red_action: Array  # (envs,)
    red_target: Array  # (envs,)
    red_success: Array  # (envs,)
    blue_success: Array  # (envs,)
    red: Array  # (envs,) who played the episode that ended
    horizon: IntArray  # (envs,) and for how long
    mask: BoolArray  # (envs, 145) what blue may do next; no rows where it may do anything
