"""Scaling of rollout collection with the nodes of a Ray cluster that is simulated on this machine.

Every simulated node is a raylet with room for one actor. The nodes share this machine's cores, so
only envs that wait are meaningful: ideally all of them wait at once. Collection works as in
training: the policy runs in every actor, and whole rollout fragments are sent to the driver. A
fragment that was disturbed by CPU steal time is collected again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import torch

from hundredfold.algorithms.actor_critic import NetworkSettings
from hundredfold.algorithms.ppo import PPO, PPOSettings
from hundredfold.backends.auto_select import ready_batch
from hundredfold.backends.settings import RaySettings, WorkerSettings
from hundredfold.core.errors import SettingsError
from hundredfold.distributed.placement import load_ray
from hundredfold.distributed.ray_backend import RayBackend
from hundredfold.distributed.ray_collector import RayCollector
from hundredfold.profiling.scaling import (
    HUNDREDFOLD,
    MAX_STEAL,
    SYNTHETIC_ENVS,
    MeasuredEnv,
    StealTimeMonitor,
    factory_of,
)
from hundredfold.rollout.rollout_buffer import RolloutSettings

# Few long fragments, because an actor is idle between two of them.
FRAGMENT_SECONDS: Final = 4.0
NUM_FRAGMENTS: Final = 6
# Fragments collected at most; if too few had low steal time, those with the lowest are used.
MAX_FRAGMENTS: Final = 15
STORE_BYTES: Final = 200 * 2**20
# Environment variable of Ray.
AUTH_MODE: Final = "RAY_AUTH_MODE"


def measure_nodes(
    env: MeasuredEnv,
    env_settings: Any,
    nodes: Sequence[int],
    sizes: Sequence[int],
    seconds: float,
    batch_envs: int = 0,
    on_progress: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Throughput and efficiency; a row per number of envs and of nodes.

    Args:
        env: env to measure; it must wait rather than compute.
        env_settings: its settings.
        nodes: numbers of nodes.
        sizes: numbers of envs.
        seconds: least duration of each measurement.
        batch_envs: ready envs an actor waits for; 0: as --backend auto would choose.
        on_progress: called with a line of text before each measurement.
    """
    if env.kind != "waiting" or env.costs is None:
        raise SettingsError(
            f"--nodes simulates nodes that share the cores of this machine, so it needs an env "
            f"that waits, and {env.name} computes; try the env `waiting`."
        )
    torch.set_num_threads(1)
    rows = []
    with simulated_cluster(max(nodes), on_progress) as address:
        for num_envs in sizes:
            for num_nodes in nodes:
                on_progress(f"{env.name}: {num_envs} envs on {num_nodes} nodes")
                envs_per_node = -(-num_envs // num_nodes)
                workers = WorkerSettings(
                    workers=num_nodes,
                    batch_envs=batch_envs or ready_batch(env.costs, envs_per_node),
                    env_threads=envs_per_node,
                    on_env_error="stop",
                )
                backend = RayBackend(
                    factory_of(env.name, env_settings),
                    num_envs,
                    workers,
                    RaySettings(address=address, actor_backend="first_ready"),
                    collecting=True,
                )
                with closing(backend):
                    measured = _measure(backend, env, env.costs.step_seconds, seconds)
                rows.append(
                    {
                        "system": HUNDREDFOLD,
                        "env": env.name,
                        "num_envs": num_envs,
                        "backend": "ray",
                        "nodes": num_nodes,
                        **measured,
                    }
                )
    return rows


def _measure(backend: RayBackend, env: MeasuredEnv, alone_seconds: float, seconds: float) -> dict[str, float]:
    """Collect fragments for a while; one fragment comes before the clock starts."""
    num_envs = backend.num_envs
    num_steps = max(1, round(min(FRAGMENT_SECONDS, 2 * seconds) / alone_seconds))
    learner = PPO.build(
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
    fragments: list[FragmentMeasurement] = []
    while not enough(fragments, seconds):
        monitor, begin, ahead = StealTimeMonitor(), perf_counter(), collector.steps_ahead
        collector.collect(learner.policy, learner.buffer, num_steps)
        mean_wait = float(learner.buffer.rewards.mean(dtype=float))
        learner.buffer.clear()
        fragment_seconds = perf_counter() - begin
        # A step counts when it is taken, also if it belongs to the next fragment.
        steps = num_envs * num_steps + collector.steps_ahead - ahead
        fragments.append(
            FragmentMeasurement(
                seconds=fragment_seconds,
                steps=steps,
                waited_seconds=steps * mean_wait,
                broadcast_seconds=collector.broadcast_seconds,
                steal_fraction=monitor.steal_fraction(),
            )
        )
    used = select_fragments(fragments)
    total = sum(fragment.seconds for fragment in used)
    waited = sum(fragment.waited_seconds for fragment in used)
    rate = sum(fragment.steps for fragment in used) / total
    # Rewards of synthetic envs are their waiting times, so the draw of durations does not matter.
    synthetic = env.name in SYNTHETIC_ENVS
    return {
        "steps_per_second": rate,
        "ideal_steps_per_second": num_envs / alone_seconds,
        "efficiency": waited / (num_envs * total) if synthetic else rate * alone_seconds / num_envs,
        "fragment_steps": num_steps,
        "fragment_bytes": collector.fragment_bytes / len(backend.pool.actors),
        "broadcast_seconds": sum(fragment.broadcast_seconds for fragment in used) / len(used),
        "steal_fraction": sum(one.steal_fraction * one.seconds for one in used) / total,
    }


@dataclass(frozen=True, slots=True)
class FragmentMeasurement:
    """Measurement of collecting one fragment of all envs."""

    seconds: float
    steps: int  # of all envs
    waited_seconds: float  # sum over all envs
    broadcast_seconds: float  # sending the policy
    steal_fraction: float  # stolen fraction of CPU time


def enough(fragments: Sequence[FragmentMeasurement], seconds: float) -> bool:
    """Whether enough fragments with low steal time, or too many in all, were collected."""
    undisturbed = [one for one in fragments if one.steal_fraction <= MAX_STEAL]
    long_enough = sum(one.seconds for one in undisturbed) >= seconds
    if len(undisturbed) >= NUM_FRAGMENTS and long_enough:
        return True
    return len(fragments) >= max(MAX_FRAGMENTS, 3 * len(undisturbed))


def select_fragments(fragments: Sequence[FragmentMeasurement]) -> list[FragmentMeasurement]:
    """All fragments with low steal time, but at least the `NUM_FRAGMENTS` with the lowest."""
    ordered = sorted(fragments, key=lambda fragment: fragment.steal_fraction)
    num_undisturbed = sum(fragment.steal_fraction <= MAX_STEAL for fragment in fragments)
    return ordered[: max(NUM_FRAGMENTS, num_undisturbed)]


@contextmanager
def simulated_cluster(nodes: int, on_progress: Callable[[str], None]) -> Iterator[str]:
    """Start a Ray cluster of `nodes` one-core nodes on this machine; yields its address."""
    with same_authentication():
        yield from _started_cluster(nodes, on_progress)


@contextmanager
def same_authentication() -> Iterator[None]:
    """Let the nodes of a simulated cluster use Ray's token exactly if drivers do.

    A driver uses the user's token as soon as there is one, nodes only if this variable says so; a driver
    with a token refuses calls from nodes without, which then count it as dead and end its actors.
    """
    if AUTH_MODE in os.environ:
        yield
        return
    has_token = bool(os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH"))
    has_token = has_token or Path("~/.ray/auth_token").expanduser().exists()
    os.environ[AUTH_MODE] = "token" if has_token else "disabled"
    try:
        yield
    finally:
        del os.environ[AUTH_MODE]


def _started_cluster(nodes: int, on_progress: Callable[[str], None]) -> Iterator[str]:
    # Ray reads the authentication mode when it is imported.
    ray = load_ray()
    if ray.is_initialized():
        raise SettingsError("this process is connected to a Ray cluster already; measure --nodes in another one.")
    from ray.cluster_utils import Cluster

    on_progress(f"starting a Ray cluster of {nodes} nodes on this machine")
    common: dict[str, Any] = {"object_store_memory": STORE_BYTES}
    cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **common})
    try:
        for _ in range(nodes):
            cluster.add_node(num_cpus=1, **common)
        yield str(cluster.address)
    finally:
        if ray.is_initialized():
            ray.shutdown()
        cluster.shutdown()
