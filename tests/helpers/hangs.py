"""Envs that hang say so, and only they time out: a healthy env may take as long as a busy machine makes it."""

import os
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from helpers.processes import HANG_SECONDS, has_ended
from hundredfold.backends.processes import worker_handle, worker_pool

# Inherited by all child processes; `conftest.py` sets it once, because a fork server keeps the first value.
DIRECTORY = "HUNDREDFOLD_TEST_HANGS"


def announce_hang(pid=None):
    """Called before an env hangs, or by a test that stops a process."""
    _marker(pid or os.getpid()).touch()


@contextmanager
def only_hung_envs_time_out(monkeypatch):
    """Until the end, workers time out at once after they have announced a hang, and others never do.

    The other envs of such a worker are waited for, so that the one that hangs is found.
    """
    check_health = worker_pool.WorkerPool._check_health

    def check(pool, now):
        for worker in pool.alive.values():
            is_announced = _marker(worker.process.pid).exists()
            worker.hangs = is_announced and np.count_nonzero(pool._busy_since(worker)) <= 1
        check_health(pool, now)

    def step_timeout(worker):
        return 0.001 if getattr(worker, "hangs", False) else HANG_SECONDS

    monkeypatch.setattr(worker_pool, "HEALTH_CHECK_SECONDS", 0.05)
    monkeypatch.setattr(worker_pool.WorkerPool, "_check_health", check)
    monkeypatch.setattr(worker_handle.WorkerHandle, "step_timeout", property(step_timeout))
    yield
    # Other test processes share the directory: their hung envs are still to be found.
    for marker in Path(os.environ[DIRECTORY]).iterdir():
        if has_ended(marker.name):
            marker.unlink(missing_ok=True)


def _marker(pid):
    return Path(os.environ[DIRECTORY]) / str(pid)
