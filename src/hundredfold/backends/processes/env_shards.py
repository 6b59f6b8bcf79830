"""The envs one worker owns, and how it steps them when their env is one of ours.

Such an env is a batch: it is cut into shards, and a shard steps when all its envs have their
actions.

Envs of somebody else's making in a worker: each of them steps by itself.

Where they compute they are stepped one after another, and the parent hears of them about every
half millisecond. Where they wait there is a thread for each, so that all of them wait at once; an
env may find itself on another thread at every step. Which of the two it is is measured while they
play.
"""

from __future__ import annotations

import resource
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from queue import SimpleQueue
from time import monotonic, perf_counter, thread_time
from typing import Final

import numpy as np

from hundredfold.backends.processes import cpu_affinity
from hundredfold.backends.processes.channel import Channel
from hundredfold.backends.processes.ready_flags import ReadyFlags
from hundredfold.backends.processes.remote_errors import capture_error
from hundredfold.backends.processes.shared_memory import InfoWriter, batch_over, pickled_info
from hundredfold.backends.settings import WorkerSettings
from hundredfold.core.batch import Arrays, IntArray, State, concat_rows, copies, slice_rows
from hundredfold.core.protocols import BatchEnv, PerEnvBatch, SharedParams


def shard_edges(env_ids: range, batch_envs: int, num_envs: int) -> list[int]:
    """Where a slice of a batch env is cut: nowhere, or near the batches that are asked for."""
    size = len(env_ids)
    shards = 1 if batch_envs >= num_envs else -(-size // min(batch_envs, size))
    return [env_ids.start + shard * size // shards for shard in range(shards + 1)]


class Slice(ABC):
    """Envs side by side, each writing into its rows of the shared batch."""

    # Whether a snapshot has to wait until nothing is being stepped.
    rests_for_state = True

    def __init__(self, envs: list[BatchEnv], edges: list[int]) -> None:
        self.envs = envs
        self.edges = edges
        self.first, self.last = edges[0], edges[-1]
        self.spec = envs[0].spec

    def set_output_buffers(self, arrays: Arrays, wire: Channel) -> None:
        """Work in these shared arrays and report over this wire."""
        self.wire = wire
        self.actions = arrays["actions"]
        self.entered = arrays["entered"]
        self.entered[self.first : self.last] = 0.0
        self.doorbell = ReadyFlags(arrays)
        batch = batch_over(arrays, self.spec)
        self.out = batch.rows(self.first, self.last)
        # Envs whose episode was cut off when a lost worker was replaced. Their next action belongs
        # to that episode: it is not played, the end of the episode is the answer to it.
        self.lost: set[int] = set()
        for env, (first, last) in zip(self.envs, pairs(self.edges), strict=True):
            env.set_output_buffers(batch.rows(first, last))

    @abstractmethod
    def step(self, first: int, last: int) -> None:
        """Step these envs, now or soon, and post each when it is ready."""

    def post(self, first: int, last: int) -> None:
        """These envs are ready, from any thread."""
        if self.doorbell.finish(first, last):
            self.wire.ring()

    def settle(self) -> None:
        """Wait until nothing is being stepped."""

    @contextmanager
    def at_work(self, rows: slice) -> Iterator[None]:
        """Let the parent see since when these envs are at work."""
        self.entered[rows] = monotonic()
        try:
            yield
        finally:
            self.entered[rows] = 0.0

    def reset(self, seed: int) -> None:
        self.lost.clear()
        for env, rows in self._parts():
            with self.at_work(rows):
                env.reset(seed)

    def restore(self, state: State) -> None:
        self.lost.clear()
        for env, rows in self._parts():
            cut = slice(rows.start - self.first, rows.stop - self.first)
            with self.at_work(rows):
                env.restore(slice_rows(state, cut))

    def truncate_all(self, ahead: IntArray, seed: int | None, last_seen: Arrays) -> None:
        """Cut off all episodes, with these as their last observations, and begin later ones."""
        for env, rows in self._parts():
            with self.at_work(rows):
                env.truncate_all(ahead[rows.start - self.first : rows.stop - self.first], seed)
        for name, array in last_seen.items():
            self.out.final_observation[name][...] = array
        self.lost.update(range(self.first, self.last))

    def observations(self) -> Arrays:
        """What the envs last showed; zeros where a worker died before it could check them."""
        seen = copies(self.out.observation)
        for array in seen.values():
            if array.dtype.kind == "f":
                array[~np.isfinite(array)] = 0
        return seen

    def set_shared_params(self, shared_params: SharedParams) -> None:
        for env in self.envs:
            env.set_shared_params(shared_params)

    def state(self) -> Arrays:
        states = [env.state() for env in self.envs]
        return concat_rows(states)

    def timings(self) -> dict[str, float]:
        told = [env.timings() for env in self.envs]
        return {name: sum(part[name] for part in told) for name in told[0]}

    def close(self) -> None:
        for env in self.envs:
            env.close()

    def tell_failures(self) -> None:
        """Tell the parent which envs failed and were made anew."""

    def info_of(self, env_id: int) -> bytes:
        """The info of a foreign env, pickled."""
        raise KeyError(env_id)

    def _parts(self) -> list[tuple[BatchEnv, slice]]:
        cuts = [slice(first, last) for first, last in pairs(self.edges)]
        return list(zip(self.envs, cuts, strict=True))


class BatchSlice(Slice):
    """Shards of a built-in env: what belongs to one shard steps as one."""

    def set_output_buffers(self, arrays: Arrays, wire: Channel) -> None:
        super().set_output_buffers(arrays, wire)
        self.asked = np.zeros(self.last, bool)

    def step(self, first: int, last: int) -> None:
        self.asked[first:last] = True
        for env, rows in self._parts():
            if rows.start < last and first < rows.stop and self.asked[rows].all():
                self.asked[rows] = False
                self._step_shard(env, rows)

    def _step_shard(self, env: BatchEnv, rows: slice) -> None:
        if rows.start in self.lost:
            self.lost.difference_update(range(rows.start, rows.stop))
        else:
            try:
                with self.at_work(rows):
                    env.step(self.actions[rows])
            except BaseException as error:
                self.wire.say("error", capture_error("step()", error))
                return
        self.post(rows.start, rows.stop)


def pairs(edges: list[int]) -> list[tuple[int, int]]:
    """(first, last) of each piece between the edges."""
    return list(pairwise(edges))


# Where the parent takes whoever is ready, it hears of ready envs about this often.
SPAN_SECONDS: Final = 0.0005
MAX_THREADS: Final = 512
# Tells a thread to wait until everything before has been done.
SETTLE: Final = -1
# Envs wait rather than compute if they give up their core in at least half of their steps, and are
# off it for this share of the time. A busy machine takes cores away, too, but makes nobody give
# one up, and that is what voluntary context switches count.
MIN_SWITCHES_PER_STEP: Final = 0.5
MIN_BLOCKED_FRACTION: Final = 0.25
MEASURED_STEPS: Final = 8
# So many failures fit into one message that never has to wait for the parent to read it.
FAILURES_PER_NOTE: Final = 10


class ForeignSlice(Slice):
    """Envs of somebody else's making, each of which steps by itself."""

    env: PerEnvBatch
    # Whoever goes on from such a snapshot begins new episodes, so a step more or less does not
    # matter; waiting for the slowest at every snapshot would.
    rests_for_state = False

    def __init__(
        self,
        env: PerEnvBatch,
        env_ids: range,
        settings: WorkerSettings,
        *,
        in_pieces: bool,
        core: int | None = None,
    ) -> None:
        super().__init__([env], [env_ids.start, env_ids.stop])
        self.env = env
        env.restart_policy = settings.restart_policy()
        self.in_pieces = in_pieces
        self.piece = 1 if in_pieces else len(env_ids)
        self.num_threads = settings.env_threads
        self.core = core  # where threads gather, if they should
        # One queue for all threads: who has just finished a step goes on without falling asleep.
        self.queue: SimpleQueue[int] = SimpleQueue()
        self.meeting: threading.Barrier | None = None  # where threads gather once all is done
        self.watch = BlockingDetector()

    def set_output_buffers(self, arrays: Arrays, wire: Channel) -> None:
        super().set_output_buffers(arrays, wire)
        self.env.set_busy_since(self.entered[self.first : self.last])
        self.own_actions = self.actions[self.first : self.last]
        self.infos = InfoWriter(arrays)
        if self.num_threads > 1:
            self._start_threads(self.num_threads)

    @contextmanager
    def at_work(self, rows: slice) -> Iterator[None]:
        """The env itself marks each env in turn."""
        yield

    def step(self, first: int, last: int) -> None:
        while first < last and self.meeting is None:
            stop = min(first + self.piece, last)
            self.watch.begin()
            done = self._step_span(first, stop)
            seconds = self.watch.end(stop - first)
            if not done:
                return
            self._fit_piece(stop - first, seconds)
            if self.num_threads == 0 and self.watch.waiting and self.last - self.first > 1:
                self._start_threads(MAX_THREADS)
            first = stop
        for env_id in range(first, last):
            self.queue.put(env_id)

    def settle(self) -> None:
        if self.meeting is not None:
            for _ in range(self.meeting.parties - 1):
                self.queue.put(SETTLE)
            self.meeting.wait()

    def reset(self, seed: int) -> None:
        super().reset(seed)
        self._write_infos(self.first, self.last)

    def restore(self, state: State) -> None:
        super().restore(state)
        self._write_infos(self.first, self.last)

    def truncate_all(self, ahead: IntArray, seed: int | None, last_seen: Arrays) -> None:
        super().truncate_all(ahead, seed, last_seen)
        self._write_infos(self.first, self.last)

    def tell_failures(self) -> None:
        news = self.env.restart_policy.drain()
        for start in range(0, len(news), FAILURES_PER_NOTE):
            self.wire.say("failures", news[start : start + FAILURES_PER_NOTE])

    def info_of(self, env_id: int) -> bytes:
        return pickled_info(self.env.infos[env_id - self.first])

    def _step_span(self, first: int, last: int) -> bool:
        """Step these envs and post them; False when the run must stop."""
        if self.lost and last - first > 1:
            return all(self._step_span(env_id, env_id + 1) for env_id in range(first, last))
        if first in self.lost:
            self.lost.discard(first)
        else:
            try:
                rows = first - self.first, last - self.first
                self.env.step_rows(*rows, self.actions[first:last])
            except BaseException as error:
                return self._give_up(error)
            self._write_infos(first, last)
            if self.env.restart_policy.unreported:
                self.tell_failures()
        self.post(first, last)
        return True

    def _step_alone(self, env_id: int) -> None:
        """The same for one env, on a thread of its own."""
        if env_id in self.lost:
            self.lost.discard(env_id)
        else:
            row, env = env_id - self.first, self.env
            try:
                env.step_row(row, self.own_actions)
            except BaseException as error:
                self._give_up(error)
                return
            if info := env.infos[row]:
                self.infos.write(env_id, info)
            else:
                self.infos.size_one[env_id] = 0
            if env.restart_policy.unreported:
                self.tell_failures()
        if self.doorbell.finish_one(env_id):
            self.wire.ring()

    def _give_up(self, error: BaseException) -> bool:
        """Tell the parent why the run must stop; always False."""
        self.tell_failures()
        self.wire.say("error", capture_error("step()", error))
        return False

    def _write_infos(self, first: int, last: int) -> None:
        infos = self.env.infos[first - self.first : last - self.first]
        self.infos.sizes[first:last] = 0
        for env_id, info in enumerate(infos, first):
            if info:
                self.infos.write(env_id, info)

    def _fit_piece(self, envs: int, seconds: float) -> None:
        """Step as many envs between two reports as fill the time between them."""
        if not self.in_pieces:
            return
        if seconds > 2 * SPAN_SECONDS:
            self.piece = max(1, envs // 2)
        elif seconds < SPAN_SECONDS / 2 and envs == self.piece:
            self.piece = min(2 * envs, self.last - self.first)

    def _start_threads(self, wanted: int) -> None:
        threads = min(wanted, self.last - self.first)
        cpu_affinity.share(self.core)
        self.meeting = threading.Barrier(threads + 1)
        for number in range(threads):
            name = f"envs {number}"
            threading.Thread(
                target=self._work, args=(self.meeting,), name=name, daemon=True
            ).start()

    def _work(self, meeting: threading.Barrier) -> None:
        while True:
            env_id = self.queue.get()
            if env_id == SETTLE:
                meeting.wait()
            else:
                self._step_alone(env_id)


class BlockingDetector:
    """Tells envs that wait from envs that compute, by what the kernel counts."""

    def __init__(self) -> None:
        self.waiting = False
        self._forget()

    def begin(self) -> None:
        self.marks = (voluntary_switches(), thread_time(), perf_counter())

    def end(self, steps: int) -> float:
        """Count these steps; returns how many seconds they took."""
        switches, cpu_seconds, begun = self.marks
        seconds = perf_counter() - begun
        self.steps += steps
        self.switches += voluntary_switches() - switches
        self.cpu_seconds += thread_time() - cpu_seconds
        self.seconds += seconds
        if self.steps >= MEASURED_STEPS:
            gave_up = self.switches >= MIN_SWITCHES_PER_STEP * self.steps
            idle = self.seconds - self.cpu_seconds >= MIN_BLOCKED_FRACTION * self.seconds
            self.waiting = gave_up and idle
            self._forget()
        return seconds

    def _forget(self) -> None:
        self.steps, self.switches, self.cpu_seconds, self.seconds = 0, 0, 0.0, 0.0


def voluntary_switches() -> int:
    # Where threads are not counted apart, the process stands in: others sleep while this one works.
    who = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)
    return resource.getrusage(who).ru_nvcsw
