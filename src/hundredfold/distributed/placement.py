"""Connection to a Ray cluster, and placement of actors on its nodes.

A cluster that was not started here is joined and left, never started or stopped. All backends of a
process share one connection; the last one to leave closes it if this module opened it.

Ray takes about 15 seconds to declare a node dead, and places actors on it until then. A driver that
was connected to an actor knows earlier: if the connection broke and Ray has not reported the
actor's death, its node no longer responds. New actors are then placed elsewhere without waiting.
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

from hundredfold.backends.settings import RaySettings, usable_cores
from hundredfold.core.errors import MissingExtraError, WorkerError, is_installed
from hundredfold.distributed.actor import EnvActor

# How long a cluster may take to accept a connection; Ray itself would retry for minutes.
CONNECT_SECONDS: Final = 5.0
CLIENT_PORT: Final = 10001
# Address that stands for a cluster started on this machine, also where RAY_ADDRESS names another one.
NEW_CLUSTER: Final = "local"
# Logs at every start that a cluster requires a token.
TOKEN_LOGGER: Final = "ray._private.authentication.authentication_token_setup"

NODE_LABEL: Final = "ray.io/node-id"
MIN_MEMORY_BYTES: Final = 1
# By then Ray has found out whether a node is dead.
SUSPECT_SECONDS: Final = 30.0
# For so long the cores of a new actor may still be free in Ray's view.
RESERVATION_SECONDS: Final = 1.0
# Tenths of cores do not add up exactly.
ROUNDING: Final = 1e-6
# Interval at which free cores are polled.
POLL_SECONDS: Final = 0.1

_num_users = 0
_opened_here = False


def load_ray() -> Any:
    """Import ray; raises a MissingExtraError that says how to install it."""
    if not is_installed("ray"):
        raise MissingExtraError("ray", "ray", "the backend ray")
    # Has to be set before ray is imported: no usage statistics are sent.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Of a cluster started here: by default actors have niceness 15 and hardly run beside other work.
    os.environ.setdefault("RAY_worker_niceness", "0")
    import ray

    return ray


def connect(settings: RaySettings, num_actors: int) -> Any:
    """Connect this process to a cluster unless it is connected already.

    Args:
        settings: Which cluster.
        num_actors: Actors that a cluster started here needs cores for.

    Returns:
        The ray module.
    """
    global _num_users, _opened_here
    ray = load_ray()
    if not ray.is_initialized():
        _init_ray(ray, settings, num_actors)
        _num_users, _opened_here = 0, True
    _num_users += 1
    return ray


def disconnect() -> None:
    """Release a connection; the last release disconnects and ends a cluster started here."""
    global _num_users, _opened_here
    _num_users -= 1
    if _num_users > 0 or not _opened_here:
        return
    _opened_here = False
    ray = load_ray()
    if ray.is_initialized():
        ray.shutdown()


def max_actors(ray: Any, actor_cpus: float) -> int:
    """Number of actors that the whole cluster has cores for; at least one."""
    cores = float(ray.cluster_resources().get("CPU", 0.0))
    return max(1, int(cores / actor_cpus if actor_cpus else cores))


def _init_ray(ray: Any, settings: RaySettings, num_actors: int) -> None:
    address = settings.address or os.environ.get("RAY_ADDRESS", "")
    address = "" if address == NEW_CLUSTER else address
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING}
    logging.getLogger(TOKEN_LOGGER).setLevel(logging.ERROR)
    hint = ""
    try:
        if address:
            _check_reachable(address)
            hint = (
                f" The address accepts connections; it should be Ray {ray.__version__}. If the "
                "cluster requires a token, this machine needs the same one in ~/.ray/auth_token "
                "(or RAY_AUTH_TOKEN) and RAY_AUTH_MODE=token."
            )
            # Ray presents a token only to a cluster that it finds by itself.
            is_local = address == _local_cluster_address() and "RAY_ADDRESS" not in os.environ
            ray.init(address="auto" if is_local else address, **quiet)
            return
        options: dict[str, Any] = {"include_dashboard": False}
        if settings.object_store_mb:
            options["object_store_memory"] = settings.object_store_mb * 2**20
        # On a single machine every actor is placed, if need be by oversubscribing the cores.
        cores = max(usable_cores(), math.ceil(num_actors * settings.actor_cpus))
        ray.init(address="local", num_cpus=cores, **options, **quiet)
    except Exception as error:  # Ray raises many kinds; where a node takes too long to start, `Exception` itself
        failed = f"cannot join the Ray cluster at {address}" if address else "Ray cannot start here"
        first_sentence = re.split(r"\.?\s*\n|\.\s|\.$", str(error).strip(), maxsplit=1)[0]
        raise WorkerError(f"{failed}: {first_sentence}.{hint}") from None


def _check_reachable(address: str) -> None:
    """Raise an OSError unless something listens at the address of the cluster."""
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "") or _local_cluster_address()
        if not address:
            raise ConnectionError("no cluster runs on this machine; `ray start --head` starts one")
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdecimal():
        host, port = address.removeprefix("ray://"), str(CLIENT_PORT)
    socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()


def _local_cluster_address() -> str:
    """The cluster last started on this machine, from the file that `ray start` writes."""
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    path = Path(folder, "ray", "ray_current_cluster")
    return path.read_text().strip() if path.exists() else ""


@dataclass(frozen=True, slots=True)
class SuspectedNode:
    """A node that no longer responds while Ray still lists it as alive."""

    since: float  # time.monotonic()
    free_cores: float  # at most so many of the free cores that Ray reports are on it


class Reservation(NamedTuple):
    """Cores of an actor that was just started."""

    since: float  # time.monotonic()
    cpus: float


class StartedActor(NamedTuple):
    """A new actor and the cores reserved for it."""

    actor: Any
    cpus: float


class ActorPlacement:
    """Starts actors where the cluster has free cores, avoiding suspected nodes.

    Args:
        ray: The connected ray module.
        settings: Cores per actor and how long to wait for them.
    """

    def __init__(self, ray: Any, settings: RaySettings) -> None:
        self.ray, self.settings = ray, settings
        self.suspected: dict[str, SuspectedNode] = {}  # by node id
        self.reservations: list[Reservation] = []

    def start_actor(self, cpus: float) -> Any:
        """Start an actor anywhere in the cluster but on a suspected node."""
        # An actor without any resource request is placed at random, also on a dead node.
        options: dict[str, Any] = {"scheduling_strategy": "SPREAD", "memory": MIN_MEMORY_BYTES}
        if self.suspected:
            options["label_selector"] = {NODE_LABEL: f"!in({','.join(self.suspected)})"}
        remote = self.ray.remote(EnvActor)
        return remote.options(num_cpus=cpus, max_restarts=0, max_task_retries=0, **options).remote()

    def release(self, actor: Any) -> None:
        """Kill an actor, dead or alive."""
        self.ray.kill(actor, no_restart=True)

    def start_actors(self, num_actors: int) -> list[StartedActor]:
        """Start the actors of a backend; those without free cores share cores with others."""
        cpus = self.settings.actor_cpus
        num_fitting = self._wait_for_cores(num_actors) if cpus else num_actors
        return [self._reserve(cpus if index < num_fitting else 0) for index in range(num_actors)]

    def start_replacement(self, num_actors: int) -> StartedActor:
        """Start an actor in place of a lost one of `num_actors`."""
        cpus = self.settings.actor_cpus
        self._expire()
        return self._reserve(cpus if cpus and self._wait_for_cores(1, num_actors) else 0)

    def suspect(self, node_id: str, used_cores: float) -> None:
        """Avoid a node unless it is the only one with cores.

        Args:
            node_id: The node.
            used_cores: Cores on it that are reserved for actors of this backend.
        """
        self._expire()
        cores = self._cores_by_node()
        others = cores.keys() - self.suspected.keys() - {node_id}
        # This node is alive, however late it reports the death of an actor.
        if node_id not in cores or node_id == self.ray.get_runtime_context().get_node_id():
            return
        if any(cores[other] for other in others):
            # In Ray's view at least our own actors still use their cores there.
            free = max(0.0, cores[node_id] - used_cores)
            self.suspected.setdefault(node_id, SuspectedNode(time.monotonic(), free))

    def _reserve(self, cpus: float) -> StartedActor:
        self.reservations.append(Reservation(time.monotonic(), cpus))
        return StartedActor(self.start_actor(cpus), cpus)

    def _wait_for_cores(self, num_wanted: int, num_actors: int = 0) -> int:
        """Number of actors that free cores suffice for; waits for more unless none can come.

        At the start a cluster may still be growing. Later it had room for `num_actors` actors once:
        the cores of a lost actor become free in a moment, those of a lost node do not.
        """
        cpus = self.settings.actor_cpus
        deadline = time.monotonic() + self.settings.placement_timeout
        while (num_fitting := self._num_fitting(cpus)) < num_wanted:
            too_small = max_actors(self.ray, cpus) < num_actors
            if too_small or self.suspected or time.monotonic() > deadline:
                warnings.warn(
                    f"the cluster has free cores for {num_fitting} of {num_wanted} actors; the "
                    "others share cores. Use fewer --workers, add nodes, or raise "
                    "--placement-timeout.",
                    stacklevel=2,
                )
                break
            time.sleep(POLL_SECONDS)
        return min(num_fitting, num_wanted)

    def _num_fitting(self, cpus: float) -> int:
        """Number of actors that free cores suffice for.

        Cores of suspected nodes and recent reservations do not count: an actor that is started
        without a free core waits until one is released.
        """
        recent = time.monotonic() - RESERVATION_SECONDS
        self.reservations = [one for one in self.reservations if one.since > recent]
        reserved = sum(one.cpus for one in self.reservations)
        unreachable = sum(node.free_cores for node in self.suspected.values())
        reported_free = float(self.ray.available_resources().get("CPU", 0.0))
        return max(0, int((reported_free - unreachable - reserved) / cpus + ROUNDING))

    def _expire(self) -> None:
        """Stop suspecting nodes that Ray now lists as dead, or has long kept listing as alive."""
        cores, now = self._cores_by_node(), time.monotonic()
        self.suspected = {
            node_id: node
            for node_id, node in self.suspected.items()
            if node_id in cores and now - node.since < SUSPECT_SECONDS
        }

    def _cores_by_node(self) -> dict[str, float]:
        """The nodes that Ray lists as alive, and the cores of each."""
        return {node["NodeID"]: float(node["Resources"].get("CPU", 0.0)) for node in self.ray.nodes() if node["Alive"]}
