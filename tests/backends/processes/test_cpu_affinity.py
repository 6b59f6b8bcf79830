"""CPU affinity of worker threads and local ranks of programs that share a machine."""

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
    core_for_worker,
    get_local_rank,
    has_children,
    set_local_rank,
)
from hundredfold.backends.settings import WorkerSettings, usable_cores
from hundredfold.core.errors import SettingsError
from hundredfold.envs.registry import callable_factory

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no CPU affinity on this system"),
]


class ReportsCores(third_party_envs.DiceEnv):
    """Reports its affinity and scheduling policy in its info."""

    def step(self, action):
        *outputs, info = super().step(action)
        affinity = {"cores": sorted(os.sched_getaffinity(0)), "policy": os.sched_getscheduler(0)}
        return *outputs, {**info, **affinity}


class WithSubprocess(ReportsCores):
    """The same, with a running subprocess."""

    def __init__(self):
        super().__init__()
        self.process = subprocess.Popen(["sleep", "1000"])

    def close(self):
        self.process.kill()
        self.process.wait()


def cores_of_workers(make_env, **settings):
    """The cores that the first env of each worker may use."""
    return reported_by_workers(make_env, "cores", **settings)


def reported_by_workers(make_env, key, **settings):
    """A value from the info of the first env of each worker."""
    num_envs = 4 * (settings.get("workers") or usable_cores())
    factory, settings = callable_factory(make_env), WorkerSettings(**settings)
    with closing(ProcessBackend(factory, num_envs, settings)) as backend:
        backend.reset(0)
        backend.send(np.zeros(len(backend.recv()), np.int64))
        infos = backend.recv().infos
        return [infos[worker.shard.first][key] for worker in backend.pool.workers]


def test_threads_of_a_worker_share_a_core_and_workers_do_not_share_cores():
    cores = cores_of_workers(ReportsCores, env_threads=4)
    assert [len(cores_of_worker) for cores_of_worker in cores] == [1] * usable_cores()
    assert len({cores_of_worker[0] for cores_of_worker in cores}) == usable_cores()


def test_a_worker_without_threads_is_not_pinned():
    all_cores = sorted(os.sched_getaffinity(0))
    assert cores_of_workers(ReportsCores, env_threads=1) == [all_cores] * usable_cores()


def test_a_worker_whose_envs_have_subprocesses_is_not_pinned():
    all_cores = sorted(os.sched_getaffinity(0))
    assert cores_of_workers(WithSubprocess, env_threads=4)[0] == all_cores


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="no SCHED_BATCH on this system")
def test_threads_of_a_worker_use_batch_scheduling():
    assert set(reported_by_workers(ReportsCores, "policy", env_threads=4)) == {os.SCHED_BATCH}
    assert set(reported_by_workers(ReportsCores, "policy", env_threads=1)) == {os.SCHED_OTHER}
    assert set(reported_by_workers(WithSubprocess, "policy", env_threads=4)) == {os.SCHED_OTHER}


def test_fewer_workers_than_cores_are_not_pinned(monkeypatch):
    monkeypatch.setattr(cpu_affinity, "usable_cores", lambda: 8)
    assert core_for_worker(0, num_workers=7) is None
    assert core_for_worker(0, num_workers=8) in os.sched_getaffinity(0)


def test_local_ranks_share_the_cores(monkeypatch):
    monkeypatch.setattr(cpu_affinity, "usable_cores", lambda: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {2, 3, 5, 7})
    monkeypatch.setenv(LOCAL_RANK_VARIABLE, "")
    found = []
    for number in range(2):
        set_local_rank(LocalRank(number, 2))
        found += [core_for_worker(worker, num_workers=2) for worker in range(2)]
    assert found == [2, 3, 5, 7]
    assert core_for_worker(0, num_workers=1) is None


@pytest.mark.parametrize("value", ["1", "a/b", "/2", "1/", "-1/2", "2/2", "0/0"])
def test_an_invalid_local_rank_is_refused(monkeypatch, value):
    monkeypatch.setenv(LOCAL_RANK_VARIABLE, value)
    with pytest.raises(SettingsError, match=rf"must be RANK/COUNT, .* got '{value}'"):
        get_local_rank()


def test_an_invalid_local_rank_is_reported_by_the_backend(monkeypatch):
    monkeypatch.setenv(LOCAL_RANK_VARIABLE, "5")
    with pytest.raises(SettingsError, match=r"must be RANK/COUNT, .* got '5'"):
        ProcessBackend(callable_factory(ReportsCores), 4)


def test_a_local_rank_can_be_set_and_removed(monkeypatch):
    monkeypatch.setenv(LOCAL_RANK_VARIABLE, "")
    set_local_rank(LocalRank(1, 3))
    assert get_local_rank() == LocalRank(1, 3)
    set_local_rank(None)
    assert get_local_rank() is None


def test_has_children_is_true_while_a_subprocess_runs():
    process = subprocess.Popen(["sleep", "1000"])
    try:
        assert has_children()
    finally:
        process.kill()
        process.wait()
