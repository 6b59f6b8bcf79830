"""What can go wrong inside a step, as codes that kernels write and errors that people read."""

from __future__ import annotations

from typing import Final

import numpy as np

from hundredfold.core.batch import Array, IntArray
from hundredfold.core.errors import HundredfoldError
from hundredfold.worlds.cage2.state import MAX_SESSIONS

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
    "world can keep; use a shorter horizon or a blue that fights back.",
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
    """Red holds more sessions on a host than the world can keep."""


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
