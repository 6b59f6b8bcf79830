"""Envs of somebody else's making in a worker: each of them steps by itself.

Where they compute they are stepped one after another, and the parent hears of them about every
half millisecond. Where they wait there is a thread for each, so that all of them wait at once; an
env may find itself on another thread at every step. Which of the two it is is measured while they
play.
"""

from __future__ import annotations

import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from time import perf_counter, thread_time
from typing import Final

from hundredfold.backends import one_core
from hundredfold.backends.reports import report_of
from hundredfold.backends.settings import WorkerSettings
from hundredfold.backends.shared_arrays import InfoWriter, pickled_info
from hundredfold.backends.slices import Slice
from hundredfold.backends.wires import Wire
from hundredfold.core.batch import Arrays, IntArray, State
from hundredfold.core.contracts import ForeignWorld

# Where the parent takes whoever is ready, it hears of ready envs about this often.
SPAN_SECONDS: Final = 0.0005
MAX_THREADS: Final = 512
# Tells a thread to wait until everything before has been done.
SETTLE: Final = -1
# Envs wait rather than compute if they give up their core in at least half of their steps, and are
# off it for this share of the time. A busy machine takes cores away, too, but makes nobody give
# one up, and that is what voluntary context switches count.
SWITCHES_PER_STEP: Final = 0.5
WAITING_SHARE: Final = 0.25
MEASURED_STEPS: Final = 8
# So many failures fit into one message that never has to wait for the parent to read it.
FAILURES_PER_NOTE: Final = 10


class ForeignSlice(Slice):
    """Envs of somebody else's making, each of which steps by itself."""

    world: ForeignWorld
    # Whoever goes on from such a snapshot begins new episodes, so a step more or less does not
    # matter; waiting for the slowest at every snapshot would.
    rests_for_state = False

    def __init__(
        self,
        world: ForeignWorld,
        env_ids: range,
        settings: WorkerSettings,
        *,
        in_pieces: bool,
        core: int | None = None,
    ) -> None:
        super().__init__([world], [env_ids.start, env_ids.stop])
        self.world = world
        world.guard = settings.guard()
        self.in_pieces = in_pieces
        self.piece = 1 if in_pieces else len(env_ids)
        self.num_threads = settings.env_threads
        self.core = core  # where threads gather, if they should
        # One queue for all threads: who has just finished a step goes on without falling asleep.
        self.queue: SimpleQueue[int] = SimpleQueue()
        self.meeting: threading.Barrier | None = None  # where threads gather once all is done
        self.watch = WaitingWatch()

    def bind(self, arrays: Arrays, wire: Wire) -> None:
        super().bind(arrays, wire)
        self.world.watch(self.entered[self.first : self.last])
        self.own_actions = self.actions[self.first : self.last]
        self.infos = InfoWriter(arrays)
        if self.num_threads > 1:
            self._start_threads(self.num_threads)

    @contextmanager
    def at_work(self, rows: slice) -> Iterator[None]:
        """The world itself marks each env in turn."""
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

    def cut_off(self, ahead: IntArray, seed: int | None, last_seen: Arrays) -> None:
        super().cut_off(ahead, seed, last_seen)
        self._write_infos(self.first, self.last)

    def tell_failures(self) -> None:
        news = self.world.guard.take_news()
        for start in range(0, len(news), FAILURES_PER_NOTE):
            self.wire.say("failures", news[start : start + FAILURES_PER_NOTE])

    def info_of(self, env_id: int) -> bytes:
        return pickled_info(self.world.infos[env_id - self.first])

    def _step_span(self, first: int, last: int) -> bool:
        """Step these envs and post them; False when the run must stop."""
        if self.lost and last - first > 1:
            return all(self._step_span(env_id, env_id + 1) for env_id in range(first, last))
        if first in self.lost:
            self.lost.discard(first)
        else:
            try:
                rows = first - self.first, last - self.first
                self.world.step_rows(*rows, self.actions[first:last])
            except BaseException as error:
                return self._give_up(error)
            self._write_infos(first, last)
            if self.world.guard.news:
                self.tell_failures()
        self.post(first, last)
        return True

    def _step_alone(self, env_id: int) -> None:
        """The same for one env, on a thread of its own."""
        if env_id in self.lost:
            self.lost.discard(env_id)
        else:
            row, world = env_id - self.first, self.world
            try:
                world.step_row(row, self.own_actions)
            except BaseException as error:
                self._give_up(error)
                return
            if info := world.infos[row]:
                self.infos.write(env_id, info)
            else:
                self.infos.size_one[env_id] = 0
            if world.guard.news:
                self.tell_failures()
        if self.doorbell.finish_one(env_id):
            self.wire.ring()

    def _give_up(self, error: BaseException) -> bool:
        """Tell the parent why the run must stop; always False."""
        self.tell_failures()
        self.wire.say("error", report_of("step()", error))
        return False

    def _write_infos(self, first: int, last: int) -> None:
        infos = self.world.infos[first - self.first : last - self.first]
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
        one_core.share(self.core)
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


class WaitingWatch:
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
            gave_up = self.switches >= SWITCHES_PER_STEP * self.steps
            idle = self.seconds - self.cpu_seconds >= WAITING_SHARE * self.seconds
            self.waiting = gave_up and idle
            self._forget()
        return seconds

    def _forget(self) -> None:
        self.steps, self.switches, self.cpu_seconds, self.seconds = 0, 0, 0.0, 0.0


def voluntary_switches() -> int:
    # Where threads are not counted apart, the process stands in: others sleep while this one works.
    who = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)
    return resource.getrusage(who).ru_nvcsw
