"""Chance in a step: drawn from the episode's stream, or read from a recording.

A recording that does not fit leaves a trouble code; the step then goes on with a draw of its own,
so that the state stays one the game can reach.

What can go wrong inside a step, as codes that kernels write and errors that people read.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from hundredfold.core.batch import Array, IntArray
from hundredfold.core.errors import HundredfoldError
from hundredfold.core.numba_kernels import inlined, integer, uniform
from hundredfold.envs.cage2.network import (
    ENTERPRISE0,
    ENTERPRISE1,
    ENTERPRISE2,
    HEAVIEST_EXPLOIT,
    NOBODY,
    NUM_EXPLOITS,
    NUM_HOSTS,
    USER0,
    USER1,
    USER2,
    USER3,
    USER4,
)
from hundredfold.envs.cage2.state import (
    DRAWS_PER_STEP,
    ESCALATE_CHOICE,
    EXPLOIT,
    EXPLOIT_DETECTED,
    GREEN_ACTION,
    GREEN_TARGET,
    MAX_SESSIONS,
    NOT_DRAWN,
    RED_TARGET,
)

(
    NO_TROUBLE,
    TOO_MANY_SESSIONS,
    OTHER_RED_ACTION,
    OTHER_RED_TARGET,
    WRONG_EXPLOIT,
    NO_DETECTION,
    WRONG_SESSION,
    WRONG_GREEN,
) = range(8)

MESSAGES: Final = {
    TOO_MANY_SESSIONS: f"red opened more than {MAX_SESSIONS} sessions on one host, the most this "
    "env can keep; use a shorter horizon or a blue that fights back.",
    OTHER_RED_ACTION: "red's agent chose another action than the recorded `red_action`; the "
    "recording belongs to another red agent, ruleset or history.",
    OTHER_RED_TARGET: "the recorded `red_target` is missing or not among the targets that red's "
    "agent may pick now; the recording belongs to another red agent, ruleset or history.",
    WRONG_EXPLOIT: "the recorded `exploit` is missing or not among the exploits that red's last "
    "scan of the target suggests.",
    NO_DETECTION: "a shell exploit succeeded, so `exploit_detected` must be 0 or 1.",
    WRONG_SESSION: "an escalation picks a session, so `escalate_choice` must be below the number "
    "of red sessions on the target.",
    WRONG_GREEN: "green is awake, so `green_action` must be 0 or 1 and, for a scan, "
    "`green_target` one of the user and enterprise hosts.",
}


class SessionsError(HundredfoldError):
    """Red holds more sessions on a host than the env can keep."""


class InjectionError(HundredfoldError):
    """A recorded outcome contradicts what can happen in the step."""


def trouble_error(troubles: Array, env_ids: IntArray) -> HundredfoldError:
    """The error for the first env in trouble; `troubles` (envs,) holds codes."""
    row = int(np.flatnonzero(troubles)[0])
    code = int(troubles[row])
    kind = SessionsError if code == TOO_MANY_SESSIONS else InjectionError
    others = np.count_nonzero(troubles) - 1
    more = f" ({others} more envs are in trouble)" if others else ""
    return kind(f"env {env_ids[row]}: {MESSAGES[code]}{more}")


HEAVIEST_CHANCE: Final = 0.75
DETECTED_CHANCE: Final = 0.95
GREEN_SLEEP_CHANCE: Final = 0.5
GREEN_HOSTS: Final = np.array(
    [USER0, USER1, USER2, USER3, USER4, ENTERPRISE0, ENTERPRISE1, ENTERPRISE2]
)


@inlined
def count_bits(mask: Any) -> Any:
    """How many members a set has."""
    count = 0
    while mask:
        mask &= mask - 1
        count += 1
    return count


@inlined
def nth_bit(mask: Any, n: Any) -> Any:
    """The n-th smallest member of a set, counted from 0."""
    for _ in range(n):
        mask &= mask - 1
    position = 0
    while not mask >> position & 1:
        position += 1
    return position


@inlined
def is_recorded(game: Any) -> Any:
    """Whether this step replays a recording."""
    return game.draws.shape[0] > 0


@inlined
def note_trouble(game: Any, i: Any, code: Any) -> None:
    """Keep what went wrong in env i, unless something did before."""
    if game.secrets[i].trouble == NO_TROUBLE:
        game.secrets[i].trouble = code


@inlined
def draw_number(step: Any, purpose: Any) -> Any:
    """Where in the episode's stream a step finds its draw for a purpose."""
    return np.uint64(step * DRAWS_PER_STEP + purpose)


@inlined
def drawn_unit(game: Any, i: Any, purpose: Any) -> Any:
    """A number in [0, 1) for this step and purpose."""
    return uniform(game.secrets[i].key, draw_number(game.secrets[i].step, purpose))


@inlined
def drawn_below(game: Any, i: Any, purpose: Any, below: Any) -> Any:
    """A whole number in 0 .. below-1 for this step and purpose."""
    return integer(game.secrets[i].key, draw_number(game.secrets[i].step, purpose), below)


@inlined
def pick_host(game: Any, i: Any, candidates: Any) -> Any:
    """Red's next target: one of a set of hosts, uniformly."""
    if is_recorded(game):
        host = np.int64(game.draws[i, RED_TARGET])
        if host < NUM_HOSTS and candidates >> host & 1:
            return host
        note_trouble(game, i, OTHER_RED_TARGET)
    return nth_bit(candidates, drawn_below(game, i, RED_TARGET, count_bits(candidates)))


@inlined
def pick_exploit(game: Any, i: Any, options: Any) -> Any:
    """The only option; of several the heaviest in three cases of four, else one of the others."""
    if is_recorded(game):
        exploit = np.int64(game.draws[i, EXPLOIT])
        if exploit < NUM_EXPLOITS and options >> exploit & 1:
            return exploit
        if exploit != NOT_DRAWN or options & (options - 1):
            note_trouble(game, i, WRONG_EXPLOIT)
    heaviest = HEAVIEST_EXPLOIT[options]
    others = options & ~(1 << heaviest)
    if not others:
        return heaviest
    unit = drawn_unit(game, i, EXPLOIT)
    if unit < HEAVIEST_CHANCE:
        return heaviest
    # What is left of the unit interval is itself uniform: one draw serves both questions.
    share = (unit - HEAVIEST_CHANCE) / (1.0 - HEAVIEST_CHANCE)
    return nth_bit(others, np.int64(share * count_bits(others)))


@inlined
def is_detected(game: Any, i: Any) -> Any:
    """Whether blue's monitoring catches the process of a fresh shell."""
    if is_recorded(game):
        detected = game.draws[i, EXPLOIT_DETECTED]
        if detected <= 1:
            return detected == 1
        note_trouble(game, i, NO_DETECTION)
    return drawn_unit(game, i, EXPLOIT_DETECTED) < DETECTED_CHANCE


@inlined
def pick_session(game: Any, i: Any, n_sessions: Any) -> Any:
    """Which of red's sessions on a host is escalated, oldest = 0."""
    if is_recorded(game):
        session = np.int64(game.draws[i, ESCALATE_CHOICE])
        if session < n_sessions:
            return session
        note_trouble(game, i, WRONG_SESSION)
    return drawn_below(game, i, ESCALATE_CHOICE, n_sessions)


@inlined
def pick_green_target(game: Any, i: Any) -> Any:
    """The user or enterprise host that green scans, or NOBODY in the half of cases it sleeps."""
    if is_recorded(game):
        action, host = game.draws[i, GREEN_ACTION], np.int64(game.draws[i, GREEN_TARGET])
        if action == 0:
            return np.int64(NOBODY)
        for candidate in GREEN_HOSTS:
            if action == 1 and host == candidate:
                return host
        note_trouble(game, i, WRONG_GREEN)
    if drawn_unit(game, i, GREEN_ACTION) < GREEN_SLEEP_CHANCE:
        return np.int64(NOBODY)
    return GREEN_HOSTS[drawn_below(game, i, GREEN_TARGET, len(GREEN_HOSTS))]
