"""First-ready backend: partial batches, held-back envs, snapshots with steps in flight."""

import multiprocessing
import os
from contextlib import closing
from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from helpers import third_party_envs
from helpers.cases import ENV_CASES
from helpers.trajectories import assert_same_trajectory, continue_trajectory, fixed_actions, record_trajectory
from hundredfold.backends.in_process import SerialBackend
from hundredfold.backends.processes.backend import READY_DIVISOR, FirstReadyBackend, ProcessBackend
from hundredfold.backends.settings import WorkerSettings
from hundredfold.core import rng
from hundredfold.core.errors import CallOrderError, ShapeError
from hundredfold.envs.corridor import Corridor
from hundredfold.envs.gymnasium_env import GymnasiumBatchEnv

SEED = 7
NUM_ENVS = 6
SLOW_ENV = 1
FAULT_STEP = third_party_envs.WaitsForFile.fault_step
NO_ENVS = np.zeros(0, np.int64)

pytestmark = pytest.mark.process


def with_slow_env(folder):
    """Envs of which one waits at its third step until the file `gate` exists."""
    seed = int(rng.stream_keys(SEED, SLOW_ENV, 0)) >> 33
    return partial(GymnasiumBatchEnv, make_env=partial(third_party_envs.WaitsForFile, folder, fault_seed=seed))


def first_ready(make_envs, num_envs=NUM_ENVS, batch_envs=1, **settings):
    worker_settings = WorkerSettings(workers=2, batch_envs=batch_envs, **settings)
    return FirstReadyBackend(make_envs, num_envs, worker_settings)


def send_to_slow_env(backend):
    """Step all envs up to the slow env's waiting step, and send all one action more."""
    backend.reset(SEED)
    continue_trajectory(backend, FAULT_STEP - 1)
    backend.send(np.zeros(NUM_ENVS, np.int64), np.arange(NUM_ENVS))


def recv_until(backend, expected_ids):
    """Receive batches, sending nothing, until all of these envs have arrived; returns all ids."""
    seen = set()
    while not expected_ids <= seen:
        seen |= set(backend.recv().env_ids.tolist())
        if not expected_ids <= seen:
            backend.send(NO_ENVS, NO_ENVS)
    return seen


# --- fast envs do not wait for slow ones


def test_another_worker_continues_while_one_env_is_slow(tmp_path):
    with closing(first_ready(with_slow_env(tmp_path), env_threads=1)) as backend:
        send_to_slow_env(backend)
        assert SLOW_ENV not in recv_until(backend, {3, 4, 5})
        for _ in range(5):
            backend.send(np.zeros(3, np.int64), np.array([3, 4, 5]))
            recv_until(backend, {3, 4, 5})
        (tmp_path / "gate").touch()
        backend.send(NO_ENVS, NO_ENVS)
        recv_until(backend, {SLOW_ENV})


def test_with_env_threads_the_same_worker_continues_too(tmp_path):
    with closing(first_ready(with_slow_env(tmp_path), env_threads=3)) as backend:
        send_to_slow_env(backend)
        other_envs = {0, 2, 3, 4, 5}
        assert recv_until(backend, other_envs) == other_envs
        for _ in range(4):
            backend.send(np.zeros(5, np.int64), np.array([5, 4, 3, 2, 0]))
            assert recv_until(backend, other_envs) == other_envs
        (tmp_path / "gate").touch()
        backend.send(NO_ENVS, NO_ENVS)
        assert backend.recv().env_ids.tolist() == [SLOW_ENV]


def test_a_batch_has_at_least_batch_envs_rows(tmp_path):
    with closing(first_ready(with_slow_env(tmp_path), batch_envs=5, env_threads=3)) as backend:
        send_to_slow_env(backend)
        assert backend.recv().env_ids.tolist() == [0, 2, 3, 4, 5]
        (tmp_path / "gate").touch()


def test_with_fewer_steps_in_flight_than_batch_envs_all_of_them_are_a_batch(tmp_path):
    with closing(first_ready(with_slow_env(tmp_path), batch_envs=5, env_threads=3)) as backend:
        backend.reset(SEED)
        backend.recv()
        backend.send(np.zeros(2, np.int64), np.array([4, 0]))
        assert backend.recv().env_ids.tolist() == [0, 4]


@pytest.mark.parametrize(("num_envs", "expected"), [(1, 1), (READY_DIVISOR, 1), (40, 5)])
def test_batch_envs_defaults_to_an_eighth_of_the_envs(num_envs, expected):
    settings = WorkerSettings(workers=1)
    with closing(FirstReadyBackend(Corridor, num_envs, settings)) as backend:
        assert backend.batch_envs == expected


def test_batch_envs_above_num_envs_means_all_envs():
    settings = WorkerSettings(workers=2, batch_envs=100)
    with closing(ProcessBackend(Corridor, NUM_ENVS, settings)) as backend:
        backend.reset(SEED)
        for _ in range(3):
            batch = backend.recv()
            assert len(batch) == NUM_ENVS
            backend.send(np.ones(NUM_ENVS, np.int64))


# --- trajectories do not depend on timing


@pytest.mark.parametrize("batch_envs", [1, 2, 5, 6])
@pytest.mark.parametrize("env", ["corridor", "dvrp", "cage2", "CartPole-v1"])
def test_batch_envs_does_not_change_trajectories(env, batch_envs):
    with closing(SerialBackend(ENV_CASES[env], NUM_ENVS)) as backend:
        expected = record_trajectory(backend, SEED, 25)
    with closing(first_ready(ENV_CASES[env], batch_envs=batch_envs)) as backend:
        assert_same_trajectory(record_trajectory(backend, SEED, 25), expected)


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_env_threads_do_not_change_trajectories(threads):
    make_envs = ENV_CASES["third_party_masked"]
    with closing(SerialBackend(make_envs, NUM_ENVS)) as backend:
        expected = record_trajectory(backend, SEED, 40)
    for make in (first_ready, partial(first_ready, batch_envs=NUM_ENVS)):
        with closing(make(make_envs, env_threads=threads)) as backend:
            assert_same_trajectory(record_trajectory(backend, SEED, 40), expected)


# --- holding envs back


def test_held_back_envs_do_not_step_until_they_get_an_action():
    with closing(SerialBackend(ENV_CASES["CartPole-v1"], NUM_ENVS)) as backend:
        backend.reset(SEED)
        expected = backend.recv().take(np.arange(NUM_ENVS))
        backend.send(np.ones(NUM_ENVS, np.int64))
        after = backend.recv()
        with closing(first_ready(ENV_CASES["CartPole-v1"])) as other:
            other.reset(SEED)
            other.recv()
            for env_id in (4, 2, 0, 5, 1, 3):
                other.send(np.ones(1, np.int64), np.array([env_id]))
                batch = other.recv()
                assert batch.env_ids.tolist() == [env_id]
                seen = batch.observation["observation"][0]
                assert_array_equal(seen, after.observation["observation"][env_id])
                assert not np.array_equal(seen, expected.observation["observation"][env_id])


def test_actions_are_matched_to_env_ids_in_any_order():
    make_envs = partial(GymnasiumBatchEnv, make_env=third_party_envs.DiscreteActionsWithStart)
    with closing(first_ready(make_envs, batch_envs=NUM_ENVS)) as backend:
        backend.reset(SEED)
        backend.recv()
        backend.send(np.array([2, 0, 1, 0, 2, 1]), np.array([5, 3, 1, 0, 2, 4]))
        assert backend.recv().reward.tolist() == [5.0, 6.0, 7.0, 5.0, 6.0, 7.0]


@pytest.mark.parametrize(
    ("env_ids", "error", "message"),
    [
        ([0, 0], ShapeError, "at most once"),
        ([6], ShapeError, r"\[6\].*0\.\.5"),
        ([-1], ShapeError, r"\[-1\]"),
        ([3], CallOrderError, "env 3, which does not wait"),
    ],
)
def test_an_action_for_an_env_in_flight_raises(tmp_path, env_ids, error, message):
    with closing(first_ready(with_slow_env(tmp_path), env_threads=3)) as backend:
        backend.reset(SEED)
        backend.recv()
        backend.send(np.zeros(1, np.int64), np.array([3]))
        backend.recv()
        backend.send(np.zeros(1, np.int64), np.array([3]))
        # Its step may be done or not; recv() has not returned it.
        backend.call_order.pending = "send"
        with pytest.raises(error, match=message):
            backend.send(np.zeros(len(env_ids), np.int64), np.array(env_ids))


def test_actions_for_part_of_a_group_raise():
    with closing(first_ready(Corridor, batch_envs=3)) as backend:
        assert backend.groups.tolist() == [0, 0, 0, 1, 1, 1]
        backend.reset(SEED)
        backend.recv()
        with pytest.raises(ShapeError, match=r"envs 3\.\.5, which step together"):
            backend.send(np.ones(4, np.int64), np.array([0, 1, 2, 4]))
        backend.send(np.ones(3, np.int64), np.array([5, 3, 4]))
        assert backend.recv().env_ids.tolist() == [3, 4, 5]


def test_recv_with_no_step_in_flight_raises():
    with closing(first_ready(Corridor)) as backend:
        backend.reset(SEED)
        backend.recv()
        backend.send(NO_ENVS, NO_ENVS)
        with pytest.raises(CallOrderError, match="no step in flight"):
            backend.recv()


@pytest.mark.parametrize("make", [ProcessBackend, SerialBackend], ids=["processes", "serial"])
def test_all_env_ids_may_be_named_where_all_step_together(make):
    with closing(make(Corridor, NUM_ENVS)) as backend:
        backend.reset(SEED)
        backend.recv()
        backend.send(np.ones(NUM_ENVS, np.int64), np.arange(NUM_ENVS))
        assert len(backend.recv()) == NUM_ENVS


def test_holding_envs_back_raises_where_all_step_together():
    with closing(SerialBackend(Corridor, NUM_ENVS)) as backend:
        backend.reset(SEED)
        backend.recv()
        with pytest.raises(ShapeError, match="first_ready"):
            backend.send(np.ones(2, np.int64), np.array([0, 1]))


# --- snapshots and infos with steps in flight


@pytest.mark.parametrize("env", ["corridor", "dvrp", "cage2"])
def test_a_snapshot_waits_for_steps_in_flight_and_recv_still_returns_them(env):
    all_env_ids = np.arange(NUM_ENVS)
    with closing(first_ready(ENV_CASES[env])) as backend:
        record_trajectory(backend, SEED, 3)
        waiting = backend.batch.take(all_env_ids)
        backend.send(fixed_actions(waiting, backend.spec, np.full(NUM_ENVS, 3)), all_env_ids)
        came = set(backend.recv().env_ids.tolist())
        state = backend.state()
        if len(came) < NUM_ENVS:
            backend.send(NO_ENVS, NO_ENVS)
            recv_until(backend, set(range(NUM_ENVS)) - came)
    with closing(SerialBackend(ENV_CASES[env], NUM_ENVS)) as backend:
        expected = record_trajectory(backend, SEED, 6)
        backend.restore(state)
        assert_same_trajectory(continue_trajectory(backend, 2, first_step=4), expected.between(4, 6))


def test_a_snapshot_of_third_party_envs_does_not_wait_for_a_slow_one(tmp_path):
    with closing(first_ready(with_slow_env(tmp_path), env_threads=3)) as backend:
        send_to_slow_env(backend)
        assert recv_until(backend, {0, 2, 3, 4, 5}) == {0, 2, 3, 4, 5}
        # The gate is still closed when the snapshot arrives.
        assert backend.state()["steps"].tolist() == [FAULT_STEP] * NUM_ENVS
        (tmp_path / "gate").touch()
        backend.send(NO_ENVS, NO_ENVS)
        assert backend.recv().env_ids.tolist() == [SLOW_ENV]


def test_reading_infos_does_not_wait_for_a_slow_env(tmp_path):
    with closing(first_ready(with_slow_env(tmp_path), batch_envs=5, env_threads=3)) as backend:
        backend.reset(SEED)
        batch = backend.recv()
        while SLOW_ENV in batch.env_ids:
            backend.send(np.zeros(len(batch), np.int64))
            batch = backend.recv()
        # The gate is still closed when the infos arrive.
        totals = batch.observation["observation"][:, 1].tolist()
        assert [info["total"] for info in batch.infos] == totals
        (tmp_path / "gate").touch()


def test_reset_discards_steps_in_flight(tmp_path):
    with closing(first_ready(with_slow_env(tmp_path), env_threads=3)) as backend:
        send_to_slow_env(backend)
        backend.recv()
        (tmp_path / "gate").touch()
        with closing(SerialBackend(with_slow_env(tmp_path), NUM_ENVS)) as serial:
            expected = record_trajectory(serial, SEED, 10)
        assert_same_trajectory(record_trajectory(backend, SEED, 10), expected)


# --- blocking and computing envs


def threads_used(make_env, steps=12):
    """Names of the threads on which envs were stepped last."""
    with closing(first_ready(partial(GymnasiumBatchEnv, make_env=make_env))) as backend:
        backend.reset(SEED)
        for _ in range(steps * NUM_ENVS):
            batch = backend.recv()
            names = {info["thread"] for info in batch.infos}
            backend.send(np.zeros(len(batch), np.int64))
        return names


def test_blocking_envs_get_threads():
    assert "MainThread" not in threads_used(third_party_envs.SleepsInStep)


def test_computing_envs_get_no_threads():
    assert threads_used(third_party_envs.ComputesInStep) == {"MainThread"}


def test_computing_envs_get_no_threads_on_a_busy_machine():
    """Four busy processes compete for the cores."""
    busy = [multiprocessing.get_context("fork").Process(target=busy_loop) for _ in range(4)]
    for process in busy:
        process.start()
    try:
        assert threads_used(third_party_envs.ComputesInStep, steps=6) == {"MainThread"}
    finally:
        for process in busy:
            process.terminate()
            process.join()


def busy_loop():
    """Compute until the test ends this process, or has ended itself."""
    test = os.getppid()
    while os.getppid() == test:
        pass


def test_batches_contain_whole_groups():
    settings = WorkerSettings(workers=2, batch_envs=2)
    with closing(FirstReadyBackend(ENV_CASES["cartpole"], 12, settings)) as backend:
        sizes = np.bincount(backend.groups)
        backend.reset(SEED)
        batch = backend.recv()
        for _ in range(5000):
            backend.send(np.zeros(len(batch), np.int64))
            batch = backend.recv()
            taken = np.bincount(backend.groups[batch.env_ids], minlength=len(sizes))
            assert np.isin(taken, (0, sizes[0])).all()
            assert len(batch) >= settings.batch_envs
