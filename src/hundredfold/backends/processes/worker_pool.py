"""All workers of a backend: listening to them, giving them orders, replacing those that are lost.

Everything happens inside the parent's own calls; there is no thread in the background. A lost
worker is replaced by a new process that makes the same envs; their episodes are cut off where they
were and count as truncated. What the lost worker was asked is asked again, and while the new one
is starting the others go on.

Where the current play began, for workers that have to join in later.

Who is where: every env waits for an action, or is at work.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import struct
import warnings
from dataclasses import replace
from time import monotonic
from typing import Any, Final

import numpy as np

from hundredfold.backends.processes.channel import SPAN
from hundredfold.backends.processes.env_shards import pairs
from hundredfold.backends.processes.ready_flags import ReadyFlags
from hundredfold.backends.processes.remote_errors import Answer, RemoteError
from hundredfold.backends.processes.shared_memory import anonymous_memory, layout_of, mapped
from hundredfold.backends.processes.worker_handle import (
    WorkerProcess,
    diagnose_exit,
    pickle_factory,
    refuse_start,
)
from hundredfold.backends.processes.worker_main import RecoveryPoint, WorkerPlan
from hundredfold.backends.settings import WorkerSettings
from hundredfold.core.batch import BoolArray, FloatArray, IntArray, State, slice_rows
from hundredfold.core.errors import WorkerError
from hundredfold.core.failures import Failure, Health
from hundredfold.core.protocols import EnvFactory


class RecoveryState:
    """What was told to everybody, and how many episodes ago."""

    def __init__(self, num_envs: int) -> None:
        self.seed: int | None = None
        self.state: State | None = None
        self.shared_params: dict[str, Any] = {}
        self.begun = False
        self.ended = np.zeros(num_envs, np.int64)  # episodes since the beginning
        # Envs whose worker was lost and whose end of episode is still to be told.
        self.cut_off = np.zeros(num_envs, bool)
        self.any_cut_off = False

    def lose(self, rows: slice) -> None:
        """The worker of these envs is lost."""
        self.cut_off[rows] = True
        self.any_cut_off = True

    def tell(self, env_ids: IntArray) -> BoolArray:
        """Which of these come with an end of episode that is their worker's loss."""
        told = self.cut_off[env_ids]
        self.cut_off[env_ids] = False
        self.any_cut_off = bool(self.cut_off.any())
        return told

    def begin_with(self, seed: int) -> None:
        """Everybody was reset; what they had learned stays with them."""
        self.seed, self.begun = seed, True
        self._forget_the_past()

    def go_on_from(self, state: State) -> None:
        """Everybody was restored; what they had learned is part of the snapshot."""
        self.seed, self.state, self.shared_params, self.begun = None, state, {}, True
        self._forget_the_past()

    def origin(self, rows: slice) -> RecoveryPoint:
        """What a worker of these rows needs to know."""
        state = self.state
        if state is not None:
            state = slice_rows(state, rows)
        return RecoveryPoint(self.seed, state, self.shared_params, self.ended[rows] + 1)

    def _forget_the_past(self) -> None:
        self.ended[:] = 0
        self.cut_off[:] = False
        self.any_cut_off = False


# So few env ids are looked through one by one: numpy takes longer to begin.
FEW: Final = 24


class InFlight:
    """The whereabouts of every env, as the parent knows them."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        # (envs,) True from the moment an env gets its action until what came of it is fetched.
        self.at_work = np.zeros(num_envs, bool)
        self.num_at_work = 0

    def sent(self, env_ids: IntArray | None) -> None:
        """These got their action; None for everybody."""
        if env_ids is None:
            self.at_work[:] = True
            self.num_at_work = self.num_envs
        else:
            self.at_work[env_ids] = True
            self.num_at_work += len(env_ids)

    def fetched(self, env_ids: IntArray | None) -> None:
        """These wait for their next action; None for everybody."""
        if env_ids is None:
            self.at_work[:] = False
            self.num_at_work = 0
        else:
            self.at_work[env_ids] = False
            self.num_at_work -= len(env_ids)

    def waiting(self, env_ids: IntArray) -> BoolArray:
        waits: BoolArray = ~self.at_work[env_ids]
        return waits

    def working(self, first: int, last: int) -> IntArray:
        """Those of these who are at work."""
        return first + np.flatnonzero(self.at_work[first:last])


def spans_of(env_ids: IntArray) -> bytes:
    """Rising env ids as spans for the wire."""
    if len(env_ids) <= FEW:
        return _few_spans(env_ids.tolist())
    (breaks,) = (env_ids[1:] - env_ids[:-1] != 1).nonzero()
    if not len(breaks):
        return SPAN.pack(int(env_ids[0]), int(env_ids[-1]) + 1)
    spans = np.empty((len(breaks) + 1, 2), np.int32)
    spans[0, 0] = env_ids[0]
    spans[1:, 0] = env_ids[breaks + 1]
    spans[:-1, 1] = env_ids[breaks] + 1
    spans[-1, 1] = env_ids[-1] + 1
    return spans.tobytes()


def _few_spans(env_ids: list[int]) -> bytes:
    found: list[int] = []
    for env_id in env_ids:
        if found and found[-1] == env_id:
            found[-1] += 1
        else:
            found += (env_id, env_id + 1)
    return struct.pack(f"={len(found)}i", *found)


# How long workers may take to close their envs before they are ended.
CLOSE_SECONDS: Final = 5.0
# Looking whether everybody is well, at most this often.
LOOK_SECONDS: Final = 1.0
# The bell is rung in time, but this costs nothing and does not depend on it.
FIRST_NAP_SECONDS: Final = 0.02
# Who has not looked for longer than this was itself stopped, frozen or busy elsewhere.
ABSENCE_SECONDS: Final = 2.0
# The number of the one order that is not waited for: to take the place of a lost worker.
REJOIN: Final = 0


class WorkerPool:
    """The workers of one backend and the memory they share."""

    def __init__(
        self, make_envs: EnvFactory, traffic: InFlight, settings: WorkerSettings, batch_envs: int
    ) -> None:
        self.traffic, self.settings = traffic, settings
        self.story = RecoveryState(traffic.num_envs)
        self.restart_policy, self.health = settings.restart_policy(), Health()
        self.context = multiprocessing.get_context(settings.resolved_start_method())
        self.owner = os.getpid()
        self.memory: int | None = None
        self.workers: list[WorkerProcess] = []
        self.at_wire: dict[int, WorkerProcess] = {}  # those we listen to, by their wire's inbox
        self.poll = select.poll()
        self.look_seconds = min(LOOK_SECONDS, settings.step_timeout / 4)
        self.last_look = monotonic()
        # Time before this moment is held against nobody: we were not there to see.
        self.awake_since = 0.0
        # Steps of every env since its worker started.
        self.played = np.zeros(traffic.num_envs, np.int64)
        self.serial = REJOIN
        self.pending: dict[int, tuple[Any, ...]] = {}  # orders without an answer, by worker
        self.answers: dict[int, Any] = {}
        self.step_errors: list[tuple[str, RemoteError]] = []
        self.is_per_env = self.is_started = False
        num_envs, num_workers = traffic.num_envs, settings.num_workers(traffic.num_envs)
        self.edges = np.arange(num_workers + 1) * num_envs // num_workers
        packed = pickle_factory(make_envs, settings.resolved_start_method())
        try:
            for number, (first, last) in enumerate(pairs(self.edges.tolist())):
                self._hire(WorkerPlan(number, first, last, num_envs, batch_envs, settings, packed))
            self._share_memory()
        except BaseException:
            self.close()
            raise

    # -- every step -----------------------------------------------------------------------------

    def send(self, env_ids: IntArray | None) -> None:
        """Ask for a step of these envs, in rising order; None for everybody."""
        self.traffic.sent(env_ids)
        if env_ids is None:
            for worker in self.workers:
                worker.post(worker.whole)
            return
        cuts: list[int] = env_ids.searchsorted(self.edges).tolist()
        for worker, (first, last) in zip(self.workers, pairs(cuts), strict=True):
            if first < last:
                worker.post(spans_of(env_ids[first:last]))

    def wait_for(self, num_envs: int) -> None:
        """Wait until so many envs have arrived."""
        nap = FIRST_NAP_SECONDS
        if monotonic() - self.last_look >= self.look_seconds:
            self._listen(0.0)
        while not self.step_errors:
            if self.doorbell.has(num_envs):
                return
            if self.doorbell.may_sleep(num_envs):
                self._listen(nap)
                nap = min(2 * nap, self.look_seconds)
            self.doorbell.awake()
        worker, report = self.step_errors[0]
        self.step_errors.clear()
        report.raise_here(worker)

    def fetch(self) -> IntArray | None:
        """Take all who are ready, in order; None for everybody."""
        env_ids = self.doorbell.take()
        self.played[slice(None) if env_ids is None else env_ids] += 1
        self.traffic.fetched(env_ids)
        return env_ids

    def start_over(self) -> None:
        """Everybody has been reset or restored; what was under way before no longer counts."""
        self.step_errors.clear()
        self.traffic.sent(None)
        self.doorbell.raise_all()

    def catch_up(self) -> None:
        """Hear what has been said and not been listened to."""
        self._listen(0.0)

    # -- orders ---------------------------------------------------------------------------------

    def request(self, name: str, arguments: list[tuple[Any, ...]] | None = None) -> list[Any]:
        """Have everybody do something once their steps are done; their answers, worker by worker.

        `arguments` has one tuple per worker.
        """
        self._replace_missing()
        everybody = [()] * len(self.workers) if arguments is None else arguments
        return self._ask(self.workers, name, everybody)

    def info_of(self, env_id: int) -> bytes:
        """An info that is not in shared memory, from the worker that has it."""
        if not self.workers:
            raise WorkerError("the backend is closed: infos can be read until then.")
        number = int(np.searchsorted(self.edges, env_id, side="right")) - 1
        worker = self.workers[number]
        if worker not in self.at_wire.values():
            raise WorkerError(f"{worker} was lost, and with it what its envs had to say.")
        found: bytes = self._ask([worker], "info", [(env_id,)])[0]
        return found

    def _ask(
        self, workers: list[WorkerProcess], name: str, arguments: list[tuple[Any, ...]]
    ) -> list[Any]:
        self.serial += 1
        self.answers.clear()
        numbers = [worker.plan.number for worker in workers]
        self.pending = {
            number: (name, self.serial, *given)
            for number, given in zip(numbers, arguments, strict=True)
        }
        for worker in workers:
            worker.say(*self.pending[worker.plan.number])
        while self.pending:
            self._listen(self.look_seconds)
        answers: list[Answer] = [self.answers[number] for number in numbers]
        for number, answer in zip(numbers, answers, strict=True):
            if answer.refusal is not None:
                answer.refusal.raise_here(str(self.workers[number]))
        for message, category in {warning: None for one in answers for warning in one.warnings}:
            warnings.warn(message, category, stacklevel=4)
        return [answer.value for answer in answers]

    def close(self) -> None:
        """End all workers, gently if they let us; safe to call twice."""
        if self.owner != os.getpid():
            return  # a forked copy of us: the workers are not its to close
        for worker in self.at_wire.values():
            worker.ask_to_close()
        deadline = monotonic() + CLOSE_SECONDS
        for worker in self.at_wire.values():
            worker.close(deadline)
        self.workers.clear()
        self.at_wire.clear()
        if self.memory is not None:
            os.close(self.memory)
            self.memory = None

    # -- starting -------------------------------------------------------------------------------

    def _hire(self, plan: WorkerPlan) -> WorkerProcess:
        worker = WorkerProcess(plan, self.context, self.memory)
        self.workers[plan.number : plan.number + 1] = [worker]
        self.at_wire[worker.wire.inbox] = worker
        self.poll.register(worker.wire.inbox, select.POLLIN)
        return worker

    def _share_memory(self) -> None:
        """Wait until everybody has made their envs, and give them memory to show them in."""
        while not all(worker.ready for worker in self.workers):
            self._listen(self.look_seconds)
        layout = layout_of(self.spec, self.traffic.num_envs, foreign=self.is_per_env)
        self.memory = anonymous_memory(layout)
        for worker in self.workers:
            worker.wire.hand_memory(self.memory)
        self.arrays = mapped(layout, self.memory)
        self.doorbell = ReadyFlags(self.arrays)
        if self.spec.has_mask:
            self.arrays["batch/mask"][:] = True
        self.is_started = True

    # -- listening ------------------------------------------------------------------------------

    def _listen(self, seconds: float) -> None:
        """Wait so long for somebody to say something; look from time to time who does not."""
        for handle, _ in self.poll.poll(1000 * seconds):
            if handle in self.at_wire:
                self._read(self.at_wire[handle])
        now = monotonic()
        if now - self.last_look >= self.look_seconds:
            self._look(now)

    def _read(self, worker: WorkerProcess) -> None:
        spans = worker.wire.collect()
        if spans is None:
            self._lose(worker)
            return
        worker.last_sign = monotonic()
        for first, _ in spans:
            if first < 0 and not self._hear(worker):
                return

    def _hear(self, worker: WorkerProcess) -> bool:
        """Take one message; False when the worker was lost over it."""
        try:
            kind, *content = worker.wire.hear()
        except (EOFError, OSError):
            self._lose(worker)
            return False
        except BaseException:
            # Interrupted in the middle of a message: what follows would make no sense.
            self._let_go(worker)
            raise
        if kind == "ready":
            worker.ready = True
            self.spec, self.is_per_env = content
            worker.is_per_env = self.is_per_env
        elif kind == "failures":
            self.health.count_restarts(_from(worker, content[0]))
        elif kind == "error":
            self.step_errors.append((str(worker), content[0]))
        elif kind == "unmade" or (kind == "refusal" and content[0] == REJOIN):
            report = content[0] if kind == "unmade" else content[1].refusal
            self._lose(worker, report=report)
            return False
        else:
            self._take_answer(worker, *content)
        return True

    def _take_answer(self, worker: WorkerProcess, serial: int, answer: Any) -> None:
        number = worker.plan.number
        # An answer to an earlier order may still come after somebody else refused that order.
        if number in self.pending and self.pending[number][1] == serial:
            del self.pending[number]
            self.answers[number] = answer

    # -- losing and replacing -------------------------------------------------------------------

    def _look(self, now: float) -> None:
        """Notice workers that are gone, envs that hang, and workers that say nothing at all."""
        if now - self.last_look > self.look_seconds + ABSENCE_SECONDS:
            self.awake_since = now
        self.last_look = now
        for worker in list(self.at_wire.values()):
            entered = self._entered(worker)
            since = np.maximum(entered, self.awake_since)
            hanging = (entered > 0) & (now - since > worker.step_timeout)
            last_sign = max(worker.last_sign, self.awake_since, float(entered.max(initial=0.0)))
            if hanging.any():
                self._lose(worker, hanging=worker.plan.first + np.flatnonzero(hanging))
            elif self._owes_us(worker) and now - last_sign > worker.patience:
                self._lose(worker, hanging=np.zeros(0, np.int64))
            elif not worker.process.is_alive() and not worker.has_news():
                self._lose(worker)

    def _owes_us(self, worker: WorkerProcess) -> bool:
        if worker.plan.number in self.pending or not worker.ready:
            return True
        if not self.is_started:
            return False
        rows = worker.rows
        return bool((self.traffic.at_work[rows] & ~self.arrays["done"][rows]).any())

    def _lose(
        self,
        worker: WorkerProcess,
        *,
        report: RemoteError | None = None,
        hanging: IntArray | None = None,
    ) -> None:
        """Say farewell to a worker and put another in its place, unless enough is enough."""
        inside = worker.plan.first + np.flatnonzero(self._entered(worker))
        how = self._let_go(worker)
        if self.is_started:
            self.arrays["entered"][worker.rows] = 0.0
            # Rows that nobody has fetched yet are about to be written over.
            self.doorbell.lower(worker.rows)
        if not self.is_started:
            if report is not None:
                report.raise_here(str(worker))
            refuse_start(worker, how)
        env_id, error = diagnose_exit(worker, how, report, hanging, inside)
        played = self.played[worker.rows].sum() if env_id is None else self.played[env_id]
        self.played[worker.rows] = 0
        self.restart_policy.record_failure(
            env_id, error, good_steps=int(played), worker=worker.plan.number
        )
        self.health.count_worker_restart(self.restart_policy.drain(), worker.size)
        self._replace(worker)

    def _let_go(self, worker: WorkerProcess) -> str:
        self.poll.unregister(worker.wire.inbox)
        del self.at_wire[worker.wire.inbox]
        return worker.end()

    def _replace(self, worker: WorkerProcess) -> None:
        """A new worker for the same envs, that is told and asked what the old one was."""
        new = self._hire(worker.plan)
        if self.story.begun:
            self.story.lose(new.rows)
            new.say("rejoin", REJOIN, self.story.origin(new.rows))
            new.post(spans_of(self.traffic.working(new.plan.first, new.plan.last)))
        if new.plan.number in self.pending:
            new.say(*self.pending[new.plan.number])

    def _replace_missing(self) -> None:
        """Fill the places of workers that were lost when the run was to stop."""
        for worker in self.workers:
            if worker not in self.at_wire.values():
                self._replace(worker)

    def _entered(self, worker: WorkerProcess) -> FloatArray:
        """(envs of the worker,) since when each is at work, as it is at this moment."""
        if not self.is_started:
            return np.zeros(worker.size)
        return self.arrays["entered"][worker.rows].copy()


def _from(worker: WorkerProcess, failures: list[Failure]) -> list[Failure]:
    return [replace(failure, worker=worker.plan.number) for failure in failures]
