"""Where envs run, and who waits for whom."""

from __future__ import annotations

from typing import Protocol

from hundredfold.backends.auto_select import (
    Choice,
    choose_backend,
    refuse_in_worker,
    start_or_fall_back,
)
from hundredfold.backends.in_process import InProcessBackend
from hundredfold.backends.processes.backend import FirstReadyBackend, ProcessBackend
from hundredfold.backends.serial import SerialBackend
from hundredfold.backends.settings import WorkerSettings
from hundredfold.core.errors import SettingsError, near_names
from hundredfold.core.protocols import Backend, WorldFactory
from hundredfold.distributed.ray_backend import RayBackend


class BackendMaker(Protocol):
    """Makes a backend for a world of so many envs."""

    def __call__(
        self, make_world: WorldFactory, num_envs: int, settings: WorkerSettings | None = None
    ) -> Backend: ...


BACKENDS: dict[str, BackendMaker] = {
    "in_process": InProcessBackend,
    "serial": SerialBackend,
    "processes": ProcessBackend,
    "first_ready": FirstReadyBackend,
    "ray": RayBackend,
}


def make_backend(
    name: str, make_world: WorldFactory, num_envs: int, settings: WorkerSettings | None = None
) -> Backend:
    """The backend of this name; `auto` takes the one that suits the world."""
    return start_backend(name, make_world, num_envs, settings)[0]


def start_backend(
    name: str,
    make_world: WorldFactory,
    num_envs: int,
    settings: WorkerSettings | None = None,
    *,
    ray: BackendMaker = RayBackend,
) -> tuple[Backend, Choice]:
    """The same with the choice that was made, for those who tell it and write it down.

    Where a backend cannot start the next one is taken, with a warning: the choice is what runs.
    `ray` makes the backend of that name, for those who know their cluster.
    """
    if name not in ("auto", *BACKENDS):
        raise SettingsError(
            f"there is no backend called {name!r}; {near_names(name, ['auto', *BACKENDS])}"
        )
    if name == "auto":
        refuse_in_worker()
        choice = choose_backend(make_world, num_envs, settings)
    else:
        choice = Choice(name, settings or WorkerSettings(), "as asked for")
    return start_or_fall_back({**BACKENDS, "ray": ray}, choice, make_world, num_envs)
