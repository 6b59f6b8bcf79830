"""Next-step autoreset: an env whose episode ended stands still for one step.

Batches of envs start the next episode within the step that ends the last one. Gymnasium's vector
envs by default, and RLlib always, give that start a step of its own, whose action is ignored. Here
the rows that ended are left out of the next step; where they ended they are as before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hundredfold.core.action_scaling import argmax_actions, uniform_actions
from hundredfold.core.batch import Array, Arrays, BoolArray, EnvSpec, FloatArray, IntArray, State, StepBatch
from hundredfold.core.failures import RestartPolicy
from hundredfold.core.protocols import BatchEnv, EnvFactory, PerEnvBatch, SharedParams
from hundredfold.envs.batch_env import ArrayBatchEnv


@dataclass(frozen=True, slots=True)
class NextStepFactory:
    """Creates envs with next-step autoreset.

    Args:
        make_envs: creates the envs; they are `ArrayBatchEnv`s.
    """

    make_envs: EnvFactory

    def __call__(self, env_ids: IntArray) -> BatchEnv:
        env = self.make_envs(env_ids)
        assert isinstance(env, ArrayBatchEnv), f"{type(env).__name__} is not an ArrayBatchEnv"
        if isinstance(env, PerEnvBatch):
            per_env: PerEnvBatch = PerEnvNextStep(env)  # so that mypy compares all attributes
            return per_env
        return NextStepEnv(env)


class NextStepEnv:
    """A batch of envs in which rows that ended in a step are left out of the next one.

    Args:
        env: the envs.
    """

    def __init__(self, env: ArrayBatchEnv) -> None:
        self.env = env
        self.spec: EnvSpec = env.spec

    @property
    def first_episode(self) -> int:
        """Number of the episode that `reset` starts."""
        return self.env.first_episode

    @first_episode.setter
    def first_episode(self, number: int) -> None:
        self.env.first_episode = number

    def step(self, actions: Array) -> StepBatch:
        """Step the rows that did not end in the last step; actions of the others are not used."""
        return self.env.step_except(np.flatnonzero(self.env.out.ended), actions)

    def set_output_buffers(self, out: StepBatch) -> None:
        self.env.set_output_buffers(out)

    def reset(self, seed: int) -> StepBatch:
        return self.env.reset(seed)

    def set_shared_params(self, shared_params: SharedParams) -> None:
        self.env.set_shared_params(shared_params)

    def state(self) -> Arrays:
        return self.env.state()

    def restore(self, state: State) -> StepBatch:
        return self.env.restore(state)

    def truncate_all(self, skip: IntArray, seed: int | None = None) -> StepBatch:
        return self.env.truncate_all(skip, seed)

    def timings(self) -> dict[str, float]:
        return self.env.timings()

    def close(self) -> None:
        self.env.close()


class PerEnvNextStep(NextStepEnv):
    """The same for third-party envs, which step one by one."""

    env: Any  # both an ArrayBatchEnv and a PerEnvBatch

    def __init__(self, env: ArrayBatchEnv) -> None:
        super().__init__(env)
        self.infos: list[Mapping[str, Any]] = self.env.infos

    @property
    def restart_policy(self) -> RestartPolicy:
        policy: RestartPolicy = self.env.restart_policy
        return policy

    @restart_policy.setter
    def restart_policy(self, policy: RestartPolicy) -> None:
        self.env.restart_policy = policy

    def set_busy_since(self, busy_since: FloatArray) -> None:
        self.env.set_busy_since(busy_since)

    def step(self, actions: Array) -> StepBatch:
        self.step_rows(0, len(actions), actions)
        out: StepBatch = self.env.out
        return out

    def step_rows(self, first: int, last: int, actions: Array) -> None:
        start = first
        for row in (first + np.flatnonzero(self.env.out.ended[first:last])).tolist():
            if start < row:
                self.env.step_rows(start, row, actions[start - first : row - first])
            self._leave_out(row)
            start = row + 1
        if start < last or first == last:
            self.env.step_rows(start, last, actions[start - first :])

    def step_row(self, row: int, actions: Array) -> None:
        if self.env.out.terminated[row] or self.env.out.truncated[row]:
            self._leave_out(row)
        else:
            self.env.step_row(row, actions)

    def _leave_out(self, row: int) -> None:
        out = self.env.out
        out.reward[row], out.terminated[row], out.truncated[row] = 0.0, False, False
        self.infos[row] = {name: value for name, value in self.infos[row].items() if name != "final_info"}


def with_ignored_actions(actions: Array, ignored: BoolArray, batch: StepBatch, spec: EnvSpec) -> Array:
    """The actions, with some allowed action in the rows that are left out of the step.

    Args:
        actions: (rows, *action_shape) actions.
        ignored: (rows,) rows whose action is not used, and may be forbidden by the new mask.
        batch: the last step.
        spec: the env's spec.
    """
    if actions.shape != (len(batch), *spec.action_shape) or not ignored.any():
        return actions  # a wrong shape is reported by the backend
    allowed: Array
    if spec.continuous_action is not None:
        allowed = uniform_actions(spec.continuous_action, np.full((len(batch), spec.num_logits), 0.5))
    elif batch.mask is None:
        allowed = np.zeros_like(actions)
    else:
        allowed = argmax_actions(spec, batch.mask)
    return np.where(ignored.reshape(-1, *[1] * (actions.ndim - 1)), allowed, actions)
