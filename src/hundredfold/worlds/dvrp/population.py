"""Which population a world plays with: the user's own when files are named, else the built-in."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from hundredfold.worlds.dvrp.built_in import built_in_population
from hundredfold.worlds.dvrp.customers import Population
from hundredfold.worlds.dvrp.load import load_population
from hundredfold.worlds.dvrp.settings import DvrpSettings


def population_for(settings: DvrpSettings) -> Population:
    """The population of these settings; worlds in one process share it."""
    files = (settings.trips, settings.travel_times, settings.decisions)
    return _population(settings, tuple(_last_change(path) for path in files))


@lru_cache(maxsize=16)
def _population(settings: DvrpSettings, changes: tuple[int, ...]) -> Population:
    # `changes` is part of the key alone: a file that was edited is read again.
    if settings.trips is None:
        return built_in_population(settings)
    return load_population(settings)


def _last_change(path: str | None) -> int:
    try:
        return 0 if path is None else Path(path).stat().st_mtime_ns
    except OSError:
        return 0  # reading it will say what is wrong
