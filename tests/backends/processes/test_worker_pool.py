"""Bookkeeping of steps in flight."""

import numpy as np

from hundredfold.backends.processes.worker_pool import InFlight

EVERY_ENV = np.arange(5)


def test_envs_wait_until_an_action_is_sent_and_again_when_its_result_is_taken():
    in_flight = InFlight(5)
    assert (in_flight.count, in_flight.waiting(EVERY_ENV).all()) == (0, True)
    in_flight.mark_sent(np.array([1, 3, 4]))
    assert in_flight.count == 3
    assert in_flight.waiting(EVERY_ENV).tolist() == [True, False, True, False, False]
    assert in_flight.env_ids(slice(2, 5)).tolist() == [3, 4]
    in_flight.mark_taken(np.array([3]))
    assert in_flight.count == 2
    assert in_flight.waiting(np.array([4, 3])).tolist() == [False, True]
    assert in_flight.env_ids(slice(2, 5)).tolist() == [4]


def test_all_envs_are_sent_and_taken_together():
    in_flight = InFlight(5)
    in_flight.mark_sent(None)
    assert (in_flight.count, in_flight.waiting(EVERY_ENV).any()) == (5, False)
    in_flight.mark_taken(None)
    assert (in_flight.count, in_flight.waiting(EVERY_ENV).all()) == (0, True)
