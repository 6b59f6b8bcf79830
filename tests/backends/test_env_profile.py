"""Profiling in a worker: envs that hang or crash their process."""

import ctypes
import faulthandler
import os
import threading
from contextlib import closing
from functools import partial

import numpy as np
import pytest

import hundredfold
from helpers import third_party_envs
from helpers.hangs import announce_hang
from helpers.processes import has_ended, wait_until
from hundredfold.backends import auto_select, make_backend
from hundredfold.backends.auto_select import choose_backend, is_built_in, profile_env, profile_in_worker
from hundredfold.backends.processes.backend import ProcessBackend
from hundredfold.backends.settings import WorkerSettings, usable_cores
from hundredfold.core.errors import EnvError
from hundredfold.envs.corridor import Corridor, CorridorSettings
from hundredfold.envs.gymnasium_factory import GymnasiumFactory
from hundredfold.envs.registry import callable_factory
from hundredfold.profiling.workloads import WaitingEnv

pytestmark = pytest.mark.process

TEST_PID = os.getpid()


class HangsInStep(third_party_envs.DiceEnv):
    """Does not return from its first step."""

    def step(self, action):
        announce_hang()
        threading.Event().wait()


class HangsWhileFileExists(third_party_envs.DiceEnv):
    """Hangs if a file exists, and deletes it: the next instance does not hang."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def step(self, action):
        if self.path.exists():
            self.path.unlink()
            announce_hang()
            threading.Event().wait()
        return super().step(action)


def crash():
    """A real segmentation fault, in a process other than that of the tests."""
    assert os.getpid() != TEST_PID, "the env was created in the process of the tests"
    faulthandler.disable()
    ctypes.string_at(0)


class CrashesInConstructor(third_party_envs.DiceEnv):
    def __init__(self):
        super().__init__()
        crash()


class CrashesInStep(third_party_envs.DiceEnv):
    def step(self, action):
        crash()


def test_an_env_is_profiled_in_another_process():
    pids = []

    def make_env():
        pids.append(os.getpid())
        return WaitingEnv()

    found = profile_in_worker(callable_factory(make_env), WorkerSettings())
    assert found.is_per_env
    assert found.step_costs is not None
    assert found.step_costs.waits
    assert pids == []


@pytest.mark.parametrize(
    "make_env",
    [
        getattr(third_party_envs, name)
        for name in ("TupleActions", "NestedActions", "NestedBoxActions", "IntegerBoxActions")
    ],
)
def test_envs_with_any_actions_are_profiled(make_env):
    found = profile_env(callable_factory(make_env), WorkerSettings(), in_worker=False)
    assert found.num_failures == 0
    assert found.step_costs is not None


@pytest.mark.parametrize("own_session", [False, True])
def test_cheap_envs_that_start_programs_get_workers_which_end_them(tmp_path, own_session):
    make_env = partial(third_party_envs.StartsSubprocess, tmp_path, own_session)
    with closing(make_backend("auto", callable_factory(make_env), 4)) as backend:
        assert type(backend) is ProcessBackend
        backend.reset(0)
        backend.recv()
        pids = [int(path.name) for path in tmp_path.iterdir()]
        assert sum(not has_ended(pid) for pid in pids) == 4
    wait_until(lambda: all(map(has_ended, pids)))


def test_the_choice_names_the_programs_that_an_env_starts(tmp_path):
    found = choose_backend(callable_factory(partial(third_party_envs.StartsSubprocess, tmp_path)), 4)
    assert (found.backend, found.settings.workers) == ("processes", min(usable_cores(), 4))
    assert "it starts other programs" in found.summary


@pytest.mark.usefixtures("only_hung_envs_time_out")
def test_a_hanging_env_does_not_block_the_choice():
    settings = WorkerSettings(step_timeout=0.3)
    found = choose_backend(callable_factory(HangsInStep), 4, settings)
    assert found.backend == "processes"
    assert "a first step took more than 0.3 seconds" in found.summary
    assert found.settings.step_timeout == 0.3


@pytest.mark.usefixtures("only_hung_envs_time_out")
def test_a_backend_starts_after_an_env_hung_while_profiled(tmp_path):
    path = tmp_path / "hang"
    path.touch()
    factory = callable_factory(partial(HangsWhileFileExists, path))
    with closing(make_backend("auto", factory, 4)) as backend:
        assert type(backend) is ProcessBackend
        assert not path.exists()
        backend.reset(0)
        backend.send(np.zeros(len(backend.recv()), np.int64))
        assert len(backend.recv()) == 4
        assert backend.health()["worker_restarts"] == 0


@pytest.mark.parametrize("name", ["auto", "processes", "first_ready"])
def test_a_crash_in_a_constructor_is_reported_with_its_signal_and_not_retried_here(name):
    with pytest.raises(EnvError, match="SIGSEGV") as raised:
        make_backend(name, callable_factory(CrashesInConstructor), 3)
    assert "in_process" in str(raised.value)


class FailsWhileFileExists(third_party_envs.DiceEnv):
    """Calls `fail` if a file exists, and deletes it: the next instance does not fail."""

    def __init__(self, path, fail):
        self.path, self.fail = path, fail

    def step(self, action):
        if self.path.exists():
            self.path.unlink()
            self.fail()
        return super().step(action)


def failing_once(tmp_path, fail):
    path = tmp_path / "fail"
    path.touch()
    return partial(FailsWhileFileExists, path, fail)


def divide_by_zero():
    return 1 / 0


def test_a_crash_while_profiled_ends_the_run_if_failures_are_to_end_it():
    for settings in (WorkerSettings(on_env_error="stop"), WorkerSettings(max_env_failures=1)):
        with pytest.raises(EnvError, match=r"env 0 was in step\(\) or reset\(\).*SIGSEGV"):
            choose_backend(callable_factory(CrashesInStep), 3, settings)


def test_an_env_that_always_crashes_while_profiled_gets_workers_and_a_warning():
    with pytest.warns(UserWarning, match=r"failed 3 times while it was profiled.*env 0 was in step.*SIGSEGV"):
        found = choose_backend(callable_factory(CrashesInStep), 3)
    assert found.backend == "processes"
    assert "it failed whenever it was profiled" in found.summary


def test_an_env_that_crashed_once_is_profiled_again(tmp_path):
    with pytest.warns(UserWarning, match=r"failed once while it was profiled.*SIGSEGV"):
        profile = profile_env(callable_factory(failing_once(tmp_path, crash)), WorkerSettings())
    assert profile.step_costs is not None


@pytest.mark.parametrize("in_worker", [True, False])
def test_an_env_that_raised_while_profiled_is_reported(tmp_path, in_worker):
    make_envs = callable_factory(failing_once(tmp_path, divide_by_zero))
    with pytest.warns(UserWarning, match=r"failed once while it was profiled.*ZeroDivisionError"):
        profile = profile_env(make_envs, WorkerSettings(), in_worker=in_worker)
    assert profile.step_costs is not None


def test_a_training_starts_although_its_env_crashed_while_profiled(tmp_path):
    with pytest.warns(UserWarning, match="failed once while it was profiled"):
        run = hundredfold.train(
            failing_once(tmp_path, crash), steps=64, num_steps=8, save_dir=tmp_path, report=False, eval_interval=0
        )
    assert run.finished


def test_an_env_is_profiled_in_process_if_no_worker_can_start(monkeypatch):
    def refuse():
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    found = choose_backend(GymnasiumFactory("CartPole-v1", {}), 8, WorkerSettings())
    assert found.backend == "in_process"
    assert "computes for" in found.summary


def test_a_built_in_env_starts_no_worker(monkeypatch):
    monkeypatch.setattr(auto_select, "profile_in_worker", None)
    make_envs = partial(Corridor, settings=CorridorSettings())
    assert is_built_in(make_envs)
    assert choose_backend(make_envs, 8).backend == "in_process"


def test_a_function_may_make_a_built_in_env():
    def make_envs(env_ids):
        return Corridor(env_ids)

    assert not is_built_in(make_envs)
    assert "one batch" in choose_backend(make_envs, 8).summary


def test_third_party_envs_are_not_taken_for_built_in_ones():
    assert not is_built_in(callable_factory(WaitingEnv))
    assert not is_built_in(GymnasiumFactory("CartPole-v1", {}))
