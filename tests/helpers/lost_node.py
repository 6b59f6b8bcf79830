"""Run by `test_ray_faults`: trains on a cluster of two nodes, loses one, and compares."""

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
from ray.cluster_utils import Cluster

from helpers.cases import ENV_CASES
from helpers.ray_learning import NUM_STEPS, learner_for
from hundredfold.algorithms.weights import network_arrays
from hundredfold.backends.settings import WorkerSettings
from hundredfold.distributed.ray_backend import RayBackend
from hundredfold.distributed.ray_collector import RayCollector
from hundredfold.distributed.settings import RaySettings

NUM_ENVS = 6
STORE = 150 * 2**20


def trained(address, lose=None):
    """Weights after a few epochs; `lose` takes a node away before the third."""
    settings = RaySettings(address=address)
    workers = WorkerSettings(workers=2)
    backend = RayBackend(ENV_CASES["cage2"], NUM_ENVS, workers, settings, collecting=True)
    learner = learner_for(backend.spec, num_envs=NUM_ENVS)
    collector = RayCollector(backend, 5)
    collector.start(5)
    longest = 0.0
    for epoch in range(4):
        if lose is not None and epoch == 2:
            lose()
        begun = time.perf_counter()
        collector.collect(learner.policy, learner.buffer, NUM_STEPS)
        longest = max(longest, time.perf_counter() - begun)
        learner.update()
    health = backend.health()
    backend.close()
    return network_arrays(learner.network), health, longest


def lose(cluster, node):
    """Take a node away as a power cut does, with every process on it."""
    raylet = node.all_processes["raylet"][0].process.pid
    workers = children_of(raylet)
    cluster.remove_node(node, allow_graceful=False)
    for pid in workers:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue  # it went with its raylet


def children_of(pid):
    told = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(child) for children in told for child in children.split()]


def main():
    small = {"object_store_memory": STORE}
    head = {"num_cpus": 0, "include_dashboard": False, **small}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=1, **small)
    expendable = cluster.add_node(num_cpus=1, **small)
    try:
        expected, _, _ = trained(cluster.address)
        told, health, seconds = trained(cluster.address, lambda: lose(cluster, expendable))
    finally:
        cluster.shutdown()
    same = all(np.array_equal(told[name], array) for name, array in expected.items())
    print(json.dumps({"same": same, "health": health, "seconds": seconds}))


if __name__ == "__main__":
    main()
