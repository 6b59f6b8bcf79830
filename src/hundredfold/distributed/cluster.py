"""Which Ray cluster we work on. One that is not ours is joined and left, never started or stopped.

All backends of a process share one connection; the last to leave closes it, if we opened it.
"""

from __future__ import annotations

import logging
import math
import os
import re
import socket
from pathlib import Path
from typing import Any, Final

from hundredfold.backends.settings import usable_cores
from hundredfold.core.errors import MissingExtraError, WorkerError
from hundredfold.core.extras import is_installed
from hundredfold.distributed.settings import RaySettings

# How long a cluster may take to answer; Ray itself would go on asking for minutes.
ANSWER_SECONDS: Final = 5.0
CLIENT_PORT: Final = 10001
# Says at every start that a cluster is kept safe with a token.
TOKEN_LOG: Final = "ray._private.authentication.authentication_token_setup"

_users = 0
_opened = False


def load_ray() -> Any:
    """The ray module, or one line that says how to get it."""
    if not is_installed("ray"):
        raise MissingExtraError("ray", "ray", "the backend ray")
    # Must be known before ray is imported; nothing about a cluster of our own is reported.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    return ray


def join(settings: RaySettings, num_actors: int) -> Any:
    """Connect this process, unless it is connected already; returns the ray module."""
    global _users, _opened
    ray = load_ray()
    if not ray.is_initialized():
        _open(ray, settings, num_actors)
        _users, _opened = 0, True
    _users += 1
    return ray


def leave() -> None:
    """One user less; the last one disconnects, which ends a cluster of our own."""
    global _users, _opened
    _users -= 1
    if _users > 0 or not _opened:
        return
    _opened = False
    ray = load_ray()
    if ray.is_initialized():
        ray.shutdown()


def actors_that_fit(ray: Any, cpus: float) -> int:
    """How many actors the whole cluster has cores for; at least one."""
    cores = float(ray.cluster_resources().get("CPU", 0.0))
    return max(1, int(cores / cpus if cpus else cores))


def free_cores(ray: Any) -> float:
    """Cores of the cluster that nobody has set aside."""
    return float(ray.available_resources().get("CPU", 0.0))


def _open(ray: Any, settings: RaySettings, num_actors: int) -> None:
    address = settings.address or os.environ.get("RAY_ADDRESS", "")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING}
    logging.getLogger(TOKEN_LOG).setLevel(logging.ERROR)
    remedy = ""
    try:
        if address:
            _knock(address)
            remedy = (
                f" Somebody answers there: it should be Ray {ray.__version__}, and where it asks "
                "for a token this machine needs the same one in ~/.ray/auth_token (or "
                "RAY_AUTH_TOKEN) and RAY_AUTH_MODE=token."
            )
            # Ray shows a token only to a cluster that it finds by itself.
            is_here = address == _noted_cluster() and "RAY_ADDRESS" not in os.environ
            ray.init(address="auto" if is_here else address, **quiet)
            return
        own: dict[str, Any] = {"include_dashboard": False}
        if settings.object_store_mb:
            own["object_store_memory"] = settings.object_store_mb * 2**20
        # On a machine of our own every actor gets a place, if need be at the others' cost.
        cores = max(usable_cores(), math.ceil(num_actors * settings.actor_cpus))
        ray.init(address="local", num_cpus=cores, **own, **quiet)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        where = f"the cluster at {address} cannot be joined" if address else "Ray cannot start here"
        first_sentence = re.split(r"\.?\s*\n|\.\s|\.$", str(error).strip(), maxsplit=1)[0]
        raise WorkerError(f"{where}: {first_sentence}.{remedy}") from None


def _knock(address: str) -> None:
    """Raise unless somebody listens where the cluster should be."""
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "") or _noted_cluster()
        if not address:
            raise ConnectionError("no cluster runs on this machine; `ray start --head` starts one")
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdecimal():
        host, port = address.removeprefix("ray://"), str(CLIENT_PORT)
    socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS).close()


def _noted_cluster() -> str:
    """The cluster that was last started on this machine, as `ray start` leaves it written."""
    place = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    note = Path(place, "ray", "ray_current_cluster")
    return note.read_text().strip() if note.exists() else ""
