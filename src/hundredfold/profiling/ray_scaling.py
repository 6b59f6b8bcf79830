"""How collecting scales with the nodes of a Ray cluster, simulated on this machine.

Every simulated node is a raylet with room for one actor. They share this machine's cores, so only
envs that wait can show anything: their ideal is all of them waiting at once. What is measured is
training's own way: a policy of ours in every actor, whole fragments of rollouts to the driver.
Where the host of a virtual machine disturbs a fragment, another one is collected instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

import torch

from hundredfold.algorithms.actor_critic import NetworkSettings
from hundredfold.algorithms.ppo import PPO, PPOSettings
from hundredfold.backends.auto_select import ready_batch
from hundredfold.backends.settings import WorkerSettings
from hundredfold.core.errors import SettingsError
from hundredfold.distributed.placement import load_ray
from hundredfold.distributed.ray_backend import RayBackend
from hundredfold.distributed.ray_collector import RayCollector
from hundredfold.distributed.settings import RaySettings
from hundredfold.profiling.measure import CALM, OURS, HostWatch
from hundredfold.profiling.scaling import KNOWN_COST, Subject, factory_of
from hundredfold.rollout.rollout_buffer import RolloutSettings

# Long fragments, and several: between two of them an actor has nothing to do.
FRAGMENT_SECONDS: Final = 4.0
FRAGMENTS: Final = 6
# So many are collected at most; if fewer than wanted were calm, the calmest count.
MOST_FRAGMENTS: Final = 15
STORE_BYTES: Final = 200 * 2**20


def measure_nodes(
    subject: Subject,
    env_settings: Any,
    nodes: Sequence[int],
    sizes: Sequence[int],
    seconds: float,
    batch_envs: int = 0,
    on_progress: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """A row per number of nodes and of envs."""
    if subject.kind != "waiting" or subject.found is None:
        raise SettingsError(
            f"--nodes simulates nodes on this machine, which share its cores: only envs that wait "
            f"can show anything, and {subject.name} does not; try waiting."
        )
    torch.set_num_threads(1)
    rows = []
    with simulated_cluster(max(nodes), on_progress) as address:
        for num_envs in sizes:
            for count in nodes:
                on_progress(f"{subject.name}: {num_envs} envs on {count} nodes")
                settings = RaySettings(address=address, actor_backend="first_ready")
                share = -(-num_envs // count)
                workers = WorkerSettings(
                    workers=count,
                    # What `auto` would wait for in an actor.
                    batch_envs=batch_envs or ready_batch(subject.found, share),
                    env_threads=share,
                    on_env_error="stop",
                )
                backend = RayBackend(
                    factory_of(subject.name, env_settings),
                    num_envs,
                    workers,
                    settings,
                    collecting=True,
                )
                with closing(backend):
                    found = _play(backend, subject, seconds)
                rows.append(
                    {
                        "system": OURS,
                        "env": subject.name,
                        "num_envs": num_envs,
                        "backend": "ray",
                        "nodes": count,
                        **found,
                    }
                )
    return rows


def _play(backend: RayBackend, subject: Subject, seconds: float) -> dict[str, float]:
    """Collect for a while; one fragment comes before the clock starts."""
    assert subject.found is not None
    alone = subject.found.step_seconds
    num_envs = backend.num_envs
    num_steps = max(1, round(min(FRAGMENT_SECONDS, 2 * seconds) / alone))
    learner = PPO(
        backend.spec,
        settings=PPOSettings(),
        network=NetworkSettings(),
        rollout=RolloutSettings(num_envs=num_envs, num_steps=num_steps),
        num_updates=1,
        seed=0,
        device=torch.device("cpu"),
    )
    collector = RayCollector(backend, 0)
    collector.start(0)
    collector.collect(learner.policy, learner.buffer, num_steps)
    learner.buffer.clear()
    taken: list[Taken] = []
    while not enough(taken, seconds):
        host, begun, ahead = HostWatch(), perf_counter(), collector.steps_ahead
        collector.collect(learner.policy, learner.buffer, num_steps)
        mean_wait = float(learner.buffer.rewards.mean(dtype=float))
        learner.buffer.clear()
        wall = perf_counter() - begun
        # A step counts when it is played, also where it ran ahead of the fragment it comes in.
        steps = num_envs * num_steps + collector.steps_ahead - ahead
        sent = collector.broadcast_seconds
        taken.append(Taken(wall, steps, steps * mean_wait, sent, host.stolen()))
    counted = those_that_count(taken)
    fragments, wall = len(counted), sum(one.seconds for one in counted)
    waited = sum(one.waited for one in counted)
    rate = sum(one.steps for one in counted) / wall
    # Envs of known cost tell how long they meant to wait: free of the luck of the draw.
    known = subject.name in KNOWN_COST
    return {
        "steps_per_second": rate,
        "ideal_steps_per_second": num_envs / alone,
        "efficiency": waited / (num_envs * wall) if known else rate * alone / num_envs,
        "fragment_steps": num_steps,
        "fragment_bytes": collector.fragment_bytes / len(backend.fleet.slices),
        "broadcast_seconds": sum(one.broadcast for one in counted) / fragments,
        "stolen": sum(one.stolen * one.seconds for one in counted) / wall,
    }


@dataclass(frozen=True, slots=True)
class Taken:
    """What one fragment took."""

    seconds: float
    steps: int  # of all envs
    waited: float  # by all envs, as the steps of the fragment tell it
    broadcast: float  # seconds of sending the policy
    stolen: float  # share of the cores' time that the host took meanwhile


def enough(taken: Sequence[Taken], seconds: float) -> bool:
    """Whether there are as many undisturbed fragments, and seconds, as were asked for."""
    calm = [one for one in taken if one.stolen <= CALM]
    asked = len(calm) >= FRAGMENTS and sum(one.seconds for one in calm) >= seconds
    return asked or len(taken) >= max(MOST_FRAGMENTS, 3 * len(calm))


def those_that_count(taken: Sequence[Taken]) -> list[Taken]:
    """All that were calm, or as many of the calmest as are wanted."""
    order = sorted(taken, key=lambda one: one.stolen)
    num_calm = sum(one.stolen <= CALM for one in taken)
    return order[: max(FRAGMENTS, num_calm)]


@contextmanager
def simulated_cluster(nodes: int, on_progress: Callable[[str], None]) -> Iterator[str]:
    """A cluster of our own with so many nodes of one core, and where to find it."""
    ray = load_ray()
    if ray.is_initialized():
        raise SettingsError("this process has joined a Ray cluster; measure nodes from another.")
    from ray.cluster_utils import Cluster

    on_progress(f"starting a Ray cluster of {nodes} nodes on this machine")
    common: dict[str, Any] = {"object_store_memory": STORE_BYTES}
    cluster: Any = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **common}
    )
    try:
        for _ in range(nodes):
            cluster.add_node(num_cpus=1, **common)
        yield str(cluster.address)
    finally:
        if ray.is_initialized():
            ray.shutdown()
        cluster.shutdown()
