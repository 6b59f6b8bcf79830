"""Where the threads of a worker run: together, unless that takes something from somebody."""

import os
import subprocess
from contextlib import closing

import numpy as np
import pytest

from helpers import third_party_envs
from hundredfold.backends.processes import cpu_affinity
from hundredfold.backends.processes.backend import ProcessBackend
from hundredfold.backends.processes.cpu_affinity import (
    LOCAL_RANK_VARIABLE,
    LocalRank,
    core_for,
    get_local_rank,
    has_children,
    set_local_rank,
)
from hundredfold.backends.settings import WorkerSettings, usable_cores
from hundredfold.core.errors import SettingsError
from hundredfold.envs.registry import callable_factory

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="cores cannot be chosen here"
)


class TellsItsCores(third_party_envs.DiceEnv):
    """Says in its info where it may run."""

    def step(self, action):
        seen, reward, over, cut, info = super().step(action)
        where = {"cores": sorted(os.sched_getaffinity(0)), "policy": os.sched_getscheduler(0)}
        return seen, reward, over, cut, {**info, **where}


class HasProgram(TellsItsCores):
    """The same, with a program of its own that runs beside it."""

    def __init__(self):
        super().__init__()
        self.program = subprocess.Popen(["sleep", "1000"])

    def close(self):
        self.program.kill()
        self.program.wait()


def cores_of_workers(make_env, **settings):
    """The cores that the first env of each worker may use."""
    return told_by_workers(make_env, "cores", **settings)


def told_by_workers(make_env, what, **settings):
    """What the first env of each worker says about where it runs."""
    num_envs = 4 * (settings.get("workers") or usable_cores())
    factory, settings = callable_factory(make_env), WorkerSettings(**settings)
    with closing(ProcessBackend(factory, num_envs, settings)) as backend:
        backend.reset(0)
        backend.send(np.zeros(len(backend.recv()), np.int64))
        infos = backend.recv().infos
        return [infos[worker.plan.first][what] for worker in backend.pool.workers]


def test_threads_of_a_worker_share_a_core_and_workers_do_not():
    cores = cores_of_workers(TellsItsCores, env_threads=4)
    assert [len(some) for some in cores] == [1] * usable_cores()
    assert len({some[0] for some in cores}) == usable_cores()


def test_without_threads_a_worker_is_free_to_move():
    everywhere = sorted(os.sched_getaffinity(0))
    assert cores_of_workers(TellsItsCores, env_threads=1) == [everywhere] * usable_cores()


def test_envs_with_programs_of_their_own_are_free_to_move():
    everywhere = sorted(os.sched_getaffinity(0))
    assert cores_of_workers(HasProgram, env_threads=4)[0] == everywhere


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="threads all wake up alike here")
def test_threads_of_a_worker_interrupt_nobody_when_they_wake_up():
    assert set(told_by_workers(TellsItsCores, "policy", env_threads=4)) == {os.SCHED_BATCH}
    assert set(told_by_workers(TellsItsCores, "policy", env_threads=1)) == {os.SCHED_OTHER}
    assert set(told_by_workers(HasProgram, "policy", env_threads=4)) == {os.SCHED_OTHER}


def test_fewer_workers_than_cores_leave_the_cores_to_their_envs(monkeypatch):
    monkeypatch.setattr(cpu_affinity, "usable_cores", lambda: 8)
    assert core_for(0, num_workers=7) is None
    assert core_for(0, num_workers=8) in os.sched_getaffinity(0)


def test_programs_that_sit_side_by_side_share_the_cores(monkeypatch):
    monkeypatch.setattr(cpu_affinity, "usable_cores", lambda: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {2, 3, 5, 7})
    monkeypatch.setenv(LOCAL_RANK_VARIABLE, "")
    found = []
    for number in range(2):
        set_local_rank(LocalRank(number, 2))
        found += [core_for(worker, num_workers=2) for worker in range(2)]
    assert found == [2, 3, 5, 7]
    assert core_for(0, num_workers=1) is None


@pytest.mark.parametrize("nonsense", ["1", "a/b", "/2", "1/", "-1/2", "2/2", "0/0"])
def test_a_seat_that_does_not_exist_is_refused(monkeypatch, nonsense):
    monkeypatch.setenv(LOCAL_RANK_VARIABLE, nonsense)
    with pytest.raises(SettingsError, match=rf"must be RANK/COUNT, .* got '{nonsense}'"):
        get_local_rank()


def test_a_worker_that_is_told_nonsense_says_so_to_the_user(monkeypatch):
    monkeypatch.setenv(LOCAL_RANK_VARIABLE, "5")
    with pytest.raises(SettingsError, match=r"must be RANK/COUNT, .* got '5'"):
        ProcessBackend(callable_factory(TellsItsCores), 4)


def test_who_leaves_the_table_is_by_itself(monkeypatch):
    monkeypatch.setenv(LOCAL_RANK_VARIABLE, "")
    set_local_rank(LocalRank(1, 3))
    assert get_local_rank() == LocalRank(1, 3)
    set_local_rank(None)
    assert get_local_rank() is None


def test_programs_are_noticed_until_they_are_over():
    program = subprocess.Popen(["sleep", "1000"])
    try:
        assert has_children()
    finally:
        program.kill()
        program.wait()
