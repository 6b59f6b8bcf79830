"""One small Ray cluster per test process, and actors that serve one test after another.

Starting an actor takes seconds, most of them for importing torch and compiled envs.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from hundredfold.backends.settings import WorkerSettings
from hundredfold.distributed.actor_pool import Fleet
from hundredfold.distributed.placement import Places
from hundredfold.distributed.ray_backend import RayBackend
from hundredfold.distributed.settings import RaySettings

LOCAL = {
    "address": "local",
    "include_dashboard": False,
    "object_store_memory": 200 * 2**20,
    "log_to_driver": False,
}
SPARE = []


def shared_cluster():
    """A cluster that is not the backends' own, so they leave it running."""
    ray = pytest.importorskip("ray", reason="the extra ray is not installed")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
    if not ray.is_initialized():
        SPARE.clear()
        with pytest.MonkeyPatch.context() as patch:
            # So that actors find what tests play with.
            patch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
            ray.init(num_cpus=4, **LOCAL)
    return ray


class Pool(Places):
    """Takes actors that others are done with."""

    def hire(self, cpus):
        return SPARE.pop() if SPARE else super().hire(0)

    def release(self, actor):
        try:
            self.ray.get(actor.here.remote(), timeout=2)
            SPARE.append(actor)
        except self.ray.exceptions.RayError:
            super().release(actor)


class PooledFleet(Fleet):
    places_type = Pool


class PooledRayBackend(RayBackend):
    fleet_type = PooledFleet


def ray_backend(make_envs, num_envs, settings=None, *, workers=2, collecting=False, **ray):
    """A backend on the shared cluster."""
    shared_cluster()
    settings = replace(settings or WorkerSettings(), workers=workers)
    asked = RaySettings(**{"actor_cpus": 0, "actor_backend": "in_process", **ray})
    return PooledRayBackend(make_envs, num_envs, settings, asked, collecting=collecting)


def two_actors(make_envs, num_envs, settings=None):
    """Two, however many cores there are, so that envs meet across actors."""
    return ray_backend(make_envs, num_envs, settings)
