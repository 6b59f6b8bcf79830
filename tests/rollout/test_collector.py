"""Collector: stored transitions, episode statistics, action sampling, snapshots."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from hundredfold.backends import make_backend
from hundredfold.envs.corridor import LEFT, RIGHT, Corridor
from hundredfold.rollout.collector import Collector
from hundredfold.rollout.rollout_buffer import ActionSample, RolloutBuffer


class WalkRight:
    """Walks to the exit and records its uniforms."""

    def __init__(self):
        self.uniforms = []

    def sample(self, observation, mask, uniforms):
        self.uniforms.append(uniforms.copy())
        rows = len(uniforms)
        return ActionSample(np.full(rows, RIGHT), np.zeros(rows, np.float32))


class RandomPolicy:
    """Samples any allowed action."""

    def sample(self, observation, mask, uniforms):
        weights = mask / mask.sum(axis=1, keepdims=True)
        actions = (weights.cumsum(axis=1) <= uniforms).sum(axis=1)
        return ActionSample(actions, np.zeros(len(actions), np.float32))


def collect_corridor(num_envs, policy, num_steps, backend="in_process"):
    envs = make_backend(backend, Corridor, num_envs)
    rollout = RolloutBuffer(envs.spec, num_envs, num_steps)
    collector = Collector(envs, seed=3)
    collector.start(3)
    return collector.collect(policy, rollout, num_steps), rollout, collector


def test_episode_returns_and_lengths_match_the_walk():
    episodes, rollout, _ = collect_corridor(8, WalkRight(), 12)
    starts = rollout.observation["cell"][0, :, 0]
    first = [6 - start for start in starts]
    assert sorted(episodes.lengths)[-1] <= 6
    assert_allclose(episodes.returns, 1 - 0.1 * np.array(episodes.lengths))
    assert set(first) <= set(episodes.lengths)
    assert episodes.means()["avg_reached_exit"] == 1.0


def test_rewards_are_stored_with_their_action():
    _, rollout, _ = collect_corridor(4, WalkRight(), 10)
    at_exit = rollout.observation["cell"][:-1, :, 0] == 5
    assert_array_equal(rollout.terminated, at_exit)
    assert_allclose(rollout.rewards, np.where(at_exit, 0.9, -0.1), rtol=1e-6)


def test_the_stored_mask_is_the_one_that_was_sampled_under():
    _, rollout, _ = collect_corridor(4, RandomPolicy(), 40)
    assert_array_equal(rollout.mask[:, :, LEFT], rollout.observation["cell"][:-1, :, 0] > 0)
    chosen = np.take_along_axis(rollout.mask, rollout.actions[:, :, None], axis=2)
    assert chosen.all()


@pytest.mark.parametrize("num_envs", [1, 7])
def test_uniforms_depend_on_the_env_and_not_on_the_batch(num_envs):
    whole, part = WalkRight(), WalkRight()
    collect_corridor(16, whole, 5)
    collect_corridor(num_envs, part, 5)
    assert_array_equal(np.array(part.uniforms), np.array(whole.uniforms)[:, :num_envs])


def test_in_process_and_serial_collect_the_same_rollout():
    _, one, _ = collect_corridor(6, RandomPolicy(), 50, "in_process")
    _, other, _ = collect_corridor(6, RandomPolicy(), 50, "serial")
    for name in ("actions", "rewards", "terminated", "ended", "mask"):
        assert_array_equal(getattr(one, name), getattr(other, name))


def test_collecting_in_parts_equals_collecting_at_once():
    _, long, _ = collect_corridor(5, RandomPolicy(), 40)
    envs = make_backend("in_process", Corridor, 5)
    collector = Collector(envs, seed=3)
    collector.start(3)
    parts = []
    for _ in range(4):
        rollout = RolloutBuffer(envs.spec, 5, 10)
        collector.collect(RandomPolicy(), rollout, 10)
        parts.append(rollout.rewards)
    assert_array_equal(np.concatenate(parts), long.rewards)


def test_a_restored_collector_continues_bit_exactly():
    _, _, collector = collect_corridor(5, RandomPolicy(), 7)
    state, env = collector.state(), collector.backend.state()
    expected = RolloutBuffer(collector.backend.spec, 5, 30)
    ends = collector.collect(RandomPolicy(), expected, 30)

    envs = make_backend("serial", Corridor, 5)
    again = Collector(envs, seed=3)
    again.restore(state, env)
    found = RolloutBuffer(envs.spec, 5, 30)
    ends_again = again.collect(RandomPolicy(), found, 30)
    assert_array_equal(found.actions, expected.actions)
    assert ends_again.returns == ends.returns
    assert ends_again.lengths == ends.lengths
