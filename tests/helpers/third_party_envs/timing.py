"""Envs that wait or compute in every step."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from helpers.third_party_envs.dice import DiceEnv
from helpers.third_party_envs.faults import FaultyEnv


class WaitsForFile(FaultyEnv):
    """Waits at `fault_step` until a file called `gate` appears in the folder."""

    def __init__(self, folder, fault_seed=None):
        super().__init__(fault_seed)
        self.gate = Path(folder) / "gate"

    def step(self, action):
        result = super().step(action)
        while self.fault_is_due and not self.gate.exists():
            time.sleep(0.005)
        return result


class SleepsInStep(DiceEnv):
    """Sleeps 2 ms in every step and reports its thread."""

    def step(self, action):
        time.sleep(0.002)
        return super().step(action)

    def info(self):
        return {"thread": threading.current_thread().name}


class ComputesInStep(SleepsInStep):
    """Computes for 2 ms in every step instead."""

    def step(self, action):
        end = time.thread_time() + 0.002
        while time.thread_time() < end:
            pass
        return DiceEnv.step(self, action)
