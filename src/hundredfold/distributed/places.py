"""Where actors live: finding room for them, away from nodes that seem to be lost.

Ray needs a quarter of a minute to believe that a node is gone, and goes on placing actors there.
But whoever was connected to an actor knows at once: where the connection broke and Ray has not
heard of the actor's end, nobody is left on its node to tell. New actors go elsewhere then, without
waiting for Ray.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from hundredfold.distributed import cluster
from hundredfold.distributed.actor import SliceActor
from hundredfold.distributed.settings import RaySettings

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
            too_small = cluster.actors_that_fit(self.ray, cpus) < in_all
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
        free = cluster.free_cores(self.ray) - out_of_reach - taken
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
