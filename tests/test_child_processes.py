"""Tests start other programs through `helpers.processes`, so that they pass wherever they run."""

import ast
import signal
import sys
from pathlib import Path

import pytest

from helpers import hangs
from helpers.processes import run_process, start_process

TESTS = Path(__file__).parent
STARTS = {f"subprocess.{name}" for name in ("run", "Popen", "call", "check_call", "check_output")}


@pytest.mark.process
def test_a_child_of_a_background_job_has_default_signal_handlers():
    code = "import signal; print(*(signal.getsignal(n).__repr__() for n in (signal.SIGINT, signal.SIGHUP)), sep=';')"
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGHUP)}
    try:
        done = run_process([sys.executable, "-c", code])
        assert [signal.getsignal(number) for number in before] == [signal.SIG_IGN] * 2
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    interrupt, hangup = done.stdout.strip().split(";")
    assert "default_int_handler" in interrupt
    assert "SIG_DFL" in hangup


@pytest.mark.process
def test_hangs_of_other_test_processes_stay_announced():
    """A test that ends beside them must not keep their envs waiting."""
    alive, ended = (start_process([sys.executable, "-c", code]) for code in ("import time; time.sleep(1500)", ""))
    ended.wait()
    with pytest.MonkeyPatch.context() as monkeypatch, hangs.only_hung_envs_time_out(monkeypatch):
        for process in (alive, ended):
            hangs.announce_hang(process.pid)
    announced = [hangs._marker(process.pid).exists() for process in (alive, ended)]
    hangs._marker(alive.pid).unlink(missing_ok=True)
    alive.kill()
    alive.wait()
    assert announced == [True, False]


# A fork server that a background job started, or one that a library started with signals blocked.
FORKED_CHILD = """
import signal, sys
sys.path.insert(0, {tests!r})
from multiprocessing import forkserver, resource_tracker
from helpers import processes
resource_tracker.ensure_running()  # unblocks signals
{prepare}
processes.PRELOADED.clear()
forkserver.ensure_running()
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.pthread_sigmask(signal.SIG_SETMASK, ())
done = processes.run_forked('''
import signal, time
try:
    signal.raise_signal(signal.SIGINT)
    time.sleep(0)
except KeyboardInterrupt:
    print("interrupted")
''', expect=0)
print(done.stdout)
"""


@pytest.mark.process
@pytest.mark.parametrize(
    "prepare",
    ["signal.signal(signal.SIGINT, signal.SIG_IGN)", "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])"],
    ids=["ignored", "blocked"],
)
def test_a_forked_child_is_interrupted_whatever_its_server_inherited(prepare):
    """In an interpreter of its own: the fork server of this one is running already."""
    done = run_process([sys.executable, "-c", FORKED_CHILD.format(tests=str(TESTS), prepare=prepare)])
    assert done.stdout.strip() == "interrupted"


def direct_starts(path):
    """Calls of `subprocess` in a file, except for programs that are only there to run."""
    for node in ast.walk(ast.parse(path.read_text())):
        is_start = isinstance(node, ast.Call) and ast.unparse(node.func) in STARTS
        if is_start and "'sleep'" not in ast.unparse(node):
            yield f"{path.relative_to(TESTS)}:{node.lineno}"


def test_tests_start_programs_through_the_helper():
    found = [start for path in sorted(TESTS.rglob("*.py")) for start in direct_starts(path)]
    assert [start for start in found if not start.startswith("helpers/processes.py")] == []
    assert len(found) == 1
