"""Envs that raise or return invalid values at a given step."""

from __future__ import annotations

import os
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


class UnreadableError(BaseException):
    """Neither an `Exception` nor one whose message can be read."""

    def __str__(self):
        raise KeyError("no message")


class RaisesUnreadable(FaultyEnv):
    def step(self, action):
        result = super().step(action)
        if self.fault_is_due:
            raise UnreadableError
        return result


class RaisesKeyboardInterrupt(FaultyEnv):
    def step(self, action):
        result = super().step(action)
        if self.fault_is_due:
            raise KeyboardInterrupt
        return result


class RaisesGeneratorExit(FaultyEnv):
    def step(self, action):
        result = super().step(action)
        if self.fault_is_due:
            raise GeneratorExit
        return result


class ForksInStep(FaultyEnv):
    """Forks, and lets the child return from `step` as well; the parent waits for its end."""

    def step(self, action):
        result = super().step(action)
        if self.fault_is_due:
            pid = os.fork()
            if pid:
                self.exit_code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return result

    def info(self):
        return {**super().info(), "exit_code": getattr(self, "exit_code", None)}


class ForksInReset(ForksInStep):
    def reset(self, *, seed=None, options=None):
        result = super().reset(seed=seed, options=options)
        if seed == self.fault_seed:
            pid = os.fork()
            if pid:
                self.exit_code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return result[0], self.info()

    fault_is_due = False


class Float64Env(FaultyEnv):
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def observation(self):
        return super().observation().astype(np.float64)


class TooLargeFloat64(Float64Env):
    """Returns finite numbers that are infinite as float32, and whose sum is not."""

    def observation(self):
        return np.array([1e39, -1e39]) if self.fault_is_due else super().observation()


class TooLargeForFloat32(FaultyEnv):
    """Returns float64 where its space has float32."""

    def observation(self):
        return np.array([self.step_count, 1e39 if self.fault_is_due else self.total])


class WideFloat64Env(FaultyEnv):
    observation_space = spaces.Box(-np.inf, np.inf, (8, 5), np.float64)
    large = 1.0

    def observation(self):
        observation = np.full((8, 5), self.total, np.float64)
        if self.fault_is_due:
            observation[3, :2] = self.large, -self.large
        return observation


class TooLargeWideFloat64(WideFloat64Env):
    large = 1e39


class TooLargeReward(FaultyEnv):
    def reward(self, roll):
        return 1e39 if self.fault_is_due else float(roll)


class TerminatedIsText(FaultyEnv):
    flag: object = "False"

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, self.flag if self.fault_is_due else terminated, truncated, info


class TerminatedIsNone(TerminatedIsText):
    flag = None


class TerminatedIsTwo(TerminatedIsText):
    flag = 2


class TerminatedIsZero(TerminatedIsText):
    """Valid: 0 and 1 are as good as booleans."""

    flag = 0


class OutsideBox(FaultyEnv):
    """Its totals leave the bounds of its space within an episode."""

    observation_space = spaces.Box(0, 9, (2,), np.float32)


class OutsideFirst(FaultyEnv):
    """Its first observations are outside the bounds of its space already."""

    observation_space = spaces.Box(-9, -1, (2,), np.float32)


class CallsSysExit(FaultyEnv):
    def step(self, action):
        result = super().step(action)
        if self.fault_is_due:
            sys.exit("the env called sys.exit")
        return result
