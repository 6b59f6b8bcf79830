"""Envs that raise or return invalid values at a given step."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from gymnasium import spaces

from helpers.third_party_envs.dice import DiceEnv


class FaultyEnv(DiceEnv):
    """Base of envs that fail at `fault_step`; by itself it is valid.

    With `fault_seed` the fault occurs only in the episode with that seed.
    """

    terminates_randomly = False
    fault_step = 3

    def __init__(self, fault_seed=None):
        self.fault_seed = fault_seed
        self.has_fault = False

    def reset(self, *, seed=None, options=None):
        self.has_fault = self.fault_seed in (None, seed)
        return super().reset(seed=seed, options=options)

    @property
    def fault_is_due(self):
        return self.has_fault and self.step_count == self.fault_step


class OneFaulty:
    """Env factory whose `number`-th env (from 0) is faulty."""

    def __init__(self, faulty, number, valid=FaultyEnv):
        self.faulty, self.number, self.valid, self.num_created = faulty, number, valid, 0

    def __call__(self):
        self.num_created += 1
        return self.faulty() if self.num_created == self.number + 1 else self.valid()


class NanObservation(FaultyEnv):
    def observation(self):
        return np.array([self.step_count, np.nan if self.fault_is_due else self.total], np.float32)


class NanFinalObservation(NanObservation):
    """The final observation of the episode has a NaN; the next episode is valid."""

    max_steps = 3


class InfObservation(FaultyEnv):
    def observation(self):
        return np.array([self.step_count, -np.inf if self.fault_is_due else self.total], np.float32)


class InfReward(FaultyEnv):
    def reward(self, roll):
        return np.inf if self.fault_is_due else float(roll)


class InfFinalReward(InfReward):
    max_steps = 3


class WrongObservationShape(FaultyEnv):
    def observation(self):
        return np.zeros(3, np.float32) if self.fault_is_due else super().observation()


class WrongFinalObservationShape(WrongObservationShape):
    max_steps = 3


class WrongObservationType(FaultyEnv):
    """Returns strings where its space has numbers."""

    def observation(self):
        return np.array(["a", "b"]) if self.fault_is_due else super().observation()


class RewardIsNone(FaultyEnv):
    def reward(self, roll):
        return None if self.fault_is_due else float(roll)


class ValidDict(FaultyEnv):
    observation_space = spaces.Dict({"step_count": spaces.Discrete(99), "total": spaces.Discrete(999)})

    def observation(self):
        return {"step_count": self.step_count, "total": self.total}


class MissingDictKey(ValidDict):
    def observation(self):
        return {"step_count": self.step_count} if self.fault_is_due else super().observation()


class NotADict(ValidDict):
    def observation(self):
        return self.step_count if self.fault_is_due else super().observation()


class ValidDiscrete(FaultyEnv):
    observation_space = spaces.Discrete(9)

    def observation(self):
        return self.step_count


class DiscreteOutOfRange(ValidDiscrete):
    def observation(self):
        return 9 if self.fault_is_due else super().observation()


class StepReturnsFourValues(FaultyEnv):
    """Returns four values, as in the API before Gymnasium."""

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        if self.fault_is_due:
            return observation, reward, terminated or truncated, info
        return observation, reward, terminated, truncated, info


class RaisesInStep(FaultyEnv):
    def step(self, action):
        result = super().step(action)
        if self.fault_is_due:
            raise ZeroDivisionError("the env failed in step")
        return result


class RaisesInFirstReset(FaultyEnv):
    def reset(self, *, seed=None, options=None):
        raise OSError("the env failed in its first reset")


class RaisesInSecondReset(FaultyEnv):
    """Raises once, when it is reset after a whole episode."""

    max_steps = 3
    step_count = 0

    def reset(self, *, seed=None, options=None):
        if self.fault_is_due:
            self.step_count = 0
            raise OSError("the env failed in reset")
        return super().reset(seed=seed, options=options)


class RaisesInConstructor(FaultyEnv):
    def __init__(self):
        raise OSError("the env failed in its constructor")


class RaisesWhenRecreated(FaultyEnv):
    """Raises at `fault_step`, and then in its constructor, once per file in the folder."""

    def __init__(self, folder, fault_seed=None):
        super().__init__(fault_seed)
        files = sorted(Path(folder).iterdir())
        if files:
            files[0].unlink()
            raise OSError("the env could not be recreated")
        self.folder = folder

    def step(self, action):
        result = super().step(action)
        if self.fault_is_due:
            for number in range(2):
                (Path(self.folder) / f"failure {number}").touch()
            raise ZeroDivisionError("the env failed in step")
        return result


class CallsSysExit(FaultyEnv):
    def step(self, action):
        result = super().step(action)
        if self.fault_is_due:
            sys.exit("the env called sys.exit")
        return result
