"""Process backend: start methods, infos, ranges and groups."""

import os
import sys
import threading
from contextlib import closing
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from helpers import third_party_envs
from helpers.cases import ENV_CASES
from helpers.processes import run_process
from helpers.trajectories import assert_same_trajectory, record_trajectory
from hundredfold.backends.in_process import SerialBackend
from hundredfold.backends.processes.backend import ProcessBackend
from hundredfold.backends.processes.channel import RANGE
from hundredfold.backends.processes.env_shards import group_edges
from hundredfold.backends.processes.shared_memory import INFO_SLOT_BYTES
from hundredfold.backends.processes.worker_pool import pack_ranges
from hundredfold.backends.settings import WorkerSettings
from hundredfold.core.errors import SettingsError, WorkerError
from hundredfold.envs.corridor import Corridor
from hundredfold.envs.gymnasium_env import GymnasiumBatchEnv

SEED = 7
NUM_ENVS = 5
TESTS = Path(__file__).parents[2]

pytestmark = pytest.mark.process

each_start_method = pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])


def process_backend(make_envs=Corridor, num_envs=NUM_ENVS, **settings):
    return ProcessBackend(make_envs, num_envs, WorkerSettings(**settings))


def make_batch(make_env):
    return partial(GymnasiumBatchEnv, make_env=make_env)


# --- starting


@each_start_method
def test_the_start_method_does_not_change_trajectories(method):
    make_envs = ENV_CASES["third_party_masked"]
    with closing(SerialBackend(make_envs, NUM_ENVS)) as backend:
        expected = record_trajectory(backend, SEED, 20)
    with closing(process_backend(make_envs, workers=2, start_method=method)) as backend:
        assert_same_trajectory(record_trajectory(backend, SEED, 20), expected)


FORK_SERVER_OF_THE_PROGRAM = """
import multiprocessing, signal
from contextlib import closing
from multiprocessing import resource_tracker
from hundredfold.backends.processes.backend import ProcessBackend
from hundredfold.backends.settings import WorkerSettings
from hundredfold.envs.corridor import Corridor

def send_blocked(writer):
    writer.send(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())))

if __name__ == "__main__":
    resource_tracker.ensure_running()  # as in every program that has used multiprocessing before
    with closing(ProcessBackend(Corridor, 2, WorkerSettings(workers=1, start_method="forkserver"))) as backend:
        backend.reset(0)
    context = multiprocessing.get_context("forkserver")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=send_blocked, args=(writer,))
    process.start()
    print(reader.recv())
    process.join()
"""


def test_other_processes_of_a_fork_server_have_no_blocked_signals(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(FORK_SERVER_OF_THE_PROGRAM)
    assert run_process([sys.executable, str(program)]).stdout.strip() == "[]"


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_the_number_of_workers_does_not_change_trajectories(workers):
    with closing(SerialBackend(ENV_CASES["corridor"], NUM_ENVS)) as backend:
        expected = record_trajectory(backend, SEED, 20)
    with closing(process_backend(ENV_CASES["corridor"], workers=workers)) as backend:
        assert backend.num_workers == workers
        assert_same_trajectory(record_trajectory(backend, SEED, 20), expected)


def test_num_workers_is_limited_by_envs_and_by_default_by_cores():
    with closing(process_backend(num_envs=2, workers=8)) as backend:
        assert backend.num_workers == 2
    with closing(process_backend(num_envs=64)) as backend:
        assert backend.num_workers == min(64, len(os.sched_getaffinity(0)))


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_lambda_env_factory_is_pickled(method):
    max_steps = 4
    make_envs = make_batch(lambda: gymnasium.wrappers.TimeLimit(third_party_envs.DiceEnv(), max_steps))
    with closing(process_backend(make_envs, workers=1, start_method=method)) as backend:
        trajectory = record_trajectory(backend, SEED, 12)
    assert trajectory.ended.any()


def test_an_unpicklable_env_factory_raises_with_advice():
    lock = threading.Lock()

    def make_env():
        with lock:
            return third_party_envs.DiceEnv()

    with pytest.raises(WorkerError, match=r"cannot be pickled.*spawn.*use --start-method fork"):
        process_backend(make_batch(make_env), start_method="spawn")
    with closing(process_backend(make_batch(make_env), start_method="fork")) as backend:
        record_trajectory(backend, SEED, 2)


def test_a_spawned_worker_of_third_party_envs_imports_neither_torch_nor_numba():
    with closing(
        process_backend(make_batch(third_party_envs.ReportsModules), 2, workers=2, start_method="spawn")
    ) as backend:
        backend.reset(SEED)
        infos = list(backend.recv().infos)
    assert [info["modules"] for info in infos] == [[], []]
    assert len({info["pid"] for info in infos} | {os.getpid()}) == 3


WITHOUT_MAIN_GUARD = """
from functools import partial
from helpers import third_party_envs
from hundredfold.backends.processes.backend import ProcessBackend
from hundredfold.backends.settings import WorkerSettings
from hundredfold.envs.gymnasium_env import GymnasiumBatchEnv

make_envs = partial(GymnasiumBatchEnv, make_env=third_party_envs.DiceEnv)
backend = ProcessBackend(make_envs, 4, WorkerSettings(workers=2, start_method={method!r}))
backend.reset(1)
print("envs:", len(backend.recv()))
backend.close()
"""


def run_script(tmp_path, method):
    script = tmp_path / "without_main_guard.py"
    script.write_text(WITHOUT_MAIN_GUARD.format(method=method))
    expect = 0 if method == "fork" else 1
    return run_process([sys.executable, script], expect=expect, env={"PYTHONPATH": str(TESTS)})


def test_a_script_without_a_main_guard_works_with_fork(tmp_path):
    process = run_script(tmp_path, "fork")
    assert process.stdout == "envs: 4\n", process.stderr


@pytest.mark.parametrize("method", ["spawn", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_a_script_without_a_main_guard_raises_with_advice_otherwise(tmp_path, method):
    process = run_script(tmp_path, method)
    assert "WorkerError" in process.stderr
    assert "if __name__ == '__main__':" in process.stderr


def test_workers_can_be_started_from_any_thread():
    """They keep running when that thread has ended."""
    found = []
    thread = threading.Thread(target=lambda: found.append(process_backend(workers=2)))
    thread.start()
    thread.join()
    with closing(found[0]) as backend:
        record_trajectory(backend, SEED, 5)
        assert backend.health()["worker_restarts"] == 0


def test_two_backends_run_side_by_side():
    with closing(process_backend(workers=2)) as one, closing(process_backend(workers=2)) as other:
        trajectories = [record_trajectory(one, SEED, 10), record_trajectory(other, SEED, 10)]
        one.close()
        trajectories.append(record_trajectory(other, SEED, 10))
    for trajectory in trajectories[1:]:
        assert_same_trajectory(trajectory, trajectories[0])


# --- infos


def test_infos_are_pickled_only_after_the_first_read():
    def step():
        backend.send(np.zeros(NUM_ENVS, np.int64))
        return backend.recv().infos

    with closing(process_backend(make_batch(third_party_envs.PicklingCountInfo), workers=1)) as backend:
        backend.reset(SEED)
        backend.recv()
        for _ in range(3):
            infos = step()
        assert infos[2]["pickled"] == 1
        assert infos[0]["pickled"] == 2
        # From now on in every step, in order.
        assert [info["pickled"] for info in step()] == [3 + row for row in range(NUM_ENVS)]


def test_reading_infos_after_close_raises():
    with closing(process_backend(make_batch(third_party_envs.DiceEnv), workers=2)) as backend:
        backend.reset(SEED)
        infos = backend.recv().infos
    with pytest.raises(WorkerError, match="closed"):
        infos[0]


def test_infos_are_unpickled_when_they_are_read():
    with closing(process_backend(make_batch(third_party_envs.DiceEnv), workers=2)) as backend:
        backend.reset(SEED)
        infos = backend.recv().infos
        assert len(infos) == NUM_ENVS
        totals = backend.batch.observation["observation"][:, 1].tolist()
        assert [info["total"] for info in infos] == totals
        assert [info["total"] for info in infos[1:3]] == totals[1:3]
        assert infos[-1]["total"] == totals[-1]
        backend.send(np.zeros(NUM_ENVS, np.int64))
        infos = backend.recv().infos
        totals = backend.batch.observation["observation"][:, 1].tolist()
        start = 2 * INFO_SLOT_BYTES
        backend.arrays["info_bytes"][start : start + 10] = 255
        assert infos[1]["total"] == totals[1]
        with pytest.raises(Exception, match=r"pickle|load key"):
            infos[2]


def test_an_info_larger_than_its_slot_is_fetched_from_the_worker():
    with closing(process_backend(make_batch(third_party_envs.LargeInfo), workers=2)) as backend:
        backend.reset(SEED)
        backend.recv()
        for step in range(1, 5):
            backend.send(np.zeros(NUM_ENVS, np.int64))
            sizes = [len(info["data"]) for info in backend.recv().infos]
            assert sizes == [step * 150_000] * NUM_ENVS


def test_an_unpicklable_info_value_becomes_its_repr():
    with closing(process_backend(make_batch(third_party_envs.UnpicklableInfo), workers=1)) as backend:
        backend.reset(SEED)
        info = backend.recv().infos[0]
    assert info["total"] == backend.batch.observation["observation"][0, 1]
    assert "lambda" in info["function"]


def test_a_built_in_env_has_no_infos():
    with closing(process_backend()) as backend:
        backend.reset(SEED)
        assert backend.recv().infos is None
        assert "info_bytes" not in backend.arrays


# --- ranges, groups, settings


@pytest.mark.parametrize(
    ("env_ids", "ranges"),
    [
        ([], []),
        ([4], [(4, 5)]),
        ([0, 1, 2], [(0, 3)]),
        ([0, 2, 3, 7], [(0, 1), (2, 4), (7, 8)]),
        ([1, 3, 5], [(1, 2), (3, 4), (5, 6)]),
    ],
)
def test_env_ids_are_packed_into_as_few_ranges_as_possible(env_ids, ranges):
    packed = pack_ranges(np.array(env_ids, np.int64))
    assert list(RANGE.iter_unpack(packed)) == ranges


@pytest.mark.parametrize(
    ("env_ids", "batch_envs", "edges"),
    [
        (range(0, 6), 12, [0, 6]),
        (range(6, 12), 6, [6, 12]),
        (range(6, 12), 2, [6, 8, 10, 12]),
        (range(0, 7), 3, [0, 2, 4, 7]),
        (range(0, 3), 1, [0, 1, 2, 3]),
    ],
)
def test_groups_are_about_as_large_as_batch_envs(env_ids, batch_envs, edges):
    assert group_edges(env_ids, batch_envs, num_envs=12) == edges


@pytest.mark.parametrize(
    "wrong",
    [
        {"workers": -1},
        {"batch_envs": -2},
        {"env_threads": -1},
        {"step_timeout": 0.0},
        {"start_timeout": -1.0},
        {"max_env_failures": 0},
        {"on_env_error": "ignore"},
        {"start_method": "teleport"},
    ],
)
def test_invalid_worker_settings_are_named(wrong):
    (name,) = wrong
    with pytest.raises(SettingsError, match=name if name != "start_method" else "teleport"):
        WorkerSettings(**wrong)
