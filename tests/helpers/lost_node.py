"""Run by `test_ray_faults` and `test_sweep`: trains on a cluster of two nodes with and without losing one."""

import json
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from helpers.cases import ENV_CASES
from helpers.ray_learning import NUM_STEPS, make_learner
from hundredfold.algorithms.weights import network_arrays
from hundredfold.backends.settings import RaySettings, WorkerSettings
from hundredfold.cli.main import main as command_line
from hundredfold.distributed.placement import load_ray
from hundredfold.distributed.ray_backend import RayBackend
from hundredfold.distributed.ray_collector import RayCollector
from hundredfold.profiling.ray_scaling import same_authentication

NUM_ENVS = 6
STORE_BYTES = 150 * 2**20


def train(address, disturb=None):
    """Train for four epochs; `disturb` is called before the third.

    Returns the weights, the health of the backend and the seconds of the slowest collection.
    """
    settings = RaySettings(address=address)
    workers = WorkerSettings(workers=2)
    backend = RayBackend(ENV_CASES["cage2"], NUM_ENVS, workers, settings, collecting=True)
    learner = make_learner(backend.spec, num_envs=NUM_ENVS)
    collector = RayCollector(backend, 5)
    collector.start(5)
    slowest_seconds = 0.0
    for epoch in range(4):
        if disturb is not None and epoch == 2:
            disturb()
        begin = time.perf_counter()
        collector.collect(learner.policy, learner.buffer, NUM_STEPS)
        slowest_seconds = max(slowest_seconds, time.perf_counter() - begin)
        learner.update()
    health = backend.health()
    backend.close()
    return network_arrays(learner.network), health, slowest_seconds


def kill_node(cluster, node):
    """Remove a node as a power cut does, with every process on it."""
    raylet = node.all_processes["raylet"][0].process.pid
    workers = children_of(raylet)
    cluster.remove_node(node, allow_graceful=False)
    for pid in workers:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue  # it ended with its raylet


def children_of(pid):
    files = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(child) for children in files for child in children.split()]


def main():
    with same_authentication():
        compare_runs()


@contextmanager
def two_nodes():
    """A cluster of a head and two nodes of one core; also the second node."""
    load_ray()  # before the nodes start, so that their workers run at the priority of this process
    from ray.cluster_utils import Cluster

    small = {"object_store_memory": STORE_BYTES}
    head = {"num_cpus": 0, "include_dashboard": False, **small}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        cluster.add_node(num_cpus=1, **small)
        yield cluster, cluster.add_node(num_cpus=1, **small)
    finally:
        cluster.shutdown()


def compare_runs():
    with two_nodes() as (cluster, expendable):
        expected, _, _ = train(cluster.address)
        weights, health, seconds = train(cluster.address, lambda: kill_node(cluster, expendable))
    same = all(np.array_equal(weights[name], array) for name, array in expected.items())
    print(json.dumps({"same": same, "health": health, "seconds": seconds}))


def sweep():
    """Run the sweep whose arguments are given, and remove a node as soon as both trials have saved."""
    command, folder = sys.argv[1:], Path(sys.argv[sys.argv.index("--save-dir") + 1])

    def disturb(cluster, node):
        while len({path.parts[-5] for path in folder.glob("*/trials/*/seed-*/checkpoints/*/manifest.json")}) < 2:
            time.sleep(0.05)
        kill_node(cluster, node)

    with same_authentication(), two_nodes() as (cluster, expendable):
        thread = threading.Thread(target=disturb, args=(cluster, expendable), daemon=True)
        thread.start()
        code = command_line([*command, "--ray-address", cluster.address])
        thread.join()
    sys.exit(code)


if __name__ == "__main__":
    main()
