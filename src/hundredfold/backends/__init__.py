"""Where envs run, and who waits for whom."""

from __future__ import annotations

from collections.abc import Callable

from hundredfold.backends.in_process import InProcessBackend
from hundredfold.backends.serial import SerialBackend
from hundredfold.core.contracts import Backend, WorldFactory
from hundredfold.core.errors import SettingsError, near_names

BACKENDS: dict[str, Callable[[WorldFactory, int], Backend]] = {
    "in_process": InProcessBackend,
    "serial": SerialBackend,
}


def make_backend(name: str, make_world: WorldFactory, num_envs: int) -> Backend:
    """The backend of this name; `auto` takes the one that suits every world, `in_process`."""
    if name == "auto":
        name = "in_process"
    if name not in BACKENDS:
        raise SettingsError(
            f"there is no backend called {name!r}; {near_names(name, ['auto', *BACKENDS])}"
        )
    return BACKENDS[name](make_world, num_envs)
