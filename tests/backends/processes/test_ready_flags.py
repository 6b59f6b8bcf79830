"""The bell: rung when the parent sleeps and has enough to wake up for, never otherwise."""

import numpy as np
import pytest

from hundredfold.backends.processes.ready_flags import ReadyFlags


@pytest.fixture
def bell():
    return ReadyFlags({"done": np.zeros(6, bool), "bell": np.zeros(3, np.int64)})


def test_a_parent_that_is_awake_is_not_rung_for(bell):
    assert not bell.finish(0, 5)
    assert bell.take().tolist() == [0, 1, 2, 3, 4]


def test_everybody_is_taken_as_such(bell):
    bell.finish(0, 4)
    bell.finish(4, 6)
    assert bell.take() is None
    assert bell.take().tolist() == []


def test_whoever_completes_the_number_rings(bell):
    assert bell.may_sleep(3)
    assert not bell.finish(4, 5)
    assert not bell.finish(0, 1)
    assert bell.finish(2, 4)


def test_one_bell_ends_a_nap(bell):
    assert bell.may_sleep(2)
    assert bell.finish(0, 2)
    assert not bell.finish(2, 3)
    bell.awake()
    bell.take()
    assert bell.may_sleep(1)
    assert bell.finish(4, 5)


def test_nobody_sleeps_who_has_enough_already(bell):
    bell.finish(1, 3)
    assert not bell.may_sleep(2)
    assert bell.may_sleep(3)


def test_flags_are_taken_once(bell):
    bell.finish(1, 3)
    assert bell.take().tolist() == [1, 2]
    assert bell.take().tolist() == []
    bell.finish(2, 3)
    assert bell.take().tolist() == [2]


def test_a_group_is_ready_when_all_of_it_is(bell):
    bell.step_together(np.array([0, 0, 0, 1, 1, 2]))
    bell.finish(1, 5)
    assert bell.has(2)
    assert not bell.has(3)
    assert bell.take().tolist() == [3, 4]
    assert not bell.has(1)
    assert bell.take().tolist() == []
    bell.finish(0, 1)
    assert bell.may_sleep(4)
    assert bell.take().tolist() == [0, 1, 2]


def test_who_is_rung_for_half_a_group_is_rung_again_for_all_of_it(bell):
    bell.step_together(np.array([0, 0, 1, 1, 2, 2]))
    assert bell.may_sleep(2)
    bell.finish(0, 1)
    assert bell.finish(2, 3)
    bell.awake()
    assert bell.may_sleep(2)
    assert bell.finish(1, 2)


def test_after_waking_up_nobody_needs_to_ring(bell):
    assert bell.may_sleep(1)
    bell.awake()
    assert not bell.finish(0, 6)
