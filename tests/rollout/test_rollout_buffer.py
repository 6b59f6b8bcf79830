"""Rollout buffer: cursors, truncations, snapshots, settings."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from hundredfold.core.errors import SettingsError
from hundredfold.envs.corridor import Corridor
from hundredfold.rollout.rollout_buffer import ActionSample, RolloutBuffer, RolloutSettings

SPEC = Corridor(np.arange(3)).spec


def batch_for(env_ids, value, truncated=False):
    """A batch whose numbers identify the call it came from."""
    batch = SPEC.batch(np.asarray(env_ids))
    batch.observation["cell"][:, 0] = value
    batch.final_observation["cell"][:, 0] = 100 + value
    batch.reward[:] = value + np.asarray(env_ids) / 10
    batch.truncated[:] = truncated
    return batch


def sample_for(env_ids, value):
    return ActionSample(np.full(len(env_ids), value % 3), np.full(len(env_ids), -value, np.float32))


def test_rows_in_any_order_are_stored_at_the_cursor_of_their_env():
    rollout = RolloutBuffer(SPEC, num_envs=3, num_steps=2)
    for env_ids in ([2, 0, 1], [2], [0], [1]):
        value = int(rollout.cursor[env_ids[0]])
        rollout.add_actions(batch_for(env_ids, value), sample_for(env_ids, value))
        rollout.add_transitions(batch_for(env_ids, value + 1))
    assert rollout.full
    assert_array_equal(rollout.observation["cell"][:, :, 0], [[0] * 3, [1] * 3, [2] * 3])
    assert_array_equal(rollout.rewards, np.float32([[1.0, 1.1, 1.2], [2.0, 2.1, 2.2]]))


def test_final_observations_of_truncated_rows_are_stored():
    rollout = RolloutBuffer(SPEC, num_envs=2, num_steps=1)
    env_ids = [0, 1]
    rollout.add_actions(batch_for(env_ids, 0), sample_for(env_ids, 0))
    after = batch_for(env_ids, 1)
    after.truncated[1] = True
    rollout.add_transitions(after)
    (truncations,) = rollout.truncations
    assert_array_equal(truncations.env_ids, [1])
    assert_array_equal(truncations.steps, [0])
    assert_array_equal(truncations.final_observation["cell"], [[101]])
    assert_array_equal(rollout.ended, [[False, True]])


def test_truncate_here_truncates_after_the_last_stored_step():
    rollout = RolloutBuffer(SPEC, num_envs=2, num_steps=4)
    assert not rollout.truncations
    rollout.truncate_here(batch_for([0, 1], 0))
    assert not rollout.truncations
    for value in range(2):
        rollout.add_actions(batch_for([0, 1], value), sample_for([0, 1], value))
        after = batch_for([0, 1], value + 1)
        after.terminated[0] = value == 1
        rollout.add_transitions(after)
    rollout.truncate_here(batch_for([0, 1], 5))
    (truncations,) = rollout.truncations
    assert_array_equal(truncations.env_ids, [1])
    assert_array_equal(truncations.steps, [1])
    assert_array_equal(truncations.final_observation["cell"], [[105]])
    assert_array_equal(rollout.ended[:2], [[False, False], [True, True]])


def test_a_half_filled_rollout_is_restored_from_a_snapshot():
    env_ids = [0, 1]
    rollout = RolloutBuffer(SPEC, num_envs=2, num_steps=4)
    for value in range(2):
        rollout.add_actions(batch_for(env_ids, value), sample_for(env_ids, value))
        rollout.add_transitions(batch_for(env_ids, value + 1, truncated=True))
    state = rollout.state()
    rollout.add_actions(batch_for(env_ids, 9), sample_for(env_ids, 9))

    restored = RolloutBuffer(SPEC, num_envs=2, num_steps=4)
    restored.restore(state)
    assert restored.steps_done == 2
    assert len(restored.truncations) == 2
    assert_array_equal(restored.truncations[1].steps, [1, 1])
    assert_array_equal(restored.rewards[:2], rollout.rewards[:2])
    assert_array_equal(restored.observation["cell"][0], rollout.observation["cell"][0])


@pytest.mark.parametrize("name", ["num_envs", "policy_update_interval"])
def test_settings_reject_zero(name):
    with pytest.raises(SettingsError, match=f"{name} must be at least 1.*, got 0"):
        RolloutSettings(**{name: 0})


def test_transitions_without_actions_raise_when_the_buffer_is_full():
    rollout = RolloutBuffer(SPEC, num_envs=3, num_steps=1)
    rollout.add_actions(batch_for([0, 1, 2], 0), sample_for([0, 1, 2], 0))
    rollout.add_transitions(batch_for([0, 1, 2], 1))
    with pytest.raises(IndexError, match="without add_actions"):
        rollout.add_transitions(batch_for([1], 2))
