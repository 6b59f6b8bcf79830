"""No orphans: when the parent ends, however it ends, no process and no shared memory is left."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.processes import HANG_SECONDS, start_process, wait_until

TESTS = Path(__file__).parents[2]

pytestmark = pytest.mark.process

PARENT = """
import sys
from functools import partial

from helpers import third_party_envs
from hundredfold.backends.processes.backend import ProcessBackend
from hundredfold.backends.settings import WorkerSettings
from hundredfold.envs.gymnasium_env import GymnasiumBatchEnv

if __name__ == "__main__":
    make_envs = partial(GymnasiumBatchEnv, make_env=getattr(third_party_envs, {env!r}))
    settings = WorkerSettings(workers=2, start_method={method!r}, env_threads={threads})
    backend = ProcessBackend(make_envs, 6, settings)
    backend.reset(1)
    batch = backend.recv()
    for step in range(3):
        backend.send([0] * 6)
        if step == 2:
            print(*(worker.process.pid for worker in backend.pool.workers), flush=True)
        if step < 2 or {env!r} == "FaultyEnv":
            batch = backend.recv()
    {last}
"""


def start_parent(tmp_path, method="fork", env="FaultyEnv", last="sys.stdin.read()", threads=1):
    """Start a parent with two workers in its own session; `last` is its last statement."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT.format(method=method, env=env, last=last, threads=threads))
    parent = start_process(
        [sys.executable, script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env={"PYTHONPATH": str(TESTS)},
    )
    workers = [int(word) for word in parent.stdout.readline().split()]
    assert len(workers) == 2
    return parent, workers


def processes_in_session(signal_number):
    """Running processes of a session."""
    pids = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                state, *fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[2]) == signal_number and state != "Z":
                pids.add(int(entry.name))
    return pids


def shared_memory():
    """Names of shared memory, without that of databases which other tests start meanwhile."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("PostgreSQL.")}


def assert_no_leftovers(parent, before):
    wait_until(lambda: not processes_in_session(parent.pid), "the end of all processes")
    assert shared_memory() <= before


each_start_method = pytest.mark.parametrize(
    "method", ["fork", *(pytest.param(name, marks=pytest.mark.slow) for name in ("spawn", "forkserver"))]
)


@each_start_method
@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_signalled_parent_leaves_no_process_and_no_memory(tmp_path, method, signal_number):
    before = shared_memory()
    parent, workers = start_parent(tmp_path, method)
    assert processes_in_session(parent.pid) >= {parent.pid, *workers}
    parent.send_signal(signal_number)
    assert parent.wait(HANG_SECONDS) == -signal_number or signal_number == signal.SIGINT
    assert_no_leftovers(parent, before)


@each_start_method
@pytest.mark.parametrize("env", ["HangsInStep", "HangsHoldingGil", "StopsProcess"])
def test_workers_that_hang_or_are_stopped_die_with_the_parent(tmp_path, method, env):
    before = shared_memory()
    parent, workers = start_parent(tmp_path, method, env)
    assert processes_in_session(parent.pid) >= {parent.pid, *workers}
    parent.kill()
    parent.wait(HANG_SECONDS)
    assert_no_leftovers(parent, before)


def test_workers_with_env_threads_die_with_the_parent(tmp_path):
    before = shared_memory()
    parent, _ = start_parent(tmp_path, env="HangsInStep", threads=3)
    parent.kill()
    parent.wait(HANG_SECONDS)
    assert_no_leftovers(parent, before)


@each_start_method
@pytest.mark.parametrize("last", ["pass", "raise SystemExit(3)", "backend.close()", "del backend"])
def test_a_parent_that_ends_by_itself_leaves_nothing(tmp_path, method, last):
    before = shared_memory()
    parent, _ = start_parent(tmp_path, method, last=last)
    assert parent.wait(HANG_SECONDS) == (3 if "3" in last else 0)
    assert_no_leftovers(parent, before)


def test_ctrl_c_reaches_the_parent_and_not_its_workers(tmp_path):
    """A terminal signals the foreground process group, which only the parent is in."""
    last = """
    try:
        print("waiting", flush=True)
        sys.stdin.read()
    except KeyboardInterrupt:
        backend.send([0] * 6)
        batch = backend.recv()
        assert not batch.truncated.any()
        assert backend.health()["worker_restarts"] == 0
        sys.exit(130)"""
    parent, _ = start_parent(tmp_path, last=last.strip())
    assert parent.stdout.readline() == "waiting\n"
    os.killpg(parent.pid, signal.SIGINT)
    assert parent.wait(HANG_SECONDS) == 130
