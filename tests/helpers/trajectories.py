"""Recording and comparing trajectories of envs and backends, for the contract suites.

Everything that envs return is recorded env by env, so that two trajectories can be compared bit for
bit across backends, batch sizes and orders of batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.testing import assert_array_equal

from hundredfold.core.action_scaling import uniform_actions
from hundredfold.core.batch import Array, BoolArray, EnvSpec, IntArray, StepBatch, copies

# Actions depend on env id and step only, and not on `core.rng`.
ACTION_TABLE = np.random.default_rng(2024).integers(0, 2**31, size=(211, 1009, 4))

# A backend that starves some env would keep `continue_trajectory` waiting forever.
MAX_BATCHES_PER_STEP = 200

ActionShift = Callable[[IntArray], IntArray]


@dataclass(frozen=True)
class Trajectory:
    """All outputs of some envs. Step 0 is the batch before the first action."""

    env_ids: IntArray  # (envs,)
    arrays: dict[str, Array]  # each (steps, envs, ...)

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    @property
    def ended(self) -> BoolArray:
        """(steps, envs) True where an episode ended."""
        return self["terminated"] | self["truncated"]

    def select_envs(self, env_ids: Iterable[int]) -> Trajectory:
        """The trajectory of these envs, in this order."""
        columns = [self.env_ids.tolist().index(env_id) for env_id in env_ids]
        return self._map(self.env_ids[columns], lambda array: array[:, columns])

    def between(self, first: int, last: int) -> Trajectory:
        """Steps `first` to `last`, both included."""
        return self._map(self.env_ids, lambda array: array[first : last + 1])

    def _map(self, env_ids: IntArray, function: Callable[[Array], Array]) -> Trajectory:
        return Trajectory(env_ids, {name: function(array) for name, array in self.arrays.items()})


class EnvBackend:
    """A bare `BatchEnv` with `recv` and `send`, so that it can be recorded like a backend."""

    def __init__(self, env):
        self.env = env
        self.spec = env.spec
        self.batch = None

    @property
    def env_ids(self):
        return self.batch.env_ids.copy()

    def reset(self, seed):
        self.batch = self.env.reset(seed)

    def restore(self, state):
        self.batch = self.env.restore(state)

    def recv(self):
        return self.batch

    def send(self, actions):
        self.batch = self.env.step(actions)


def record_trajectory(backend, seed: int, steps: int, action_shift: ActionShift | None = None) -> Trajectory:
    """Reset, and step every env `steps` times; afterwards all envs wait for an action."""
    backend.reset(seed)
    return continue_trajectory(backend, steps, action_shift=action_shift)


def record_env_trajectory(env, seed: int, steps: int, action_shift: ActionShift | None = None) -> Trajectory:
    """`record_trajectory` of a bare env."""
    return record_trajectory(EnvBackend(env), seed, steps, action_shift)


def continue_trajectory(
    backend, steps: int, first_step: int = 0, action_shift: ActionShift | None = None
) -> Trajectory:
    """Record the batch that is ready and the outcomes of `steps` actions per env.

    `first_step` is the number of actions every env has taken before, so that an interrupted
    trajectory continues with the actions it would have had.
    """
    env_ids = getattr(backend, "env_ids", None)
    env_ids = np.arange(backend.num_envs) if env_ids is None else env_ids
    column_of = {env_id: column for column, env_id in enumerate(env_ids.tolist())}
    taken = np.zeros(len(env_ids), np.int64)
    recorded: dict[str, Array] = {}
    for _ in range(MAX_BATCHES_PER_STEP * (steps + 1) * len(env_ids)):
        batch = backend.recv()
        columns = np.array([column_of[env_id] for env_id in batch.env_ids.tolist()])
        assert len(set(columns.tolist())) == len(columns), "an env came twice in one batch"
        for name, array in comparable_arrays(batch):
            if name not in recorded:
                recorded[name] = np.zeros((steps + 1, len(env_ids), *array.shape[1:]), array.dtype)
            recorded[name][taken[columns], columns] = array
        actions = fixed_actions(batch, backend.spec, first_step + taken[columns], action_shift)
        taken[columns] += 1
        done = taken[columns] > steps
        if np.all(taken > steps):
            return Trajectory(env_ids, recorded)
        if done.any():
            # Hold back the envs that are done until the others are.
            backend.send(actions[~done], batch.env_ids[~done])
        else:
            backend.send(actions)
    raise AssertionError(f"some envs were never ready: {taken.tolist()} steps of {steps + 1}")


def comparable_arrays(batch: StepBatch) -> Iterator[tuple[str, Array]]:
    """Copies of all arrays of a batch; zeros where they are undefined because no episode ended."""
    ended = batch.ended
    for name, array in copies(batch.arrays()).items():
        if name.startswith(("final_observation/", "episode_info/")):
            array[~ended] = np.zeros((), array.dtype)
        yield name, array
    if batch.infos is not None:
        # Infos may hold anything; their repr is compared.
        yield "infos", np.array([repr(info) for info in batch.infos], object)


def fixed_actions(
    batch: StepBatch, spec: EnvSpec, steps: IntArray, action_shift: ActionShift | None = None
) -> IntArray:
    """An allowed action per row that depends on env id and step only (and the env's shift)."""
    columns = steps if action_shift is None else steps + 101 * action_shift(batch.env_ids)
    numbers = ACTION_TABLE[batch.env_ids % len(ACTION_TABLE), columns % ACTION_TABLE.shape[1]]
    if spec.continuous_action is not None:
        return uniform_actions(spec.continuous_action, numbers[:, : spec.num_action_dims] / 2**31)
    mask = batch.mask
    if mask is None:
        mask = np.ones((len(batch), spec.num_logits), bool)
    by_dim, first = [], 0
    for dim, count in enumerate(spec.action_nvec):
        allowed = mask[:, first : first + count]
        rank = numbers[:, dim] % allowed.sum(axis=1)
        by_dim.append(np.argmax(allowed.cumsum(axis=1) > rank[:, None], axis=1))
        first += count
    return np.stack(by_dim, axis=1).reshape(len(batch), *spec.action_shape)


def assert_same_trajectory(actual: Trajectory, expected: Trajectory) -> None:
    """Bit for bit: the same envs, the same arrays, the same values."""
    assert_array_equal(actual.env_ids, expected.env_ids)
    assert actual.arrays.keys() == expected.arrays.keys()
    for name, array in expected.arrays.items():
        assert actual[name].dtype == array.dtype, name
        assert_array_equal(actual[name], array, err_msg=name, strict=True)


def same_trajectory(one: Trajectory, other: Trajectory) -> bool:
    """Whether two trajectories of equally many envs agree in every array."""
    return all(np.array_equal(one[name], other[name]) for name in one.arrays)


def steps_until_ends(spec: EnvSpec) -> int:
    """Enough steps for episodes to end, also if they are long."""
    return max(60, (spec.episode_steps or 0) + 10)
