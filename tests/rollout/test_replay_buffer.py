"""Replays retell what happened: looks ahead end where episodes end, rings go round."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from hundredfold.core.batch import ArraySpec, EnvSpec
from hundredfold.core.errors import CheckpointError
from hundredfold.rollout.replay_buffer import ReplayBuffer, row_bytes
from hundredfold.rollout.rollout_buffer import ActionSample

GAMMA = 0.9
SPEC = EnvSpec(
    name="diary",
    observation={"page": ArraySpec((2,), "float64")},  # (env, page number)
    action_nvec=(5,),
    has_mask=True,
)


def replay_of(num_envs=3, rows_per_env=12, n_step=1, seed=1, spec=SPEC):
    return ReplayBuffer(
        spec,
        num_envs=num_envs,
        rows_per_env=rows_per_env,
        n_step=n_step,
        gamma=GAMMA,
        seed=seed,
    )


class Diary:
    """Envs that turn a page per step. It writes down what a replay should know of every step."""

    def __init__(self, replay, seed=0):
        self.replay = replay
        self.noise = np.random.default_rng(seed)
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

    def live(self, ids, end_chance=0.3):
        """One step of these envs. Pages go on counting; a final page is the step's own plus a
        half, so it is never mistaken for the first page of the next episode."""
        ids = np.asarray(ids)
        actions = self.noise.integers(0, 5, len(ids))
        self.replay.add_actions(
            self.batch(ids), ActionSample(actions, np.zeros(len(ids), np.float32))
        )
        before = self.page[ids].copy()
        self.page[ids] += 1
        batch = self.batch(ids)
        batch.reward[:] = self.noise.normal(size=len(ids))
        batch.terminated[:] = self.noise.random(len(ids)) < end_chance / 2
        batch.truncated[:] = self.noise.random(len(ids)) < end_chance / 2
        batch.final_observation["page"][:] = np.stack([ids, before + 0.5], axis=1)
        for row, env in enumerate(ids.tolist()):
            end = "terminated" * bool(batch.terminated[row]) or "truncated" * bool(
                batch.truncated[row]
            )
            self.steps[env, int(before[row])] = (actions[row], batch.reward[row], end)
        self.replay.add_transitions(batch)

    def look_ahead(self, env, page):
        """Return, discount, last page and the mask there, one step after another."""
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


def told_by(replay, rows, ends):
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
@pytest.mark.parametrize("in_step", [True, False], ids=["in step", "in any order"])
def test_every_sample_tells_what_happened_from_its_step_on(n_step, in_step):
    replay = replay_of(n_step=n_step)
    diary = Diary(replay)
    seen_ends = set()
    for _ in range(60):
        ids = diary.noise.permutation(3)
        diary.live(np.arange(3) if in_step else ids[: diary.noise.integers(1, 4)])
        rows, ends = replay.sample(40)
        for (env, page), action, total, discount, last, mask in told_by(replay, rows, ends):
            expected = diary.look_ahead(int(env), int(page))
            assert action == diary.steps[int(env), int(page)][0]
            assert_allclose((total, discount), expected[:2], atol=1e-6)
            if discount:
                assert last == [env, expected[2]]
                assert mask == expected[3].tolist()
            seen_ends.add(0.0 if not discount else last[1] % 1)
    assert seen_ends == {0.0, 0.5}


@pytest.mark.parametrize("n_step", [1, 3])
def test_samples_are_drawn_from_all_kept_steps_alike_and_from_nothing_else(n_step):
    replay = replay_of(num_envs=2, rows_per_env=9, n_step=n_step)
    diary = Diary(replay, seed=4)
    for step in range(40):
        diary.live([0, 1] if step % 3 else [0])
    rows, _ = replay.sample(50_000)
    found, counts = np.unique(rows, return_counts=True)
    kept = np.flatnonzero(replay.is_transition)
    # The cursor's row is what was seen last: nothing was done there yet.
    assert_array_equal(found, np.setdiff1d(kept, np.arange(2) * 9 + replay.cursor))
    assert len(found) > 8
    assert counts.min() > 0.9 * counts.mean()
    assert counts.max() < 1.1 * counts.mean()


def test_a_full_ring_keeps_the_newest_steps():
    replay = replay_of(num_envs=1, rows_per_env=6)
    diary = Diary(replay)
    for _ in range(23):
        diary.live([0], end_chance=0.0)
    assert len(replay) == replay.capacity == 5
    rows, _ = replay.sample(200)
    assert set(replay.observation["page"][rows, 1].tolist()) == {18, 19, 20, 21, 22}


def test_equal_seeds_draw_equal_rows_and_others_do_not():
    def drawn(seed):
        replay = replay_of(seed=seed)
        diary = Diary(replay)
        for _ in range(10):
            diary.live([0, 1, 2])
        return replay.sample(30)[0].tolist(), replay.sample(30)[0].tolist()

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert drawn(1)[0] != drawn(1)[1]


@pytest.mark.parametrize("steps", [0, 2, 40], ids=["empty", "hardly filled", "wrapped"])
def test_a_restored_replay_goes_on_as_the_first_would_have(steps):
    replay = replay_of(n_step=3)
    diary = Diary(replay)
    for _ in range(steps):
        diary.live([0, 1, 2])
    state = replay.state()
    again = replay_of(n_step=3)
    other = Diary(again)
    for _ in range(7):
        other.live([1, 2])
    again.restore(state)
    other.page[:] = diary.page
    other.noise = np.random.default_rng(9)
    diary.noise = np.random.default_rng(9)
    for each in (diary, other):
        for ids in ([0, 2], [1], [2, 1, 0]):
            each.live(ids)
    rows, ends = replay.sample(50)
    again_rows, again_ends = again.sample(50)
    assert list(told_by(again, again_rows, again_ends)) == list(told_by(replay, rows, ends))


def test_a_snapshot_holds_only_what_was_written():
    replay = replay_of(rows_per_env=500)
    diary = Diary(replay)
    for _ in range(4):
        diary.live([0, 1, 2], end_chance=0.0)
    assert replay.state()["observation/page"].shape == (3, 5, 2)


def test_a_snapshot_of_other_envs_is_refused():
    replay = replay_of()
    Diary(replay).live([0, 1, 2])
    with pytest.raises(CheckpointError, match="is expected"):
        replay_of(num_envs=2).restore(replay.state())


@pytest.mark.parametrize("n_step", [1, 3])
def test_episodes_that_ended_unseen_are_cut_off_after_their_last_step(n_step):
    replay = replay_of(n_step=n_step)
    diary = Diary(replay)
    replay.truncate_here(diary.batch([0, 1, 2]))
    assert len(replay) == 0
    for _ in range(4):
        diary.live([0, 1, 2], end_chance=0.0)
    # Other episodes have begun in the place of these.
    diary.page += 100
    replay.truncate_here(diary.batch([0, 1, 2]))
    for _ in range(3):
        diary.live([0, 1, 2], end_chance=0.0)
    rows, ends = replay.sample(500)
    pages, last = replay.observation["page"][rows, 1], replay.observation["page"][ends, 1]
    assert set(pages.tolist()) == {0, 1, 2, 3, 104, 105, 106}
    assert_array_equal(last, np.minimum(pages + n_step, np.where(pages < 100, 4, 107)))
    assert (replay.discounts[rows] > 0).all()


def test_where_an_outcome_is_awaited_it_says_itself_that_the_episode_was_cut_off():
    replay = replay_of()
    diary = Diary(replay)
    diary.live([0, 1, 2], end_chance=0.0)
    waiting = diary.batch([0, 1, 2])
    replay.add_actions(
        waiting.take(np.array([1])), ActionSample(np.array([4]), np.zeros(1, np.float32))
    )
    again = replay_of()
    again.restore(replay.state())
    again.truncate_here(waiting)
    assert again.is_transition.sum() == 3
    assert_array_equal(again.filled, [2, 1, 2])
    outcome = diary.batch([1])
    outcome.truncated[:] = True
    again.add_transitions(outcome)
    assert_array_equal(again.filled, [2, 3, 2])
    rows, _ = again.sample(100)
    assert again.actions[12 + 1] == 4
    assert 12 + 1 in rows


def test_a_replay_that_forgot_everything_ignores_outcomes_of_forgotten_choices():
    replay = replay_of()
    diary = Diary(replay)
    diary.live([0, 1, 2])
    replay.add_actions(diary.batch([1]), ActionSample(np.array([4]), np.zeros(1, np.float32)))
    replay.clear()
    replay.add_transitions(diary.batch([1]))
    assert len(replay) == 0
    diary.live([0, 1, 2], end_chance=0.0)
    rows, ends = replay.sample(50)
    assert_array_equal(replay.observation["page"][rows, 1], 1)
    assert_array_equal(replay.observation["page"][ends, 1], 2)


def test_an_env_without_masks_needs_none():
    spec = EnvSpec(name="plain", observation={"page": ArraySpec((2,))}, action_nvec=(5,))
    replay = replay_of(spec=spec)
    assert replay.mask is None
    batch = spec.batch(np.arange(3))
    for _ in range(3):
        replay.add_actions(batch, ActionSample(np.arange(3), np.zeros(3, np.float32)))
        batch.truncated[:] = True
        replay.add_transitions(batch)
    assert len(replay) == 18 // 3 * 3
    assert replay.is_transition[replay.sample(20)[0]].all()


def test_a_row_takes_the_memory_it_is_said_to_take():
    replay = replay_of(num_envs=1, rows_per_env=100)
    arrays = [*replay.observation.values(), replay.mask, replay.actions, replay.returns]
    arrays += [replay.discounts, replay.num_return_steps, replay.is_transition]
    assert sum(array.nbytes for array in arrays) == 100 * row_bytes(SPEC)
