"""Third-party envs that wait, in threads of a worker: all of them wait at once.

An env belongs to one thread, which creates, resets, steps, recreates and closes it: database
connections, event loops and other objects that are bound to a thread work as in a program of their
own. Only what needs the main thread of a process, such as signal handlers, does not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from itertools import pairwise
from queue import SimpleQueue
from typing import Any, Final, TypeVar

import numpy as np

from hundredfold.backends.env_profile import StepCosts
from hundredfold.backends.processes.channel import Channel
from hundredfold.backends.processes.cpu_affinity import pin_threads
from hundredfold.backends.processes.env_shards import PerEnvShard
from hundredfold.backends.settings import WorkerSettings
from hundredfold.core.batch import Arrays
from hundredfold.core.protocols import BatchEnv, EnvFactory, PerEnvBatch

MAX_THREADS: Final = 512

T = TypeVar("T")


class EnvThread(threading.Thread):
    """A thread that owns envs. It steps the env ids in its queue and makes the calls in between."""

    def __init__(self, number: int) -> None:
        super().__init__(name=f"envs {number}", daemon=True)
        self.queue: SimpleQueue[Any] = SimpleQueue()  # env ids, (future, function) pairs; None = end
        self.step_env: Callable[[int], None]
        self.start()

    def run(self) -> None:
        while (item := self.queue.get()) is not None:
            if type(item) is int:
                self.step_env(item)
                continue
            future, function = item
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

    def call(self, function: Callable[[], T]) -> T:
        """Call a function in this thread, after the steps in its queue; returns its result."""
        future: Future[T] = Future()
        self.queue.put((future, function))
        return future.result()

    def end(self) -> None:
        """End the thread after what is in its queue."""
        self.queue.put(None)


class ThreadedShard(PerEnvShard):
    """Third-party envs in threads.

    Args:
        threads: one per batch of envs.
        envs: the batches, usually of one env each.
        edges: first env of each batch, and the end of the last one.
        settings: restart policy.
        core: core for the threads; None = any.
    """

    def __init__(
        self,
        threads: list[EnvThread],
        envs: list[PerEnvBatch],
        edges: list[int],
        settings: WorkerSettings,
        core: int | None = None,
    ) -> None:
        super().__init__(envs, edges, settings, is_chunked=False)
        self.threads = threads
        self.queues = [thread.queue for thread, (_, rows) in zip(threads, self.groups, strict=True) for _ in _ids(rows)]
        for thread in threads:
            thread.step_env = self._step_env
            # After the envs were created: where they have started subprocesses this does nothing.
            thread.call(partial(pin_threads, core))
        pin_threads(core)

    def set_output_buffers(self, arrays: Arrays, channel: Channel) -> None:
        super().set_output_buffers(arrays, channel)
        # (batch, row in it, actions of the batch) of every env
        self.places = [
            (env, env_id - rows.start, self.actions[rows]) for env, rows in self.per_env_groups for env_id in _ids(rows)
        ]

    def step(self, first: int, last: int) -> None:
        for env_id in range(first, last):
            self.queues[env_id - self.first].put(env_id)

    def drain(self) -> None:
        for thread in self.threads:
            thread.call(_nothing)

    def for_each_group(self, call: Callable[[BatchEnv, slice], object]) -> None:
        """Call in the thread of each group, one after another: a reset may end the process."""
        for thread, (env, rows) in zip(self.threads, self.groups, strict=True):
            thread.call(partial(call, env, rows))

    def measure_steps(self, seed: int, steps: int) -> StepCosts:
        return self.threads[0].call(partial(super().measure_steps, seed, steps))

    def close(self) -> None:
        close_in_threads(self.threads, self.envs)

    def _step_env(self, env_id: int) -> None:
        """Step one env and mark it as ready.

        With a hundred threads no code stays in the CPU caches, so this is short.
        """
        if env_id in self.pending_truncation:
            self.pending_truncation.discard(env_id)
        else:
            env, row, actions = self.places[env_id - self.first]
            try:
                env.step_row(row, actions)
            except BaseException as error:
                self._report_error(error)
                return
            if info := env.infos[row]:
                self.infos.write(env_id, info)
            else:
                self.infos.size_view[env_id] = 0
            if self.restart_policy.unreported:
                self.report_failures()
        if self.ready_flags.set_one_ready(env_id):
            self.channel.wake()


def create_threaded_shard(
    make_envs: EnvFactory, env_ids: range, settings: WorkerSettings, core: int | None
) -> ThreadedShard | None:
    """Create the envs of a shard, each in its thread, one after another; None if they are built-in envs.

    Args:
        make_envs: creates the envs.
        env_ids: envs of the shard.
        settings: number of threads and restart policy.
        core: core for the threads; None = any.
    """
    num_threads = min(settings.env_threads, MAX_THREADS, len(env_ids))
    edges = [env_ids.start + number * len(env_ids) // num_threads for number in range(num_threads + 1)]
    threads: list[EnvThread] = []
    envs: list[Any] = []
    try:
        for number, ends in enumerate(pairwise(edges)):
            threads.append(EnvThread(number))
            envs.append(threads[-1].call(partial(make_envs, np.arange(*ends))))
            if not isinstance(envs[-1], PerEnvBatch):
                close_in_threads(threads, envs)
                return None
    except BaseException:
        close_in_threads(threads, envs)
        raise
    return ThreadedShard(threads, envs, edges, settings, core)


def close_in_threads(threads: list[EnvThread], envs: list[Any]) -> None:
    """Close envs in their threads and end the threads; a thread more than envs failed to create its own."""
    for thread, env in zip(threads, envs, strict=False):
        thread.call(env.close)
    for thread in threads:
        thread.end()


def _ids(rows: slice) -> range:
    return range(rows.start, rows.stop)


def _nothing() -> None:
    """What a thread is called for when only its turn matters."""
