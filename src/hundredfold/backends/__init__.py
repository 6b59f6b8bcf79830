"""Where envs run, and who waits for whom."""

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
    """Makes a backend for an env of so many envs."""

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
    """The backend of this name; `auto` takes the one that suits the env."""
    return start_backend(name, make_envs, num_envs, settings)[0]


def start_backend(
    name: str,
    make_envs: EnvFactory,
    num_envs: int,
    settings: WorkerSettings | None = None,
    *,
    ray: BackendMaker = RayBackend,
) -> tuple[Backend, BackendChoice]:
    """The same with the choice that was made, for those who tell it and write it down.

    Where a backend cannot start the next one is taken, with a warning: the choice is what runs.
    `ray` makes the backend of that name, for those who know their cluster.
    """
    if name not in ("auto", *BACKENDS):
        raise SettingsError(
            f"there is no backend called {name!r}; {suggest(name, ['auto', *BACKENDS])}"
        )
    if name == "auto":
        refuse_while_importing_main("choose a backend")
        choice = choose_backend(make_envs, num_envs, settings)
    else:
        choice = BackendChoice(name, settings or WorkerSettings(), "as asked for")
    return start_or_fall_back({**BACKENDS, "ray": ray}, choice, make_envs, num_envs)
