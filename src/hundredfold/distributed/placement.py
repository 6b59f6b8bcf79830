"""Where actors live: finding room for them, away from nodes that seem to be lost.

Ray needs a quarter of a minute to believe that a node is gone, and goes on placing actors there.
But whoever was connected to an actor knows at once: where the connection broke and Ray has not
heard of the actor's end, nobody is left on its node to tell. New actors go elsewhere then, without
waiting for Ray.

Which Ray cluster we work on. One that is not ours is joined and left, never started or stopped.

All backends of a process share one connection; the last to leave closes it, if we opened it.
"""

from __future__ import annotations

import logging
import math
import os
import re
import socket
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from hundredfold.backends.settings import usable_cores
from hundredfold.core.errors import MissingExtraError, WorkerError, is_installed
from hundredfold.distributed.actor import SliceActor
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


NODE_LABEL: Final = "ray.io/node-id"
A_LITTLE_MEMORY: Final = 1  # byte
# Ray knows by then whether a node is gone.
FORGIVE_SECONDS: Final = 30.0
# For so long an actor that was just hired may not yet show in what Ray says is free.
PROMISE_SECONDS: Final = 1.0
# Tenths of cores do not add up exactly.
ROUNDING: Final = 1e-6
# How often to look for room.
LOOK_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A node that seems to be lost while Ray takes it to be alive."""

    since: float  # time.monotonic()
    free_cores: float  # so many at most, in Ray's books


class Hired(NamedTuple):
    """A new actor, and the cores that are set aside for it."""

    actor: Any
    cpus: float


class Places:
    """The cluster as far as actors need room in it."""

    def __init__(self, ray: Any, settings: RaySettings) -> None:
        self.ray, self.settings = ray, settings
        self.suspects: dict[str, Suspicion] = {}  # by node
        self.promises: list[tuple[float, float]] = []  # when, and how many cores

    def hire(self, cpus: float) -> Any:
        """A new actor, anywhere in the cluster but on a suspect."""
        # Whoever asks for nothing at all is sent anywhere at random, also to a node that is gone.
        options: dict[str, Any] = {"scheduling_strategy": "SPREAD", "memory": A_LITTLE_MEMORY}
        if self.suspects:
            options["label_selector"] = {NODE_LABEL: f"!in({','.join(self.suspects)})"}
        remote = self.ray.remote(SliceActor)
        return remote.options(num_cpus=cpus, max_restarts=0, max_task_retries=0, **options).remote()

    def release(self, actor: Any) -> None:
        """Let an actor go, dead or alive."""
        self.ray.kill(actor, no_restart=True)

    def hire_all(self, wanted: int) -> list[Hired]:
        """Actors for everybody; those for whom there are no cores share the others'."""
        cpus = self.settings.actor_cpus
        fitting = self._room_for(wanted) if cpus else wanted
        return [self._hired(cpus if number < fitting else 0) for number in range(wanted)]

    def hire_another(self, num_actors: int) -> Hired:
        """One more, in the place of a lost one of so many."""
        cpus = self.settings.actor_cpus
        self._forgive()
        return self._hired(cpus if cpus and self._room_for(1, num_actors) else 0)

    def suspect(self, node: str, taken_cores: float) -> None:
        """Keep away from a node, where our actors took so many cores, unless there is no other."""
        self._forgive()
        cores = self._cores()
        others = cores.keys() - self.suspects.keys() - {node}
        # We are alive, and so is the node we are on, however late it tells of an actor's end.
        if node not in cores or node == self.ray.get_runtime_context().get_node_id():
            return
        if any(cores[other] for other in others):
            # At least our own actors still take their cores there, as Ray sees it.
            free = max(0.0, cores[node] - taken_cores)
            self.suspects.setdefault(node, Suspicion(time.monotonic(), free))

    def _hired(self, cpus: float) -> Hired:
        self.promises.append((time.monotonic(), cpus))
        return Hired(self.hire(cpus), cpus)

    def _room_for(self, wanted: int, in_all: int = 0) -> int:
        """For how many actors there are cores; waits a little for more, unless none can come.

        At the start a cluster may be growing. Later it had room for `in_all` actors once: cores of
        a lost actor are free in a moment, those of a lost node are not.
        """
        cpus = self.settings.actor_cpus
        until = time.monotonic() + self.settings.place_timeout
        while (fitting := self._fitting(cpus)) < wanted:
            too_small = actors_that_fit(self.ray, cpus) < in_all
            if too_small or self.suspects or time.monotonic() > until:
                warnings.warn(
                    f"the cluster has free cores for {fitting} of {wanted} actors; the others "
                    "share cores with somebody. Ask for fewer --workers, add nodes, or wait longer "
                    "with --place-timeout.",
                    stacklevel=2,
                )
                break
            time.sleep(LOOK_SECONDS)
        return min(fitting, wanted)

    def _fitting(self, cpus: float) -> int:
        """For how many actors there are free cores that are surely nobody else's.

        Those of suspects are out of reach, and what was promised a moment ago is taken: whoever is
        promised a core that there is not waits for it until somebody gives one back.
        """
        recent = time.monotonic() - PROMISE_SECONDS
        self.promises = [promise for promise in self.promises if promise[0] > recent]
        taken = sum(cores for _, cores in self.promises)
        out_of_reach = sum(suspicion.free_cores for suspicion in self.suspects.values())
        free = free_cores(self.ray) - out_of_reach - taken
        return max(0, int(free / cpus + ROUNDING))

    def _forgive(self) -> None:
        """Drop suspicions that Ray has confirmed, or not confirmed for long."""
        cores, now = self._cores(), time.monotonic()
        self.suspects = {
            node: suspicion
            for node, suspicion in self.suspects.items()
            if node in cores and now - suspicion.since < FORGIVE_SECONDS
        }

    def _cores(self) -> dict[str, float]:
        """The nodes that Ray takes to be alive, and the cores of each."""
        return {
            node["NodeID"]: float(node["Resources"].get("CPU", 0.0))
            for node in self.ray.nodes()
            if node["Alive"]
        }
