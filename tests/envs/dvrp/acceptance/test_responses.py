"""ResponseBuffer: ring order, offer 12, checkpoints and counts."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from helpers.offers import NO_CHANGE
from hundredfold.core.errors import SettingsError, ShapeError
from hundredfold.envs.dvrp.acceptance.model import ResponseBuffer


def rows_numbered(first, last, offer=3):
    number = np.arange(first, last)
    return number, 50 * number, number % 10, np.full(len(number), offer), number % 2 == 0


def test_the_oldest_responses_are_overwritten():
    responses = ResponseBuffer(capacity=10)
    for first in range(0, 24, 4):
        responses.add(*rows_numbered(first, first + 4))
    stored = responses.rows()
    assert_array_equal(stored.customer, np.arange(14, 24))
    assert_array_equal(stored.trip, 50 * np.arange(14, 24))
    assert_array_equal(stored.purpose, np.arange(14, 24) % 10)
    assert_array_equal(stored.accepted, np.arange(14, 24) % 2 == 0)
    assert (len(responses), responses.num_added) == (10, 24)


def test_of_a_batch_larger_than_the_buffer_the_newest_rows_remain():
    responses = ResponseBuffer(capacity=5)
    responses.add(*rows_numbered(0, 3))
    responses.add(*rows_numbered(3, 16))
    assert_array_equal(responses.rows().customer, np.arange(11, 16))
    responses.add(*rows_numbered(16, 18))
    assert_array_equal(responses.rows().customer, np.arange(13, 18))


def test_a_buffer_of_one_holds_the_newest_response():
    responses = ResponseBuffer(capacity=1)
    responses.add(*rows_numbered(0, 3))
    assert_array_equal(responses.rows().customer, [2])


def test_offer_12_is_not_stored():
    responses = ResponseBuffer(capacity=8)
    customer, trip, purpose, offer, accepted = rows_numbered(0, 6)
    offer[::2] = NO_CHANGE
    assert responses.add(customer, trip, purpose, offer, accepted) == 3
    assert_array_equal(responses.rows().customer, (1, 3, 5))
    assert responses.num_added == 3


def test_rows_are_copies():
    responses = ResponseBuffer(capacity=4)
    customer, trip, purpose, offer, accepted = rows_numbered(0, 3)
    responses.add(customer, trip, purpose, offer, accepted)
    stored = responses.rows()
    customer[:] = 7
    responses.add(customer, trip, purpose, offer, accepted)
    assert_array_equal(stored.customer, (0, 1, 2))


@pytest.mark.parametrize("number", [0, 3, 17])
def test_a_restored_buffer_continues_like_the_original(number):
    first, second = ResponseBuffer(capacity=6), ResponseBuffer(capacity=6)
    first.add(*rows_numbered(0, number))
    second.add(*rows_numbered(50, 90))
    second.restore(first.state())
    for responses in (first, second):
        responses.add(*rows_numbered(100, 104))
    assert first.num_added == second.num_added
    for name, array in first.rows().arrays().items():
        assert_array_equal(second.rows().arrays()[name], array, strict=True)


def test_counts_are_by_customer_purpose_and_offer():
    responses = ResponseBuffer()
    for accepted in (True, True, False):
        responses.add(np.array([2]), np.array([9]), np.array([1]), np.array([5]), np.array([accepted]))
    refused, accepted = responses.rows().counts(population_size=4, num_purposes=3, num_offers=16)
    assert refused.shape == (4, 48)
    assert (refused[2, 16 + 5], accepted[2, 16 + 5]) == (1, 2)
    assert refused.sum() + accepted.sum() == 3


def test_columns_of_different_lengths_raise():
    with pytest.raises(ShapeError, match="2 customers, 2 trips, 2 purposes, 3 offers"):
        ResponseBuffer().add(np.zeros(2), np.zeros(2), np.zeros(2), np.zeros(3), np.zeros(2, bool))
    with pytest.raises(SettingsError, match="at least 1"):
        ResponseBuffer(0)
