"""Collecting: what the policy saw, what came of it, and which episodes ended."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from hundredfold.backends import make_backend
from hundredfold.envs.corridor import LEFT, RIGHT, Corridor
from hundredfold.rollout.collector import Collector
from hundredfold.rollout.rollout_buffer import ActionSample, RolloutBuffer


class WalkRight:
    """Walks to the exit and remembers the luck it was given."""

    def __init__(self):
        self.noise = []

    def sample(self, observation, mask, uniforms):
        self.noise.append(uniforms.copy())
        rows = len(uniforms)
        return ActionSample(np.full(rows, RIGHT), np.zeros(rows, np.float32))


class ByLuck:
    """Any allowed action."""

    def sample(self, observation, mask, uniforms):
        weights = mask / mask.sum(axis=1, keepdims=True)
        actions = (weights.cumsum(axis=1) <= uniforms).sum(axis=1)
        return ActionSample(actions, np.zeros(len(actions), np.float32))


def collected(num_envs, policy, num_steps, backend="in_process"):
    envs = make_backend(backend, Corridor, num_envs)
    rollout = RolloutBuffer(envs.spec, num_envs, num_steps)
    collector = Collector(envs, seed=3)
    collector.start(3)
    return collector.collect(policy, rollout, num_steps), rollout, collector


def test_returns_and_lengths_of_episodes_are_those_of_the_walk():
    episodes, rollout, _ = collected(8, WalkRight(), 12)
    starts = rollout.observation["cell"][0, :, 0]
    first = [6 - start for start in starts]
    assert sorted(episodes.lengths)[-1] <= 6
    assert_allclose(episodes.returns, 1 - 0.1 * np.array(episodes.lengths))
    assert set(first) <= set(episodes.lengths)
    assert episodes.means()["avg_reached_exit"] == 1.0


def test_rewards_belong_to_the_action_that_earned_them():
    _, rollout, _ = collected(4, WalkRight(), 10)
    at_exit = rollout.observation["cell"][:-1, :, 0] == 5
    assert_array_equal(rollout.terminated, at_exit)
    assert_allclose(rollout.rewards, np.where(at_exit, 0.9, -0.1), rtol=1e-6)


def test_the_mask_that_is_stored_is_the_one_that_was_used():
    _, rollout, _ = collected(4, ByLuck(), 40)
    assert_array_equal(rollout.mask[:, :, LEFT], rollout.observation["cell"][:-1, :, 0] > 0)
    chosen = np.take_along_axis(rollout.mask, rollout.actions[:, :, None], axis=2)
    assert chosen.all()


@pytest.mark.parametrize("num_envs", [1, 7])
def test_luck_depends_on_the_env_and_not_on_the_batch(num_envs):
    whole, part = WalkRight(), WalkRight()
    collected(16, whole, 5)
    collected(num_envs, part, 5)
    assert_array_equal(np.array(part.noise), np.array(whole.noise)[:, :num_envs])


def test_both_backends_gather_the_same_rollout():
    _, one, _ = collected(6, ByLuck(), 50, "in_process")
    _, other, _ = collected(6, ByLuck(), 50, "serial")
    for name in ("actions", "rewards", "terminated", "ended", "mask"):
        assert_array_equal(getattr(one, name), getattr(other, name))


def test_collecting_goes_on_where_it_stopped():
    _, long, _ = collected(5, ByLuck(), 40)
    envs = make_backend("in_process", Corridor, 5)
    collector = Collector(envs, seed=3)
    collector.start(3)
    pieces = []
    for _ in range(4):
        rollout = RolloutBuffer(envs.spec, 5, 10)
        collector.collect(ByLuck(), rollout, 10)
        pieces.append(rollout.rewards)
    assert_array_equal(np.concatenate(pieces), long.rewards)


def test_a_restored_collector_goes_on_bit_for_bit():
    _, _, collector = collected(5, ByLuck(), 7)
    state, env = collector.state(), collector.backend.state()
    expected = RolloutBuffer(collector.backend.spec, 5, 30)
    ends = collector.collect(ByLuck(), expected, 30)

    envs = make_backend("serial", Corridor, 5)
    again = Collector(envs, seed=3)
    again.restore(state, env)
    found = RolloutBuffer(envs.spec, 5, 30)
    ends_again = again.collect(ByLuck(), found, 30)
    assert_array_equal(found.actions, expected.actions)
    assert ends_again.returns == ends.returns
    assert ends_again.lengths == ends.lengths
