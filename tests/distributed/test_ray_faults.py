"""Ray faults: actors that are killed, hang or die with their node change no result."""

import json
import os
import signal
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from helpers.cases import ENV_CASES
from helpers.ray_learning import NUM_STEPS, make_learner
from helpers.ray_pool import ray_backend, shared_cluster
from helpers.third_party_envs import KillsProcessInReset
from helpers.training_runs import run_python
from helpers.trajectories import assert_same_trajectory, continue_trajectory, record_trajectory
from hundredfold.algorithms.weights import network_arrays
from hundredfold.backends.settings import WorkerSettings
from hundredfold.core import rng
from hundredfold.core.errors import WorkerError
from hundredfold.distributed import actor_pool
from hundredfold.distributed.ray_backend import SNAPSHOT_STEPS
from hundredfold.distributed.ray_collector import RayCollector
from hundredfold.envs.cage2.env import Cage2, Cage2Settings
from hundredfold.envs.gymnasium_env import GymnasiumBatchEnv

TESTS = Path(__file__).parents[1]
NUM_ENVS = 6
SEED = 5

pytestmark = pytest.mark.ray


class FailsOnce(Cage2):
    """Calls `fail` in step 20 of the shard of env 0, once: a marker file remembers it."""

    def __init__(self, env_ids, marker, fail):
        super().__init__(env_ids, Cage2Settings(horizons=(20,)))
        self.marker, self.fail, self.num_steps = Path(marker), fail, 0
        self.may_fail = 0 in env_ids

    def step(self, actions):
        self.num_steps += 1
        if self.may_fail and self.num_steps == 20 and not self.marker.exists():
            self.marker.touch()
            self.fail()
        return super().step(actions)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def hang():
    time.sleep(3600)


@pytest.mark.parametrize("episode", [0, 1])
def test_a_reset_that_ends_its_actor_is_not_tried_for_ever(episode):
    fault_seed = int(rng.stream_keys(SEED, 1, episode)) >> 33
    make_envs = partial(GymnasiumBatchEnv, make_env=partial(KillsProcessInReset, fault_seed=fault_seed))
    with closing(ray_backend(make_envs, NUM_ENVS, WorkerSettings(max_env_failures=4))) as backend:
        trajectory = record_trajectory(backend, SEED, KillsProcessInReset.max_steps + 2)
        assert 1 <= backend.health()["worker_restarts"] <= 3
    assert trajectory["observation/observation"][-1, :, 0].tolist() == [2] * NUM_ENVS


def kill(backend, index):
    """Send SIGKILL to an actor's process."""
    os.kill(backend.pool.actors[index].info.pid, signal.SIGKILL)


def train(env, disturb=lambda epoch, backend: None, epochs=4, workers=2, **ray):
    """Final weights, states and returns of a few epochs, and the health of the backend."""
    backend = ray_backend(env, NUM_ENVS, workers=workers, collecting=True, **ray)
    with closing(backend):
        learner = make_learner(backend.spec, num_envs=NUM_ENVS)
        collector = RayCollector(backend, SEED)
        collector.start(SEED)
        returns = []
        for epoch in range(epochs):
            disturb(epoch, backend)
            episodes = collector.collect(learner.policy, learner.buffer, NUM_STEPS)
            returns += episodes.returns
            learner.update()
        result = {f"weights/{k}": v for k, v in network_arrays(learner.network).items()}
        result |= {f"collector/{k}": v for k, v in collector.state().items()}
        result |= {f"env/{k}": v for k, v in backend.state().items()}
        return result | {"returns": np.array(returns)}, backend.health()


def assert_same(result, expected):
    assert result.keys() == expected.keys()
    for name, array in expected.items():
        assert_array_equal(result[name], array, err_msg=name)


@pytest.mark.parametrize(("env", "lag"), [("cage2", 1), pytest.param("dvrp", 0, marks=pytest.mark.slow)])
def test_actors_killed_between_fragments_change_nothing(env, lag):
    def disturb(epoch, backend):
        if epoch == 1:
            kill(backend, 0)
            kill(backend, 1)

    expected, health = train(ENV_CASES[env], policy_lag=lag, epochs=3)
    assert not any(health.values())
    result, health = train(ENV_CASES[env], disturb, policy_lag=lag, epochs=3)
    assert_same(result, expected)
    assert health["worker_restarts"] == 2
    assert health["env_restarts"] == 3 + 3


class ClockThatJumps:
    """`time.monotonic`, later by an hour from the moment that a file exists, and by two hours 20 seconds later."""

    def __init__(self, path):
        self.path = path

    def monotonic(self):
        if not self.path.exists():
            return time.monotonic()
        # A message that is sent at the moment of the fault has its deadline after the first jump.
        is_long_ago = time.time() - self.path.stat().st_mtime > 20
        return time.monotonic() + 3600 * (1 + is_long_ago)


@pytest.mark.parametrize("fail", [die, hang])
def test_actor_lost_within_a_fragment_changes_nothing(fail, tmp_path, monkeypatch):
    # A short timeout instead would also replace actors that are slow because the machine is busy.
    monkeypatch.setattr(actor_pool, "time", ClockThatJumps(tmp_path / "failing"))

    def env(name):
        return partial(FailsOnce, marker=tmp_path / name, fail=fail)

    (tmp_path / "reference").touch()
    expected, _ = train(env("reference"))
    result, health = train(env("failing"))
    assert (tmp_path / "failing").exists()
    assert_same(result, expected)
    assert health["worker_restarts"] >= 1


def test_actor_killed_before_reset_or_broadcast_changes_nothing():
    def play(disturbed):
        backend = ray_backend(ENV_CASES["corridor"], NUM_ENVS)
        with closing(backend):
            backend.broadcast({"toll": np.full(6, 0.5)})
            if disturbed:
                kill(backend, 0)
            first = record_trajectory(backend, SEED, 5)
            if disturbed:
                kill(backend, 1)
            backend.broadcast({"toll": np.full(6, 0.25)})
            backend.restore(backend.state())
            return first, continue_trajectory(backend, 5, first_step=5)

    for one, other in zip(play(True), play(False), strict=True):
        assert_same_trajectory(one, other)


def test_step_backend_continues_bit_for_bit_after_a_killed_actor():
    steps = SNAPSHOT_STEPS + 7

    def play(disturbed):
        backend = ray_backend(ENV_CASES["cage2"], NUM_ENVS)
        with closing(backend):
            record_trajectory(backend, SEED, steps)
            if disturbed:
                kill(backend, 1)
            backend.send(np.zeros(NUM_ENVS, np.int64))
            return continue_trajectory(backend, 20, first_step=steps)

    assert_same_trajectory(play(True), play(False))


def test_third_party_episodes_are_truncated_when_their_actor_is_killed():
    backend = ray_backend(ENV_CASES["CartPole-v1"], NUM_ENVS)
    with closing(backend):
        backend.reset(SEED)
        before = backend.recv().observation["observation"].copy()
        kill(backend, 1)
        backend.send(np.zeros(NUM_ENVS, np.int64))
        with pytest.warns(UserWarning, match="cannot continue in the middle of an episode"):
            batch = backend.recv()
        assert_array_equal(batch.truncated, [False] * 3 + [True] * 3)
        assert not batch.terminated.any()
        assert_array_equal(batch.final_observation["observation"][3:], before[3:])
        backend.send(np.zeros(NUM_ENVS, np.int64))
        assert not backend.recv().truncated.any()
        assert backend.health()["worker_restarts"] == 1


def test_truncation_by_a_killed_actor_reaches_earlier_steps_of_the_rollout():
    backend = ray_backend(ENV_CASES["CartPole-v1"], NUM_ENVS, collecting=True)
    with closing(backend):
        learner = make_learner(backend.spec, interval=2, num_envs=NUM_ENVS)
        collector = RayCollector(backend, SEED)
        collector.start(SEED)
        collector.collect(learner.policy, learner.buffer, NUM_STEPS)
        kill(backend, 1)
        with pytest.warns(UserWarning, match="cannot continue in the middle of an episode"):
            collector.collect(learner.policy, learner.buffer, NUM_STEPS)
        assert learner.buffer.ended[NUM_STEPS - 1, 3:].all()
        assert learner.update()


def test_actor_lost_repeatedly_ends_the_run_with_all_failures():
    limited = WorkerSettings(max_env_failures=2)
    backend = ray_backend(ENV_CASES["corridor"], NUM_ENVS, limited)
    with closing(backend):
        backend.reset(SEED)
        backend.pool.placement.start_actor = lambda cpus: start_dying_actor(backend.pool)
        kill(backend, 1)
        backend.recv()
        backend.send(np.full(NUM_ENVS, 1))
        with pytest.raises(WorkerError, match=r"(?s)worker 1 failed 2 times.*1\..*2\."):
            backend.recv()


class DyingActor:
    """An actor that dies at its first call."""

    def call(self, *args):
        die()

    hostname = call


def start_dying_actor(pool):
    return pool.ray.remote(DyingActor).remote()


def test_on_env_error_stop_ends_the_run_at_the_first_lost_actor():
    backend = ray_backend(ENV_CASES["corridor"], NUM_ENVS, WorkerSettings(on_env_error="stop"))
    with closing(backend):
        backend.reset(SEED)
        backend.recv()
        kill(backend, 1)
        backend.send(np.full(NUM_ENVS, 1))
        with pytest.raises(WorkerError, match=r"actor 1 \(envs 3\.\.5\) was lost"):
            backend.recv()


@pytest.mark.process
def test_lost_node_changes_nothing():
    pytest.importorskip("ray")
    done = run_python(
        "from helpers import lost_node; lost_node.main()",
        expect=0,
        env={"PYTHONPATH": str(TESTS), "RAY_USAGE_STATS_ENABLED": "0", "RAY_memory_monitor_refresh_ms": "0"},
    )
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["same"]
    # Once: the new actor is not placed on the lost node, though Ray still lists it as alive.
    assert result["health"]["worker_restarts"] == 1


def test_actors_of_a_local_cluster_run_at_the_priority_of_this_process():
    ray = shared_cluster()
    assert ray.get(ray.remote(num_cpus=0)(priority).remote()) == priority()


def priority():
    return os.nice(0)


def test_handles_know_the_node_of_their_actor():
    backend = ray_backend(ENV_CASES["corridor"], NUM_ENVS)
    with closing(backend):
        backend.reset(SEED)
        here = backend.pool.ray.get_runtime_context().get_node_id()
        assert {handle.node_id for handle in backend.pool.actors} == {here}
        kill(backend, 1)
        backend.recv()
        backend.send(np.full(NUM_ENVS, 1))
        backend.recv()
        assert {handle.node_id for handle in backend.pool.actors} == {here}
