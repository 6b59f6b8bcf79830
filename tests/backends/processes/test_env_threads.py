"""Envs in threads: one thread for the whole life of an env, or none where it needs the main thread."""

import os
import signal
from contextlib import closing
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import hundredfold
from helpers import third_party_envs
from helpers.cases import ENV_CASES
from hundredfold.backends import make_backend, start_backend
from hundredfold.backends.auto_select import MAX_WAITING_WORKERS, choose_backend, choose_from_profile
from hundredfold.backends.env_profile import EnvProfile, StepCosts
from hundredfold.backends.processes.backend import FirstReadyBackend, ProcessBackend
from hundredfold.backends.settings import WorkerSettings
from hundredfold.config.presets import preset_settings
from hundredfold.core.errors import EnvError, SettingsError
from hundredfold.envs.registry import callable_factory
from hundredfold.training.evaluate import evaluation_backend

NUM_ENVS = 6
SEED = 5

pytestmark = pytest.mark.process

THREAD_BOUND = [third_party_envs.HoldsDatabase, third_party_envs.HoldsEventLoop, third_party_envs.ThreadBoundEnv]


def step(backend, steps):
    """Step all envs some times; returns the names of the threads of each env."""
    threads = [set() for _ in range(NUM_ENVS)]
    for _ in range(steps):
        batch = backend.recv()
        for env_id, info in zip(batch.env_ids.tolist(), batch.infos, strict=True):
            threads[env_id].add(info["thread"])
        backend.send(np.zeros(len(batch), np.int64))
    backend.recv()
    return threads


def threaded(make_env, **settings):
    """Two workers of three envs, in a thread each."""
    settings = WorkerSettings(workers=2, env_threads=3, **settings)
    return ProcessBackend(callable_factory(make_env), NUM_ENVS, settings)


@pytest.mark.parametrize("make_env", THREAD_BOUND)
@pytest.mark.parametrize("name", ["auto", "processes", "first_ready"])
def test_envs_that_wait_and_are_bound_to_a_thread_run_in_threads(name, make_env):
    settings = WorkerSettings(workers=2, on_env_error="stop", batch_envs=0 if name == "first_ready" else NUM_ENVS)
    with closing(make_backend(name, callable_factory(make_env), NUM_ENVS, settings)) as backend:
        backend.reset(SEED)
        threads = step(backend, 80 if name == "first_ready" else 20)
        assert all(len(names) == 1 for names in threads)
        assert "MainThread" not in set.union(*threads)
        backend.reset(SEED + 1)
        assert backend.health()["env_failures"] == 0


def test_a_failed_env_is_recreated_in_its_thread():
    with closing(threaded(third_party_envs.FailsAndHoldsDatabase)) as backend:
        backend.reset(SEED)
        step(backend, 30)
        failures = backend.recent_failures
        assert len(failures) > NUM_ENVS
        assert {"failed in step 4" in str(failure) for failure in failures} == {True}


def test_restored_envs_and_those_of_a_replaced_worker_stay_in_their_threads():
    with closing(threaded(third_party_envs.HoldsDatabase)) as backend:
        backend.reset(SEED)
        step(backend, 5)
        state = backend.state()
        with pytest.warns(UserWarning, match="cannot continue in the middle"):
            backend.restore(state)
        threads = step(backend, 5)
        os.kill(backend.pool.workers[0].process.pid, signal.SIGKILL)
        backend.send(np.zeros(NUM_ENVS, np.int64))
        threads += step(backend, 5)
        assert all(len(names) == 1 for names in threads)
        assert backend.health()["worker_restarts"] == 1
        assert {"SIGKILL" in str(failure) for failure in backend.recent_failures} == {True}


def test_envs_are_closed_in_their_threads(tmp_path):
    with closing(threaded(partial(third_party_envs.RecordsClosingThread, tmp_path))) as backend:
        backend.reset(SEED)
    assert {path.name for path in tmp_path.iterdir()} == {"envs 0", "envs 1", "envs 2"}


def test_a_thread_may_own_several_envs():
    settings = WorkerSettings(workers=1, env_threads=2, on_env_error="stop")
    make_envs = callable_factory(third_party_envs.ThreadBoundEnv)
    with closing(ProcessBackend(make_envs, NUM_ENVS, settings)) as backend:
        backend.reset(SEED)
        assert step(backend, 12) == [{"envs 0"}] * 3 + [{"envs 1"}] * 3


def test_built_in_envs_get_no_threads():
    with closing(ProcessBackend(ENV_CASES["cartpole"], 4, WorkerSettings(workers=2, env_threads=2))) as backend:
        assert not backend.pool.is_per_env
        backend.reset(SEED)
        assert len(backend.recv()) == 4


# --- envs that need the main thread


def test_waiting_envs_that_need_the_main_thread_get_more_workers_and_no_threads():
    make_envs = callable_factory(third_party_envs.SetsSignalHandler)
    settings = WorkerSettings(on_env_error="stop", batch_envs=NUM_ENVS)
    backend, choice = start_backend("auto", make_envs, NUM_ENVS, settings)
    with closing(backend):
        assert (choice.settings.workers, choice.settings.env_threads) == (NUM_ENVS, 1)
        assert "it fails in a thread" in choice.summary
        backend.reset(SEED)
        assert set.union(*step(backend, 5)) == {"MainThread"}
    costs = StepCosts(np.full(9, 0.01), np.full(9, 1e-5), switches=9, step_bytes=10)
    profile = EnvProfile(backend.spec, is_per_env=True, step_costs=costs, needs_main_thread=True)
    assert choose_from_profile(profile, 500, WorkerSettings()).settings.workers == MAX_WAITING_WORKERS
    assert choose_from_profile(profile, 500, WorkerSettings(workers=3)).settings.workers == 3


def test_without_auto_they_get_no_threads_either():
    make_envs = callable_factory(third_party_envs.SetsSignalHandler)
    settings = WorkerSettings(workers=2, on_env_error="stop", batch_envs=NUM_ENVS)
    with closing(FirstReadyBackend(make_envs, NUM_ENVS, settings)) as backend:
        backend.reset(SEED)
        assert set.union(*step(backend, 5)) == {"MainThread"}


def test_an_env_that_fails_now_and_then_still_gets_threads():
    make_envs = callable_factory(third_party_envs.FailsAndHoldsDatabase)
    with pytest.warns(UserWarning, match="while it was profiled"):
        found = choose_backend(make_envs, NUM_ENVS, WorkerSettings(workers=2))
    assert found.settings.env_threads == 3


def test_the_error_names_the_setting_that_helps():
    with closing(threaded(third_party_envs.SetsSignalHandler, on_env_error="stop")) as backend:
        backend.reset(SEED)
        with pytest.raises(EnvError, match=r"main thread.*use --env-threads 1"):
            step(backend, 1)


def test_make_vec_takes_the_setting_that_helps():
    workers = {"workers": 2, "env_threads": 1, "on_env_error": "stop"}
    make = partial(hundredfold.make_vec, third_party_envs.SetsSignalHandler, NUM_ENVS, backend="processes")
    with closing(make(worker_settings=workers)) as envs:
        envs.reset(seed=SEED)
        assert set(envs.step(np.zeros(NUM_ENVS, int))[-1]["thread"]) == {"MainThread"}
    with pytest.raises(SettingsError, match="no entry 'env_thread'; did you mean env_threads"):
        make(worker_settings={"env_thread": 1})


@pytest.mark.parametrize(("training", "evaluation"), [(0, 0), (1, 1), (4, 512)])
def test_evaluation_has_threads_where_training_has(training, evaluation):
    settings = replace(preset_settings("CartPole-v1"), processes=WorkerSettings(env_threads=training))
    *_, workers = evaluation_backend(settings, ENV_CASES["CartPole-v1"], 9)
    assert workers.env_threads == evaluation
