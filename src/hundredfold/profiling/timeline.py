"""When every env began and ended each step, and what the time in between was spent on.

Envs write two moments of each step into a small file that all processes see; the backend is
watched from outside. So nothing is modelled: where the time went is read off the clock. Keeping
the book costs about a microsecond per step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Final, cast

import gymnasium
import numpy as np

from hundredfold.core.batch import Array, FloatArray, IntArray, StepBatch
from hundredfold.core.protocols import Backend, BatchEnv, EnvFactory
from hundredfold.envs.gymnasium_env import Env, EnvMaker, GymnasiumBatchEnv

PHASES: Final = ("stepping", "barrier", "moving", "policy", "learner")


# -- in the envs ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stamps:
    """Where envs write when their last step began and ended: plain data, so it travels."""

    path: Path
    num_envs: int

    def make(self) -> Array:
        """The file, all zeros, as an array of (envs, 2) seconds."""
        return np.memmap(self.path, np.float64, "w+", shape=(self.num_envs, 2))

    def open(self) -> Array:
        return np.memmap(self.path, np.float64, "r+", shape=(self.num_envs, 2))


class StampedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An env that writes down when its step began and ended, the reset that follows included."""

    def __init__(self, env: Env, stamps: Array, env_id: int) -> None:
        super().__init__(env)
        self.stamps, self.env_id = stamps, env_id

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.stamps[self.env_id, 0] = perf_counter()
        outcome = self.env.step(action)
        self.stamps[self.env_id, 1] = perf_counter()
        return outcome

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        beginning = self.env.reset(**options)
        self.stamps[self.env_id, 1] = perf_counter()
        return beginning


class StampedBatchEnv:
    """A built-in env that writes down when its envs were stepped: all of them at once."""

    def __init__(self, env: BatchEnv, env_ids: IntArray, stamps: Array) -> None:
        self.env, self.env_ids, self.stamps = env, env_ids, stamps

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def step(self, actions: IntArray) -> StepBatch:
        begun = perf_counter()
        batch = self.env.step(actions)
        self.stamps[self.env_ids] = begun, perf_counter()
        return batch


@dataclass(frozen=True, slots=True)
class StampedEnvsFactory:
    """Makes built-in envs that keep the book."""

    make_envs: EnvFactory
    stamps: Stamps

    def __call__(self, env_ids: IntArray) -> BatchEnv:
        made = StampedBatchEnv(self.make_envs(env_ids), env_ids, self.stamps.open())
        return cast(BatchEnv, made)


@dataclass(frozen=True, slots=True)
class StampedEnvFactory:
    """Makes envs of somebody else's envs that keep the book."""

    make_env: EnvMaker
    name: str
    stamps: Stamps

    def __call__(self, env_ids: IntArray) -> BatchEnv:
        stamps = self.stamps.open()
        numbers = iter(env_ids.tolist())
        return GymnasiumBatchEnv(
            env_ids, lambda: StampedEnv(self.make_env(), stamps, next(numbers)), self.name
        )


# -- at the backend -------------------------------------------------------------------------------


@dataclass(slots=True)
class Events:
    """What was seen; the lists grow by one entry per call."""

    returned: list[float] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)
    learned: list[tuple[float, float]] = field(default_factory=list)
    # Of each recv: who came, when their steps began and ended, and the numbers of the recv and the
    # send before (-1: from before we looked).
    env_ids: list[IntArray] = field(default_factory=list)
    stamps: list[Array] = field(default_factory=list)
    recv_before: list[IntArray] = field(default_factory=list)
    send_before: list[IntArray] = field(default_factory=list)


class WatchedBackend:
    """A backend that is looked at from outside; everything else goes straight through."""

    def __init__(self, backend: Backend, stamps: Array) -> None:
        self.backend, self.stamps = backend, stamps
        self.begin()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def begin(self) -> None:
        """Forget what was before: from here on it counts."""
        self.events = Events()
        self.last_recv = np.full(self.backend.num_envs, -1)
        self.last_send = np.full(self.backend.num_envs, -1)
        self.received = np.zeros(0, np.int64)

    def recv(self) -> StepBatch:
        events = self.events
        batch = self.backend.recv()
        events.returned.append(perf_counter())
        ids = self.received = batch.env_ids
        events.env_ids.append(ids.copy())
        events.stamps.append(np.array(self.stamps[ids]))
        events.recv_before.append(self.last_recv[ids])
        events.send_before.append(self.last_send[ids])
        self.last_recv[ids] = len(events.returned) - 1
        return batch

    def send(self, actions: IntArray, env_ids: IntArray | None = None) -> None:
        self.events.sent.append(perf_counter())
        ids = self.received if env_ids is None else env_ids
        self.last_send[ids] = len(self.events.sent) - 1
        self.backend.send(actions, env_ids)

    def learning(self, update: Callable[[], Any]) -> None:
        """Let a learner work, and remember that it was the learner who did."""
        begun = perf_counter()
        update()
        self.events.learned.append((begun, perf_counter()))


# -- afterwards -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Account:
    """Where the time of all lanes went."""

    steps_per_second: float
    step_seconds: float  # mean time of a step, from its beginning to its end
    shares: dict[str, float]  # by PHASES; they add up to 1


def account(events: Events, lane_of: IntArray) -> Account:
    """Where the time of each lane went, on average over lanes.

    `lane_of` (envs,): envs of one lane step one after another: a worker's, or each on its own.
    Between two steps a lane waits. Until its next action is there it waits for the policy or the
    learner, where these were at work; for others to be ready, as long as some were not; and else,
    as after the action is there, for data to be moved.
    """
    steps = _in_lanes(events, lane_of)
    policy = _ClockOf(_acting(events))
    learner = _ClockOf(events.learned)
    idle_from, begin = steps.idle_from, steps.begin
    # An action that was there before the lane was free keeps nobody waiting.
    sent = np.clip(steps.sent, idle_from, begin)
    all_ready = np.clip(steps.all_ready, idle_from, sent)
    acting = policy.between(idle_from, sent)
    learning = learner.between(idle_from, sent)
    barrier = (all_ready - idle_from) - policy.between(idle_from, all_ready)
    seconds = {
        "stepping": (steps.end - begin).sum(),
        "barrier": barrier.sum(),
        "moving": (begin - idle_from - acting - barrier).sum(),
        "policy": (acting - learning).sum(),
        "learner": learning.sum(),
    }
    total = sum(seconds.values())
    return Account(
        steps_per_second=_rate(events),
        step_seconds=float((steps.end - begin).mean()),
        shares={name: float(seconds[name] / total) for name in PHASES},
    )


def _rate(events: Events) -> float:
    """Steps per second, updates of a learner included."""
    rows = [len(ids) for ids in events.env_ids]
    if events.learned and events.learned[0][0] < events.returned[0]:
        return sum(rows) / (events.returned[-1] - events.learned[0][0])
    # The first batch tells of steps that were taken before we looked.
    return sum(rows[1:]) / (events.returned[-1] - events.returned[0])


@dataclass(frozen=True, slots=True)
class _Steps:
    """Steps lane by lane, in order; each (steps,)."""

    idle_from: FloatArray  # the end of the lane's step before
    all_ready: FloatArray  # when the last of the batch before had ended its step
    sent: FloatArray  # when the action was sent
    begin: FloatArray
    end: FloatArray


def _in_lanes(events: Events, lane_of: IntArray) -> _Steps:
    ids, stamps = np.concatenate(events.env_ids), np.concatenate(events.stamps)
    recv_before = np.concatenate(events.recv_before)
    send_before = np.concatenate(events.send_before)
    last_end = np.array([moments[:, 1].max() for moments in events.stamps])
    order = np.lexsort((stamps[:, 0], lane_of[ids]))
    lanes, moments = lane_of[ids][order], stamps[order]
    known = (recv_before >= 0)[order][1:] & (lanes[1:] == lanes[:-1])
    # Envs that step as one have the same moments: the first of them speaks for all.
    known &= moments[1:, 0] > moments[:-1, 0]
    rows = 1 + np.flatnonzero(known)
    return _Steps(
        idle_from=moments[rows - 1, 1],
        all_ready=last_end[recv_before[order][rows]],
        sent=np.array(events.sent)[send_before[order][rows]],
        begin=moments[rows, 0],
        end=moments[rows, 1],
    )


def _acting(events: Events) -> list[tuple[float, float]]:
    """From each recv to the send after it; also when the first of these came before we looked."""
    begun = list(events.returned)
    if events.learned and events.learned[0][0] < begun[0]:
        begun.insert(0, events.learned[0][0])
    after = np.searchsorted(events.sent, begun).tolist()
    return [
        (moment, events.sent[number])
        for moment, number in zip(begun, after, strict=True)
        if number < len(events.sent)
    ]


class _ClockOf:
    """A clock that runs only during some spans of time, which do not overlap."""

    def __init__(self, spans: list[tuple[float, float]]) -> None:
        edges = np.array(spans, np.float64).reshape(-1, 2)
        self.moments = edges.reshape(-1)
        lengths = np.cumsum(edges[:, 1] - edges[:, 0])
        self.shown = np.stack([lengths - (edges[:, 1] - edges[:, 0]), lengths], axis=1).reshape(-1)

    def between(self, first: FloatArray, last: FloatArray) -> FloatArray:
        """Seconds it ran between these moments."""
        if not len(self.moments):
            return np.zeros(len(first))
        ran: FloatArray = np.interp(last, self.moments, self.shown)
        return ran - np.interp(first, self.moments, self.shown)
