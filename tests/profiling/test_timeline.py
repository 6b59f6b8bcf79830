"""Time breakdown of hand-written events."""

import numpy as np
import pytest

from hundredfold.profiling.timeline import Events, time_breakdown

TWO_ENVS = np.arange(2)
ONE_WORKER = np.zeros(2, np.int64)


def add_recv(events, env_ids, stamps, time, recv_before=None, send_before=None):
    before = -1 if recv_before is None else recv_before
    events.env_ids.append(np.array(env_ids))
    events.stamps.append(np.array(stamps, float))
    events.recv_times.append(time)
    events.recv_before.append(np.full(len(env_ids), before))
    events.send_before.append(np.full(len(env_ids), before if send_before is None else send_before))


def events_with_barrier():
    """Two parallel envs: one takes 2 seconds, the other 6; the policy takes 1."""
    events = Events()
    add_recv(events, [0, 1], [[0, 2], [0, 6]], time=6.5)
    events.send_times.append(7.5)
    add_recv(events, [0, 1], [[8, 10], [8, 14]], time=14.5, recv_before=0)
    return events


def test_parallel_envs_wait_for_the_slowest():
    breakdown = time_breakdown(events_with_barrier(), TWO_ENVS)
    # From the end of one step to the end of the next: 8 seconds of each env, 16 together.
    assert breakdown.shares == pytest.approx(
        {
            "stepping": (2 + 6) / 16,
            "barrier": 4 / 16,  # env 0, from 2 to 6
            "transfer": (0.5 + 0.5) * 2 / 16,  # from 6 to 6.5 and from 7.5 to 8
            "policy": 1 * 2 / 16,
            "learner": 0.0,
        }
    )
    assert breakdown.step_seconds == pytest.approx(4.0)
    assert breakdown.steps_per_second == pytest.approx(2 / 8)


def test_learner_and_policy_are_separate():
    events = events_with_barrier()
    events.update_spans.append((6.5, 7.25))
    breakdown = time_breakdown(events, TWO_ENVS)
    assert breakdown.shares["learner"] == pytest.approx(0.75 * 2 / 16)
    assert breakdown.shares["policy"] == pytest.approx(0.25 * 2 / 16)


def test_envs_of_one_worker_do_not_wait_for_each_other():
    events = Events()
    add_recv(events, [0, 1], [[0, 1], [1, 3]], time=3.0)
    events.send_times.append(4.0)
    add_recv(events, [0, 1], [[4, 5], [5.5, 7.5]], time=7.5, recv_before=0)
    breakdown = time_breakdown(events, ONE_WORKER)
    # The lane is idle from 3 to 4 because of the policy, and from 5 to 5.5 between two steps.
    total = 7.5 - 3.0
    assert breakdown.shares == pytest.approx(
        {"stepping": 3 / total, "barrier": 0.0, "transfer": 0.5 / total, "policy": 1 / total, "learner": 0.0}
    )


def test_an_env_that_is_ready_while_the_policy_acts_on_others_waits_for_the_policy():
    events = Events()
    add_recv(events, [0, 1], [[0, 1], [0, 1]], time=1.0)
    events.send_times.append(1.0)
    add_recv(events, [0], [[1, 2]], time=2.0, recv_before=0)
    events.send_times.append(5.0)  # three seconds of acting on env 0, while env 1 is ready at 3
    add_recv(events, [1], [[1, 3]], time=5.0, recv_before=0)
    events.send_times.append(5.0)
    add_recv(events, [0, 1], [[5, 6], [5, 6]], time=6.0, recv_before=1)
    events.recv_before[-1][:] = [1, 2]
    events.send_before[-1][:] = [1, 2]
    breakdown = time_breakdown(events, TWO_ENVS)
    # Both envs from 1 to 6: env 0 waits for the policy from 2 to 5, env 1 from 3 to 5.
    assert breakdown.shares == pytest.approx(
        {"stepping": 5 / 10, "barrier": 0.0, "transfer": 0.0, "policy": 5 / 10, "learner": 0.0}
    )


def test_envs_of_a_batch_env_count_once():
    events = Events()
    add_recv(events, [0, 1], [[0, 2], [0, 2]], time=2.0)
    events.send_times.append(3.0)
    add_recv(events, [0, 1], [[3, 5], [3, 5]], time=5.0, recv_before=0)
    breakdown = time_breakdown(events, ONE_WORKER)
    assert breakdown.shares["stepping"] == pytest.approx(2 / 3)
    assert breakdown.shares["policy"] == pytest.approx(1 / 3)
    assert breakdown.steps_per_second == pytest.approx(2 / 3)
