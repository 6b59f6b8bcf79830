"""Whatever ends the parent, nothing of it is left behind; looked at from outside."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]

PARENT = """
import sys
from functools import partial

from helpers import third_party_envs as foreign
from hundredfold.backends.processes.backend import ProcessBackend
from hundredfold.backends.settings import WorkerSettings
from hundredfold.envs.gymnasium_env import GymnasiumBatchEnv

if __name__ == "__main__":
    make_envs = partial(GymnasiumBatchEnv, make_env=getattr(foreign, {env!r}))
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


def start(tmp_path, method="fork", env="FaultyEnv", last="sys.stdin.read()", threads=1):
    """A parent in a session of its own, with two workers, that does its last thing."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT.format(method=method, env=env, last=last, threads=threads))
    parent = subprocess.Popen(
        [sys.executable, script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )
    workers = [int(word) for word in parent.stdout.readline().split()]
    assert len(workers) == 2
    return parent, workers


def in_session(number):
    """Processes of a session that are not over."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                state, *fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[2]) == number and state != "Z":
                found.add(int(entry.name))
    return found


def shared_memory():
    return set(os.listdir("/dev/shm"))


def assert_nothing_is_left(parent, before):
    deadline = time.monotonic() + 30
    while in_session(parent.pid):
        assert time.monotonic() < deadline, f"still there: {in_session(parent.pid)}"
        time.sleep(0.02)
    assert shared_memory() <= before


every_start = pytest.mark.parametrize(
    "method",
    ["fork", *(pytest.param(name, marks=pytest.mark.slow) for name in ("spawn", "forkserver"))],
)


@every_start
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_parent_that_is_ended_leaves_no_process_and_no_memory(tmp_path, method, number):
    before = shared_memory()
    parent, workers = start(tmp_path, method)
    assert in_session(parent.pid) >= {parent.pid, *workers}
    parent.send_signal(number)
    assert parent.wait(30) == -number or number == signal.SIGINT
    assert_nothing_is_left(parent, before)


@every_start
@pytest.mark.parametrize("env", ["HangsInStep", "HangsHoldingGil", "StopsProcess"])
def test_a_killed_parent_takes_along_workers_that_hang_or_are_stopped(tmp_path, method, env):
    before = shared_memory()
    parent, workers = start(tmp_path, method, env)
    assert in_session(parent.pid) >= {parent.pid, *workers}
    parent.kill()
    parent.wait(30)
    assert_nothing_is_left(parent, before)


def test_a_killed_parent_takes_along_workers_with_threads(tmp_path):
    before = shared_memory()
    parent, _ = start(tmp_path, env="HangsInStep", threads=3)
    parent.kill()
    parent.wait(30)
    assert_nothing_is_left(parent, before)


@every_start
@pytest.mark.parametrize("last", ["pass", "raise SystemExit(3)", "backend.close()", "del backend"])
def test_a_parent_that_ends_by_itself_leaves_nothing_either(tmp_path, method, last):
    before = shared_memory()
    parent, _ = start(tmp_path, method, last=last)
    assert parent.wait(60) == (3 if "3" in last else 0)
    assert_nothing_is_left(parent, before)


def test_ctrl_c_reaches_the_parent_and_not_its_workers(tmp_path):
    """A terminal signals the whole foreground group; only the parent is in it."""
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
    parent, _ = start(tmp_path, last=last.strip())
    assert parent.stdout.readline() == "waiting\n"
    os.killpg(parent.pid, signal.SIGINT)
    assert parent.wait(30) == 130
