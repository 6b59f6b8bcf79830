"""Backends: where shards of a batch of envs run, and which of them are waited for."""

from __future__ import annotations

from importlib import import_module

from hundredfold.backends.auto_select import BackendChoice, BackendMaker, choose_backend, start_or_fall_back
from hundredfold.backends.call_checks import refuse_while_importing_main
from hundredfold.backends.in_process import InProcessBackend, SerialBackend
from hundredfold.backends.processes.backend import FirstReadyBackend, ProcessBackend
from hundredfold.backends.settings import WorkerSettings
from hundredfold.core.errors import SettingsError, suggest
from hundredfold.core.protocols import Backend, EnvFactory


def ray_backend(make_envs: EnvFactory, num_envs: int, settings: WorkerSettings | None = None) -> Backend:
    """The Ray backend; imported by name because it belongs to a higher layer."""
    maker: BackendMaker = import_module("hundredfold.distributed.ray_backend").RayBackend
    return maker(make_envs, num_envs, settings)


BACKENDS: dict[str, BackendMaker] = {
    "in_process": InProcessBackend,
    "serial": SerialBackend,
    "processes": ProcessBackend,
    "first_ready": FirstReadyBackend,
    "ray": ray_backend,
}


def make_backend(name: str, make_envs: EnvFactory, num_envs: int, settings: WorkerSettings | None = None) -> Backend:
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
    ray: BackendMaker = ray_backend,
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
        raise SettingsError(f"there is no backend called {name!r}; {suggest(name, ['auto', *BACKENDS])}")
    if name == "auto":
        refuse_while_importing_main("choose a backend")
        choice = choose_backend(make_envs, num_envs, settings)
    else:
        choice = BackendChoice(name, settings or WorkerSettings(), "as requested")
    return start_or_fall_back({**BACKENDS, "ray": ray}, choice, make_envs, num_envs)
