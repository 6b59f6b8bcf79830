"""Replay buffer: n-step returns, truncation, sampling, ring wrap-around, snapshots."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from hundredfold.core.batch import ArraySpec, EnvSpec
from hundredfold.core.errors import CheckpointError
from hundredfold.rollout.replay_buffer import ReplayBuffer, row_bytes
from hundredfold.rollout.rollout_buffer import ActionSample

GAMMA = 0.9
SPEC = EnvSpec(
    name="pages",
    observation={"page": ArraySpec((2,), "float64")},  # (env, page number)
    action_nvec=(5,),
    has_mask=True,
)


def make_replay(num_envs=3, rows_per_env=12, n_step=1, seed=1, spec=SPEC):
    return ReplayBuffer(spec, num_envs=num_envs, rows_per_env=rows_per_env, n_step=n_step, gamma=GAMMA, seed=seed)


class RecordingEnvs:
    """Envs that count pages and record what the replay buffer should hold of every step."""

    def __init__(self, replay, seed=0):
        self.replay = replay
        self.rng = np.random.default_rng(seed)
        self.page = np.zeros(replay.num_envs, np.int64)
        self.steps = {}  # (env, page) -> action, reward, end: "", "terminated" or "truncated"

    def batch(self, ids):
        batch = SPEC.batch(np.asarray(ids))
        batch.observation["page"][:] = np.stack([ids, self.page[ids]], axis=1)
        batch.mask[:] = self.mask_of(self.page[ids])
        return batch

    @staticmethod
    def mask_of(page):
        return (np.asarray(page)[:, None] + np.arange(5)) % 3 > 0

    def step(self, ids, end_chance=0.3):
        """One step of these envs.

        A final observation is the page before the step plus a half, so it differs from the first
        page of the next episode.
        """
        ids = np.asarray(ids)
        actions = self.rng.integers(0, 5, len(ids))
        self.replay.add_actions(self.batch(ids), ActionSample(actions, np.zeros(len(ids), np.float32)))
        before = self.page[ids].copy()
        self.page[ids] += 1
        batch = self.batch(ids)
        batch.reward[:] = self.rng.normal(size=len(ids))
        batch.terminated[:] = self.rng.random(len(ids)) < end_chance / 2
        batch.truncated[:] = self.rng.random(len(ids)) < end_chance / 2
        batch.final_observation["page"][:] = np.stack([ids, before + 0.5], axis=1)
        for row, env in enumerate(ids.tolist()):
            end = "terminated" * bool(batch.terminated[row]) or "truncated" * bool(batch.truncated[row])
            self.steps[env, int(before[row])] = (actions[row], batch.reward[row], end)
        self.replay.add_transitions(batch)

    def n_step_return(self, env, page):
        """Expected return, discount, page to bootstrap from and its mask, step by step."""
        total, discount = 0.0, 1.0
        for ahead in range(self.replay.n_step):
            if (env, page + ahead) not in self.steps:
                return total, discount, page + ahead, self.mask_of([page + ahead])[0]
            _, reward, end = self.steps[env, page + ahead]
            total += discount * reward
            discount *= GAMMA
            if end == "terminated":
                return total, 0.0, None, None
            if end == "truncated":
                return total, discount, page + ahead + 0.5, self.mask_of([page + ahead])[0]
        last = page + self.replay.n_step
        return total, discount, last, self.mask_of([last])[0]


def replay_rows(replay, rows, ends):
    return zip(
        replay.observation["page"][rows].tolist(),
        replay.actions[rows].tolist(),
        replay.returns[rows].tolist(),
        replay.discounts[rows].tolist(),
        replay.observation["page"][ends].tolist(),
        replay.mask[ends].tolist(),
        strict=True,
    )


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("in_step", [True, False], ids=["full batches", "partial batches"])
def test_every_sample_is_the_n_step_transition_of_its_row(n_step, in_step):
    replay = make_replay(n_step=n_step)
    envs = RecordingEnvs(replay)
    seen_ends = set()
    for _ in range(60):
        ids = envs.rng.permutation(3)
        envs.step(np.arange(3) if in_step else ids[: envs.rng.integers(1, 4)])
        rows, ends = replay.sample(40)
        for (env, page), action, total, discount, last, mask in replay_rows(replay, rows, ends):
            expected = envs.n_step_return(int(env), int(page))
            assert action == envs.steps[int(env), int(page)][0]
            assert_allclose((total, discount), expected[:2], atol=1e-6)
            if discount:
                assert last == [env, expected[2]]
                assert mask == expected[3].tolist()
            seen_ends.add(0.0 if not discount else last[1] % 1)
    assert seen_ends == {0.0, 0.5}


@pytest.mark.parametrize("n_step", [1, 3])
def test_sampling_is_uniform_over_stored_transitions(n_step):
    replay = make_replay(num_envs=2, rows_per_env=9, n_step=n_step)
    envs = RecordingEnvs(replay, seed=4)
    for step in range(40):
        envs.step([0, 1] if step % 3 else [0])
    rows, _ = replay.sample(50_000)
    found, counts = np.unique(rows, return_counts=True)
    stored = np.flatnonzero(replay.is_transition)
    # The cursor's row is the current observation, without an action yet.
    assert_array_equal(found, np.setdiff1d(stored, np.arange(2) * 9 + replay.cursor))
    assert len(found) > 8
    assert counts.min() > 0.9 * counts.mean()
    assert counts.max() < 1.1 * counts.mean()


def test_a_full_ring_keeps_the_newest_steps():
    replay = make_replay(num_envs=1, rows_per_env=6)
    envs = RecordingEnvs(replay)
    for _ in range(23):
        envs.step([0], end_chance=0.0)
    assert len(replay) == replay.capacity == 5
    rows, _ = replay.sample(200)
    assert set(replay.observation["page"][rows, 1].tolist()) == {18, 19, 20, 21, 22}


def test_sampled_rows_depend_on_the_seed():
    def drawn(seed):
        replay = make_replay(seed=seed)
        envs = RecordingEnvs(replay)
        for _ in range(10):
            envs.step([0, 1, 2])
        return replay.sample(30)[0].tolist(), replay.sample(30)[0].tolist()

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert drawn(1)[0] != drawn(1)[1]


@pytest.mark.parametrize("steps", [0, 2, 40], ids=["empty", "partly filled", "wrapped"])
def test_a_restored_replay_buffer_continues_exactly(steps):
    replay = make_replay(n_step=3)
    envs = RecordingEnvs(replay)
    for _ in range(steps):
        envs.step([0, 1, 2])
    state = replay.state()
    again = make_replay(n_step=3)
    other = RecordingEnvs(again)
    for _ in range(7):
        other.step([1, 2])
    again.restore(state)
    other.page[:] = envs.page
    other.rng = np.random.default_rng(9)
    envs.rng = np.random.default_rng(9)
    for each in (envs, other):
        for ids in ([0, 2], [1], [2, 1, 0]):
            each.step(ids)
    rows, ends = replay.sample(50)
    again_rows, again_ends = again.sample(50)
    assert list(replay_rows(again, again_rows, again_ends)) == list(replay_rows(replay, rows, ends))


def test_a_snapshot_holds_only_written_rows():
    replay = make_replay(rows_per_env=500)
    envs = RecordingEnvs(replay)
    for _ in range(4):
        envs.step([0, 1, 2], end_chance=0.0)
    assert replay.state()["observation/page"].shape == (3, 5, 2)


def test_a_snapshot_of_another_number_of_envs_is_refused():
    replay = make_replay()
    RecordingEnvs(replay).step([0, 1, 2])
    with pytest.raises(CheckpointError, match="is expected"):
        make_replay(num_envs=2).restore(replay.state())


@pytest.mark.parametrize("n_step", [1, 3])
def test_truncate_here_truncates_after_the_last_stored_step(n_step):
    replay = make_replay(n_step=n_step)
    envs = RecordingEnvs(replay)
    replay.truncate_here(envs.batch([0, 1, 2]))
    assert len(replay) == 0
    for _ in range(4):
        envs.step([0, 1, 2], end_chance=0.0)
    # New episodes have begun.
    envs.page += 100
    replay.truncate_here(envs.batch([0, 1, 2]))
    for _ in range(3):
        envs.step([0, 1, 2], end_chance=0.0)
    rows, ends = replay.sample(500)
    pages, last = replay.observation["page"][rows, 1], replay.observation["page"][ends, 1]
    assert set(pages.tolist()) == {0, 1, 2, 3, 104, 105, 106}
    assert_array_equal(last, np.minimum(pages + n_step, np.where(pages < 100, 4, 107)))
    assert (replay.discounts[rows] > 0).all()


def test_truncate_here_leaves_envs_that_await_a_transition():
    replay = make_replay()
    envs = RecordingEnvs(replay)
    envs.step([0, 1, 2], end_chance=0.0)
    waiting = envs.batch([0, 1, 2])
    replay.add_actions(waiting.take(np.array([1])), ActionSample(np.array([4]), np.zeros(1, np.float32)))
    again = make_replay()
    again.restore(replay.state())
    again.truncate_here(waiting)
    assert again.is_transition.sum() == 3
    assert_array_equal(again.filled, [2, 1, 2])
    outcome = envs.batch([1])
    outcome.truncated[:] = True
    again.add_transitions(outcome)
    assert_array_equal(again.filled, [2, 3, 2])
    rows, _ = again.sample(100)
    assert again.actions[12 + 1] == 4
    assert 12 + 1 in rows


def test_transitions_of_actions_before_clear_are_ignored():
    replay = make_replay()
    envs = RecordingEnvs(replay)
    envs.step([0, 1, 2])
    replay.add_actions(envs.batch([1]), ActionSample(np.array([4]), np.zeros(1, np.float32)))
    replay.clear()
    replay.add_transitions(envs.batch([1]))
    assert len(replay) == 0
    envs.step([0, 1, 2], end_chance=0.0)
    rows, ends = replay.sample(50)
    assert_array_equal(replay.observation["page"][rows, 1], 1)
    assert_array_equal(replay.observation["page"][ends, 1], 2)


def test_an_env_without_masks_has_no_mask_array():
    spec = EnvSpec(name="plain", observation={"page": ArraySpec((2,))}, action_nvec=(5,))
    replay = make_replay(spec=spec)
    assert replay.mask is None
    batch = spec.batch(np.arange(3))
    for _ in range(3):
        replay.add_actions(batch, ActionSample(np.arange(3), np.zeros(3, np.float32)))
        batch.truncated[:] = True
        replay.add_transitions(batch)
    assert len(replay) == 18 // 3 * 3
    assert replay.is_transition[replay.sample(20)[0]].all()


def test_row_bytes_is_the_memory_of_a_row():
    replay = make_replay(num_envs=1, rows_per_env=100)
    arrays = [*replay.observation.values(), replay.mask, replay.actions, replay.returns]
    arrays += [replay.discounts, replay.num_return_steps, replay.is_transition]
    assert sum(array.nbytes for array in arrays) == 100 * row_bytes(SPEC)
