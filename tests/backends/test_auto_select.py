"""What `auto` makes of an env, and what happens where a backend cannot start."""

import os
import resource
import subprocess
import sys
import tempfile
import textwrap
import threading
import warnings
from contextlib import closing
from functools import partial

import numpy as np
import pytest

from helpers import third_party_envs
from hundredfold.backends import make_backend, start_backend
from hundredfold.backends.auto_select import choose_backend, choose_from_costs
from hundredfold.backends.env_profile import StepCosts, barrier_share, measure_steps
from hundredfold.backends.in_process import InProcessBackend
from hundredfold.backends.processes.backend import FirstReadyBackend, ProcessBackend
from hundredfold.backends.settings import WorkerSettings
from hundredfold.core.errors import EnvError
from hundredfold.envs.corridor import Corridor
from hundredfold.envs.gymnasium_env import GymnasiumBatchEnv, GymnasiumFactory
from hundredfold.envs.registry import callable_factory
from hundredfold.profiling.workloads import ComputingEnv, LargeInfoEnv, WaitingEnv

CARTPOLE = GymnasiumFactory("CartPole-v1", {})


def computing(*seconds):
    """A probe of an env that computes for so long, step by step."""
    costs = np.array(seconds)
    return StepCosts(costs, costs, switches=0, step_bytes=100)


def waiting(*seconds):
    """The same for one that waits."""
    costs = np.array(seconds)
    return StepCosts(costs, 0.02 * costs, switches=len(costs), step_bytes=100)


def lognormal(mean, sigma=0.55, steps=400):
    draw = np.random.default_rng(1)
    return draw.lognormal(np.log(mean) - sigma**2 / 2, sigma, steps)


def choice(found, num_envs, cores=2, **settings):
    return choose_from_costs(found, num_envs, WorkerSettings(**settings), cores)


# --- what is chosen, from what was found


def test_cheap_steps_stay_in_this_process():
    found = choice(computing(*[8e-6] * 50), 100)
    assert found.backend == "in_process"
    assert "computes for 8 µs" in found.summary


def test_steps_that_compute_go_to_a_worker_per_core():
    found = choice(computing(*[1e-3] * 50), 100, cores=4)
    assert found.backend == "processes"
    assert found.settings.workers == 4
    assert found.settings.env_threads == 1


def test_few_envs_that_compute_unevenly_do_not_wait_for_each_other():
    found = choice(computing(*[1e-3] * 9, 20e-3), 4)
    assert found.backend == "first_ready"
    assert found.settings.batch_envs == 1
    assert "no two runs are the same" in found.summary


def test_on_one_core_computing_envs_stay_where_they_are():
    assert choice(computing(*[1e-2] * 5), 100, cores=1).backend == "in_process"


def test_envs_that_wait_unevenly_run_first_ready_with_a_thread_each():
    found = choice(waiting(*lognormal(10e-3)), 100)
    assert found.backend == "first_ready"
    assert found.settings.workers == 2
    assert found.settings.env_threads == 50
    assert 1 <= found.settings.batch_envs <= 12
    assert "98 % of it waiting" in found.summary


def test_envs_that_wait_evenly_can_be_waited_for():
    found = choice(waiting(*[10e-3] * 20), 100)
    assert found.backend == "processes"
    assert found.settings.env_threads == 50
    assert found.settings.batch_envs == 0


def test_waiting_envs_gain_from_threads_even_on_one_core():
    found = choice(waiting(*lognormal(10e-3)), 64, cores=1)
    assert found.backend == "first_ready"
    assert found.settings.env_threads == 64


def test_what_the_settings_say_is_kept():
    found = choice(waiting(*lognormal(10e-3)), 100, workers=5, batch_envs=33, env_threads=7)
    assert (found.settings.workers, found.settings.batch_envs) == (5, 33)
    assert found.settings.env_threads == 7


def test_the_slowest_of_many_is_foreseen_from_the_steps_alone():
    steps = lognormal(10e-3, steps=20_000)
    slowest = steps.reshape(-1, 100).max(axis=1).mean()
    assert barrier_share(steps, 100, 1) == pytest.approx(1 - steps.mean() / slowest, abs=0.02)


def test_sums_of_many_steps_differ_less_than_single_ones():
    steps = lognormal(1e-3, steps=20_000)
    sums = steps.reshape(-1, 2, 25).sum(axis=2)
    lost = 1 - sums.mean() / sums.max(axis=1).mean()
    assert barrier_share(steps, 2, 25) == pytest.approx(lost, abs=0.02)
    assert barrier_share(steps, 2, 25) < barrier_share(steps, 2, 1)


def test_even_steps_and_a_single_lane_lose_nothing():
    assert barrier_share(np.full(9, 0.5), 100, 1) == pytest.approx(0.0, abs=1e-12)
    assert barrier_share(lognormal(1.0), 1, 50) == 0.0


# --- what is found


def test_an_env_that_sleeps_is_seen_to_wait():
    with closing(GymnasiumBatchEnv(np.arange(1), WaitingEnv)) as env:
        assert measure_steps(env, steps=4).waits


def test_an_env_that_computes_is_not_taken_for_one_that_waits():
    with closing(GymnasiumBatchEnv(np.arange(1), ComputingEnv)) as env:
        found = measure_steps(env, steps=20, seconds=60)
    assert not found.waits
    assert len(found.seconds) == 20
    # It counts seconds on a core, so this holds on a busy machine, too.
    assert 0.8e-3 < found.costs.min() < found.costs.max()


def test_what_a_step_says_is_counted_without_infos_that_nobody_may_ever_read():
    with closing(GymnasiumBatchEnv(np.arange(1), LargeInfoEnv)) as env:
        shown = sum(array.nbytes for array in env.out.arrays().values())
        assert measure_steps(env, steps=2).step_bytes == shown < 5_000


@pytest.mark.parametrize(
    "make_env", [third_party_envs.MaskInInfo, third_party_envs.MultiDiscreteActions]
)
def test_only_allowed_actions_are_tried(make_env):
    with closing(GymnasiumBatchEnv(np.arange(1), make_env)) as env:
        assert len(measure_steps(env, steps=50, seconds=60).seconds) == 50


def test_an_env_of_ours_is_not_played_at_all():
    class Untouchable(Corridor):
        def reset(self, seed):
            raise AssertionError("it was reset")

    found = choose_backend(Untouchable, 64)
    assert found.backend == "in_process"
    assert "one batch" in found.summary


def test_one_env_runs_where_we_are():
    assert choose_backend(callable_factory(WaitingEnv), 1).backend == "in_process"


def test_auto_starts_what_it_chose_and_says_so():
    backend, found = start_backend("auto", callable_factory(WaitingEnv), 6)
    with closing(backend):
        assert isinstance(backend, FirstReadyBackend)
        assert found.backend == "first_ready"
        backend.reset(3)
        assert len(backend.recv()) == 6


def test_an_explicit_backend_is_not_second_guessed():
    backend, found = start_backend("processes", CARTPOLE, 3)
    with closing(backend):
        assert type(backend) is ProcessBackend
        assert found.backend == "processes"


# --- where it cannot start


def plays_in_process_instead(name, make_envs, settings=None, because=""):
    """Make the backend, play a little, and return what the one warning said."""
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
    (warning,) = caught
    text = str(warning.message)
    assert text.startswith(f"the backend {name} could not start: ")
    assert because in text
    assert "one after another in this process" in text
    return text


@pytest.mark.parametrize("name", ["processes", "first_ready"])
def test_without_fork_the_envs_run_here(monkeypatch, name):
    def refuse():
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    plays_in_process_instead(name, CARTPOLE, because="Resource temporarily unavailable")


@pytest.mark.parametrize("name", ["processes", "first_ready"])
def test_with_too_few_open_files_allowed_the_envs_run_here(name):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 2, hard))
    try:
        text = plays_in_process_instead(name, CARTPOLE, because="Too many open files")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "ulimit" in text


def test_without_shared_memory_the_envs_run_here(monkeypatch, tmp_path):
    def refuse(*arguments):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", refuse)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    plays_in_process_instead("processes", CARTPOLE, because="nowhere")


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_an_env_that_cannot_travel_runs_here(start_method):
    lock = threading.Lock()

    def make_env():
        with lock:
            return third_party_envs.DiceEnv()

    settings = WorkerSettings(start_method=start_method)
    text = plays_in_process_instead(
        "first_ready", callable_factory(make_env), settings, because="cannot be sent to a worker"
    )
    assert "use the start method fork" in text


def test_a_worker_that_dies_while_it_starts_is_no_reason_not_to_train():
    home = os.getpid()

    def make_env():
        if os.getpid() != home:
            os._exit(7)
        return third_party_envs.DiceEnv()

    plays_in_process_instead("processes", callable_factory(make_env), because="exit code 7")


def fails_to_be_made():
    raise ZeroDivisionError("no table to play on")


@pytest.mark.parametrize("name", ["auto", "in_process", "serial", "processes", "first_ready"])
def test_an_env_that_cannot_be_made_is_not_hidden_by_falling_back(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(EnvError, match="could not be created: ZeroDivisionError: no table"):
            make_backend(name, callable_factory(fails_to_be_made), 3)


@pytest.mark.parametrize("backend", ["processes", "auto"])
def test_a_script_without_a_main_guard_plays_once(tmp_path, backend):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""
            from hundredfold.backends import make_backend
            from hundredfold.backends.settings import WorkerSettings
            from hundredfold.profiling.workloads import Waiting
            from hundredfold.envs.registry import callable_factory

            settings = WorkerSettings(start_method="spawn", workers=1)
            envs = make_backend("{backend}", callable_factory(Waiting), 2, settings)
            envs.reset(0)
            print("played with", len(envs.recv()), "envs in", type(envs).__name__)
            envs.close()
        """)
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout == "played with 2 envs in InProcessBackend\n"
    assert done.stderr.count("could not start: ") == 1
    assert "if __name__ == '__main__':" in done.stderr


def test_settings_of_failing_envs_reach_the_backend_that_runs():
    settings = WorkerSettings(on_env_error="restart")
    factory = partial(GymnasiumBatchEnv, make_env=third_party_envs.RaisesInStep)
    with closing(start_backend("auto", factory, 1, settings)[0]) as backend:
        backend.reset(0)
        for _ in range(5):
            backend.recv()
            backend.send(np.zeros(1, np.int64))
        backend.recv()
        assert backend.health()["env_restarts"] == 1
