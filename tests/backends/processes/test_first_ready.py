"""Whoever is ready: partial batches, envs that are held back, snapshots while others work."""

import multiprocessing
import time
from contextlib import closing
from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from helpers import third_party_envs as foreign
from helpers.cases import ENV_CASES
from helpers.trajectories import (
    assert_same_trajectory,
    continue_trajectory,
    fixed_actions,
    record_trajectory,
)
from hundredfold.backends.processes.backend import READY_DIVISOR, FirstReadyBackend, ProcessBackend
from hundredfold.backends.serial import SerialBackend
from hundredfold.backends.settings import WorkerSettings
from hundredfold.core import rng
from hundredfold.core.errors import CallOrderError, ShapeError
from hundredfold.envs.corridor import Corridor
from hundredfold.envs.gymnasium_env import GymnasiumBatchEnv

SEED = 7
NUM_ENVS = 6
SLOW = 1
TURN = foreign.WaitsForFile.fault_step
NOBODY = np.zeros(0, np.int64)


def gated(folder):
    """Envs of which one waits at its third turn until it is let go."""
    seed = int(rng.stream_keys(SEED, SLOW, 0)) >> 33
    return partial(
        GymnasiumBatchEnv, make_env=partial(foreign.WaitsForFile, folder, fault_seed=seed)
    )


def first_ready(make_envs, num_envs=NUM_ENVS, batch_envs=1, **settings):
    wanted = WorkerSettings(workers=2, batch_envs=batch_envs, **settings)
    return FirstReadyBackend(make_envs, num_envs, wanted)


def all_at_the_gate(backend):
    """Play until the slow env stands before its gate, and send everybody one action more."""
    backend.reset(SEED)
    continue_trajectory(backend, TURN - 1)
    backend.send(np.zeros(NUM_ENVS, np.int64), np.arange(NUM_ENVS))


def gather(backend, wanted):
    """Take batches, sending nothing, until all of these envs have come; who came."""
    seen = set()
    while not wanted <= seen:
        seen |= set(backend.recv().env_ids.tolist())
        if not wanted <= seen:
            backend.send(NOBODY, NOBODY)
    return seen


# --- nobody waits for the slowest


def test_the_other_worker_goes_on_while_one_env_is_slow(tmp_path):
    with closing(first_ready(gated(tmp_path), env_threads=1)) as backend:
        all_at_the_gate(backend)
        assert SLOW not in gather(backend, {3, 4, 5})
        for _ in range(5):
            backend.send(np.zeros(3, np.int64), np.array([3, 4, 5]))
            gather(backend, {3, 4, 5})
        (tmp_path / "gate").touch()
        backend.send(NOBODY, NOBODY)
        gather(backend, {SLOW})


def test_with_threads_even_its_own_worker_goes_on(tmp_path):
    with closing(first_ready(gated(tmp_path), env_threads=3)) as backend:
        all_at_the_gate(backend)
        everyone_else = {0, 2, 3, 4, 5}
        assert gather(backend, everyone_else) == everyone_else
        for _ in range(4):
            backend.send(np.zeros(5, np.int64), np.array([5, 4, 3, 2, 0]))
            assert gather(backend, everyone_else) == everyone_else
        (tmp_path / "gate").touch()
        backend.send(NOBODY, NOBODY)
        assert backend.recv().env_ids.tolist() == [SLOW]


def test_a_batch_has_at_least_as_many_envs_as_asked_for(tmp_path):
    with closing(first_ready(gated(tmp_path), batch_envs=5, env_threads=3)) as backend:
        all_at_the_gate(backend)
        assert backend.recv().env_ids.tolist() == [0, 2, 3, 4, 5]
        (tmp_path / "gate").touch()


def test_when_fewer_are_at_work_than_asked_for_they_are_enough(tmp_path):
    with closing(first_ready(gated(tmp_path), batch_envs=5, env_threads=3)) as backend:
        backend.reset(SEED)
        backend.recv()
        backend.send(np.zeros(2, np.int64), np.array([4, 0]))
        assert backend.recv().env_ids.tolist() == [0, 4]


@pytest.mark.parametrize(("num_envs", "expected"), [(1, 1), (READY_DIVISOR, 1), (40, 5)])
def test_by_default_a_share_of_the_envs_is_waited_for(num_envs, expected):
    settings = WorkerSettings(workers=1)
    with closing(FirstReadyBackend(Corridor, num_envs, settings)) as backend:
        assert backend.batch_envs == expected


def test_more_than_there_are_means_everybody():
    settings = WorkerSettings(workers=2, batch_envs=100)
    with closing(ProcessBackend(Corridor, NUM_ENVS, settings)) as backend:
        backend.reset(SEED)
        for _ in range(3):
            batch = backend.recv()
            assert len(batch) == NUM_ENVS
            backend.send(np.ones(NUM_ENVS, np.int64))


# --- the same story, whatever the pace


@pytest.mark.parametrize("batch_envs", [1, 2, 5, 6])
@pytest.mark.parametrize("env", ["corridor", "dvrp", "cage2", "CartPole-v1"])
def test_the_size_of_batches_does_not_change_the_story(env, batch_envs):
    with closing(SerialBackend(ENV_CASES[env], NUM_ENVS)) as backend:
        expected = record_trajectory(backend, SEED, 25)
    with closing(first_ready(ENV_CASES[env], batch_envs=batch_envs)) as backend:
        assert_same_trajectory(record_trajectory(backend, SEED, 25), expected)


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_nor_do_threads(threads):
    make_envs = ENV_CASES["third_party_masked"]
    with closing(SerialBackend(make_envs, NUM_ENVS)) as backend:
        expected = record_trajectory(backend, SEED, 40)
    for make in (first_ready, partial(first_ready, batch_envs=NUM_ENVS)):
        with closing(make(make_envs, env_threads=threads)) as backend:
            assert_same_trajectory(record_trajectory(backend, SEED, 40), expected)


# --- holding envs back


def test_envs_that_are_held_back_stand_still_and_go_on_later():
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


def test_actions_go_to_the_envs_they_are_named_for_in_any_order():
    make_envs = partial(GymnasiumBatchEnv, make_env=foreign.DiscreteActionsWithStart)
    with closing(first_ready(make_envs, batch_envs=NUM_ENVS)) as backend:
        backend.reset(SEED)
        backend.recv()
        backend.send(np.array([2, 0, 1, 0, 2, 1]), np.array([5, 3, 1, 0, 2, 4]))
        assert backend.recv().reward.tolist() == [5.0, 6.0, 7.0, 5.0, 6.0, 7.0]


@pytest.mark.parametrize(
    ("env_ids", "error", "words"),
    [
        ([0, 0], ShapeError, "at most once"),
        ([6], ShapeError, r"\[6\].*0\.\.5"),
        ([-1], ShapeError, r"\[-1\]"),
        ([3], CallOrderError, "env 3, which does not wait"),
    ],
)
def test_envs_that_do_not_wait_get_no_action(tmp_path, env_ids, error, words):
    with closing(first_ready(gated(tmp_path), env_threads=3)) as backend:
        backend.reset(SEED)
        backend.recv()
        backend.send(np.zeros(1, np.int64), np.array([3]))
        backend.recv()
        backend.send(np.zeros(1, np.int64), np.array([3]))
        # It may be at work or have arrived; nobody has fetched it.
        backend.call_order.pending = "send"
        with pytest.raises(error, match=words):
            backend.send(np.zeros(len(env_ids), np.int64), np.array(env_ids))


def test_envs_of_one_shard_cannot_be_torn_apart():
    with closing(first_ready(Corridor, batch_envs=3)) as backend:
        assert backend.groups.tolist() == [0, 0, 0, 1, 1, 1]
        backend.reset(SEED)
        backend.recv()
        with pytest.raises(ShapeError, match=r"envs 3\.\.5, which step together"):
            backend.send(np.ones(4, np.int64), np.array([0, 1, 2, 4]))
        backend.send(np.ones(3, np.int64), np.array([5, 3, 4]))
        assert backend.recv().env_ids.tolist() == [3, 4, 5]


def test_when_everybody_is_held_back_there_is_nothing_to_wait_for():
    with closing(first_ready(Corridor)) as backend:
        backend.reset(SEED)
        backend.recv()
        backend.send(NOBODY, NOBODY)
        with pytest.raises(CallOrderError, match="no step in flight"):
            backend.recv()


@pytest.mark.parametrize("make", [ProcessBackend, SerialBackend], ids=["processes", "serial"])
def test_where_all_step_together_everybody_may_be_named(make):
    with closing(make(Corridor, NUM_ENVS)) as backend:
        backend.reset(SEED)
        backend.recv()
        backend.send(np.ones(NUM_ENVS, np.int64), np.arange(NUM_ENVS))
        assert len(backend.recv()) == NUM_ENVS


def test_where_all_step_together_nobody_can_be_held_back():
    with closing(SerialBackend(Corridor, NUM_ENVS)) as backend:
        backend.reset(SEED)
        backend.recv()
        with pytest.raises(ShapeError, match="first_ready"):
            backend.send(np.ones(2, np.int64), np.array([0, 1]))


# --- snapshots and broadcasts while some are at work


@pytest.mark.parametrize("env", ["corridor", "dvrp", "cage2"])
def test_a_snapshot_waits_for_those_at_work_and_their_news_still_comes(env):
    everyone = np.arange(NUM_ENVS)
    with closing(first_ready(ENV_CASES[env])) as backend:
        record_trajectory(backend, SEED, 3)
        waiting = backend.batch.take(everyone)
        backend.send(fixed_actions(waiting, backend.spec, np.full(NUM_ENVS, 3)), everyone)
        came = set(backend.recv().env_ids.tolist())
        state = backend.state()
        if len(came) < NUM_ENVS:
            backend.send(NOBODY, NOBODY)
            gather(backend, set(range(NUM_ENVS)) - came)
    with closing(SerialBackend(ENV_CASES[env], NUM_ENVS)) as backend:
        expected = record_trajectory(backend, SEED, 6)
        backend.restore(state)
        assert_same_trajectory(
            continue_trajectory(backend, 2, first_step=4), expected.between(4, 6)
        )


def test_a_snapshot_of_foreign_envs_does_not_wait_for_a_slow_one(tmp_path):
    with closing(first_ready(gated(tmp_path), env_threads=3)) as backend:
        all_at_the_gate(backend)
        assert gather(backend, {0, 2, 3, 4, 5}) == {0, 2, 3, 4, 5}
        # Nobody opens the gate before the snapshot is there.
        assert backend.state()["steps"].tolist() == [TURN] * NUM_ENVS
        (tmp_path / "gate").touch()
        backend.send(NOBODY, NOBODY)
        assert backend.recv().env_ids.tolist() == [SLOW]


def test_a_first_look_at_infos_does_not_wait_for_a_slow_env(tmp_path):
    with closing(first_ready(gated(tmp_path), batch_envs=5, env_threads=3)) as backend:
        backend.reset(SEED)
        batch = backend.recv()
        while SLOW in batch.env_ids:
            backend.send(np.zeros(len(batch), np.int64))
            batch = backend.recv()
        # Nobody opens the gate before the infos are there.
        totals = batch.observation["observation"][:, 1].tolist()
        assert [info["total"] for info in batch.infos] == totals
        (tmp_path / "gate").touch()


def test_a_reset_forgets_what_was_under_way(tmp_path):
    with closing(first_ready(gated(tmp_path), env_threads=3)) as backend:
        all_at_the_gate(backend)
        backend.recv()
        (tmp_path / "gate").touch()
        with closing(SerialBackend(gated(tmp_path), NUM_ENVS)) as serial:
            expected = record_trajectory(serial, SEED, 10)
        assert_same_trajectory(record_trajectory(backend, SEED, 10), expected)


# --- who waits and who computes


def threads_after(make_env, steps=12):
    """Names of the threads on which envs were stepped last."""
    with closing(first_ready(partial(GymnasiumBatchEnv, make_env=make_env))) as backend:
        backend.reset(SEED)
        for _ in range(steps * NUM_ENVS):
            batch = backend.recv()
            names = {info["thread"] for info in batch.infos}
            backend.send(np.zeros(len(batch), np.int64))
        return names


def test_envs_that_wait_get_threads_of_their_own():
    assert "MainThread" not in threads_after(foreign.SleepsInStep)


def test_envs_that_compute_do_without():
    assert threads_after(foreign.ComputesInStep) == {"MainThread"}


def test_waiting_for_a_core_is_not_waiting():
    """Four busy processes on whatever cores there are: computing envs still get no threads."""
    busy = [multiprocessing.get_context("fork").Process(target=burn) for _ in range(4)]
    for process in busy:
        process.start()
    try:
        assert threads_after(foreign.ComputesInStep, steps=6) == {"MainThread"}
    finally:
        for process in busy:
            process.terminate()
            process.join()


def burn():
    end = time.monotonic() + 60
    while time.monotonic() < end:
        pass


def test_envs_that_step_together_are_taken_together():
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
