"""Envs with action masks, valid and invalid."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces

from helpers.third_party_envs.dice import DiceEnv
from helpers.third_party_envs.faults import FaultyEnv


class MaskedDice(DiceEnv):
    """Forbids one action in three, a different one every step; a forbidden action raises."""

    def mask(self):
        return (np.arange(3) + self.total) % 3 != 0

    def step(self, action):
        assert self.mask()[action], f"action {action} was forbidden"
        return super().step(action)


class MaskInObservation(MaskedDice):
    observation_space = spaces.Dict(
        {"position": spaces.Box(0, 1000, (2,), np.float32), "action_mask": spaces.MultiBinary(3)}
    )

    def observation(self):
        return {"position": super().observation(), "action_mask": self.mask().astype(np.int8)}


class MaskInInfo(MaskedDice):
    def info(self):
        return {**super().info(), "action_mask": self.mask()}


class MaskFromMethod(MaskedDice):
    def action_masks(self):
        return self.mask()


class MultiDiscreteActions(DiceEnv):
    """Two action dimensions of three and two actions, with a mask in the info."""

    action_space = spaces.MultiDiscrete([3, 2])

    def mask(self):
        return np.array([True, self.total % 2 == 0, True, self.total % 3 != 0, True])

    def step(self, action):
        assert self.mask()[action[0]], f"dimension 0 of {action} was forbidden"
        assert self.mask()[3 + action[1]], f"dimension 1 of {action} was forbidden"
        return super().step(action)

    def info(self):
        return {"action_mask": self.mask()}


class ValidInfoMask(FaultyEnv):
    def info(self):
        return {"action_mask": np.ones(3, bool)}


class EmptyMask(FaultyEnv):
    def info(self):
        return {"action_mask": np.full(3, not self.fault_is_due)}


class EmptyMaskInOneDim(FaultyEnv):
    action_space = spaces.MultiDiscrete([3, 2])

    def info(self):
        return {"action_mask": np.array([True, True, True, *[not self.fault_is_due] * 2])}


class MissingInfoMask(FaultyEnv):
    def info(self):
        return {} if self.fault_is_due else {"action_mask": np.ones(3, bool)}


class ShortMask(FaultyEnv):
    def info(self):
        return {"action_mask": np.ones(2 if self.fault_is_due else 3, bool)}


class ValidObservationMask(FaultyEnv):
    observation_space = spaces.Dict({"step_count": spaces.Discrete(99), "action_mask": spaces.MultiBinary(3)})

    def observation(self):
        return {"step_count": self.step_count, "action_mask": np.ones(3, np.int8)}


class MissingObservationMask(ValidObservationMask):
    def observation(self):
        return {"step_count": self.step_count} if self.fault_is_due else super().observation()


class ValidMaskMethod(FaultyEnv):
    def action_masks(self):
        return np.ones(3, bool)


class MaskMethodRaises(FaultyEnv):
    def action_masks(self):
        if self.fault_is_due:
            raise RuntimeError("the mask could not be computed")
        return np.ones(3, bool)


class HiddenReward(gymnasium.Env):
    """The reward of an episode is hidden from the policy, in its observation or in its info.

    The mask forbids one of two actions, in turn.
    """

    observation_space = spaces.Dict(
        {"step": spaces.Box(0, 1, (1,), np.float32), "reward": spaces.Box(-1, 1, (1,), np.float32)}
    )
    action_space = spaces.Discrete(2)

    def action_masks(self):
        return [self.step_count % 2 == 0, True]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.hidden, self.step_count = self.np_random.uniform(-1, 1), 0
        return self.outputs()

    def step(self, action):
        assert self.action_masks()[action]
        self.step_count += 1
        observation, info = self.outputs()
        return observation, self.hidden, False, self.step_count == 4, info

    def outputs(self):
        observation = {"step": self.step_count / 4, "reward": self.hidden}
        observation = {name: np.array([value], np.float32) for name, value in observation.items()}
        return observation, {"secret": np.array([self.hidden, 0.0])}


class HiddenInInfo(HiddenReward):
    """The same without a Dict: only the info tells."""

    observation_space = HiddenReward.observation_space["step"]

    def outputs(self):
        observation, info = super().outputs()
        return observation["step"], info


class HiddenNumber(HiddenInInfo):
    """Its secret is one number, an integer at first and a fraction later."""

    def outputs(self):
        observation, info = super().outputs()
        secret = float(info["secret"][0]) / 4
        return observation, {"secret": secret if self.step_count else round(secret)}


class Recall(gymnasium.Env):
    """The first observation names the action to take in the last step; in between only waiting is allowed.

    Only a policy that remembers can do better than half of the time.
    """

    LEFT, RIGHT, WAIT = range(3)
    NUM_STEPS = 5

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def action_masks(self):
        is_last = self.step_count == self.NUM_STEPS - 1
        return [is_last, is_last, not is_last]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cue, self.step_count = int(self.np_random.integers(2)), 0
        return self.observation(), {}

    def step(self, action):
        assert self.action_masks()[action]
        self.step_count += 1
        is_over = self.step_count == self.NUM_STEPS
        reward = (1.0 if action == self.cue else -1.0) if is_over else 0.0
        return self.observation(), reward, is_over, False, {}

    def observation(self):
        cue = 0 if self.step_count else 2 * self.cue - 1
        return np.array([cue, self.step_count / self.NUM_STEPS], np.float32)


class RecallPicture(Recall):
    """The same with pictures: at first the left or the right half is bright, then nothing is."""

    SIDE = 36
    observation_space = spaces.Box(0, 255, (SIDE, SIDE), np.uint8)

    def observation(self):
        picture = np.zeros((self.SIDE, self.SIDE), np.uint8)
        if self.step_count == 0:
            half = self.SIDE // 2
            picture[:, self.cue * half : (self.cue + 1) * half] = 255
        return picture
