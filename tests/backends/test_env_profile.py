"""Envs that hang or take their process along, met for the first time by `auto`."""

import ctypes
import faulthandler
import os
import threading
from contextlib import closing
from functools import partial

import numpy as np
import pytest

from helpers import third_party_envs
from hundredfold.backends import auto_select, make_backend
from hundredfold.backends.auto_select import choose_backend, is_built_in, profile_in_worker
from hundredfold.backends.processes.backend import ProcessBackend
from hundredfold.backends.settings import WorkerSettings
from hundredfold.core.errors import EnvError
from hundredfold.envs.corridor import Corridor, CorridorSettings
from hundredfold.envs.gymnasium_env import GymnasiumFactory
from hundredfold.envs.registry import callable_factory
from hundredfold.profiling.workloads import WaitingEnv

HOME = os.getpid()


class HangsAtOnce(third_party_envs.DiceEnv):
    """Does not come back from its first step, wherever it is played first."""

    def step(self, action):
        threading.Event().wait()


class HangsInItsFirstPlay(third_party_envs.DiceEnv):
    """Hangs as long as a file is there, and takes it away: the next to be made is well."""

    def __init__(self, sign):
        super().__init__()
        self.sign = sign

    def step(self, action):
        if self.sign.exists():
            self.sign.unlink()
            threading.Event().wait()
        return super().step(action)


def crash():
    """A real segmentation fault, of a process that is not the one the tests run in."""
    assert os.getpid() != HOME, "it was made in this process"
    faulthandler.disable()
    ctypes.string_at(0)


class CrashesWhenMade(third_party_envs.DiceEnv):
    def __init__(self):
        super().__init__()
        crash()


class CrashesInStep(third_party_envs.DiceEnv):
    def step(self, action):
        crash()


def test_an_env_is_measured_in_another_process():
    places = []

    def make_env():
        places.append(os.getpid())
        return WaitingEnv()

    found = profile_in_worker(callable_factory(make_env), WorkerSettings())
    assert found.is_per_env
    assert found.step_costs is not None
    assert found.step_costs.waits
    assert places == []


def test_a_hanging_env_does_not_hang_the_choice():
    settings = WorkerSettings(step_timeout=0.3)
    found = choose_backend(callable_factory(HangsAtOnce), 4, settings)
    assert found.backend == "processes"
    assert "a first step took more than 0.3 seconds" in found.summary
    assert found.settings.step_timeout == 0.3


def test_training_begins_after_an_env_has_hung_in_its_first_steps(tmp_path):
    sign = tmp_path / "hang"
    sign.touch()
    factory = callable_factory(partial(HangsInItsFirstPlay, sign))
    with closing(make_backend("auto", factory, 4, WorkerSettings(step_timeout=2.0))) as backend:
        assert type(backend) is ProcessBackend
        assert not sign.exists()
        backend.reset(0)
        backend.send(np.zeros(len(backend.recv()), np.int64))
        assert len(backend.recv()) == 4
        assert backend.health()["worker_restarts"] == 0


@pytest.mark.parametrize("name", ["auto", "processes", "first_ready"])
def test_an_env_that_crashes_when_made_is_told_by_its_signal_and_not_made_here(name):
    with pytest.raises(EnvError, match="SIGSEGV") as raised:
        make_backend(name, callable_factory(CrashesWhenMade), 3)
    assert "in_process" in str(raised.value)


def test_an_env_that_crashes_in_its_first_step_is_told_by_its_signal():
    with pytest.raises(EnvError, match=r"env 0 was in step\(\) or reset\(\).*SIGSEGV"):
        choose_backend(callable_factory(CrashesInStep), 3)


def test_where_no_worker_can_start_the_env_is_measured_here(monkeypatch):
    def refuse():
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    found = choose_backend(GymnasiumFactory("CartPole-v1", {}), 8, WorkerSettings())
    assert found.backend == "in_process"
    assert "computes for" in found.summary


def test_an_env_of_ours_starts_no_worker(monkeypatch):
    monkeypatch.setattr(auto_select, "profile_in_worker", None)
    make_envs = partial(Corridor, settings=CorridorSettings())
    assert is_built_in(make_envs)
    assert choose_backend(make_envs, 8).backend == "in_process"


def test_a_function_may_turn_out_to_make_an_env_of_ours():
    def make_envs(env_ids):
        return Corridor(env_ids)

    assert not is_built_in(make_envs)
    assert "one batch" in choose_backend(make_envs, 8).summary


def test_other_peoples_envs_are_never_taken_for_ours():
    assert not is_built_in(callable_factory(WaitingEnv))
    assert not is_built_in(GymnasiumFactory("CartPole-v1", {}))
