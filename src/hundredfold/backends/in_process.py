"""Backends without workers: all envs as one batch (`in_process`), or one after another (`serial`)."""

from __future__ import annotations

import numpy as np

from hundredfold.backends.call_checks import CallOrder, check_all_envs, check_num_envs, check_snapshot, checked_actions
from hundredfold.backends.settings import WorkerSettings
from hundredfold.core.batch import Array, Arrays, IntArray, State, StepBatch, concat_rows, slice_rows
from hundredfold.core.failures import Failure, Health
from hundredfold.core.protocols import EnvFactory, PerEnvBatch, SharedParams


class InProcessBackend:
    """One `BatchEnv` with all envs, which `send` steps; the fastest for built-in envs."""

    def __init__(self, make_envs: EnvFactory, num_envs: int, settings: WorkerSettings | None = None) -> None:
        self.num_envs = check_num_envs(num_envs)
        self.call_order = CallOrder()
        self.env = make_envs(np.arange(num_envs))
        self.spec = self.env.spec
        self.groups = np.zeros(num_envs, np.int64)
        self.failure_counts = Health()
        if isinstance(self.env, PerEnvBatch):
            self.env.restart_policy = (settings or WorkerSettings()).restart_policy()
        self.batch = self.spec.batch(np.arange(num_envs))

    def reset(self, seed: int) -> None:
        self.call_order.expect_open("reset()")
        with self.call_order.transition_to("recv"):
            self.batch = self.env.reset(seed)

    def recv(self) -> StepBatch:
        self.call_order.recv()
        return self.batch

    def send(self, actions: Array, env_ids: IntArray | None = None) -> None:
        self.call_order.expect("send", "send()")
        check_all_envs(env_ids, self.num_envs)
        checked = checked_actions(actions, self.batch, self.spec)
        with self.call_order.transition_to("recv"):
            self.batch = self.env.step(checked)

    def broadcast(self, shared_params: SharedParams) -> None:
        self.call_order.expect_open("broadcast()")
        self.env.set_shared_params(shared_params)

    def state(self) -> Arrays:
        self.call_order.expect("send", "state()")
        return self.env.state()

    def restore(self, state: State) -> None:
        self.call_order.expect_open("restore()")
        check_snapshot(state, self.num_envs)
        with self.call_order.transition_to("recv"):
            self.batch = self.env.restore(state)

    def health(self) -> dict[str, int]:
        if isinstance(self.env, PerEnvBatch):
            self.failure_counts.count_restarts(self.env.restart_policy.drain())
        return self.failure_counts.counts()

    @property
    def first_failure(self) -> Failure | None:
        return self.failure_counts.first

    def timings(self) -> dict[str, float]:
        return self.env.timings()

    def close(self) -> None:
        if self.call_order.close():
            self.env.close()


class SerialBackend:
    """One `BatchEnv` per env, each writing into its row of a common batch: the reference for all others."""

    def __init__(self, make_envs: EnvFactory, num_envs: int, settings: WorkerSettings | None = None) -> None:
        self.num_envs = check_num_envs(num_envs)
        self.call_order = CallOrder()
        env_ids = np.arange(num_envs)
        self.envs = [make_envs(env_ids[row : row + 1]) for row in range(num_envs)]
        self.spec = self.envs[0].spec
        self.groups = np.zeros(num_envs, np.int64)
        self.failure_counts = Health()
        for env in self.envs:
            if isinstance(env, PerEnvBatch):
                env.restart_policy = (settings or WorkerSettings()).restart_policy()
        self.batch = self.spec.batch(env_ids)
        self.rows = [self.batch.rows(row, row + 1) for row in range(num_envs)]
        for env, row in zip(self.envs, self.rows, strict=True):
            env.set_output_buffers(row)

    def reset(self, seed: int) -> None:
        self.call_order.expect_open("reset()")
        with self.call_order.transition_to("recv"):
            for env in self.envs:
                env.reset(seed)
            self._gather_infos()

    def recv(self) -> StepBatch:
        self.call_order.recv()
        return self.batch

    def send(self, actions: Array, env_ids: IntArray | None = None) -> None:
        self.call_order.expect("send", "send()")
        check_all_envs(env_ids, self.num_envs)
        checked = checked_actions(actions, self.batch, self.spec)
        with self.call_order.transition_to("recv"):
            for row, env in enumerate(self.envs):
                env.step(checked[row : row + 1])
            self._gather_infos()

    def broadcast(self, shared_params: SharedParams) -> None:
        self.call_order.expect_open("broadcast()")
        for env in self.envs:
            env.set_shared_params(shared_params)

    def state(self) -> Arrays:
        self.call_order.expect("send", "state()")
        return concat_rows([env.state() for env in self.envs])

    def restore(self, state: State) -> None:
        self.call_order.expect_open("restore()")
        check_snapshot(state, self.num_envs)
        with self.call_order.transition_to("recv"):
            for row, env in enumerate(self.envs):
                env.restore(slice_rows(state, slice(row, row + 1)))
            self._gather_infos()

    def health(self) -> dict[str, int]:
        for env in self.envs:
            if isinstance(env, PerEnvBatch):
                self.failure_counts.count_restarts(env.restart_policy.drain())
        return self.failure_counts.counts()

    @property
    def first_failure(self) -> Failure | None:
        return self.failure_counts.first

    def timings(self) -> dict[str, float]:
        timings = [env.timings() for env in self.envs]
        return {name: sum(seconds[name] for seconds in timings) for name in timings[0]}

    def close(self) -> None:
        if self.call_order.close():
            for env in self.envs:
                env.close()

    def _gather_infos(self) -> None:
        """Collect the infos of third-party envs, which are objects and not in shared buffers."""
        if self.rows[0].infos is not None:
            self.batch.infos = [info for row in self.rows for info in row.infos or ({},)]
