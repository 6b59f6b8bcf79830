"""The choice of `auto`, and the fallback where a backend cannot start."""

import os
import resource
import sys
import tempfile
import textwrap
import threading
import time
import warnings
from contextlib import closing
from functools import partial

import numpy as np
import pytest

from helpers import third_party_envs
from helpers.processes import run_process
from hundredfold.backends import make_backend, start_backend
from hundredfold.backends.auto_select import choose_backend, choose_from_costs
from hundredfold.backends.env_profile import StepCosts, barrier_share, measure_steps
from hundredfold.backends.in_process import InProcessBackend
from hundredfold.backends.processes.backend import FirstReadyBackend, ProcessBackend
from hundredfold.backends.settings import WorkerSettings
from hundredfold.core.errors import EnvError
from hundredfold.envs.corridor import Corridor
from hundredfold.envs.gymnasium_env import GymnasiumBatchEnv
from hundredfold.envs.gymnasium_factory import GymnasiumFactory
from hundredfold.envs.registry import callable_factory
from hundredfold.profiling.workloads import ComputingEnv, LargeInfoEnv, WaitingEnv

pytestmark = pytest.mark.process

CARTPOLE = GymnasiumFactory("CartPole-v1", {})


def computing(*seconds):
    """Costs of an env whose steps compute for these times."""
    costs = np.array(seconds)
    return StepCosts(costs, costs, switches=0, step_bytes=100)


def waiting(*seconds):
    """Costs of an env whose steps wait for these times."""
    costs = np.array(seconds)
    return StepCosts(costs, 0.02 * costs, switches=len(costs), step_bytes=100)


def lognormal(mean, sigma=0.55, steps=400):
    draw = np.random.default_rng(1)
    return draw.lognormal(np.log(mean) - sigma**2 / 2, sigma, steps)


def choice(found, num_envs, cores=2, **settings):
    return choose_from_costs(found, num_envs, WorkerSettings(**settings), cores)


# --- choice from measured costs


def test_cheap_steps_run_in_process():
    found = choice(computing(*[8e-6] * 50), 100)
    assert found.backend == "in_process"
    assert "computes for 8 µs" in found.summary


def test_computing_steps_get_one_worker_per_core():
    found = choice(computing(*[1e-3] * 50), 100, cores=4)
    assert found.backend == "processes"
    assert found.settings.workers == 4
    assert found.settings.env_threads == 1


def test_few_envs_with_uneven_compute_times_run_first_ready():
    found = choice(computing(*[1e-3] * 9, 20e-3), 4)
    assert found.backend == "first_ready"
    assert found.settings.batch_envs == 1
    assert "no two runs are the same" in found.summary


def test_computing_envs_run_in_process_on_one_core():
    assert choice(computing(*[1e-2] * 5), 100, cores=1).backend == "in_process"


def test_envs_with_uneven_waiting_times_run_first_ready_with_one_thread_each():
    found = choice(waiting(*lognormal(10e-3)), 100)
    assert found.backend == "first_ready"
    assert found.settings.workers == 2
    assert found.settings.env_threads == 50
    assert 1 <= found.settings.batch_envs <= 12
    assert "98 % of it waiting" in found.summary


def test_envs_with_even_waiting_times_run_in_processes():
    found = choice(waiting(*[10e-3] * 20), 100)
    assert found.backend == "processes"
    assert found.settings.env_threads == 50
    assert found.settings.batch_envs == 0


def test_envs_that_are_all_waited_for_run_in_processes():
    found = choice(waiting(*lognormal(10e-3)), 100, batch_envs=100)
    assert found.backend == "processes"
    assert found.settings.env_threads == 50
    assert "no two runs" not in found.summary


def test_waiting_envs_gain_from_threads_even_on_one_core():
    found = choice(waiting(*lognormal(10e-3)), 64, cores=1)
    assert found.backend == "first_ready"
    assert found.settings.env_threads == 64


def test_explicit_settings_are_kept():
    found = choice(waiting(*lognormal(10e-3)), 100, workers=5, batch_envs=33, env_threads=7)
    assert (found.settings.workers, found.settings.batch_envs) == (5, 33)
    assert found.settings.env_threads == 7


def test_barrier_share_predicts_the_maximum_of_single_steps():
    steps = lognormal(10e-3, steps=20_000)
    slowest = steps.reshape(-1, 100).max(axis=1).mean()
    assert barrier_share(steps, 100, 1) == pytest.approx(1 - steps.mean() / slowest, abs=0.02)


def test_barrier_share_predicts_the_maximum_of_sums_of_steps():
    steps = lognormal(1e-3, steps=20_000)
    sums = steps.reshape(-1, 2, 25).sum(axis=2)
    lost = 1 - sums.mean() / sums.max(axis=1).mean()
    assert barrier_share(steps, 2, 25) == pytest.approx(lost, abs=0.02)
    assert barrier_share(steps, 2, 25) < barrier_share(steps, 2, 1)


def test_barrier_share_is_zero_for_even_steps_or_a_single_lane():
    assert barrier_share(np.full(9, 0.5), 100, 1) == pytest.approx(0.0, abs=1e-12)
    assert barrier_share(lognormal(1.0), 1, 50) == 0.0


# --- measured costs


def wait_until_idle():
    """Threads of native libraries spin for a moment after the work of an earlier test; their CPU time counts."""
    used = 1.0
    while used > 1e-3:
        before = time.process_time()
        time.sleep(0.05)
        used = time.process_time() - before


def test_a_sleeping_env_is_classified_as_waiting():
    wait_until_idle()
    with closing(GymnasiumBatchEnv(np.arange(1), WaitingEnv)) as env:
        assert measure_steps(env, steps=4).waits


def test_a_computing_env_is_not_classified_as_waiting():
    with closing(GymnasiumBatchEnv(np.arange(1), ComputingEnv)) as env:
        found = measure_steps(env, steps=20, seconds=60)
    assert not found.waits
    assert len(found.seconds) == 20
    # CPU seconds are counted, so this holds on a busy machine, too.
    assert 0.8e-3 < found.costs.min() < found.costs.max()


def test_step_bytes_exclude_infos():
    with closing(GymnasiumBatchEnv(np.arange(1), LargeInfoEnv)) as env:
        shown = sum(array.nbytes for array in env.out.arrays().values())
        assert measure_steps(env, steps=2).step_bytes == shown < 5_000


@pytest.mark.parametrize("make_env", [third_party_envs.MaskInInfo, third_party_envs.MultiDiscreteActions])
def test_profiling_takes_allowed_actions_only(make_env):
    with closing(GymnasiumBatchEnv(np.arange(1), make_env)) as env:
        assert len(measure_steps(env, steps=50, seconds=60).seconds) == 50


def test_a_built_in_env_is_not_profiled():
    class Untouchable(Corridor):
        def reset(self, seed):
            raise AssertionError("the env was reset")

    found = choose_backend(Untouchable, 64)
    assert found.backend == "in_process"
    assert "one batch" in found.summary


def test_a_single_env_runs_in_process():
    assert choose_backend(callable_factory(WaitingEnv), 1).backend == "in_process"


def test_auto_starts_and_returns_its_choice():
    backend, found = start_backend("auto", callable_factory(WaitingEnv), 6)
    with closing(backend):
        assert isinstance(backend, FirstReadyBackend)
        assert found.backend == "first_ready"
        backend.reset(3)
        assert len(backend.recv()) == 6


def test_an_explicit_backend_is_used_as_given():
    backend, found = start_backend("processes", CARTPOLE, 3)
    with closing(backend):
        assert type(backend) is ProcessBackend
        assert found.backend == "processes"


# --- fallback


def falls_back_to_in_process(name, make_envs, settings=None, because=""):
    """Start the backend, take some steps, and return the text of the one warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        backend, found = start_backend(name, make_envs, 4, settings)
    with closing(backend):
        assert isinstance(backend, InProcessBackend)
        assert found.backend == "in_process"
        backend.reset(1)
        for _ in range(3):
            backend.send(np.zeros(len(backend.recv()), np.int64))
        assert len(backend.recv()) == 4
    # From Python 3.12 on, a fork beside threads that other tests left gives a DeprecationWarning.
    (text,) = [str(warning.message) for warning in caught if warning.category is not DeprecationWarning]
    assert text.startswith(f"the backend {name} could not start: ")
    assert because in text
    assert "one after another in this process" in text
    return text


@pytest.mark.parametrize("name", ["processes", "first_ready"])
def test_fallback_to_in_process_if_fork_fails(monkeypatch, name):
    def refuse():
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    falls_back_to_in_process(name, CARTPOLE, because="Resource temporarily unavailable")


@pytest.mark.parametrize("name", ["processes", "first_ready"])
def test_fallback_to_in_process_if_too_few_files_may_be_open(name):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 2, hard))
    try:
        text = falls_back_to_in_process(name, CARTPOLE, because="Too many open files")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "ulimit" in text


def test_fallback_to_in_process_without_shared_memory(monkeypatch, tmp_path):
    def refuse(*arguments):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", refuse)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    falls_back_to_in_process("processes", CARTPOLE, because="nowhere")


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_fallback_to_in_process_if_the_env_cannot_be_pickled(start_method):
    lock = threading.Lock()

    def make_env():
        with lock:
            return third_party_envs.DiceEnv()

    settings = WorkerSettings(start_method=start_method)
    text = falls_back_to_in_process("first_ready", callable_factory(make_env), settings, because="cannot be pickled")
    assert "use --start-method fork" in text


def test_fallback_to_in_process_if_a_worker_dies_while_starting():
    home = os.getpid()

    def make_env():
        if os.getpid() != home:
            os._exit(7)
        return third_party_envs.DiceEnv()

    falls_back_to_in_process("processes", callable_factory(make_env), because="exit code 7")


def failing_constructor():
    raise ZeroDivisionError("no table")


@pytest.mark.parametrize("name", ["auto", "in_process", "serial", "processes", "first_ready"])
def test_constructor_errors_of_envs_are_raised(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(EnvError, match="could not be created: ZeroDivisionError: no table"):
            make_backend(name, callable_factory(failing_constructor), 3)


@pytest.mark.parametrize("backend", ["processes", "auto"])
def test_a_script_without_a_main_guard_runs_once(tmp_path, backend):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
            from hundredfold.backends import make_backend
            from hundredfold.backends.settings import WorkerSettings
            from hundredfold.profiling.workloads import WaitingEnv
            from hundredfold.envs.registry import callable_factory

            settings = WorkerSettings(start_method="spawn", workers=1)
            envs = make_backend("{backend}", callable_factory(WaitingEnv), 2, settings)
            envs.reset(0)
            print("stepped", len(envs.recv()), "envs in", type(envs).__name__)
            envs.close()
        """)
    )
    done = run_process([sys.executable, script])
    assert done.stdout == "stepped 2 envs in InProcessBackend\n"
    assert done.stderr.count("could not start: ") == 1
    assert "if __name__ == '__main__':" in done.stderr


def test_the_restart_policy_reaches_the_chosen_backend():
    settings = WorkerSettings(on_env_error="restart")
    factory = partial(GymnasiumBatchEnv, make_env=third_party_envs.RaisesInStep)
    with closing(start_backend("auto", factory, 1, settings)[0]) as backend:
        backend.reset(0)
        for _ in range(5):
            backend.recv()
            backend.send(np.zeros(1, np.int64))
        backend.recv()
        assert backend.health()["env_restarts"] == 1
