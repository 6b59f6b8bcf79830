"""Random draws of a step: from the episode's RNG stream, or replayed from a recording.

A recorded draw that is impossible leaves an error code in the env's hidden state; the step then
continues with a draw from the stream, so that the state stays one the game can reach.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

from hundredfold.core.batch import Array, IntArray
from hundredfold.core.errors import HundredfoldError, ShapeError, suggest
from hundredfold.core.numba_kernels import inlined, integer, uniform
from hundredfold.envs.cage2.network import NONE, NUM_EXPLOITS
from hundredfold.envs.cage2.network_tables import TOP_EXPLOIT
from hundredfold.envs.cage2.state import (
    DRAWS,
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

TOP_EXPLOIT_PROBABILITY: Final = 0.75
DETECTION_PROBABILITY: Final = 0.95
GREEN_SLEEP_PROBABILITY: Final = 0.5

(
    NO_ERROR,
    TOO_MANY_SESSIONS,
    RED_ACTION_MISMATCH,
    RED_TARGET_MISMATCH,
    INVALID_EXPLOIT,
    MISSING_DETECTION,
    INVALID_SESSION,
    INVALID_GREEN,
) = range(8)

ERROR_MESSAGES: Final = {
    TOO_MANY_SESSIONS: f"red opened more than {MAX_SESSIONS} sessions on one host, the most this "
    "env can hold; use a shorter horizon or a blue policy that removes them.",
    RED_ACTION_MISMATCH: "the red agent chose another action than the recorded `red_action`; the "
    "recording was made with another red agent, ruleset or history.",
    RED_TARGET_MISMATCH: "the recorded `red_target` is missing or not among the targets of the "
    "red agent; the recording was made with another red agent, ruleset or history.",
    INVALID_EXPLOIT: "the recorded `exploit` is missing or not among the exploits that red's last "
    "scan of the target suggests.",
    MISSING_DETECTION: "a shell exploit succeeded, so `exploit_detected` must be 0 or 1.",
    INVALID_SESSION: "an escalation picks a session, so `escalate_choice` must be below the number "
    "of red sessions on the target.",
    INVALID_GREEN: "green scans, so `green_action` must be 0 or 1 and, for a scan, "
    "`green_target` one of the hosts that green scans.",
}


class SessionLimitError(HundredfoldError):
    """Red holds more sessions on a host than the env can hold."""


class RecordedDrawError(HundredfoldError):
    """A recorded draw or a forced red action is impossible in this step."""


def error_from_codes(error_codes: Array, env_ids: IntArray) -> HundredfoldError:
    """Exception for the first env with an error.

    Args:
        error_codes: (envs,) codes, 0 = no error; at least one is not 0.
        env_ids: (envs,) ids of the envs, for the message.
    """
    row = int(np.flatnonzero(error_codes)[0])
    code = int(error_codes[row])
    kind = SessionLimitError if code == TOO_MANY_SESSIONS else RecordedDrawError
    others = np.count_nonzero(error_codes) - 1
    more = f" ({others} more envs have errors)" if others else ""
    return kind(f"env {env_ids[row]}: {ERROR_MESSAGES[code]}{more}")


@inlined
def count_bits(mask: Any) -> Any:
    """Number of bits set."""
    count = 0
    while mask:
        mask &= mask - 1
        count += 1
    return count


@inlined
def nth_bit(mask: Any, n: Any) -> Any:
    """Position of the n-th lowest bit set, counted from 0."""
    for _ in range(n):
        mask &= mask - 1
    below_lowest = (mask & -mask) - 1
    return count_bits(below_lowest)


@inlined
def has_recorded_draws(state: Any) -> Any:
    """Whether this step replays recorded draws."""
    return state.draws.shape[0] > 0


@inlined
def record_error(state: Any, i: Any, code: Any) -> None:
    """Store an error code for env i, unless it already has one."""
    if state.hidden[i].error == NO_ERROR:
        state.hidden[i].error = code


@inlined
def draw_counter(step: Any, purpose: Any) -> Any:
    """Counter of a step's draw for a purpose in the episode's stream."""
    return np.uint64(step * DRAWS_PER_STEP + purpose)


@inlined
def draw_uniform(state: Any, i: Any, purpose: Any) -> Any:
    """Uniform number in [0, 1) for this step and purpose."""
    return uniform(state.hidden[i].key, draw_counter(state.hidden[i].step, purpose))


@inlined
def draw_integer(state: Any, i: Any, purpose: Any, below: Any) -> Any:
    """Uniform integer in 0 .. below-1 for this step and purpose."""
    return integer(state.hidden[i].key, draw_counter(state.hidden[i].step, purpose), below)


@inlined
def pick_host(state: Any, i: Any, candidates: Any) -> Any:
    """Red's next target, uniformly from a set of hosts."""
    if has_recorded_draws(state):
        host = np.int64(state.draws[i, RED_TARGET])
        if host < state.network.num_hosts and candidates >> host & 1:
            return host
        record_error(state, i, RED_TARGET_MISMATCH)
    return nth_bit(candidates, draw_integer(state, i, RED_TARGET, count_bits(candidates)))


@inlined
def pick_exploit(state: Any, i: Any, options: Any) -> Any:
    """With probability 0.75 the option of the highest weight, else one of the others uniformly."""
    if has_recorded_draws(state):
        exploit = np.int64(state.draws[i, EXPLOIT])
        if exploit < NUM_EXPLOITS and options >> exploit & 1:
            return exploit
        if exploit != NOT_DRAWN or options & (options - 1):
            record_error(state, i, INVALID_EXPLOIT)
    top = TOP_EXPLOIT[options]
    others = options & ~(1 << top)
    if not others:
        return top
    unit = draw_uniform(state, i, EXPLOIT)
    if unit < TOP_EXPLOIT_PROBABILITY:
        return top
    # The rest of the unit interval is itself uniform, so one draw decides both.
    rest = (unit - TOP_EXPLOIT_PROBABILITY) / (1.0 - TOP_EXPLOIT_PROBABILITY)
    return nth_bit(others, np.int64(rest * count_bits(others)))


@inlined
def is_detected(state: Any, i: Any) -> Any:
    """Whether Monitor detects the process of a new shell."""
    if has_recorded_draws(state):
        detected = state.draws[i, EXPLOIT_DETECTED]
        if detected <= 1:
            return detected == 1
        record_error(state, i, MISSING_DETECTION)
    return draw_uniform(state, i, EXPLOIT_DETECTED) < DETECTION_PROBABILITY


@inlined
def pick_session(state: Any, i: Any, n_sessions: Any) -> Any:
    """Session on a host that is escalated, oldest = 0."""
    if has_recorded_draws(state):
        session = np.int64(state.draws[i, ESCALATE_CHOICE])
        if session < n_sessions:
            return session
        record_error(state, i, INVALID_SESSION)
    return draw_integer(state, i, ESCALATE_CHOICE, n_sessions)


@inlined
def pick_green_target(state: Any, i: Any) -> Any:
    """The host that green scans, or NONE: with probability 0.5 it sleeps."""
    green_hosts = state.network.green_hosts
    if has_recorded_draws(state):
        action, host = state.draws[i, GREEN_ACTION], np.int64(state.draws[i, GREEN_TARGET])
        if action == 0:
            return np.int64(NONE)
        for candidate in green_hosts:
            if action == 1 and host == candidate:
                return host
        record_error(state, i, INVALID_GREEN)
    if draw_uniform(state, i, GREEN_ACTION) < GREEN_SLEEP_PROBABILITY:
        return np.int64(NONE)
    return green_hosts[draw_integer(state, i, GREEN_TARGET, len(green_hosts))]


def recorded_draw_columns(draws: Mapping[str, ArrayLike], num_envs: int) -> Array:
    """(envs, 7) uint8 recorded draws in the order of `DRAWS`; missing ones are `NOT_DRAWN`."""
    columns = np.full((num_envs, len(DRAWS)), NOT_DRAWN, np.uint8)
    for name, values in draws.items():
        if name not in DRAWS:
            raise RecordedDrawError(f"unknown draw {name!r}; {suggest(name, DRAWS)}")
        columns[:, DRAWS.index(name)] = byte_column(name, values, num_envs)
    return columns


def byte_column(name: str, values: ArrayLike, num_envs: int) -> Array:
    """(envs,) uint8 values, checked; `name` is for the message."""
    given = np.asarray(values)
    if given.shape != (num_envs,) or given.dtype.kind not in "iu":
        raise ShapeError(
            f"{name} must be integers of shape ({num_envs},), one per env; got {given.dtype}{list(given.shape)}."
        )
    if given.min() < 0 or given.max() > NOT_DRAWN:
        raise RecordedDrawError(f"{name} must be in 0..{NOT_DRAWN}, got {given.min()}..{given.max()}.")
    return given.astype(np.uint8)
