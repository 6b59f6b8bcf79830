"""What blue gets: its reward, its 52 bits, and the channels that tell its decoys and the time.

Four bits per host: two for the activity of this step, two for what blue believes about red's
access. The belief persists, and is kept in the observation itself. What blue may remember of
earlier bits and moves is in `books`.

The books of a blue with a memory: the channels `baits` and `recency`, and where it saw activity.

They are kept from blue's own move and the bits it was shown, and from nothing else, so an agent
that plays the original game (`blue_agent`) can keep the same ones.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from hundredfold.core.numba_kernels import inlined
from hundredfold.envs.cage2.blue_actions import (
    ACTION_DECOY,
    ACTION_HOST,
    ACTION_KIND,
    ANALYSE,
    REMOVE,
    RESTORE,
)
from hundredfold.envs.cage2.network import (
    BASE_EVENTS,
    CONFIDENTIALITY_TENTHS,
    DISTINCT_PORTS,
    NOBODY,
    NUM_BITS,
    NUM_DECOYS,
    NUM_HOSTS,
)
from hundredfold.envs.cage2.state import (
    DID_ANALYSE,
    DID_REMOVE,
    DID_RESTORE,
    NUM_MEMORIES,
    PRIVILEGED_ACCESS,
    SAW_EXPLOIT,
    SAW_SCAN,
)

OT_DOWN_TENTHS: Final = 100
RESTORE_TENTHS: Final = 10
MANY: Final = 3
"""Events on a host, and ports among them, from which monitoring sees more than a knock."""
TIME_UNIT_STEPS: Final = 100
"""The channels `elapsed` and `remaining` count in hundreds of steps."""

QUIET, SCANNED, EXPLOITED = range(3)


@inlined
def reward_tenths(game: Any, i: Any, action: Any) -> Any:
    """What the step brings blue, in tenths and never positive.

    Every host under privileged access costs its confidentiality value, a stopped OT service 10, a
    Restore 1. User-level access costs nothing.
    """
    tenths = 0
    for host in range(NUM_HOSTS):
        if game.access[i, host] == PRIVILEGED_ACCESS:
            tenths -= CONFIDENTIALITY_TENTHS[host]
    if not game.ot_up[i]:
        tenths -= OT_DOWN_TENTHS
    if ACTION_KIND[action] == RESTORE:
        tenths -= RESTORE_TENTHS
    return tenths


@inlined
def show_step(
    game: Any,
    seen: Any,
    i: Any,
    action: Any,
    placed: Any,
    malware_at: Any,
    green_target: Any,
    red_touched: Any,
    red_scanned: Any,
    hits: Any,
    shells: Any,
    cardiff: Any,
) -> None:
    """Rebuild the observation after blue, green and red have moved.

    `placed`, `green_target` and `red_touched` are the hosts with events (or NOBODY): nowhere else
    can there be activity. An Analyse that found malware (at `malware_at`) has the last word.
    """
    for host in range(NUM_HOSTS):
        seen.bits[i, 4 * host] = 0
        seen.bits[i, 4 * host + 1] = 0
    show_own_move(seen, i, action, placed)
    for host in (red_touched, green_target, placed):
        if host == NOBODY:
            continue
        by_red = host == red_touched
        scans = (1 if by_red and red_scanned else 0) + (1 if host == green_target else 0)
        made_of_it = activity(
            scans * (BASE_EVENTS[host] + game.n_decoys[i, host]),
            DISTINCT_PORTS[host, game.decoys[i, host]],
            hits if by_red else 0,
            shells if by_red else 0,
            1 if host == placed else 0,
            cardiff,
        )
        show_activity(seen, i, host, made_of_it)
    if malware_at != NOBODY:
        believe(seen, i, malware_at, 1, 1)
    show_time(game, seen, i)


@inlined
def activity(
    scan_events: Any, open_ports: Any, hits: Any, shells: Any, placed: Any, cardiff: Any
) -> Any:
    """What monitoring makes of the events on one host.

    Scans leave events on all open ports, `hits` are events on a single one of them, a shell calls
    home from a port of its own. A decoy placed in this step is one more event without a port; it
    hides a small scan, except behind the corrected (`cardiff`) wrapper.
    """
    events = scan_events + hits + shells
    ports = (open_ports if scan_events else 1 if hits else 0) + shells
    many = events + placed >= MANY
    if many and ports >= MANY:
        return SCANNED
    if shells or (many and ports == 1):
        return EXPLOITED
    if placed and not (cardiff and events):
        return QUIET
    return SCANNED


@inlined
def show_activity(seen: Any, i: Any, host: Any, made_of_it: Any) -> None:
    """Set the activity bits: None 00, Scan 10, Exploit 11; after an exploit blue believes User."""
    if made_of_it == QUIET:
        return
    seen.bits[i, 4 * host] = 1
    if made_of_it == EXPLOITED:
        seen.bits[i, 4 * host + 1] = 1
        believe(seen, i, host, 0, 1)
    elif seen.scans.shape[0] > 0:
        seen.scans[i, host] = 1


@inlined
def believe(seen: Any, i: Any, host: Any, first: Any, second: Any) -> None:
    """Set the belief bits: No 00, Unknown 10, User 01, Privileged 11."""
    seen.bits[i, 4 * host + 2] = first
    seen.bits[i, 4 * host + 3] = second


@inlined
def show_own_move(seen: Any, i: Any, action: Any, placed: Any) -> None:
    """What blue concludes from its own move: Restore makes a host clean, Remove leaves a doubt."""
    kind, host = ACTION_KIND[action], ACTION_HOST[action]
    if kind == RESTORE:
        believe(seen, i, host, 0, 0)
        forget_decoys(seen, i, host)
    elif kind == REMOVE:
        if seen.bits[i, 4 * host + 2] or seen.bits[i, 4 * host + 3]:
            believe(seen, i, host, 1, 0)
    elif placed != NOBODY:
        if seen.decoys.shape[0] > 0:
            seen.decoys[i, host, ACTION_DECOY[action]] = 1
        if seen.decoy_counts.shape[0] > 0:
            seen.decoy_counts[i, host] += 1


@inlined
def forget_decoys(seen: Any, i: Any, host: Any) -> None:
    """No decoys on the host any more, as blue's own books say."""
    if seen.decoys.shape[0] > 0:
        for decoy in range(NUM_DECOYS):
            seen.decoys[i, host, decoy] = 0
    if seen.decoy_counts.shape[0] > 0:
        seen.decoy_counts[i, host] = 0


@inlined
def show_time(game: Any, seen: Any, i: Any) -> None:
    """How many steps were played and how many are left."""
    secrets = game.secrets[i]
    if seen.elapsed.shape[0] > 0:
        seen.elapsed[i, 0] = secrets.step / TIME_UNIT_STEPS
    if seen.remaining.shape[0] > 0:
        seen.remaining[i, 0] = (secrets.horizon - secrets.step) / TIME_UNIT_STEPS


@inlined
def show_start(game: Any, seen: Any, i: Any) -> None:
    """The first observation of an episode: all zero, but for the steps left."""
    for bit in range(NUM_BITS):
        seen.bits[i, bit] = 0
    for host in range(NUM_HOSTS):
        forget_decoys(seen, i, host)
        if seen.scans.shape[0] > 0:
            seen.scans[i, host] = 0
    show_time(game, seen, i)


@inlined
def keep_final(seen: Any, final: Any, i: Any) -> None:
    """Save the last observation of an episode before the next one begins."""
    # Element by element: a row-to-row assignment makes Numba compile ten seconds of error messages.
    for bit in range(NUM_BITS):
        final.bits[i, bit] = seen.bits[i, bit]
    for host in range(NUM_HOSTS):
        if seen.decoys.shape[0] > 0:
            for decoy in range(NUM_DECOYS):
                final.decoys[i, host, decoy] = seen.decoys[i, host, decoy]
        if seen.decoy_counts.shape[0] > 0:
            final.decoy_counts[i, host] = seen.decoy_counts[i, host]
        if seen.scans.shape[0] > 0:
            final.scans[i, host] = seen.scans[i, host]
    if seen.elapsed.shape[0] > 0:
        final.elapsed[i, 0] = seen.elapsed[i, 0]
    if seen.remaining.shape[0] > 0:
        final.remaining[i, 0] = seen.remaining[i, 0]


ONE: Final = np.float32(1.0)


@inlined
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


@inlined
def let_memories_fade(seen: Any, i: Any) -> None:
    """Everything is one step longer ago: from 1 / n to 1 / (n + 1)."""
    if seen.recency.shape[0] > 0:
        for host in range(NUM_HOSTS):
            for memory in range(NUM_MEMORIES):
                fresh = seen.recency[i, host, memory]
                seen.recency[i, host, memory] = fresh / (ONE + fresh)


@inlined
def remember(seen: Any, i: Any, host: Any, memory: Any) -> None:
    """Note what happened just now; from here on it fades: 1, 1/2, 1/3, 1/4, ..."""
    if seen.recency.shape[0] > 0:
        seen.recency[i, host, memory] = ONE


@inlined
def note_baits(game: Any, seen: Any, i: Any, host: Any) -> None:
    """Keep the decoys of a host's first scan: what red found then it may believe for long."""
    if seen.baits.shape[0] > 0:
        for decoy in range(NUM_DECOYS):
            seen.baits[i, host, decoy] = game.decoys[i, host] >> decoy & 1


@inlined
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


@inlined
def keep_final_books(seen: Any, final: Any, i: Any) -> None:
    """Save the channels of an episode's last observation."""
    for host in range(NUM_HOSTS):
        if seen.baits.shape[0] > 0:
            for decoy in range(NUM_DECOYS):
                final.baits[i, host, decoy] = seen.baits[i, host, decoy]
        if seen.recency.shape[0] > 0:
            for memory in range(NUM_MEMORIES):
                final.recency[i, host, memory] = seen.recency[i, host, memory]
