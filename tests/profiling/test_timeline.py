"""Where the time goes, read off moments that were written by hand."""

import numpy as np
import pytest

from hundredfold.profiling.timeline import Events, account

TWO_ENVS = np.arange(2)
ONE_WORKER = np.zeros(2, np.int64)


def seen(events, env_ids, stamps, returned, recv_before=None, send_before=None):
    """One recv."""
    before = -1 if recv_before is None else recv_before
    events.env_ids.append(np.array(env_ids))
    events.stamps.append(np.array(stamps, float))
    events.returned.append(returned)
    events.recv_before.append(np.full(len(env_ids), before))
    events.send_before.append(np.full(len(env_ids), before if send_before is None else send_before))


def barrier_story():
    """Two envs side by side: one takes 2 seconds, the other 6; the policy takes 1."""
    events = Events()
    seen(events, [0, 1], [[0, 2], [0, 6]], returned=6.5)
    events.sent.append(7.5)
    seen(events, [0, 1], [[8, 10], [8, 14]], returned=14.5, recv_before=0)
    return events


def test_envs_side_by_side_wait_for_the_slowest():
    found = account(barrier_story(), TWO_ENVS)
    # From the end of one step to the end of the next: 8 seconds of each env, 16 together.
    assert found.shares == pytest.approx(
        {
            "stepping": (2 + 6) / 16,
            "barrier": 4 / 16,  # env 0, from 2 to 6
            "moving": (0.5 + 0.5) * 2 / 16,  # from 6 to 6.5 and from 7.5 to 8
            "policy": 1 * 2 / 16,
            "learner": 0.0,
        }
    )
    assert found.step_seconds == pytest.approx(4.0)
    assert found.steps_per_second == pytest.approx(2 / 8)


def test_a_learner_at_work_is_told_apart_from_the_policy():
    events = barrier_story()
    events.learned.append((6.5, 7.25))
    found = account(events, TWO_ENVS)
    assert found.shares["learner"] == pytest.approx(0.75 * 2 / 16)
    assert found.shares["policy"] == pytest.approx(0.25 * 2 / 16)


def test_envs_of_one_worker_do_not_wait_for_each_other():
    events = Events()
    seen(events, [0, 1], [[0, 1], [1, 3]], returned=3.0)
    events.sent.append(4.0)
    seen(events, [0, 1], [[4, 5], [5.5, 7.5]], returned=7.5, recv_before=0)
    found = account(events, ONE_WORKER)
    # The lane is idle from 3 to 4 for the policy, and from 5 to 5.5 between two of its own steps.
    total = 7.5 - 3.0
    assert found.shares == pytest.approx(
        {
            "stepping": 3 / total,
            "barrier": 0.0,
            "moving": 0.5 / total,
            "policy": 1 / total,
            "learner": 0.0,
        }
    )


def test_who_comes_while_the_policy_acts_on_others_waits_for_the_policy():
    events = Events()
    seen(events, [0, 1], [[0, 1], [0, 1]], returned=1.0)
    events.sent.append(1.0)
    seen(events, [0], [[1, 2]], returned=2.0, recv_before=0)
    events.sent.append(5.0)  # three seconds of acting on env 0, while env 1 is ready at 3
    seen(events, [1], [[1, 3]], returned=5.0, recv_before=0)
    events.sent.append(5.0)
    seen(events, [0, 1], [[5, 6], [5, 6]], returned=6.0, recv_before=1)
    events.recv_before[-1][:] = [1, 2]
    events.send_before[-1][:] = [1, 2]
    found = account(events, TWO_ENVS)
    # Both envs from 1 to 6: env 0 waits for the policy from 2 to 5, env 1 from 3 to 5.
    assert found.shares == pytest.approx(
        {"stepping": 5 / 10, "barrier": 0.0, "moving": 0.0, "policy": 5 / 10, "learner": 0.0}
    )


def test_envs_that_step_as_one_count_as_one():
    events = Events()
    seen(events, [0, 1], [[0, 2], [0, 2]], returned=2.0)
    events.sent.append(3.0)
    seen(events, [0, 1], [[3, 5], [3, 5]], returned=5.0, recv_before=0)
    found = account(events, ONE_WORKER)
    assert found.shares["stepping"] == pytest.approx(2 / 3)
    assert found.shares["policy"] == pytest.approx(1 / 3)
    assert found.steps_per_second == pytest.approx(2 / 3)
