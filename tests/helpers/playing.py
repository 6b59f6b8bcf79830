"""Playing and retelling: what the contract suites do with envs and backends.

`play` writes down everything an env says, env by env, so two stories can be laid side by side
whatever came between them: another backend, another batch size, batches in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.testing import assert_array_equal

from hundredfold.core.action_scaling import uniform_actions
from hundredfold.core.batch import Array, BoolArray, EnvSpec, IntArray, StepBatch
from hundredfold.core.batch import copies as snapshot

# Actions are looked up by env id and step and come from nothing else, least of all from `streams`.
ACTION_BOOK = np.random.default_rng(2024).integers(0, 2**31, size=(211, 1009, 4))

# A backend that lets some env starve would keep `follow` waiting forever.
PATIENCE = 200

Mood = Callable[[IntArray], IntArray]


@dataclass(frozen=True)
class Story:
    """Everything some envs said. Moment 0 is the batch before the first action."""

    env_ids: IntArray  # (envs,)
    arrays: dict[str, Array]  # each (moments, envs, ...)

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    @property
    def ended(self) -> BoolArray:
        """(moments, envs) where an episode ended, either way."""
        return self["terminated"] | self["truncated"]

    def of(self, env_ids: Iterable[int]) -> Story:
        """The story of these envs alone, in this order."""
        columns = [self.env_ids.tolist().index(env_id) for env_id in env_ids]
        return self._cut(self.env_ids[columns], lambda array: array[:, columns])

    def between(self, first: int, last: int) -> Story:
        """Moments `first` to `last`, both told."""
        return self._cut(self.env_ids, lambda array: array[first : last + 1])

    def _cut(self, env_ids: IntArray, cut: Callable[[Array], Array]) -> Story:
        return Story(env_ids, {name: cut(array) for name, array in self.arrays.items()})


class Direct:
    """An env with the turns of a backend and nothing else, so that `play` takes both."""

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


def play(backend, seed: int, steps: int, mood: Mood | None = None) -> Story:
    """Reset and let every env act `steps` times; afterwards its envs wait for an action."""
    backend.reset(seed)
    return follow(backend, steps, mood=mood)


def play_env(env, seed: int, steps: int, mood: Mood | None = None) -> Story:
    """The same for a bare env."""
    return play(Direct(env), seed, steps, mood)


def follow(backend, steps: int, first_step: int = 0, mood: Mood | None = None) -> Story:
    """Write down the batch that is ready and what comes of `steps` actions per env.

    `first_step` is how many actions every env has played before, so that a story that was
    interrupted goes on with the actions it would have had.
    """
    env_ids = getattr(backend, "env_ids", None)
    env_ids = np.arange(backend.num_envs) if env_ids is None else env_ids
    column_of = {env_id: column for column, env_id in enumerate(env_ids.tolist())}
    moments = np.zeros(len(env_ids), np.int64)
    told: dict[str, Array] = {}
    for _ in range(PATIENCE * (steps + 1) * len(env_ids)):
        batch = backend.recv()
        columns = np.array([column_of[env_id] for env_id in batch.env_ids.tolist()])
        assert len(set(columns.tolist())) == len(columns), "an env came twice in one batch"
        for name, array in copies(batch):
            if name not in told:
                told[name] = np.zeros((steps + 1, len(env_ids), *array.shape[1:]), array.dtype)
            told[name][moments[columns], columns] = array
        actions = steady_actions(batch, backend.spec, first_step + moments[columns], mood)
        moments[columns] += 1
        done = moments[columns] > steps
        if np.all(moments > steps):
            return Story(env_ids, told)
        if done.any():
            # Others are still on their way: those who are done wait for them.
            backend.send(actions[~done], batch.env_ids[~done])
        else:
            backend.send(actions)
    raise AssertionError(f"some envs were never ready: {moments.tolist()} moments of {steps + 1}")


def copies(batch: StepBatch) -> Iterator[tuple[str, Array]]:
    """Every array of a batch; zeros where it promises nothing because no episode ended."""
    ended = batch.ended
    for name, array in snapshot(batch.arrays()).items():
        if name.startswith(("final_observation/", "episode_info/")):
            array[~ended] = np.zeros((), array.dtype)
        yield name, array
    if batch.infos is not None:
        # Infos are anything at all; what they print is compared.
        yield "infos", np.array([repr(info) for info in batch.infos], object)


def steady_actions(
    batch: StepBatch, spec: EnvSpec, steps: IntArray, mood: Mood | None = None
) -> IntArray:
    """An allowed action per row that depends on env id and step alone (and the env's mood)."""
    pages = steps if mood is None else steps + 101 * mood(batch.env_ids)
    numbers = ACTION_BOOK[batch.env_ids % len(ACTION_BOOK), pages % ACTION_BOOK.shape[1]]
    if spec.continuous_action is not None:
        return uniform_actions(spec.continuous_action, numbers[:, : spec.num_action_dims] / 2**31)
    mask = batch.mask
    if mask is None:
        mask = np.ones((len(batch), spec.num_logits), bool)
    parts, first = [], 0
    for part, count in enumerate(spec.action_nvec):
        allowed = mask[:, first : first + count]
        wanted = numbers[:, part] % allowed.sum(axis=1)
        parts.append(np.argmax(allowed.cumsum(axis=1) > wanted[:, None], axis=1))
        first += count
    return np.stack(parts, axis=1).reshape(len(batch), *spec.action_shape)


def assert_same_story(told: Story, expected: Story) -> None:
    """Bit for bit: the same envs, the same arrays, the same values."""
    assert_array_equal(told.env_ids, expected.env_ids)
    assert told.arrays.keys() == expected.arrays.keys()
    for name, array in expected.arrays.items():
        assert told[name].dtype == array.dtype, name
        assert_array_equal(told[name], array, err_msg=name, strict=True)


def same_story(one: Story, other: Story) -> bool:
    """Whether two stories of equally many envs agree in every array."""
    return all(np.array_equal(one[name], other[name]) for name in one.arrays)


def steps_to_see_ends(spec: EnvSpec) -> int:
    """Enough steps for episodes to end, also where they are long."""
    return max(60, (spec.episode_steps or 0) + 10)
