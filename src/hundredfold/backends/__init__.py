"""Backends: where shards of a batch of envs run, and which of them are waited for."""

from __future__ import annotations

from typing import Protocol

from hundredfold.backends.auto_select import (
    BackendChoice,
    choose_backend,
    start_or_fall_back,
)
from hundredfold.backends.call_checks import refuse_while_importing_main
from hundredfold.backends.in_process import InProcessBackend
from hundredfold.backends.processes.backend import FirstReadyBackend, ProcessBackend
from hundredfold.backends.serial import SerialBackend
from hundredfold.backends.settings import WorkerSettings
from hundredfold.core.errors import SettingsError, suggest
from hundredfold.core.protocols import Backend, EnvFactory
from hundredfold.distributed.ray_backend import RayBackend


class BackendMaker(Protocol):
    """Creates a backend; the classes of `BACKENDS` are such callables."""

    def __call__(
        self, make_envs: EnvFactory, num_envs: int, settings: WorkerSettings | None = None
    ) -> Backend: ...


BACKENDS: dict[str, BackendMaker] = {
    "in_process": InProcessBackend,
    "serial": SerialBackend,
    "processes": ProcessBackend,
    "first_ready": FirstReadyBackend,
    "ray": RayBackend,
}


def make_backend(
    name: str, make_envs: EnvFactory, num_envs: int, settings: WorkerSettings | None = None
) -> Backend:
    """Start a backend.

    Args:
        name: a key of `BACKENDS`, or `auto` to choose one by profiling the env.
        make_envs: creates the envs.
        num_envs: number of envs.
        settings: how to start and supervise workers.
    """
    return start_backend(name, make_envs, num_envs, settings)[0]


def start_backend(
    name: str,
    make_envs: EnvFactory,
    num_envs: int,
    settings: WorkerSettings | None = None,
    *,
    ray: BackendMaker = RayBackend,
) -> tuple[Backend, BackendChoice]:
    """`make_backend`, together with the choice that was made.

    If a backend cannot start the next one is tried, with a warning: the choice is what runs.

    Args:
        name: a key of `BACKENDS`, or `auto`.
        make_envs: creates the envs.
        num_envs: number of envs.
        settings: how to start and supervise workers.
        ray: creates the `ray` backend, if it should use a given cluster.
    """
    if name not in ("auto", *BACKENDS):
        raise SettingsError(
            f"there is no backend called {name!r}; {suggest(name, ['auto', *BACKENDS])}"
        )
    if name == "auto":
        refuse_while_importing_main("choose a backend")
        choice = choose_backend(make_envs, num_envs, settings)
    else:
        choice = BackendChoice(name, settings or WorkerSettings(), "as requested")
    return start_or_fall_back({**BACKENDS, "ray": ray}, choice, make_envs, num_envs)
