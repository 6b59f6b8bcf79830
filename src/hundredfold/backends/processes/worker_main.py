"""A worker process: makes its slice of the env and does what the parent asks.

Spans of env ids come in and go out as they are stepped; rare things (reset, snapshots, what a
belief model has learned) come as messages, in order with the spans. Torch is never imported here.

How a worker lives and dies: signals that are not meant for it, and the end of its parent.

The parent holds the other end of a pipe, the lifeline, into which nobody ever writes. When the
parent ends, however it ends, the kernel breaks the pipe and kills the worker with everything the
worker started, even if an env hangs in compiled code at that moment.
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
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from hundredfold.backends.env_profile import measure_steps
from hundredfold.backends.processes.channel import Channel, receive_handles
from hundredfold.backends.processes.cpu_affinity import core_for
from hundredfold.backends.processes.env_shards import (
    BatchSlice,
    ForeignSlice,
    Slice,
    pairs,
    shard_edges,
)
from hundredfold.backends.processes.remote_errors import Answer, capture_error
from hundredfold.backends.processes.shared_memory import layout_of, mapped
from hundredfold.backends.settings import WorkerSettings
from hundredfold.core.batch import IntArray, State
from hundredfold.core.protocols import EnvFactory, PerEnvBatch, SharedParams


def settle_in() -> None:
    """Take leave of the parent's terminal and of its signal handlers."""
    # A process group of its own: Ctrl-C goes to the parent alone, and whatever an env starts can be
    # ended together with its worker.
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    # What a forked process inherits is not its own garbage: looking through it would copy it.
    gc.freeze()


def tie_to_parent(lifeline: int) -> None:
    """From now on this process ends when the parent does."""
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        flags = fcntl.fcntl(lifeline, fcntl.F_GETFL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, flags | os.O_ASYNC)
        # It may have broken before we were listening.
        poll = select.poll()
        poll.register(lifeline, select.POLLIN)
        if poll.poll(0):
            end_group()
    else:
        threading.Thread(target=_wait_for_end, args=(lifeline,), daemon=True).start()


def end_group() -> None:
    """End this worker and everything it started."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _wait_for_end(lifeline: int) -> None:
    os.read(lifeline, 1)
    end_group()


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """Which envs a worker holds, and how."""

    number: int
    first: int
    last: int
    num_envs: int
    batch_envs: int
    settings: WorkerSettings
    # The factory itself for a forked worker, else its bytes: so the worker can say what is wrong.
    make_envs: EnvFactory | bytes


@dataclass(frozen=True, slots=True)
class RecoveryPoint:
    """Where the current story began, and how many episodes ago: what a new worker goes on from."""

    seed: int | None
    state: State | None
    shared_params: SharedParams
    ahead: IntArray  # (envs of the worker,) episodes to go on from there


def worker_main(messages: socket.socket, plan: WorkerPlan) -> None:
    """What runs in a worker process."""
    settle_in()
    try:
        inbox, outbox, lifeline = receive_handles(messages, 3)
        tie_to_parent(lifeline)
        serve(Channel(messages, inbox, outbox), plan)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the parent has closed its end: nothing is left to do


def serve(wire: Channel, plan: WorkerPlan) -> None:
    """Make the slice, then step it until the parent has had enough."""
    try:
        part = make_slice(plan)
    except BaseException as error:
        wire.say("unmade", capture_error("being made", error))
        return
    try:
        is_per_env = isinstance(part, ForeignSlice)
        wire.say("ready", part.spec, is_per_env)
        (memory,) = receive_handles(wire.messages, 1)
        layout = layout_of(part.spec, plan.num_envs, foreign=is_per_env)
        part.set_output_buffers(mapped(layout, memory), wire)
        while (spans := wire.collect()) is not None:
            for first, last in spans:
                if first >= 0:
                    part.step(first, last)
                    continue
                order, serial, *arguments = wire.hear()
                if order not in UNHURRIED or (order == "state" and part.rests_for_state):
                    part.settle()
                if order == "close":
                    return
                obey(wire, part, order, serial, arguments)
    finally:
        part.close()


def make_slice(plan: WorkerPlan) -> Slice:
    """The slice that holds the planned envs, made as suits their env."""
    make_envs: EnvFactory = (
        pickle.loads(plan.make_envs) if isinstance(plan.make_envs, bytes) else plan.make_envs
    )
    env_ids = range(plan.first, plan.last)
    env = make_envs(np.arange(plan.first, plan.last))
    if isinstance(env, PerEnvBatch):
        in_pieces = plan.batch_envs < plan.num_envs
        core = core_for(plan.number, plan.settings.num_workers(plan.num_envs))
        return ForeignSlice(env, env_ids, plan.settings, in_pieces=in_pieces, core=core)
    edges = shard_edges(env_ids, plan.batch_envs, plan.num_envs)
    if len(edges) == 2:
        return BatchSlice([env], edges)
    env.close()
    return BatchSlice([make_envs(np.arange(*ends)) for ends in pairs(edges)], edges)


def obey(wire: Channel, part: Slice, order: str, serial: int, arguments: list[Any]) -> None:
    """Carry out one order and answer, whatever comes of it."""
    kind, answer = "answer", Answer()
    try:
        value, told = _done(part, order, arguments)
        answer = Answer(value, warnings=told if order == "restore" else [])
    except BaseException as error:
        kind, answer = "refusal", Answer(refusal=capture_error(f"{order}()", error))
    part.tell_failures()
    wire.say(kind, serial, answer)


def _done(
    part: Slice, order: str, arguments: list[Any]
) -> tuple[Any, list[tuple[str, type[Warning]]]]:
    """What an order comes to, and what was warned of meanwhile."""
    if order in UNHURRIED:
        # Threads are at work, and warnings are caught for all threads or none.
        return ORDERS[order](part, *arguments), []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        value = ORDERS[order](part, *arguments)
        return value, [(str(one.message), one.category) for one in caught]


def rejoin(part: Slice, origin: RecoveryPoint) -> None:
    """Take the place of a worker that is lost: all its episodes are cut off where they were."""
    last_seen = part.observations()
    if origin.state is not None:
        part.restore(origin.state)
    part.set_shared_params(origin.shared_params)
    part.truncate_all(origin.ahead, origin.seed, last_seen)


# What can be asked while envs are at work. An env whose info is asked for is not: it has been
# heard and waits for an action.
UNHURRIED: Final = ("state", "info")

ORDERS: dict[str, Callable[..., Any]] = {
    "reset": lambda part, seed: part.reset(seed),
    "restore": lambda part, state: part.restore(state),
    "inform": lambda part, shared_params: part.set_shared_params(shared_params),
    "state": lambda part: part.state(),
    "timings": lambda part: part.timings(),
    "info": lambda part, env_id: part.info_of(env_id),
    "measure_steps": lambda part: measure_steps(part.env),
    "rejoin": rejoin,
}
