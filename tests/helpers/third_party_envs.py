"""Gymnasium envs of somebody else's making: well-behaved ones, rude ones, unreadable ones."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces


class Dice(gymnasium.Env):
    """Rolls a die every turn; a six ends the episode, `patience` turns cut it off."""

    observation_space: spaces.Space = spaces.Box(0, 1000, (2,), np.float32)
    action_space: spaces.Space = spaces.Discrete(3)
    ends_by_chance = True
    patience = 8

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.turn = 0
        self.total = int(self.np_random.integers(5))
        return self.look(), self.tell()

    def step(self, action):
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        roll = int(self.np_random.integers(1, 7))
        self.turn += 1
        self.total += roll + int(np.sum(action))
        over = self.ends_by_chance and roll == 6
        cut = self.turn >= self.patience and not over
        return self.look(), self.reward(roll), over, cut, self.tell()

    def look(self):
        return np.array([self.turn, self.total], np.float32)

    def tell(self):
        return {"total": self.total}

    def reward(self, roll):
        return float(roll)


# --- well-behaved: masks


class Masked(Dice):
    """Forbids one action in three, another one at every turn, and minds when it is taken."""

    def allowed(self):
        return (np.arange(3) + self.total) % 3 != 0

    def step(self, action):
        assert self.allowed()[action], f"action {action} was forbidden"
        return super().step(action)


class MaskInObservation(Masked):
    observation_space = spaces.Dict(
        {"position": spaces.Box(0, 1000, (2,), np.float32), "action_mask": spaces.MultiBinary(3)}
    )

    def look(self):
        return {"position": super().look(), "action_mask": self.allowed().astype(np.int8)}


class MaskInInfo(Masked):
    def tell(self):
        return {**super().tell(), "action_mask": self.allowed()}


class MaskFromMethod(Masked):
    def action_masks(self):
        return self.allowed()


# --- well-behaved: actions


class SeveralParts(Dice):
    """Three choices and two choices, of which one each is forbidden at times."""

    action_space = spaces.MultiDiscrete([3, 2])

    def allowed(self):
        return np.array([True, self.total % 2 == 0, True, self.total % 3 != 0, True])

    def step(self, action):
        assert self.allowed()[action[0]], f"first part of {action} was forbidden"
        assert self.allowed()[3 + action[1]], f"second part of {action} was forbidden"
        return super().step(action)

    def tell(self):
        return {"action_mask": self.allowed()}


class ShiftedActions(Dice):
    """Counts its actions from 5 and shows which one was played."""

    action_space = spaces.Discrete(3, start=5)

    def step(self, action):
        seen, _, over, cut, info = super().step(action)
        return seen, float(action), over, cut, info


class ShiftedParts(Dice):
    action_space = spaces.MultiDiscrete([2, 3], start=[1, -1])

    def step(self, action):
        seen, _, over, cut, info = super().step(action)
        return seen, float(10 * action[0] + action[1]), over, cut, info


# --- well-behaved: observations


class SeesNumber(Dice):
    observation_space = spaces.Discrete(7)

    def look(self):
        return self.total % 7


class SeesParts(Dice):
    observation_space = spaces.MultiDiscrete([[4, 2], [9, 3]])

    def look(self):
        return np.array([[self.total % 4, self.turn % 2], [self.turn, self.total % 3]])


class SeesBits(Dice):
    observation_space = spaces.MultiBinary((2, 3))

    def look(self):
        return np.array([[self.total >> bit & 1, self.turn >> bit & 1] for bit in range(3)]).T


class SeesPicture(Dice):
    observation_space = spaces.Box(0, 255, (3, 2, 1), np.uint8)

    def look(self):
        return (np.arange(6) * self.total % 256).astype(np.uint8).reshape(3, 2, 1)


class SeesEverything(Dice):
    """A flat Dict with a part of every kind."""

    observation_space = spaces.Dict(
        {
            "number": spaces.Discrete(7),
            "parts": spaces.MultiDiscrete([4, 9]),
            "bits": spaces.MultiBinary(3),
            "height": spaces.Box(-1.0, 1.0, (), np.float64),
        }
    )

    def look(self):
        return {
            "number": self.total % 7,
            "parts": np.array([self.total % 4, self.turn]),
            "bits": np.array([self.total >> bit & 1 for bit in range(3)], np.int8),
            "height": np.sin(self.total),
        }


class SeesItsReward(Dice):
    """Shows a part called `reward`, which is another thing than the reward it pays."""

    observation_space = spaces.Dict({"reward": spaces.Discrete(3), "turn": spaces.Discrete(9)})

    def look(self):
        return {"reward": self.total % 3, "turn": self.turn}

    def reward(self, roll):
        return -float(roll)


class SeekByPicture(gymnasium.Env):
    """A bright square looks for a grey one on a picture; every step costs, arriving pays."""

    CELLS, PIXELS = 4, 4
    MOVES = np.array([[0, 1], [0, -1], [1, 0], [-1, 0]])
    SIDE = CELLS * PIXELS
    observation_space: spaces.Space = spaces.Box(0, 255, (SIDE, SIDE, 1), np.uint8)
    action_space: spaces.Space = spaces.Discrete(4)
    patience = 20

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.turn = 0
        places = self.np_random.choice(self.CELLS**2, 2, replace=False)
        self.here, self.there = np.array(np.unravel_index(places, (self.CELLS,) * 2)).T
        return self.look(), {}

    def step(self, action):
        self.turn += 1
        self.here = np.clip(self.here + self.MOVES[action], 0, self.CELLS - 1)
        found = bool((self.here == self.there).all())
        cut = not found and self.turn >= self.patience
        return self.look(), 1.0 if found else -0.05, found, cut, {}

    def look(self):
        picture = np.zeros((self.SIDE, self.SIDE, 1), np.uint8)
        for place, brightness in ((self.there, 100), (self.here, 255)):
            row, column = place * self.PIXELS
            picture[row : row + self.PIXELS, column : column + self.PIXELS] = brightness
        return picture


class SeekByHalves(SeekByPicture):
    """Shows the goal on a grey picture of two axes; where it is itself it knows as numbers."""

    observation_space = spaces.Dict(
        {
            "goal": spaces.Box(0, 255, (SeekByPicture.SIDE,) * 2, np.uint8),
            "here": spaces.Box(0, 3, (2,), np.float32),
        }
    )

    def look(self):
        picture = np.zeros((self.SIDE, self.SIDE), np.uint8)
        row, column = self.there * self.PIXELS
        picture[row : row + self.PIXELS, column : column + self.PIXELS] = 255
        return {"goal": picture, "here": self.here.astype(np.float32)}


# --- well-behaved: continuous actions


class Pushes(Dice):
    """Pays the sum of two numbers between -1 and 1; it minds other ones."""

    action_space: spaces.Space = spaces.Box(-1, 1, (2,), np.float32)

    def step(self, action):
        self.pushed = float(np.sum(action, dtype=np.float64))
        return super().step(action)

    def look(self):
        return np.abs(super().look())

    def reward(self, roll):
        return self.pushed


class PushesUnevenly(Pushes):
    """Doubles, in another shape, with bounds of every kind."""

    action_space = spaces.Box(
        np.array([[-0.1, 2.0], [-np.inf, -np.inf]]),
        np.array([[0.1, np.inf], [-3.0, np.inf]]),
        dtype=np.float64,
    )


class LeavesSeeds(PushesUnevenly):
    """Notes every seed in a folder; in the episode with one of them it fails at its second turn."""

    def __init__(self, folder, rude_seed=None):
        self.folder, self.rude_seed = Path(folder), rude_seed

    def reset(self, *, seed=None, options=None):
        (self.folder / str(seed)).touch()
        self.rude = seed == self.rude_seed
        return super().reset(seed=seed, options=options)

    def step(self, action):
        result = super().step(action)
        if self.rude and self.turn == 2:
            raise ZeroDivisionError("the die fell off the table")
        return result


class PushesOnce(Pushes):
    """A single number without any axis."""

    action_space = spaces.Box(0, 10, (), np.float32)


# --- rude: something is wrong at turn `trouble_turn`


class Rude(Dice):
    """Polite until its trouble comes; with `only_seed`, only in the episode with that seed."""

    ends_by_chance = False
    trouble_turn = 3

    def __init__(self, only_seed=None):
        self.only_seed = only_seed
        self.rude = False

    def reset(self, *, seed=None, options=None):
        self.rude = self.only_seed in (None, seed)
        return super().reset(seed=seed, options=options)

    @property
    def in_trouble(self):
        return self.rude and self.turn == self.trouble_turn


class NanObservation(Rude):
    def look(self):
        return np.array([self.turn, np.nan if self.in_trouble else self.total], np.float32)


class NanInLastObservation(NanObservation):
    """The last thing the episode shows is not a number; the next episode is fine."""

    patience = 3


class InfReward(Rude):
    def reward(self, roll):
        return np.inf if self.in_trouble else float(roll)


class InfLastReward(InfReward):
    patience = 3


class WrongShape(Rude):
    def look(self):
        return np.zeros(3, np.float32) if self.in_trouble else super().look()


class WrongLastShape(WrongShape):
    patience = 3


class RaisesInStep(Rude):
    def step(self, action):
        result = super().step(action)
        if self.in_trouble:
            raise ZeroDivisionError("the die fell off the table")
        return result


class OldStep(Rude):
    """Returns four values, as envs did before Gymnasium."""

    def step(self, action):
        seen, reward, over, cut, info = super().step(action)
        return (
            (seen, reward, over or cut, info)
            if self.in_trouble
            else (seen, reward, over, cut, info)
        )


class RaisesInNextReset(Rude):
    """Raises when it is reset after a whole episode, once."""

    patience = 3
    turn = 0

    def reset(self, *, seed=None, options=None):
        if self.in_trouble:
            self.turn = 0
            raise OSError("the table is gone")
        return super().reset(seed=seed, options=options)


class RemembersResets(Rude):
    """Shows how often it was ever reset, which no seed can undo."""

    resets = 0

    def reset(self, *, seed=None, options=None):
        self.resets += 1
        return super().reset(seed=seed, options=options)

    def look(self):
        return np.array([self.turn, self.resets], np.float32)


class RaisesInFirstReset(Rude):
    def reset(self, *, seed=None, options=None):
        raise OSError("there was never a table")


class PoliteWithMask(Rude):
    def tell(self):
        return {"action_mask": np.ones(3, bool)}


class ForbidsEverything(Rude):
    def tell(self):
        return {"action_mask": np.full(3, not self.in_trouble)}


class ForbidsWholePart(Rude):
    action_space = spaces.MultiDiscrete([3, 2])

    def tell(self):
        return {"action_mask": np.array([True, True, True, *[not self.in_trouble] * 2])}


class ForgetsMask(Rude):
    def tell(self):
        return {} if self.in_trouble else {"action_mask": np.ones(3, bool)}


class PoliteWithSeenMask(Rude):
    observation_space = spaces.Dict(
        {"turn": spaces.Discrete(99), "action_mask": spaces.MultiBinary(3)}
    )

    def look(self):
        return {"turn": self.turn, "action_mask": np.ones(3, np.int8)}


class ForgetsSeenMask(PoliteWithSeenMask):
    def look(self):
        return {"turn": self.turn} if self.in_trouble else super().look()


class ShortMask(Rude):
    def tell(self):
        return {"action_mask": np.ones(2 if self.in_trouble else 3, bool)}


class MaskRaises(Rude):
    def action_masks(self):
        if self.in_trouble:
            raise RuntimeError("nobody knows what is allowed")
        return np.ones(3, bool)


class PoliteWithMaskMethod(Rude):
    def action_masks(self):
        return np.ones(3, bool)


class PoliteDict(Rude):
    observation_space = spaces.Dict({"turn": spaces.Discrete(99), "total": spaces.Discrete(999)})

    def look(self):
        return {"turn": self.turn, "total": self.total}


class ForgetsPart(PoliteDict):
    def look(self):
        return {"turn": self.turn} if self.in_trouble else super().look()


class ForgetsDict(PoliteDict):
    def look(self):
        return self.turn if self.in_trouble else super().look()


class PoliteNumber(Rude):
    observation_space = spaces.Discrete(9)

    def look(self):
        return self.turn


class NumberOutside(PoliteNumber):
    def look(self):
        return 9 if self.in_trouble else super().look()


class LeavesNote(Dice):
    """Writes a file when it is closed, which an env in another process can do as well."""

    def __init__(self, folder):
        self.folder = folder

    def close(self):
        (self.folder / uuid.uuid4().hex).touch()


class WrongType(Rude):
    """Shows words where its space has numbers."""

    def look(self):
        return np.array(["a", "b"]) if self.in_trouble else super().look()


class NoReward(Rude):
    def reward(self, roll):
        return None if self.in_trouble else float(roll)


class InfObservation(Rude):
    def look(self):
        return np.array([self.turn, -np.inf if self.in_trouble else self.total], np.float32)


class LeavesProgram(Rude):
    def step(self, action):
        result = super().step(action)
        if self.in_trouble:
            sys.exit("the env has had enough")
        return result


# --- rude: takes its process along


class KillsItself(Rude):
    """What the kernel does to whoever uses up the memory."""

    def step(self, action):
        result = super().step(action)
        if self.in_trouble:
            os.kill(os.getpid(), signal.SIGKILL)
        return result


class EndsProcess(Rude):
    def step(self, action):
        result = super().step(action)
        if self.in_trouble:
            os._exit(3)
        return result


class StopsItself(Rude):
    def step(self, action):
        result = super().step(action)
        if self.in_trouble:
            os.kill(os.getpid(), signal.SIGSTOP)
        return result


class Hangs(Rude):
    def step(self, action):
        result = super().step(action)
        while self.in_trouble:
            time.sleep(60)
        return result


class HangsHoldingLock(Rude):
    """Hangs in compiled code that never lets another thread of its process run."""

    def step(self, action):
        result = super().step(action)
        if self.in_trouble:
            re.match(r"(a+)+$", "a" * 60 + "b")
        return result


class HangsInNextReset(Rude):
    patience = 3
    turn = 0

    def reset(self, *, seed=None, options=None):
        while self.in_trouble:
            time.sleep(60)
        return super().reset(seed=seed, options=options)


class NeverMade(Rude):
    def __init__(self):
        raise OSError("there is no wood")


class StartsProgram(Rude):
    """Starts a program of its own and notes its number in the folder."""

    def __init__(self, folder):
        super().__init__()
        self.program = subprocess.Popen(["sleep", "1000"])
        (Path(folder) / str(self.program.pid)).touch()


class RudeOnceMade(Rude):
    """Raises in its trouble turn, and when it is made again as often as the folder has notes."""

    def __init__(self, folder, only_seed=None):
        super().__init__(only_seed)
        notes = sorted(Path(folder).iterdir())
        if notes:
            notes[0].unlink()
            raise OSError("no second table could be found")
        self.folder = folder

    def step(self, action):
        result = super().step(action)
        if self.in_trouble:
            for number in range(2):
                (Path(self.folder) / f"note {number}").touch()
            raise ZeroDivisionError("the table broke")
        return result


class FaultyEnv(Dice):
    """Fails at random, by a schedule that its episode's seed decides.

    One episode in `every` goes wrong at one of its first turns, in one of these ways: it raises,
    shows a NaN, kills its process, stops it, or hangs.
    """

    WAYS = ("raise", "nan", "kill", "stop", "hang")
    patience = 20

    def __init__(self, every=10, ways=WAYS):
        self.every, self.ways = every, ways
        self.trouble_turn = None

    def reset(self, *, seed=None, options=None):
        luck = np.random.default_rng(seed)
        self.trouble_turn = luck.integers(1, 4) if luck.integers(self.every) == 0 else None
        self.way = self.ways[luck.integers(len(self.ways))]
        return super().reset(seed=seed, options=options)

    def step(self, action):
        seen, reward, over, cut, info = super().step(action)
        if self.turn == self.trouble_turn:
            if self.way == "raise":
                raise ZeroDivisionError("as scheduled")
            if self.way == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.way == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            while self.way == "hang":
                time.sleep(60)
            seen = np.full(2, np.nan, np.float32)
        return seen, reward, over, cut, info


# --- slow, or with much to say


class Gated(Rude):
    """Waits in its trouble turn until a file called `gate` appears in the folder."""

    def __init__(self, folder, only_seed=None):
        super().__init__(only_seed)
        self.gate = Path(folder) / "gate"

    def step(self, action):
        result = super().step(action)
        while self.in_trouble and not self.gate.exists():
            time.sleep(0.005)
        return result


class Sleeps(Dice):
    """Waits a little in every step, and tells on which thread."""

    def step(self, action):
        time.sleep(0.002)
        return super().step(action)

    def tell(self):
        return {"thread": threading.current_thread().name}


class Computes(Sleeps):
    """Keeps its core busy for as long instead."""

    def step(self, action):
        end = time.thread_time() + 0.002
        while time.thread_time() < end:
            pass
        return Dice.step(self, action)


class TalksMuch(Dice):
    """Its info grows by the turn, beyond what a slot of shared memory holds."""

    patience = 5
    ends_by_chance = False

    def tell(self):
        return {"turn": self.turn, "words": bytes(self.turn * 150_000)}


class Counted:
    """Tells how many of its kind have been pickled in this process."""

    pickled = 0

    def __reduce__(self):
        Counted.pickled += 1
        return int, (Counted.pickled,)


class CountsPickles(Dice):
    patience = 99
    ends_by_chance = False

    def tell(self):
        return {"pickled": Counted()}


class TellsSecrets(Dice):
    """Puts things into its info that cannot leave the process."""

    def tell(self):
        return {"total": self.total, "secret": lambda: self.total}


class TellsModules(Dice):
    """Tells which big libraries its process has imported."""

    def tell(self):
        return {"modules": sorted({"torch", "numba"} & sys.modules.keys()), "pid": os.getpid()}


class OneRude:
    """Makes good envs, except for the one of this number (counted from 0)."""

    def __init__(self, rude, number, good=Rude):
        self.rude, self.number, self.good, self.made = rude, number, good, 0

    def __call__(self):
        self.made += 1
        return self.rude() if self.made == self.number + 1 else self.good()


# --- unreadable: spaces hundredfold does not take


class PushesWholeNumbers(Dice):
    action_space = spaces.Box(-1, 1, (2,), np.int64)


class PushesUnderMask(Pushes):
    def tell(self):
        return {"action_mask": np.ones(2, bool)}


class ActsOnDict(Dice):
    action_space = spaces.Dict(
        {"push": spaces.Box(-1, 1, (2,), np.float32), "kind": spaces.Discrete(2)}
    )


class ActsOnTuple(Dice):
    action_space = spaces.Tuple((spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)))


class ActsOnGrid(Dice):
    action_space = spaces.MultiDiscrete([[2, 2], [3, 3]])


class ActsOnBits(Dice):
    action_space = spaces.MultiBinary(4)


class SeesNestedDict(Dice):
    observation_space = spaces.Dict({"inner": spaces.Dict({"deep": spaces.Discrete(3)})})

    def look(self):
        return {"inner": {"deep": self.total % 3}}


class SeesTuple(Dice):
    observation_space = spaces.Tuple((spaces.Discrete(3), spaces.Discrete(3)))


class SeesText(Dice):
    observation_space = spaces.Text(10)


class SeesShiftedNumber(Dice):
    observation_space = spaces.Discrete(3, start=1)


class SeesShiftedParts(Dice):
    observation_space = spaces.MultiDiscrete([3, 3], start=[0, 1])


class SeesOnlyMask(Dice):
    observation_space = spaces.Dict({"action_mask": spaces.MultiBinary(3)})
