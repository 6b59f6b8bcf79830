"""Timeline of every env: when its steps began and ended, and what the time between was spent on.

Envs write two timestamps per step to a small file that all processes map; calls of the backend are
timestamped from outside. Nothing is modelled: all times are measured, at a cost of about one
microsecond per step.
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

PHASES: Final = ("stepping", "barrier", "transfer", "policy", "learner")


@dataclass(frozen=True, slots=True)
class TimestampFile:
    """Memory-mapped file of the begin and end of each env's last step; can be pickled."""

    path: Path
    num_envs: int

    def create(self) -> Array:
        """Create the file: (envs, 2) zeros, in seconds."""
        return np.memmap(self.path, np.float64, "w+", shape=(self.num_envs, 2))

    def open(self) -> Array:
        return np.memmap(self.path, np.float64, "r+", shape=(self.num_envs, 2))


class TimestampedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Records when the env's step began and ended, including the reset after it."""

    def __init__(self, env: Env, stamps: Array, env_id: int) -> None:
        super().__init__(env)
        self.stamps, self.env_id = stamps, env_id

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.stamps[self.env_id, 0] = perf_counter()
        result = self.env.step(action)
        self.stamps[self.env_id, 1] = perf_counter()
        return result

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        result = self.env.reset(**options)
        self.stamps[self.env_id, 1] = perf_counter()
        return result


class TimestampedBatchEnv:
    """Records when a built-in batch env was stepped: one pair of timestamps for all its envs."""

    def __init__(self, env: BatchEnv, env_ids: IntArray, stamps: Array) -> None:
        self.env, self.env_ids, self.stamps = env, env_ids, stamps

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def step(self, actions: IntArray) -> StepBatch:
        begin = perf_counter()
        batch = self.env.step(actions)
        self.stamps[self.env_ids] = begin, perf_counter()
        return batch


@dataclass(frozen=True, slots=True)
class TimestampedBatchFactory:
    """Factory of built-in batch envs with timestamps."""

    make_envs: EnvFactory
    stamps: TimestampFile

    def __call__(self, env_ids: IntArray) -> BatchEnv:
        env = TimestampedBatchEnv(self.make_envs(env_ids), env_ids, self.stamps.open())
        return cast(BatchEnv, env)


@dataclass(frozen=True, slots=True)
class TimestampedEnvFactory:
    """Factory of batches of Gymnasium envs with timestamps."""

    make_env: EnvMaker
    name: str
    stamps: TimestampFile

    def __call__(self, env_ids: IntArray) -> BatchEnv:
        stamps = self.stamps.open()
        ids = iter(env_ids.tolist())
        return GymnasiumBatchEnv(env_ids, lambda: TimestampedEnv(self.make_env(), stamps, next(ids)), self.name)


@dataclass(slots=True)
class Events:
    """Recorded calls of a backend and updates of a learner, in seconds of `perf_counter`."""

    recv_times: list[float] = field(default_factory=list)  # end of each recv
    send_times: list[float] = field(default_factory=list)  # begin of each send
    update_spans: list[tuple[float, float]] = field(default_factory=list)
    # Of each recv: its envs, the begin and end of their steps, and for each env the index of the
    # recv and of the send before (-1: before the recording).
    env_ids: list[IntArray] = field(default_factory=list)
    stamps: list[Array] = field(default_factory=list)
    recv_before: list[IntArray] = field(default_factory=list)
    send_before: list[IntArray] = field(default_factory=list)


class RecordingBackend:
    """A backend that records the times of recv, send and updates."""

    def __init__(self, backend: Backend, stamps: Array) -> None:
        self.backend, self.stamps = backend, stamps
        self.clear()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def clear(self) -> None:
        """Discard what was recorded so far."""
        self.events = Events()
        self.last_recv = np.full(self.backend.num_envs, -1)
        self.last_send = np.full(self.backend.num_envs, -1)
        self.received = np.zeros(0, np.int64)

    def recv(self) -> StepBatch:
        events = self.events
        batch = self.backend.recv()
        events.recv_times.append(perf_counter())
        ids = self.received = batch.env_ids
        events.env_ids.append(ids.copy())
        events.stamps.append(np.array(self.stamps[ids]))
        events.recv_before.append(self.last_recv[ids])
        events.send_before.append(self.last_send[ids])
        self.last_recv[ids] = len(events.recv_times) - 1
        return batch

    def send(self, actions: IntArray, env_ids: IntArray | None = None) -> None:
        self.events.send_times.append(perf_counter())
        ids = self.received if env_ids is None else env_ids
        self.last_send[ids] = len(self.events.send_times) - 1
        self.backend.send(actions, env_ids)

    def run_update(self, update: Callable[[], Any]) -> None:
        """Run an update of the learner and record its time."""
        begin = perf_counter()
        update()
        self.events.update_spans.append((begin, perf_counter()))


@dataclass(frozen=True, slots=True)
class TimeBreakdown:
    """Throughput and the fractions of time by phase."""

    steps_per_second: float
    step_seconds: float  # mean duration of a step
    shares: dict[str, float]  # by PHASES; they add up to 1


def time_breakdown(events: Events, lane_ids: IntArray) -> TimeBreakdown:
    """Fractions of time by phase, averaged over lanes.

    Between two steps a lane is idle. Until its next action is sent, it waits for the policy or the
    learner while these run, and for other envs (the barrier) until the last one of its batch is
    ready; the rest, and the time after the action is sent, is data transfer.

    Args:
        events: what a `RecordingBackend` recorded.
        lane_ids: (envs,) envs of one lane step one after another: a worker's, or each on its own.
    """
    steps = _in_lanes(events, lane_ids)
    policy = _SpanClock(_acting(events))
    learner = _SpanClock(events.update_spans)
    idle_from, begin = steps.idle_from, steps.begin
    # An action that was sent before the lane was free causes no wait.
    sent = np.clip(steps.sent, idle_from, begin)
    all_ready = np.clip(steps.all_ready, idle_from, sent)
    acting = policy.between(idle_from, sent)
    learning = learner.between(idle_from, sent)
    barrier = (all_ready - idle_from) - policy.between(idle_from, all_ready)
    seconds = {
        "stepping": (steps.end - begin).sum(),
        "barrier": barrier.sum(),
        "transfer": (begin - idle_from - acting - barrier).sum(),
        "policy": (acting - learning).sum(),
        "learner": learning.sum(),
    }
    total = sum(seconds.values())
    return TimeBreakdown(
        steps_per_second=_rate(events),
        step_seconds=float((steps.end - begin).mean()),
        shares={name: float(seconds[name] / total) for name in PHASES},
    )


def _rate(events: Events) -> float:
    """Steps per second, including updates of the learner."""
    rows = [len(ids) for ids in events.env_ids]
    if events.update_spans and events.update_spans[0][0] < events.recv_times[0]:
        return sum(rows) / (events.recv_times[-1] - events.update_spans[0][0])
    # The steps of the first batch were taken before the recording.
    return sum(rows[1:]) / (events.recv_times[-1] - events.recv_times[0])


@dataclass(frozen=True, slots=True)
class _Steps:
    """Steps in order of lane and time; each array (steps,)."""

    idle_from: FloatArray  # end of the lane's previous step
    all_ready: FloatArray  # end of the last step of the previous batch
    sent: FloatArray  # time at which the action was sent
    begin: FloatArray
    end: FloatArray


def _in_lanes(events: Events, lane_ids: IntArray) -> _Steps:
    ids, stamps = np.concatenate(events.env_ids), np.concatenate(events.stamps)
    recv_before = np.concatenate(events.recv_before)
    send_before = np.concatenate(events.send_before)
    last_end = np.array([stamps_[:, 1].max() for stamps_ in events.stamps])
    order = np.lexsort((stamps[:, 0], lane_ids[ids]))
    lanes, ordered = lane_ids[ids][order], stamps[order]
    known = (recv_before >= 0)[order][1:] & (lanes[1:] == lanes[:-1])
    # Envs of one batch env have the same timestamps: only the first counts.
    known &= ordered[1:, 0] > ordered[:-1, 0]
    rows = 1 + np.flatnonzero(known)
    return _Steps(
        idle_from=ordered[rows - 1, 1],
        all_ready=last_end[recv_before[order][rows]],
        sent=np.array(events.send_times)[send_before[order][rows]],
        begin=ordered[rows, 0],
        end=ordered[rows, 1],
    )


def _acting(events: Events) -> list[tuple[float, float]]:
    """Spans from each recv to the send after it, also if the recv came before the recording."""
    begins = list(events.recv_times)
    if events.update_spans and events.update_spans[0][0] < begins[0]:
        begins.insert(0, events.update_spans[0][0])
    after = np.searchsorted(events.send_times, begins).tolist()
    return [
        (begin, events.send_times[number])
        for begin, number in zip(begins, after, strict=True)
        if number < len(events.send_times)
    ]


class _SpanClock:
    """Time spent within given spans, which do not overlap."""

    def __init__(self, spans: list[tuple[float, float]]) -> None:
        edges = np.array(spans, np.float64).reshape(-1, 2)
        self.times = edges.reshape(-1)
        lengths = np.cumsum(edges[:, 1] - edges[:, 0])
        self.elapsed = np.stack([lengths - (edges[:, 1] - edges[:, 0]), lengths], axis=1).reshape(-1)

    def between(self, first: FloatArray, last: FloatArray) -> FloatArray:
        """Seconds within the spans between two times each."""
        if not len(self.times):
            return np.zeros(len(first))
        elapsed: FloatArray = np.interp(last, self.times, self.elapsed)
        return elapsed - np.interp(first, self.times, self.elapsed)
