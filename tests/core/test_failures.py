"""Restart policy and failure counters."""

import pytest

from hundredfold.core.errors import EnvError, WorkerError
from hundredfold.core.failures import RESET_AFTER_STEPS, Failure, Health, RestartPolicy


def fail(restart_policy, env_id, times=1, **options):
    for number in range(times):
        restart_policy.record_failure(env_id, EnvError(f"failure {number} of env {env_id}"), **options)


def test_by_default_a_failure_raises_the_original_error():
    error = EnvError("failure")
    with pytest.raises(EnvError) as raised:
        RestartPolicy().record_failure(3, error)
    assert raised.value is error


def test_failures_are_drained_once():
    restart_policy = RestartPolicy("restart", 5)
    fail(restart_policy, 3, times=2)
    assert [failure.message for failure in restart_policy.drain()] == ["failure 0 of env 3", "failure 1 of env 3"]
    assert restart_policy.drain() == []


def test_too_many_consecutive_failures_are_listed_in_order():
    restart_policy = RestartPolicy("restart", 3)
    fail(restart_policy, 3, times=2)
    with pytest.raises(EnvError, match=r"(?s)env 3 failed 3 times.*1\. .*0 of.*2\. .*1 of.*3\. "):
        fail(restart_policy, 3)


def test_envs_are_counted_separately():
    restart_policy = RestartPolicy("restart", 3)
    for env_id in range(10):
        fail(restart_policy, env_id, times=2)


def test_a_finished_episode_resets_the_count():
    restart_policy = RestartPolicy("restart", 2)
    for _ in range(5):
        fail(restart_policy, 3)
        restart_policy.clear_failures(3)


@pytest.mark.parametrize(("steps", "is_reset"), [(RESET_AFTER_STEPS - 1, False), (RESET_AFTER_STEPS, True)])
def test_many_good_steps_reset_the_count(steps, is_reset):
    restart_policy = RestartPolicy("restart", 2)
    fail(restart_policy, 3)
    if is_reset:
        fail(restart_policy, 3, good_steps=steps)
    else:
        with pytest.raises(EnvError, match="2 times in a row"):
            fail(restart_policy, 3, good_steps=steps)


def test_too_many_worker_failures_raise_a_worker_error():
    restart_policy = RestartPolicy("restart", 2)
    restart_policy.record_failure(None, WorkerError("the worker died"), worker=1)
    restart_policy.record_failure(None, WorkerError("the worker died"), worker=0)
    with pytest.raises(WorkerError, match="worker 1 failed 2 times"):
        restart_policy.record_failure(None, WorkerError("the worker died again"), worker=1)


def test_a_failure_carries_the_traceback_of_the_env():
    restart_policy = RestartPolicy("restart", 2)
    try:
        try:
            raise ZeroDivisionError("division by zero")
        except ZeroDivisionError as cause:
            raise EnvError("it raised") from cause
    except EnvError as error:
        restart_policy.record_failure(0, error)
    (failure,) = restart_policy.drain()
    assert "ZeroDivisionError: division by zero" in failure.traceback


def test_health_counts_envs_and_workers():
    health = Health()
    health.count_restarts([Failure(1, "a"), Failure(2, "b")])
    health.count_worker_restart([Failure(None, "c", worker=0)], num_envs=4)
    assert health.counts() == {"env_failures": 3, "env_restarts": 6, "worker_restarts": 1}
    assert [failure.message for failure in health.recent] == ["a", "b", "c"]
