"""The shard of envs that one worker owns, and how the worker steps it.

Built-in envs are batches: the shard is divided into groups, and a group steps when all its envs
have their actions. Third-party envs step one by one. Envs that compute are stepped in turn, and
become ready about every half millisecond; those that wait have threads (`env_threads`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from time import monotonic, perf_counter
from typing import Any, Final

import numpy as np

from hundredfold.backends.env_profile import StepCosts, measure_steps
from hundredfold.backends.processes.channel import Channel
from hundredfold.backends.processes.ready_flags import ReadyFlags
from hundredfold.backends.processes.recovery import RecoveryPoint
from hundredfold.backends.processes.remote_errors import capture_error
from hundredfold.backends.processes.shared_memory import InfoWriter, pickle_info, shared_batch
from hundredfold.backends.settings import WorkerSettings
from hundredfold.core.batch import Arrays, IntArray, State, concat_rows, copies, slice_rows
from hundredfold.core.protocols import BatchEnv, PerEnvBatch, SharedParams

# With partial batches, ready envs are reported about this often.
REPORT_SECONDS: Final = 0.0005
# So many failures fit into a message that the socket buffers, so sending it never blocks.
FAILURES_PER_MESSAGE: Final = 10


def group_edges(env_ids: range, batch_envs: int, num_envs: int) -> list[int]:
    """First env of each group of a shard, and the end of the last one.

    Args:
        env_ids: envs of the shard.
        batch_envs: envs that the parent waits for; groups are about as large.
        num_envs: envs of all workers; if the parent waits for all, the shard is one group.
    """
    size = len(env_ids)
    groups = 1 if batch_envs >= num_envs else -(-size // min(batch_envs, size))
    return [env_ids.start + group * size // groups for group in range(groups + 1)]


class Shard(ABC):
    """The envs of one worker, each group of them writing to its rows of the shared batch.

    Args:
        envs: one batch of envs per group.
        edges: first env of each group, and the end of the last one.
    """

    # Whether a snapshot must wait for steps in flight.
    drains_for_state = True

    def __init__(self, envs: Sequence[BatchEnv], edges: list[int]) -> None:
        self.envs = list(envs)
        self.first, self.last = edges[0], edges[-1]
        rows = [slice(first, last) for first, last in pairwise(edges)]
        self.groups = list(zip(envs, rows, strict=True))
        self.spec = envs[0].spec

    def set_output_buffers(self, arrays: Arrays, channel: Channel) -> None:
        """Use these shared arrays and report to the parent over this channel."""
        self.channel = channel
        self.actions = arrays["actions"]
        self.busy_since = arrays["busy_since"]
        self.busy_since[self.first : self.last] = 0.0
        self.ready_flags = ReadyFlags(arrays)
        batch = shared_batch(arrays, self.spec)
        self.out = batch.rows(self.first, self.last)
        # Envs whose episode was truncated because their worker died. Their next action belongs to
        # that episode: it is answered by the truncation and not played.
        self.pending_truncation: set[int] = set()
        for env, rows in self.groups:
            env.set_output_buffers(batch.rows(rows.start, rows.stop))

    @abstractmethod
    def step(self, first: int, last: int) -> None:
        """Step envs first..last-1, now or soon, and mark each as ready when it is done."""

    def mark_ready(self, first: int, last: int) -> None:
        """Set the ready flags of these envs and wake the parent if due, from any thread."""
        if self.ready_flags.set_ready(first, last):
            self.channel.wake()

    def drain(self) -> None:
        """Wait until no step is in flight."""

    @contextmanager
    def busy(self, rows: slice) -> Iterator[None]:
        """Show the parent since when these envs are busy, so that it notices a hang."""
        self.busy_since[rows] = monotonic()
        try:
            yield
        finally:
            self.busy_since[rows] = 0.0

    def for_each_group(self, call: Callable[[BatchEnv, slice], object]) -> None:
        """Call a function with each batch of envs and its rows, where envs may be reset."""
        for env, rows in self.groups:
            with self.busy(rows):
                call(env, rows)

    def reset(self, seed: int, skip: IntArray | None = None) -> None:
        """Start episode 0 of every env, or the one `skip`, (envs of the shard,), episodes later."""

        def reset_group(env: BatchEnv, rows: slice) -> None:
            if skip is None or not skip.any():
                env.reset(seed)
            else:
                env.truncate_all(skip[self._local(rows)], seed)

        self.pending_truncation.clear()
        self.for_each_group(reset_group)
        self.out.truncated[:] = False

    def restore(self, state: State, skip: IntArray | None = None) -> None:
        """Continue from a snapshot; only third-party envs, which begin new episodes, can skip some."""
        self.pending_truncation.clear()
        self.for_each_group(lambda env, rows: env.restore(slice_rows(state, self._local(rows))))

    def recover(self, point: RecoveryPoint) -> None:
        """Take over from a dead worker: truncate all its episodes where they were."""
        final_observation = self.last_observations()
        self.truncate_all(point)
        for name, array in final_observation.items():
            self.out.final_observation[name][...] = array
        self.pending_truncation.update(range(self.first, self.last))

    def truncate_all(self, point: RecoveryPoint) -> None:
        """Truncate all episodes and begin those after the ones that a recovery point skips."""
        if point.state is not None:
            self.restore(point.state)
        self.set_shared_params(point.shared_params)
        self.for_each_group(lambda env, rows: env.truncate_all(point.skip[self._local(rows)], point.seed))

    def last_observations(self) -> Arrays:
        """Copies of the last observations; 0 where a worker died before it could check them."""
        observations = copies(self.out.observation)
        for array in observations.values():
            if array.dtype.kind == "f":
                array[~np.isfinite(array)] = 0
        return observations

    def set_shared_params(self, shared_params: SharedParams) -> None:
        for env in self.envs:
            env.set_shared_params(shared_params)

    def state(self) -> Arrays:
        return concat_rows([env.state() for env in self.envs])

    def timings(self) -> dict[str, float]:
        timings = [env.timings() for env in self.envs]
        return {name: sum(part[name] for part in timings) for name in timings[0]}

    def close(self) -> None:
        for env in self.envs:
            env.close()

    def report_failures(self) -> None:
        """Send the parent the failures of envs that were recreated."""

    def info_bytes(self, env_id: int) -> bytes:
        """The pickled info of a third-party env."""
        raise KeyError(env_id)

    def _local(self, rows: slice) -> slice:
        """These rows, counted from the first env of the shard."""
        return slice(rows.start - self.first, rows.stop - self.first)


class BatchShard(Shard):
    """Built-in envs: each group is one batch and steps as a whole."""

    def set_output_buffers(self, arrays: Arrays, channel: Channel) -> None:
        super().set_output_buffers(arrays, channel)
        self.has_action = np.zeros(self.last, bool)

    def step(self, first: int, last: int) -> None:
        self.has_action[first:last] = True
        for env, rows in self.groups:
            if rows.start < last and first < rows.stop and self.has_action[rows].all():
                self.has_action[rows] = False
                self._step_group(env, rows)

    def _step_group(self, env: BatchEnv, rows: slice) -> None:
        if rows.start in self.pending_truncation:
            self.pending_truncation.difference_update(range(rows.start, rows.stop))
        else:
            try:
                with self.busy(rows):
                    env.step(self.actions[rows])
            except BaseException as error:
                self.channel.send_message("error", capture_error("step()", error))
                return
        self.mark_ready(rows.start, rows.stop)


class PerEnvShard(Shard):
    """Third-party envs, which step one by one.

    Args:
        envs: the envs; one batch, unless a subclass divides them.
        edges: first env of each batch, and the end of the last one.
        settings: restart policy.
        is_chunked: step in small chunks, because the parent takes partial batches.
    """

    # Such a snapshot holds no episodes, only their numbers, so a step more or less does not matter;
    # waiting for the slowest env would.
    drains_for_state = False

    def __init__(
        self, envs: list[PerEnvBatch], edges: list[int], settings: WorkerSettings, *, is_chunked: bool
    ) -> None:
        super().__init__(envs, edges)
        self.env = envs[0]
        self.per_env_groups = list(zip(envs, [rows for _, rows in self.groups], strict=True))
        self.restart_policy = settings.restart_policy()
        for env in envs:
            env.restart_policy = self.restart_policy
        self.is_chunked = is_chunked
        self.chunk_size = 1 if is_chunked else self.last - self.first

    def set_output_buffers(self, arrays: Arrays, channel: Channel) -> None:
        super().set_output_buffers(arrays, channel)
        for env, rows in self.per_env_groups:
            env.set_busy_since(self.busy_since[rows])
        self.infos = InfoWriter(arrays)

    @contextmanager
    def busy(self, rows: slice) -> Iterator[None]:
        """Does nothing: the batch itself marks each env in turn."""
        yield

    def step(self, first: int, last: int) -> None:
        while first < last:
            stop = min(first + self.chunk_size, last)
            start = perf_counter()
            if not self._step_chunk(first, stop):
                return
            self._adapt_chunk_size(stop - first, perf_counter() - start)
            first = stop

    def measure_steps(self, seed: int, steps: int) -> StepCosts:
        """Measure steps of the first batch of envs."""
        return measure_steps(self.env, steps, seed=seed)

    def reset(self, seed: int, skip: IntArray | None = None) -> None:
        super().reset(seed, skip)
        self._write_all_infos()

    def restore(self, state: State, skip: IntArray | None = None) -> None:
        if skip is not None:
            state = {**state, "episodes": state["episodes"] + skip}
        super().restore(state)
        self._write_all_infos()

    def truncate_all(self, point: RecoveryPoint) -> None:
        if point.state is not None:
            # A restore truncates all episodes by itself, and no episode is to be reset in vain: it may hang.
            self.restore(point.state, point.skip)
            self.set_shared_params(point.shared_params)
            return
        super().truncate_all(point)
        self._write_all_infos()

    def report_failures(self) -> None:
        failures = self.restart_policy.drain()
        for start in range(0, len(failures), FAILURES_PER_MESSAGE):
            part = failures[start : start + FAILURES_PER_MESSAGE]
            self.channel.send_message("failures", part)

    def info_bytes(self, env_id: int) -> bytes:
        env, first = next((env, rows.start) for env, rows in self.per_env_groups if env_id < rows.stop)
        return pickle_info(env.infos[env_id - first])

    def _step_chunk(self, first: int, last: int) -> bool:
        """Step these envs and mark them as ready; False when the run must stop."""
        if self.pending_truncation and last - first > 1:
            return all(self._step_chunk(env_id, env_id + 1) for env_id in range(first, last))
        if first in self.pending_truncation:
            self.pending_truncation.discard(first)
        else:
            try:
                rows = first - self.first, last - self.first
                self.env.step_rows(*rows, self.actions[first:last])
            except BaseException as error:
                self._report_error(error)
                return False
            self._write_infos(first, self.env.infos[first - self.first : last - self.first])
            if self.restart_policy.unreported:
                self.report_failures()
        self.mark_ready(first, last)
        return True

    def _report_error(self, error: BaseException) -> None:
        """Send the parent the error that must stop the run."""
        self.report_failures()
        self.channel.send_message("error", capture_error("step()", error))

    def _write_all_infos(self) -> None:
        for env, rows in self.per_env_groups:
            self._write_infos(rows.start, env.infos)

    def _write_infos(self, first: int, infos: Sequence[Mapping[str, Any]]) -> None:
        """Write the infos of the envs from `first` on."""
        self.infos.sizes[first : first + len(infos)] = 0
        for env_id, info in enumerate(infos, first):
            if info:
                self.infos.write(env_id, info)

    def _adapt_chunk_size(self, num_envs: int, seconds: float) -> None:
        """Step as many envs between two reports as take about `REPORT_SECONDS`."""
        if not self.is_chunked:
            return
        if seconds > 2 * REPORT_SECONDS:
            self.chunk_size = max(1, num_envs // 2)
        elif seconds < REPORT_SECONDS / 2 and num_envs == self.chunk_size:
            self.chunk_size = min(2 * num_envs, self.last - self.first)
