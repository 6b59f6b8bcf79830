"""Measuring an env where it can do no harm: in a worker of its own, with a limit of time.

An env that hangs, or that takes its process along, is found out here before anything else depends
on it. The worker is like any other: it starts as they do and ends when the parent ends.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from hundredfold.backends.blame import HungError
from hundredfold.backends.crew import Crew
from hundredfold.backends.probe import Probe
from hundredfold.backends.settings import WorkerSettings
from hundredfold.backends.traffic import Traffic
from hundredfold.core.batch import WorldSpec
from hundredfold.core.contracts import WorldFactory
from hundredfold.core.faults import Guard

# A step that takes longer than this is not waited for: workers are right for it in any case.
PATIENCE_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found out about a world."""

    spec: WorldSpec
    is_foreign: bool
    probe: Probe | None = None  # None where nothing was played
    hung_seconds: float = 0.0  # how long one call was waited for, in vain


def probe_apart(make_world: WorldFactory, settings: WorkerSettings) -> Finding:
    """Make one env in a worker and play it there, if it is somebody else's.

    Raises `WorkerError` or `OSError` where no worker can start, and `EnvError` where the env fails
    or takes its process along.
    """
    patience = min(settings.step_timeout, PATIENCE_SECONDS)
    alone = replace(settings, workers=1, env_threads=1, batch_envs=0, step_timeout=patience)
    with closing(Crew(make_world, Traffic(1), alone, batch_envs=1)) as crew:
        found = partial(Finding, crew.spec, crew.is_foreign)
        if not crew.is_foreign:
            return found()
        crew.guard = Guard("stop")  # no second try for an env that takes its worker along
        try:
            return found(probe=crew.order("probe")[0])
        except HungError:
            return found(hung_seconds=patience)


def is_ours(make_world: WorldFactory) -> bool:
    """Whether this can be seen to make a world of ours, which need not be tried out."""
    made: object = make_world
    while isinstance(made, partial):
        made = made.func
    return isinstance(made, type) and not hasattr(made, "step_rows")
