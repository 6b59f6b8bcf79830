"""Envs with spaces that are not supported."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from helpers.third_party_envs.dice import DiceEnv
from helpers.third_party_envs.spaces import BoxActions


class MaskedBoxActions(BoxActions):
    def info(self):
        return {"action_mask": np.ones(2, bool)}


class MixedDictActions(DiceEnv):
    action_space = spaces.Dict({"push": spaces.Box(-1, 1, (2,), np.float32), "kind": spaces.Discrete(2)})


class MixedTupleActions(DiceEnv):
    action_space = spaces.Tuple((spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)))


class TextObservation(DiceEnv):
    observation_space = spaces.Text(10)


class MaskOnlyObservation(DiceEnv):
    observation_space = spaces.Dict({"action_mask": spaces.MultiBinary(3)})


class AmbiguousObservation(DiceEnv):
    observation_space = spaces.Dict({"a.b": spaces.Discrete(3), "a": spaces.Dict({"b": spaces.Discrete(3)})})


class SequenceObservation(DiceEnv):
    observation_space = spaces.Tuple((spaces.Discrete(3), spaces.Sequence(spaces.Discrete(3))))
