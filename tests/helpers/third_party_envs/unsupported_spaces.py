"""Envs with spaces that are not supported."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from helpers.third_party_envs.dice import DiceEnv
from helpers.third_party_envs.spaces import BoxActions


class IntegerBoxActions(DiceEnv):
    action_space = spaces.Box(-1, 1, (2,), np.int64)


class MaskedBoxActions(BoxActions):
    def info(self):
        return {"action_mask": np.ones(2, bool)}


class DictActions(DiceEnv):
    action_space = spaces.Dict({"push": spaces.Box(-1, 1, (2,), np.float32), "kind": spaces.Discrete(2)})


class TupleActions(DiceEnv):
    action_space = spaces.Tuple((spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)))


class MatrixMultiDiscreteActions(DiceEnv):
    action_space = spaces.MultiDiscrete([[2, 2], [3, 3]])


class MultiBinaryActions(DiceEnv):
    action_space = spaces.MultiBinary(4)


class NestedDictObservation(DiceEnv):
    observation_space = spaces.Dict({"inner": spaces.Dict({"deep": spaces.Discrete(3)})})

    def observation(self):
        return {"inner": {"deep": self.total % 3}}


class TupleObservation(DiceEnv):
    observation_space = spaces.Tuple((spaces.Discrete(3), spaces.Discrete(3)))


class TextObservation(DiceEnv):
    observation_space = spaces.Text(10)


class DiscreteObservationWithStart(DiceEnv):
    observation_space = spaces.Discrete(3, start=1)


class MultiDiscreteObservationWithStart(DiceEnv):
    observation_space = spaces.MultiDiscrete([3, 3], start=[0, 1])


class MaskOnlyObservation(DiceEnv):
    observation_space = spaces.Dict({"action_mask": spaces.MultiBinary(3)})
