"""One torch thread per test process: two are slower when tests run in parallel.

Ctrl-C is not ignored, also where the tests run as a background job of a script.
"""

import os
import signal

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session", autouse=True)
def user_data_directory(tmp_path_factory):
    """Where runs find the user's key, so that tests leave the home alone; inherited by child processes."""
    os.environ["XDG_DATA_HOME"] = str(tmp_path_factory.mktemp("data"))


@pytest.fixture(autouse=True)
def default_interrupt_handler():
    """Set before every test: some library may have changed it in the one before."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
