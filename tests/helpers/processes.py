"""Start other programs from tests, the same way wherever the tests run, and wait for what they do."""

import multiprocessing
import os
import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

# Guards against hangs only: nothing that works comes near it, however busy the machine is.
HANG_SECONDS = 1500
# What a training imports; torch alone takes longer than most trainings of the tests.
PRELOADED = [
    "torch",
    "torch._dynamo",
    "hundredfold.cli.train",
    "hundredfold.training.run",
    "hundredfold.rollout.kernels",
]


@contextmanager
def default_signals():
    """Child processes started here do not inherit ignored signals.

    A shell script starts background jobs with SIGINT ignored, and `nohup` ignores SIGHUP. Ignored
    signals stay ignored in child processes; those with a handler are reset to their default.
    """
    ignored = _reset_ignored_signals()
    try:
        yield
    finally:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)


def _reset_ignored_signals():
    """Set ignored signals of this process to their default; returns their numbers."""
    ignored = [number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN]
    # Python itself ignores these, and `subprocess` resets them.
    ignored = [number for number in ignored if number not in (signal.SIGPIPE, getattr(signal, "SIGXFSZ", None))]
    for number in ignored:
        signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)
    return ignored


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


def run_forked(code, *, expect):
    """Run code in a new process that has imported torch and the package already, and check its exit code.

    It is forked from a server that only imports, so that it is as good as a new interpreter for everything but
    imports, without the seconds that these take. Its parent is the server.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    with TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("output", "errors")]
        # Workers that it forks inherit the pipe: it ends with the last of them.
        reader, writer = context.Pipe(duplex=False)
        arguments = (code, *map(str, paths), dict(os.environ), os.getcwd(), writer)
        process = context.Process(target=_execute, args=arguments)
        process.start()
        writer.close()
        try:
            process.join(HANG_SECONDS)
            assert reader.poll(HANG_SECONDS), "a child process was left"
        finally:
            process.kill()
            reader.close()
        output, errors = (path.read_text() if path.exists() else "" for path in paths)
    assert process.exitcode == expect, f"exit {process.exitcode}\n{output}\n{errors}"
    return subprocess.CompletedProcess(code, process.exitcode, output, errors)


def _execute(code, output, errors, environment, directory, _writer):
    # The server keeps the ignored and blocked signals of the moment it was started, which may be before any test.
    _reset_ignored_signals()
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    for path, fd in ((output, 1), (errors, 2)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, fd)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    exec(code, {"__name__": "__main__"})


def wait_until(condition, what="the condition"):
    """Poll until the condition holds."""
    deadline = time.monotonic() + HANG_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.01)


def has_ended(pid):
    """Whether the process has ended or is a zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
