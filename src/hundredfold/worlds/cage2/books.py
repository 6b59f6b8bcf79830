"""The books of a blue with a memory: the channels `baits` and `recency`, and where it saw activity.

They are kept from blue's own move and the bits it was shown, and from nothing else, so an agent
that plays the original game (`blue_agent`) can keep the same ones.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from hundredfold.worlds.cage2.blue_moves import (
    ACTION_HOST,
    ACTION_KIND,
    ANALYSE,
    REMOVE,
    RESTORE,
)
from hundredfold.worlds.cage2.kernels import rule
from hundredfold.worlds.cage2.network import NUM_DECOYS, NUM_HOSTS
from hundredfold.worlds.cage2.state import (
    DID_ANALYSE,
    DID_REMOVE,
    DID_RESTORE,
    NUM_MEMORIES,
    SAW_EXPLOIT,
    SAW_SCAN,
)

ONE: Final = np.float32(1.0)


@rule
def keep_books(game: Any, seen: Any, i: Any, action: Any) -> None:
    """Note what blue did in this step and what it was then shown."""
    secrets = game.secrets[i]
    let_memories_fade(seen, i)
    kind, host = ACTION_KIND[action], ACTION_HOST[action]
    if kind == ANALYSE:
        remember(seen, i, host, DID_ANALYSE)
    elif kind == REMOVE:
        remember(seen, i, host, DID_REMOVE)
    elif kind == RESTORE:
        remember(seen, i, host, DID_RESTORE)
    for host in range(NUM_HOSTS):
        if not seen.bits[i, 4 * host]:
            continue
        secrets.touched |= 1 << host
        if seen.bits[i, 4 * host + 1]:
            remember(seen, i, host, SAW_EXPLOIT)
            continue
        remember(seen, i, host, SAW_SCAN)
        if not secrets.seen_scanned >> host & 1:
            secrets.seen_scanned |= 1 << host
            note_baits(game, seen, i, host)


@rule
def let_memories_fade(seen: Any, i: Any) -> None:
    """Everything is one step longer ago: from 1 / n to 1 / (n + 1)."""
    if seen.recency.shape[0] > 0:
        for host in range(NUM_HOSTS):
            for memory in range(NUM_MEMORIES):
                fresh = seen.recency[i, host, memory]
                seen.recency[i, host, memory] = fresh / (ONE + fresh)


@rule
def remember(seen: Any, i: Any, host: Any, memory: Any) -> None:
    """Note what happened just now; from here on it fades: 1, 1/2, 1/3, 1/4, ..."""
    if seen.recency.shape[0] > 0:
        seen.recency[i, host, memory] = ONE


@rule
def note_baits(game: Any, seen: Any, i: Any, host: Any) -> None:
    """Keep the decoys of a host's first scan: what red found then it may believe for long."""
    if seen.baits.shape[0] > 0:
        for decoy in range(NUM_DECOYS):
            seen.baits[i, host, decoy] = game.decoys[i, host] >> decoy & 1


@rule
def open_books(game: Any, seen: Any, i: Any) -> None:
    """Empty books for a new episode."""
    game.secrets[i].touched = 0
    game.secrets[i].seen_scanned = 0
    for host in range(NUM_HOSTS):
        if seen.baits.shape[0] > 0:
            for decoy in range(NUM_DECOYS):
                seen.baits[i, host, decoy] = 0
        if seen.recency.shape[0] > 0:
            for memory in range(NUM_MEMORIES):
                seen.recency[i, host, memory] = 0


@rule
def keep_final_books(seen: Any, final: Any, i: Any) -> None:
    """Save the channels of an episode's last observation."""
    for host in range(NUM_HOSTS):
        if seen.baits.shape[0] > 0:
            for decoy in range(NUM_DECOYS):
                final.baits[i, host, decoy] = seen.baits[i, host, decoy]
        if seen.recency.shape[0] > 0:
            for memory in range(NUM_MEMORIES):
                final.recency[i, host, memory] = seen.recency[i, host, memory]
