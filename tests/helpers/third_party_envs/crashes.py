"""Envs that kill, exit or stop their process, or hang."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from pathlib import Path

from helpers.hangs import announce_hang
from helpers.third_party_envs.faults import FaultyEnv


def hang():
    """Never returns."""
    announce_hang()
    threading.Event().wait()


class KillsProcess(FaultyEnv):
    """Dies by SIGKILL, as when memory runs out."""

    def step(self, action):
        result = super().step(action)
        if self.fault_is_due:
            os.kill(os.getpid(), signal.SIGKILL)
        return result


class ExitsProcess(FaultyEnv):
    def step(self, action):
        result = super().step(action)
        if self.fault_is_due:
            os._exit(3)
        return result


class StopsProcess(FaultyEnv):
    def step(self, action):
        result = super().step(action)
        if self.fault_is_due:
            announce_hang()
            os.kill(os.getpid(), signal.SIGSTOP)
        return result


class HangsInStep(FaultyEnv):
    def step(self, action):
        result = super().step(action)
        if self.fault_is_due:
            hang()
        return result


class HangsHoldingGil(FaultyEnv):
    """Hangs in compiled code that never releases the GIL."""

    def step(self, action):
        result = super().step(action)
        if self.fault_is_due:
            announce_hang()
            re.match(r"(a+)+$", "a" * 60 + "b")
        return result


class HangsInSecondReset(FaultyEnv):
    max_steps = 3
    step_count = 0

    def reset(self, *, seed=None, options=None):
        if self.fault_is_due:
            hang()
        return super().reset(seed=seed, options=options)


class KillsProcessInReset(FaultyEnv):
    """Dies by SIGKILL in the resets with `fault_seed`."""

    def reset(self, *, seed=None, options=None):
        if seed == self.fault_seed:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().reset(seed=seed, options=options)


class HangsInReset(FaultyEnv):
    def reset(self, *, seed=None, options=None):
        if seed == self.fault_seed:
            hang()
        return super().reset(seed=seed, options=options)


class StartsSubprocess(FaultyEnv):
    """Starts a subprocess and records its pid as a file name in the folder."""

    def __init__(self, folder, own_session=False):
        super().__init__()
        self.process = subprocess.Popen(["sleep", "1000"], start_new_session=own_session)
        (Path(folder) / str(self.process.pid)).touch()
