"""Where the trainings of a sweep run: as processes of this machine, or on the nodes of a Ray cluster.

Either way a training is a process of its own whose standard input is a pipe that is never written to.
When the process at its other end dies (the sweep, or the Ray actor that started it), the training
reads the end of the file, saves itself and ends, unless Ray has killed it together with the actor.
"""

from __future__ import annotations

import platform
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from hundredfold.backends.settings import RaySettings
from hundredfold.core.errors import SettingsError, WorkerError
from hundredfold.distributed.placement import MIN_MEMORY_BYTES, connect, disconnect

TRAINING: Final = ("-m", "hundredfold.cli.sweep")
# Exit code of a training that was stopped before it had begun.
STOPPED: Final = 130


class TrialRun(Protocol):
    """A training that was started; `subprocess.Popen` is one."""

    def poll(self) -> int | None:
        """Its exit code; None while it runs. Raises a WorkerError if it was lost with its node."""

    def terminate(self) -> None:
        """Ask it to save itself and to end."""

    def wait(self) -> int:
        """Wait until it has ended; its exit code. Raises a WorkerError if it was lost with its node."""


# Starts the training of one run: flags of `train`, and the file for its output.
StartRun = Callable[[Sequence[str], Path], TrialRun]


def start_training(flags: Sequence[str], log: Path, directory: Path | None = None) -> subprocess.Popen[bytes]:
    """Start `hundredfold train` with these flags; it saves and ends when this process dies.

    Args:
        flags: Flags of `train`.
        log: File to which its output is appended.
        directory: Its working directory; by default that of this process.
    """
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, *TRAINING, *flags],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=directory,
            start_new_session=True,  # Ctrl-C in the terminal reaches the sweep alone, which ends its runs
        )


class TrainingActor:
    """Runs one training on a node of a cluster; `stop` is called while `train` waits for it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None
        self.is_stopped = False

    def placed(self) -> bool:
        """Returns as soon as the actor has its cores."""
        return True

    def train(self, flags: Sequence[str], log: Path, directory: Path) -> int:
        """Train to the end; returns the exit code.

        Args:
            flags: Flags of `train`.
            log: File to which the output is appended.
            directory: Working directory of the sweep, used if this node has it.
        """
        if not log.parent.is_dir():
            raise SettingsError(
                f"the node {platform.node()} does not see {log.parent}: a sweep on a cluster needs a folder that all "
                "nodes share under the same path (such as NFS); name it with --save-dir."
            )
        with self.lock:
            if self.is_stopped:
                return STOPPED
            self.process = start_training(flags, log, directory if directory.is_dir() else log.parent)
        return self.process.wait()

    def stop(self) -> None:
        """Ask the training to save itself and to end."""
        with self.lock:
            self.is_stopped = True
            if self.process is not None:
                self.process.terminate()


class RemoteTraining:
    """A training on some node of a Ray cluster, which it waits for while the cluster has no free cores.

    Args:
        ray: The connected ray module.
        actor: Handle of a new `TrainingActor`.
        flags: Flags of `train`.
        log: File for its output, in a folder that all nodes share.
    """

    def __init__(self, ray: Any, actor: Any, flags: Sequence[str], log: Path) -> None:
        self.ray, self.actor = ray, actor
        self.placed = actor.placed.remote()
        self.exit_code = actor.train.remote(list(flags), log, Path.cwd())

    def poll(self) -> int | None:
        """Its exit code; None while it waits for cores or runs."""
        return self.wait() if self._has(self.exit_code) else None

    def terminate(self) -> None:
        """Ask it to save itself and to end; without cores it is not started any more."""
        if self._has(self.placed):
            self.actor.stop.remote()
        else:
            self.ray.kill(self.actor)

    def wait(self) -> int:
        """Wait until it has ended; its exit code."""
        try:
            code = int(self.ray.get(self.exit_code))
        except self.ray.exceptions.RayTaskError as error:
            raise error.cause from None  # by the actor itself
        except self.ray.exceptions.RayError as error:
            reason = str(error).strip().partition("\n")[0].rstrip(".")
            raise WorkerError(f"its node was lost or ended it ({reason}).") from error
        self.ray.kill(self.actor)  # frees its cores
        return code

    def _has(self, reference: Any) -> bool:
        """Whether a call has returned or failed."""
        ready, _ = self.ray.wait([reference], timeout=0)
        return bool(ready)


class RayTrainings:
    """Starts trainings on the nodes of a Ray cluster, each where cores are free.

    Args:
        address: `auto`, `host:port` or `ray://host:port`; `local` starts a cluster on this machine.
        parallel: Trainings at the same time; a cluster started here has cores for them.
        cpus: Cores that Ray reserves for each training.
        gpus: GPUs that Ray reserves for each training; it sees no others.
    """

    def __init__(self, address: str, parallel: int, *, cpus: float = 1.0, gpus: float = 0.0) -> None:
        self.ray = connect(RaySettings(address=address, actor_cpus=cpus), parallel)
        self.options = {"num_cpus": cpus, "num_gpus": gpus, "memory": MIN_MEMORY_BYTES}
        wanted = {"CPU": cpus, "GPU": gpus}
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        if not any(all(node.get(kind, 0.0) >= number for kind, number in wanted.items()) for node in nodes):
            warnings.warn(
                f"no node of the cluster has {cpus:g} cores and {gpus:g} GPUs, which --trial-cpus and --trial-gpus "
                "reserve for a trial; trials wait until there is one.",
                stacklevel=2,
            )

    def start(self, flags: Sequence[str], log: Path) -> RemoteTraining:
        """Start a training wherever the cluster has room; if there is none, it waits."""
        remote = self.ray.remote(TrainingActor)
        # Two threads: one waits for the training while the other can stop it.
        actor = remote.options(**self.options, max_concurrency=2, max_restarts=0, scheduling_strategy="SPREAD").remote()
        return RemoteTraining(self.ray, actor, flags, log)

    def close(self) -> None:
        """Leave the cluster; one that was started here ends."""
        disconnect()
