"""Recovery points: what the replacement of a dead worker continues from."""

import numpy as np
from numpy.testing import assert_array_equal

from hundredfold.backends.processes.recovery import RecoveryState

NUM_ENVS = 6
LAST_THREE = slice(3, 6)


def started():
    recovery = RecoveryState(NUM_ENVS)
    recovery.begin_start()
    recovery.reset_with(11)
    return recovery


def test_a_truncation_is_returned_once():
    recovery = started()
    recovery.mark_truncated(LAST_THREE)
    assert recovery.take_truncated(np.array([0, 4])).tolist() == [False, True]
    assert recovery.any_pending
    assert recovery.take_truncated(np.array([3, 4, 5])).tolist() == [True, False, True]
    assert not recovery.any_pending
    assert not recovery.take_truncated(np.arange(NUM_ENVS)).any()


def test_a_reset_forgets_truncations_and_ended_episodes():
    recovery = started()
    recovery.mark_truncated(LAST_THREE)
    recovery.num_ended[:] = 2
    recovery.begin_start()
    recovery.reset_with(12)
    assert not recovery.any_pending
    assert not recovery.take_truncated(np.arange(NUM_ENVS)).any()
    assert recovery.point_for(LAST_THREE).seed == 12
    assert recovery.point_for(LAST_THREE).skip.tolist() == [1, 1, 1]


def test_a_replacement_skips_the_episode_that_ended_with_its_worker_and_those_before():
    recovery = started()
    recovery.num_ended[:] = np.arange(NUM_ENVS)
    point = recovery.point_for(LAST_THREE)
    assert (point.seed, point.state) == (11, None)
    assert point.skip.tolist() == [4, 5, 6]


def test_after_a_restore_a_replacement_starts_from_the_rows_of_the_snapshot():
    recovery = started()
    recovery.begin_start()
    recovery.restored_from({"steps": np.arange(NUM_ENVS)})
    assert recovery.has_begun
    point = recovery.point_for(LAST_THREE)
    assert point.seed is None
    assert_array_equal(point.state["steps"], [3, 4, 5])


def test_an_episode_whose_reset_ends_the_worker_is_skipped_once():
    recovery = started()
    recovery.skip_episodes(np.array([4]), starting=False)
    assert recovery.point_for(LAST_THREE).skip.tolist() == [1, 2, 1]
    recovery.begin_start()
    recovery.skip_episodes(np.array([3]), starting=True)
    recovery.reset_with(11)
    assert recovery.point_for(LAST_THREE).skip.tolist() == [2, 1, 1]
    recovery.begin_start()
    recovery.reset_with(11)
    assert recovery.point_for(LAST_THREE).skip.tolist() == [1, 1, 1]
