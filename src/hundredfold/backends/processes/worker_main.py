"""Main function of a worker process: creates its shard of envs and handles the parent's requests.

Ranges of env ids to step come through a pipe; rare requests (reset, snapshots, shared parameters)
come as messages, in order with the ranges. Torch is never imported here.

A worker dies with its parent: the parent holds the write end of a pipe and never writes to it. When
the parent ends, however it ends, the kernel signals the broken pipe with SIGKILL to the worker's
process group, even if an env hangs in compiled code at that moment.
"""

from __future__ import annotations

import fcntl
import gc
import os
import pickle
import select
import signal
import socket
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from hundredfold.backends.processes.channel import Channel, recv_fds
from hundredfold.backends.processes.cpu_affinity import core_for_worker
from hundredfold.backends.processes.env_shards import BatchShard, PerEnvShard, Shard, group_edges
from hundredfold.backends.processes.env_threads import create_threaded_shard
from hundredfold.backends.processes.remote_errors import RequestResult, capture_error
from hundredfold.backends.processes.shared_memory import map_arrays, memory_layout
from hundredfold.backends.settings import WorkerSettings
from hundredfold.core.protocols import EnvFactory, PerEnvBatch

# Environment variable that marks the processes started by envs.
TOKEN_VARIABLE: Final = "HUNDREDFOLD_WORKER"


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """Which envs a worker owns, and how it creates them."""

    worker: int  # index of the worker
    first: int  # first env id
    last: int  # last env id + 1
    num_envs: int  # of all workers
    batch_envs: int  # envs that the parent waits for
    settings: WorkerSettings
    # Pickled unless the worker is forked; it unpickles it itself, so that errors are reported.
    make_envs: EnvFactory | bytes
    # Of the pool, in the environment of all processes that the envs start.
    token: str = ""


def worker_main(messages: socket.socket, shard_spec: ShardSpec) -> None:
    """Entry point of a worker process."""
    detach_from_terminal()
    os.environ[TOKEN_VARIABLE] = worker_token(shard_spec.token, os.getpid())
    try:
        read_fd, write_fd, parent_death_fd = recv_fds(messages, 3)
        die_with_parent(parent_death_fd)
        serve(Channel(messages, read_fd, write_fd), shard_spec)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the parent has closed its end


def detach_from_terminal() -> None:
    """Leave the parent's process group and drop its signal handlers."""
    # In a process group of its own: Ctrl-C goes to the parent alone, and subprocesses of the envs
    # can be killed together with the worker.
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    # Garbage collection of objects inherited by fork would copy their pages.
    gc.freeze()


def worker_token(token: str, pid: int) -> str:
    """Value of `TOKEN_VARIABLE` in a worker of a pool; it starts with that of the pool."""
    return f"{token}.{pid}."


def marked_processes(token: str) -> list[int]:
    """Pids of the programs that envs have started.

    They are found by their environment, also in a session of their own and after their parent has ended. Where there
    is no `/proc`, none is found.

    Args:
        token: of a worker, or of a pool for all its workers.
    """
    marker = f"{TOKEN_VARIABLE}={token}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        # It may have ended meanwhile, or belong to another user.
        with suppress(OSError):
            if any(entry.startswith(marker) for entry in path.read_bytes().split(b"\0")):
                found.append(int(path.parent.name))
    return found


def kill_marked(token: str) -> None:
    """Kill the programs that envs have started, also those that no longer belong to the worker's process group.

    Args:
        token: of a worker, or of a pool for all its workers.
    """
    for pid in marked_processes(token):
        with suppress(OSError):  # it has ended meanwhile
            os.kill(pid, signal.SIGKILL)


def die_with_parent(parent_death_fd: int) -> None:
    """Kill this worker and its subprocesses when the parent ends.

    Args:
        parent_death_fd: read end of a pipe whose write end only the parent holds.
    """
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(parent_death_fd, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(parent_death_fd, fcntl.F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(parent_death_fd, fcntl.F_GETFL)
        fcntl.fcntl(parent_death_fd, fcntl.F_SETFL, flags | os.O_ASYNC)
        # The pipe may have broken before the signal was set up.
        poll = select.poll()
        poll.register(parent_death_fd, select.POLLIN)
        if poll.poll(0):
            kill_process_group()
    else:
        threading.Thread(target=_wait_for_death, args=(parent_death_fd,), daemon=True).start()


def kill_process_group() -> None:
    """Kill this worker and everything it started."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _wait_for_death(parent_death_fd: int) -> None:
    os.read(parent_death_fd, 1)
    kill_process_group()


def serve(channel: Channel, shard_spec: ShardSpec) -> None:
    """Create the shard, then step it and handle requests until the parent closes the channel."""
    try:
        shard = create_shard(shard_spec)
    except BaseException as error:
        channel.send_message("not_created", capture_error("creating its envs", error))
        return
    try:
        is_per_env = isinstance(shard, PerEnvShard)
        channel.send_message("ready", shard.spec, is_per_env)
        (memory_fd,) = recv_fds(channel.messages, 1)
        layout = memory_layout(shard.spec, shard_spec.num_envs, is_per_env=is_per_env)
        shard.set_output_buffers(map_arrays(layout, memory_fd), channel)
        while (ranges := channel.read_ranges()) is not None:
            for first, last in ranges:
                if first >= 0:
                    shard.step(first, last)
                    continue
                name, request_id, *arguments = channel.recv_message()
                if name not in NOT_DRAINING or (name == "state" and shard.drains_for_state):
                    shard.drain()
                if name == "close":
                    return
                handle_request(channel, shard, name, request_id, arguments)
    finally:
        shard.close()


def create_shard(shard_spec: ShardSpec) -> Shard:
    """Create the envs of a shard: one by one if they are third-party, else one batch per group."""
    make_envs: EnvFactory = (
        pickle.loads(shard_spec.make_envs) if isinstance(shard_spec.make_envs, bytes) else shard_spec.make_envs
    )
    settings, num_envs = shard_spec.settings, shard_spec.num_envs
    env_ids = range(shard_spec.first, shard_spec.last)
    core = core_for_worker(shard_spec.worker, settings.num_workers(num_envs))
    if settings.env_threads > 1:
        threaded = create_threaded_shard(make_envs, env_ids, settings, core)
        if threaded is not None:
            return threaded
    env = make_envs(np.arange(env_ids.start, env_ids.stop))
    if isinstance(env, PerEnvBatch):
        is_chunked = shard_spec.batch_envs < num_envs
        return PerEnvShard([env], [env_ids.start, env_ids.stop], settings, is_chunked=is_chunked)
    edges = group_edges(env_ids, shard_spec.batch_envs, num_envs)
    if len(edges) == 2:
        return BatchShard([env], edges)
    env.close()
    return BatchShard([make_envs(np.arange(*ends)) for ends in pairwise(edges)], edges)


def handle_request(channel: Channel, shard: Shard, name: str, request_id: int, arguments: list[Any]) -> None:
    """Handle one request and send its result or its error."""
    try:
        value, caught = _call_recording_warnings(shard, name, arguments)
        result = RequestResult(value, warnings=caught if name in ("reset", "restore") else [])
    except BaseException as error:
        result = RequestResult(error=capture_error(f"{name}()", error))
    shard.report_failures()
    channel.send_message("result", request_id, result)


def _call_recording_warnings(
    shard: Shard, name: str, arguments: list[Any]
) -> tuple[Any, list[tuple[str, type[Warning]]]]:
    if name in NOT_DRAINING:
        # Env threads are running, and warnings are recorded for all threads or none.
        return REQUESTS[name](shard, *arguments), []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        value = REQUESTS[name](shard, *arguments)
        return value, [(str(one.message), one.category) for one in caught]


# Requests that do not wait for steps in flight. An env whose info is requested is never in flight:
# it waits for an action.
NOT_DRAINING: Final = ("state", "info")

REQUESTS: dict[str, Callable[..., Any]] = {
    "reset": lambda shard, seed, skip=None: shard.reset(seed, skip),
    "restore": lambda shard, state, skip=None: shard.restore(state, skip),
    "set_shared_params": lambda shard, shared_params: shard.set_shared_params(shared_params),
    "state": lambda shard: shard.state(),
    "timings": lambda shard: shard.timings(),
    "info": lambda shard, env_id: shard.info_bytes(env_id),
    "measure_steps": lambda shard, seed, steps: shard.measure_steps(seed, steps),
    "recover": lambda shard, point: shard.recover(point),
}
