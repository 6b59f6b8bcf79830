"""Who trains a run: our own loop, or somebody else's library on the same worlds and settings.

An engine is three functions. `build` makes the parts from the settings, `start` opens the books in
a new run folder, `train` goes to the end and says whether it got there. Whoever adds one writes a
function that imports them, and a row in `ENGINES`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from hundredfold.core.contracts import WorldFactory
from hundredfold.core.errors import SettingsError
from hundredfold.settings.run import EngineName, RunSettings
from hundredfold.training.build import Parts, build
from hundredfold.training.engine_run import EngineRun
from hundredfold.training.loop import train
from hundredfold.training.run import Run


class Engine(NamedTuple):
    """How a run is trained."""

    build: Callable[[RunSettings, WorldFactory | None], Parts]
    start: Callable[..., Run]  # (folder, parts, *, wandb, quiet)
    train: Callable[[Run], bool]


def engine_of(settings: RunSettings) -> Engine:
    """The engine these settings ask for."""
    return ENGINES[settings.engine]()


def refuse_resume(settings: RunSettings) -> None:
    """Only our own loop goes on where it was stopped."""
    if settings.engine != OWN:
        raise SettingsError(
            f"this run was trained by the engine {settings.engine}, whose own state is not in the "
            "checkpoints: it cannot go on bit for bit. Its policy can be evaluated, loaded and "
            "exported; start a new run to train longer."
        )


def _own() -> Engine:
    return Engine(build, Run.start, train)


def _stable_baselines() -> Engine:
    from hundredfold.interop.sb3.extra import require_stable_baselines

    require_stable_baselines()
    from hundredfold.interop.sb3 import engine

    return Engine(engine.build, EngineRun.start, engine.train)


def _rllib() -> Engine:
    from hundredfold.distributed.cluster import load_ray

    load_ray()
    from hundredfold.interop.rllib import engine

    return Engine(engine.build, EngineRun.start, engine.train)


OWN: Final[EngineName] = "hundredfold"

ENGINES: Final[dict[EngineName, Callable[[], Engine]]] = {
    OWN: _own,
    "sb3": _stable_baselines,
    "rllib": _rllib,
}
