"""One small Ray cluster per test process, and actors that are reused by later tests.

Starting an actor takes seconds, most of them for importing torch and compiled envs.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.processes import HANG_SECONDS
from hundredfold.backends.settings import RaySettings, WorkerSettings
from hundredfold.distributed.actor_pool import ActorPool
from hundredfold.distributed.placement import ActorPlacement, load_ray
from hundredfold.distributed.ray_backend import RayBackend

LOCAL = {"address": "local", "include_dashboard": False, "object_store_memory": 200 * 2**20, "log_to_driver": False}
IDLE_ACTORS = []


def shared_cluster():
    """Start a cluster that backends join rather than start, so they leave it running."""
    pytest.importorskip("ray", reason="the extra ray is not installed")
    ray = load_ray()
    os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
    if not ray.is_initialized():
        IDLE_ACTORS.clear()
        with pytest.MonkeyPatch.context() as patch:
            # Actors import the envs of tests.
            patch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)
            ray.init(num_cpus=4, **LOCAL)
    return ray


class ReusingPlacement(ActorPlacement):
    """Reuses actors that earlier tests have released, except for lost ones."""

    lost_actor = None

    def start_actor(self, cpus):
        return IDLE_ACTORS.pop() if IDLE_ACTORS else super().start_actor(0)

    def release(self, actor):
        if actor is self.lost_actor:
            super().release(actor)
            return
        try:
            self.ray.get(actor.hostname.remote(), timeout=HANG_SECONDS)
            IDLE_ACTORS.append(actor)
        except self.ray.exceptions.RayError:
            super().release(actor)


class ReusingActorPool(ActorPool):
    placement_class = ReusingPlacement

    def _replace(self, handle, reason):
        self.placement.lost_actor = handle.actor  # it may hang, so it is not asked whether it is alive
        super()._replace(handle, reason)


class ReusingRayBackend(RayBackend):
    pool_class = ReusingActorPool


def ray_backend(make_envs, num_envs, settings=None, *, workers=2, collecting=False, **ray):
    """A backend on the shared cluster."""
    shared_cluster()
    settings = replace(settings or WorkerSettings(), workers=workers)
    ray_settings = RaySettings(**{"actor_cpus": 0, "actor_backend": "in_process", **ray})
    return ReusingRayBackend(make_envs, num_envs, settings, ray_settings, collecting=collecting)


def two_actors(make_envs, num_envs, settings=None):
    """A backend with two actors, however many cores there are."""
    return ray_backend(make_envs, num_envs, settings)
