import numpy as np
import pytest
from numpy.testing import assert_array_equal

from hundredfold.core.errors import SettingsError, ShapeError
from hundredfold.envs.dvrp.acceptance.responses import ResponseBuffer
from hundredfold.envs.dvrp.offers import NO_CHANGE


def rows_numbered(first, last, offer=3):
    number = np.arange(first, last)
    return number, number % 10, np.full(len(number), offer), number % 2 == 0


def test_the_oldest_answers_make_room_for_new_ones():
    answers = ResponseBuffer(capacity=10)
    for first in range(0, 24, 4):
        answers.add(*rows_numbered(first, first + 4))
    kept = answers.rows()
    assert_array_equal(kept.person, np.arange(14, 24))
    assert_array_equal(kept.purpose, np.arange(14, 24) % 10)
    assert_array_equal(kept.accepted, np.arange(14, 24) % 2 == 0)
    assert (len(answers), answers.heard) == (10, 24)


def test_a_batch_larger_than_the_buffer_leaves_its_newest_rows():
    answers = ResponseBuffer(capacity=5)
    answers.add(*rows_numbered(0, 3))
    answers.add(*rows_numbered(3, 16))
    assert_array_equal(answers.rows().person, np.arange(11, 16))
    answers.add(*rows_numbered(16, 18))
    assert_array_equal(answers.rows().person, np.arange(13, 18))


def test_offer_twelve_is_left_out():
    answers = ResponseBuffer(capacity=8)
    person, purpose, offer, accepted = rows_numbered(0, 6)
    offer[::2] = NO_CHANGE
    assert answers.add(person, purpose, offer, accepted) == 3
    assert_array_equal(answers.rows().person, (1, 3, 5))
    assert answers.heard == 3


def test_rows_are_copies_of_what_was_live():
    answers = ResponseBuffer(capacity=4)
    person, purpose, offer, accepted = rows_numbered(0, 3)
    answers.add(person, purpose, offer, accepted)
    kept = answers.rows()
    person[:] = 7
    answers.add(person, purpose, offer, accepted)
    assert_array_equal(kept.person, (0, 1, 2))


@pytest.mark.parametrize("heard", [0, 3, 17])
def test_a_restored_buffer_goes_on_like_the_first(heard):
    first, second = ResponseBuffer(capacity=6), ResponseBuffer(capacity=6)
    first.add(*rows_numbered(0, heard))
    second.add(*rows_numbered(50, 90))
    second.restore(first.state())
    for answers in (first, second):
        answers.add(*rows_numbered(100, 104))
    assert first.heard == second.heard
    for name, array in first.rows().arrays().items():
        assert_array_equal(second.rows().arrays()[name], array, strict=True)


def test_counts_tell_who_said_what_to_which_question():
    answers = ResponseBuffer()
    for accepted in (True, True, False):
        answers.add(np.array([2]), np.array([1]), np.array([5]), np.array([accepted]))
    refused, accepted = answers.rows().counts(num_people=4, num_purposes=3)
    assert refused.shape == (4, 48)
    assert (refused[2, 16 + 5], accepted[2, 16 + 5]) == (1, 2)
    assert refused.sum() + accepted.sum() == 3


def test_rows_that_do_not_belong_together_are_refused():
    with pytest.raises(ShapeError, match="2 people, 2 purposes, 3 offers"):
        ResponseBuffer().add(np.zeros(2), np.zeros(2), np.zeros(3), np.zeros(2, bool))
    with pytest.raises(SettingsError, match="at least 1"):
        ResponseBuffer(0)
