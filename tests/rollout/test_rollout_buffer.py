"""Rollouts keep rows at each env's own cursor, and come back from a snapshot."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from hundredfold.core.errors import SettingsError
from hundredfold.envs.corridor import Corridor
from hundredfold.rollout.rollout_buffer import ActionSample, RolloutBuffer, RolloutSettings

SPEC = Corridor(np.arange(3)).spec


def batch_for(env_ids, mark, truncated=False):
    """A batch whose every number tells which call it came from."""
    batch = SPEC.batch(np.asarray(env_ids))
    batch.observation["cell"][:, 0] = mark
    batch.final_observation["cell"][:, 0] = 100 + mark
    batch.reward[:] = mark + np.asarray(env_ids) / 10
    batch.truncated[:] = truncated
    return batch


def choice_for(env_ids, mark):
    return ActionSample(np.full(len(env_ids), mark % 3), np.full(len(env_ids), -mark, np.float32))


def test_rows_that_arrive_in_any_order_end_up_where_their_own_env_is():
    rollout = RolloutBuffer(SPEC, num_envs=3, num_steps=2)
    for ids in ([2, 0, 1], [2], [0], [1]):
        mark = int(rollout.cursor[ids[0]])
        rollout.add_actions(batch_for(ids, mark), choice_for(ids, mark))
        rollout.add_transitions(batch_for(ids, mark + 1))
    assert rollout.full
    assert_array_equal(rollout.observation["cell"][:, :, 0], [[0] * 3, [1] * 3, [2] * 3])
    assert_array_equal(rollout.rewards, np.float32([[1.0, 1.1, 1.2], [2.0, 2.1, 2.2]]))


def test_truncated_rows_keep_their_final_observation():
    rollout = RolloutBuffer(SPEC, num_envs=2, num_steps=1)
    ids = [0, 1]
    rollout.add_actions(batch_for(ids, 0), choice_for(ids, 0))
    outcome = batch_for(ids, 1)
    outcome.truncated[1] = True
    rollout.add_transitions(outcome)
    (cut,) = rollout.truncations
    assert_array_equal(cut.env_ids, [1])
    assert_array_equal(cut.steps, [0])
    assert_array_equal(cut.final_observation["cell"], [[101]])
    assert_array_equal(rollout.ended, [[False, True]])


def test_episodes_that_ended_unseen_are_cut_off_after_their_last_step():
    rollout = RolloutBuffer(SPEC, num_envs=2, num_steps=4)
    assert not rollout.truncations
    rollout.truncate_here(batch_for([0, 1], 0))
    assert not rollout.truncations
    for mark in range(2):
        rollout.add_actions(batch_for([0, 1], mark), choice_for([0, 1], mark))
        outcome = batch_for([0, 1], mark + 1)
        outcome.terminated[0] = mark == 1
        rollout.add_transitions(outcome)
    rollout.truncate_here(batch_for([0, 1], 5))
    (cut,) = rollout.truncations
    assert_array_equal(cut.env_ids, [1])
    assert_array_equal(cut.steps, [1])
    assert_array_equal(cut.final_observation["cell"], [[105]])
    assert_array_equal(rollout.ended[:2], [[False, False], [True, True]])


def test_a_half_filled_rollout_survives_a_snapshot():
    ids = [0, 1]
    rollout = RolloutBuffer(SPEC, num_envs=2, num_steps=4)
    for mark in range(2):
        rollout.add_actions(batch_for(ids, mark), choice_for(ids, mark))
        rollout.add_transitions(batch_for(ids, mark + 1, truncated=True))
    state = rollout.state()
    rollout.add_actions(batch_for(ids, 9), choice_for(ids, 9))

    again = RolloutBuffer(SPEC, num_envs=2, num_steps=4)
    again.restore(state)
    assert again.steps_done == 2
    assert len(again.truncations) == 2
    assert_array_equal(again.truncations[1].steps, [1, 1])
    assert_array_equal(again.rewards[:2], rollout.rewards[:2])
    assert_array_equal(again.observation["cell"][0], rollout.observation["cell"][0])


@pytest.mark.parametrize("name", ["num_envs", "policy_update_interval"])
def test_settings_refuse_zero(name):
    with pytest.raises(SettingsError, match=f"{name} must be at least 1, got 0"):
        RolloutSettings(**{name: 0})


def test_an_outcome_that_nothing_was_chosen_for_is_refused_where_there_is_no_room():
    rollout = RolloutBuffer(SPEC, num_envs=3, num_steps=1)
    rollout.add_actions(batch_for([0, 1, 2], 0), choice_for([0, 1, 2], 0))
    rollout.add_transitions(batch_for([0, 1, 2], 1))
    with pytest.raises(IndexError, match="without add_actions"):
        rollout.add_transitions(batch_for([1], 2))
