"""One torch thread per test process: two are slower when tests run in parallel.

Ctrl-C is not ignored, also where the tests run as a background job of a script.
"""

import atexit
import os
import shutil
import signal
import tempfile

import pytest

from helpers import hangs

os.environ.setdefault("OMP_NUM_THREADS", "1")
if hangs.DIRECTORY not in os.environ:
    os.environ[hangs.DIRECTORY] = tempfile.mkdtemp(prefix="hundredfold-hangs-")
    atexit.register(shutil.rmtree, os.environ[hangs.DIRECTORY], ignore_errors=True)


def pytest_collection_modifyitems(items):
    """Tests with Ray first, which take longest: at the end no test process waits for one of them."""
    items.sort(key=lambda item: item.get_closest_marker("ray") is None)


@pytest.fixture(scope="session", autouse=True)
def user_data_directory(tmp_path_factory):
    """Where runs find the user's key, so that tests leave the home alone; inherited by child processes."""
    os.environ["XDG_DATA_HOME"] = str(tmp_path_factory.mktemp("data"))


@pytest.fixture(autouse=True)
def long_lines(monkeypatch):
    """Messages stand on one line, so that tests find their sentences; tests of the layout set another width."""
    monkeypatch.setenv("COLUMNS", "1000")


@pytest.fixture(autouse=True)
def default_interrupt_handler():
    """Set before every test: some library may have changed it in the one before."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def only_hung_envs_time_out(monkeypatch):
    """Step timeouts of worker processes that depend on events rather than on how busy the machine is."""
    with hangs.only_hung_envs_time_out(monkeypatch):
        yield
