"""Start other programs from tests, the same way wherever the tests run, and wait for what they do."""

import os
import signal
import subprocess
import time
from contextlib import contextmanager

# Guards against hangs only: nothing that works comes near it, however busy the machine is.
HANG_SECONDS = 1500


@contextmanager
def default_signals():
    """Child processes started here do not inherit ignored signals.

    A shell script starts background jobs with SIGINT ignored, and `nohup` ignores SIGHUP. Ignored
    signals stay ignored in child processes; those with a handler are reset to their default.
    """
    ignored = [number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN]
    # Python itself ignores these, and `subprocess` resets them.
    ignored = [number for number in ignored if number not in (signal.SIGPIPE, getattr(signal, "SIGXFSZ", None))]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)
    try:
        yield
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)


def start_process(argv, *, env=None, **options):
    """`subprocess.Popen` with default signal handlers; `env` is added to the environment."""
    with default_signals():
        return subprocess.Popen(argv, env={**os.environ, **(env or {})}, text=True, **options)


def run_process(argv, *, expect=0, env=None, **options):
    """Run a program to its end and check its exit code; a failure shows its output."""
    process = start_process(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    with process:
        try:
            output, errors = process.communicate(timeout=HANG_SECONDS)
        except BaseException:
            process.kill()
            raise
    assert process.returncode == expect, f"exit {process.returncode}\n{output}\n{errors}"
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def wait_until(condition, what="the condition"):
    """Poll until the condition holds."""
    deadline = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.01)
