"""Envs with large or unpicklable infos, and envs that record what happened to them."""

from __future__ import annotations

import os
import sys
import uuid
from pathlib import Path

import numpy as np

from helpers.third_party_envs.dice import DiceEnv
from helpers.third_party_envs.faults import FaultyEnv
from helpers.third_party_envs.spaces import UnevenBoxActions


class LargeInfo(DiceEnv):
    """Its info grows with every step, beyond what a slot of shared memory holds."""

    max_steps = 5
    terminates_randomly = False

    def info(self):
        return {"step_count": self.step_count, "data": bytes(self.step_count * 150_000)}


class CountsPickling:
    """Unpickles as the number of its kind that were pickled in this process."""

    pickled = 0

    def __reduce__(self):
        CountsPickling.pickled += 1
        return int, (CountsPickling.pickled,)


class PicklingCountInfo(DiceEnv):
    max_steps = 99
    terminates_randomly = False

    def info(self):
        return {"pickled": CountsPickling()}


class UnpicklableInfo(DiceEnv):
    """Its info has a value that cannot be pickled."""

    def info(self):
        return {"total": self.total, "function": lambda: self.total}


class ReportsModules(DiceEnv):
    """Reports whether its process has imported torch or Numba."""

    def info(self):
        return {"modules": sorted({"torch", "numba"} & sys.modules.keys()), "pid": os.getpid()}


class CountsResets(FaultyEnv):
    """Observes how often it was reset since it was created, whatever the seed."""

    resets = 0

    def reset(self, *, seed=None, options=None):
        self.resets += 1
        return super().reset(seed=seed, options=options)

    def observation(self):
        return np.array([self.step_count, self.resets], np.float32)


class RecordsSeeds(UnevenBoxActions):
    """Records every seed as a file name; raises at step 2 of the episode with `fault_seed`."""

    def __init__(self, folder, fault_seed=None):
        self.folder, self.fault_seed = Path(folder), fault_seed

    def reset(self, *, seed=None, options=None):
        (self.folder / str(seed)).touch()
        self.has_fault = seed == self.fault_seed
        return super().reset(seed=seed, options=options)

    def step(self, action):
        result = super().step(action)
        if self.has_fault and self.step_count == 2:
            raise ZeroDivisionError("the env failed in step")
        return result


class RecordsClose(DiceEnv):
    """Creates a file in the folder when it is closed, also in another process."""

    def __init__(self, folder):
        self.folder = folder

    def close(self):
        (self.folder / uuid.uuid4().hex).touch()
