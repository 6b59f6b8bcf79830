"""Ready flags: a wake-up is due when the parent sleeps and enough envs are ready, only then."""

import numpy as np
import pytest

from hundredfold.backends.processes.ready_flags import ReadyFlags


@pytest.fixture
def flags():
    return ReadyFlags({"ready": np.zeros(6, bool), "wakeup": np.zeros(3, np.int64)})


def test_no_wakeup_is_due_while_the_parent_is_awake(flags):
    assert not flags.set_ready(0, 5)
    assert flags.take_ready().tolist() == [0, 1, 2, 3, 4]


def test_take_ready_returns_none_for_all_envs(flags):
    flags.set_ready(0, 4)
    flags.set_ready(4, 6)
    assert flags.take_ready() is None
    assert flags.take_ready().tolist() == []


def test_the_flag_that_completes_the_number_wakes_the_parent(flags):
    assert flags.arm_wakeup(3)
    assert not flags.set_ready(4, 5)
    assert not flags.set_ready(0, 1)
    assert flags.set_ready(2, 4)


def test_there_is_one_wakeup_per_sleep(flags):
    assert flags.arm_wakeup(2)
    assert flags.set_ready(0, 2)
    assert not flags.set_ready(2, 3)
    flags.disarm()
    flags.take_ready()
    assert flags.arm_wakeup(1)
    assert flags.set_ready(4, 5)


def test_arming_is_false_when_enough_envs_are_ready(flags):
    flags.set_ready(1, 3)
    assert not flags.arm_wakeup(2)
    assert flags.arm_wakeup(3)


def test_flags_are_taken_once(flags):
    flags.set_ready(1, 3)
    assert flags.take_ready().tolist() == [1, 2]
    assert flags.take_ready().tolist() == []
    flags.set_ready(2, 3)
    assert flags.take_ready().tolist() == [2]


def test_a_group_is_ready_when_all_its_envs_are(flags):
    flags.set_groups(np.array([0, 0, 0, 1, 1, 2]))
    flags.set_ready(1, 5)
    assert flags.has_ready(2)
    assert not flags.has_ready(3)
    assert flags.take_ready().tolist() == [3, 4]
    assert not flags.has_ready(1)
    assert flags.take_ready().tolist() == []
    flags.set_ready(0, 1)
    assert flags.arm_wakeup(4)
    assert flags.take_ready().tolist() == [0, 1, 2]


def test_a_wakeup_for_half_a_group_is_followed_by_one_for_all_of_it(flags):
    flags.set_groups(np.array([0, 0, 1, 1, 2, 2]))
    assert flags.arm_wakeup(2)
    flags.set_ready(0, 1)
    assert flags.set_ready(2, 3)
    flags.disarm()
    assert flags.arm_wakeup(2)
    assert flags.set_ready(1, 2)


def test_no_wakeup_is_due_after_disarming(flags):
    assert flags.arm_wakeup(1)
    flags.disarm()
    assert not flags.set_ready(0, 6)
