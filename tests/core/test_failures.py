"""The guard: who may start again, who is given up, and what is told about it."""

import pytest

from hundredfold.core.errors import EnvError, WorkerError
from hundredfold.core.failures import RESET_AFTER_STEPS, Failure, Health, RestartPolicy


def fail(restart_policy, env_id, times=1, **more):
    for number in range(times):
        restart_policy.record_failure(env_id, EnvError(f"trouble {number} of env {env_id}"), **more)


def test_by_default_a_failure_is_raised_as_it_is():
    error = EnvError("trouble")
    with pytest.raises(EnvError) as raised:
        RestartPolicy().record_failure(3, error)
    assert raised.value is error


def test_failures_are_news_once():
    restart_policy = RestartPolicy("restart", 5)
    fail(restart_policy, 3, times=2)
    assert [failure.message for failure in restart_policy.drain()] == [
        "trouble 0 of env 3",
        "trouble 1 of env 3",
    ]
    assert restart_policy.drain() == []


def test_too_many_in_a_row_are_told_in_order():
    restart_policy = RestartPolicy("restart", 3)
    fail(restart_policy, 3, times=2)
    with pytest.raises(EnvError, match=r"(?s)env 3 failed 3 times.*1\. .*0 of.*2\. .*1 of.*3\. "):
        fail(restart_policy, 3)


def test_envs_are_counted_apart():
    restart_policy = RestartPolicy("restart", 3)
    for env_id in range(10):
        fail(restart_policy, env_id, times=2)


def test_the_end_of_an_episode_forgives():
    restart_policy = RestartPolicy("restart", 2)
    for _ in range(5):
        fail(restart_policy, 3)
        restart_policy.clear_failures(3)


@pytest.mark.parametrize(
    ("steps", "forgiven"), [(RESET_AFTER_STEPS - 1, False), (RESET_AFTER_STEPS, True)]
)
def test_so_do_many_good_steps(steps, forgiven):
    restart_policy = RestartPolicy("restart", 2)
    fail(restart_policy, 3)
    if forgiven:
        fail(restart_policy, 3, good_steps=steps)
    else:
        with pytest.raises(EnvError, match="2 times in a row"):
            fail(restart_policy, 3, good_steps=steps)


def test_a_worker_is_given_up_with_an_error_of_its_own_kind():
    restart_policy = RestartPolicy("restart", 2)
    restart_policy.record_failure(None, WorkerError("it is gone"), worker=1)
    restart_policy.record_failure(None, WorkerError("it is gone"), worker=0)
    with pytest.raises(WorkerError, match="worker 1 failed 2 times"):
        restart_policy.record_failure(None, WorkerError("it is gone again"), worker=1)


def test_a_failure_carries_what_the_env_raised():
    restart_policy = RestartPolicy("restart", 2)
    try:
        try:
            raise ZeroDivisionError("nought")
        except ZeroDivisionError as cause:
            raise EnvError("it raised") from cause
    except EnvError as error:
        restart_policy.record_failure(0, error)
    (failure,) = restart_policy.drain()
    assert "ZeroDivisionError: nought" in failure.traceback


def test_health_counts_envs_and_workers():
    health = Health()
    health.count_restarts([Failure(1, "a"), Failure(2, "b")])
    health.count_worker_restart([Failure(None, "c", worker=0)], num_envs=4)
    assert health.counts() == {"env_failures": 3, "env_restarts": 6, "worker_restarts": 1}
    assert [failure.message for failure in health.recent] == ["a", "b", "c"]
