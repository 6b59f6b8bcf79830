"""Actors that are killed, that hang, that die with their node: training goes on to the same end."""

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
from helpers.ray_learning import NUM_STEPS, learner_for
from helpers.ray_pool import ray_backend
from helpers.training_runs import run_python
from helpers.trajectories import assert_same_trajectory, continue_trajectory, record_trajectory
from hundredfold.algorithms.weights import network_arrays
from hundredfold.backends.settings import WorkerSettings
from hundredfold.core.errors import WorkerError
from hundredfold.distributed.ray_backend import SNAPSHOT_STEPS
from hundredfold.distributed.ray_collector import RayCollector
from hundredfold.envs.cage2.env import Cage2, Cage2Settings

TESTS = Path(__file__).parents[1]
NUM_ENVS = 6
SEED = 5


class Unlucky(Cage2):
    """In its 20th step, in the slice of env 0, something happens to its process; only once."""

    def __init__(self, env_ids, note, happens):
        super().__init__(env_ids, Cage2Settings(horizons=(20,)))
        self.note, self.happens, self.turn = Path(note), happens, 0
        self.is_mine = 0 in env_ids

    def step(self, actions):
        self.turn += 1
        if self.is_mine and self.turn == 20 and not self.note.exists():
            self.note.touch()
            self.happens()
        return super().step(actions)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def hang():
    time.sleep(3600)


def kill(backend, number):
    """kill -9 of an actor's process."""
    os.kill(backend.fleet.slices[number].identity.pid, signal.SIGKILL)


def trained(env, disturb=lambda epoch, backend: None, epochs=4, workers=2, **ray):
    """Weights, envs and books after a few epochs, and what went wrong on the way."""
    backend = ray_backend(env, NUM_ENVS, workers=workers, collecting=True, **ray)
    with closing(backend):
        learner = learner_for(backend.spec, num_envs=NUM_ENVS)
        collector = RayCollector(backend, SEED)
        collector.start(SEED)
        returns = []
        for epoch in range(epochs):
            disturb(epoch, backend)
            found = collector.collect(learner.policy, learner.buffer, NUM_STEPS)
            returns += found.returns
            learner.update()
        told = {f"weights/{k}": v for k, v in network_arrays(learner.network).items()}
        told |= {f"collector/{k}": v for k, v in collector.state().items()}
        told |= {f"env/{k}": v for k, v in backend.state().items()}
        return told | {"returns": np.array(returns)}, backend.health()


def assert_same(told, expected):
    assert told.keys() == expected.keys()
    for name, array in expected.items():
        assert_array_equal(told[name], array, err_msg=name)


@pytest.mark.parametrize(
    ("env", "lag"), [("cage2", 1), pytest.param("dvrp", 0, marks=pytest.mark.slow)]
)
def test_actors_killed_between_fragments_change_nothing(env, lag):
    def disturb(epoch, backend):
        if epoch == 1:
            kill(backend, 0)
            kill(backend, 1)

    expected, health = trained(ENV_CASES[env], collect_lag=lag, epochs=3)
    assert not any(health.values())
    told, health = trained(ENV_CASES[env], disturb, collect_lag=lag, epochs=3)
    assert_same(told, expected)
    assert health["worker_restarts"] == 2
    assert health["env_restarts"] == 3 + 3


@pytest.mark.parametrize("happens", [die, hang])
def test_an_actor_lost_in_the_middle_of_a_fragment_changes_nothing(happens, tmp_path):
    def env(name):
        return partial(Unlucky, note=tmp_path / name, happens=happens)

    (tmp_path / "lucky").touch()
    expected, _ = trained(env("lucky"))
    told, health = trained(env("unlucky"), fragment_timeout=6)
    assert (tmp_path / "unlucky").exists()
    assert_same(told, expected)
    assert health["worker_restarts"] >= 1


def test_a_killed_actor_is_replaced_while_belief_models_teach_and_envs_are_reset():
    def told(disturbed):
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

    for one, other in zip(told(True), told(False), strict=True):
        assert_same_trajectory(one, other)


def test_the_step_backend_plays_on_where_its_actor_was_killed():
    steps = SNAPSHOT_STEPS + 7

    def told(disturbed):
        backend = ray_backend(ENV_CASES["cage2"], NUM_ENVS)
        with closing(backend):
            record_trajectory(backend, SEED, steps)
            if disturbed:
                kill(backend, 1)
            backend.send(np.zeros(NUM_ENVS, np.int64))
            return continue_trajectory(backend, 20, first_step=steps)

    assert_same_trajectory(told(True), told(False))


def test_episodes_of_foreign_envs_are_cut_off_when_their_actor_is_killed():
    backend = ray_backend(ENV_CASES["CartPole-v1"], NUM_ENVS)
    with closing(backend):
        backend.reset(SEED)
        before = backend.recv().observation["observation"].copy()
        kill(backend, 1)
        backend.send(np.zeros(NUM_ENVS, np.int64))
        with pytest.warns(UserWarning, match="cannot be continued"):
            batch = backend.recv()
        assert_array_equal(batch.truncated, [False] * 3 + [True] * 3)
        assert not batch.terminated.any()
        assert_array_equal(batch.final_observation["observation"][3:], before[3:])
        backend.send(np.zeros(NUM_ENVS, np.int64))
        assert not backend.recv().truncated.any()
        assert backend.health()["worker_restarts"] == 1


def test_foreign_envs_go_on_training_and_earlier_steps_learn_of_the_end():
    backend = ray_backend(ENV_CASES["CartPole-v1"], NUM_ENVS, collecting=True)
    with closing(backend):
        learner = learner_for(backend.spec, interval=2, num_envs=NUM_ENVS)
        collector = RayCollector(backend, SEED)
        collector.start(SEED)
        collector.collect(learner.policy, learner.buffer, NUM_STEPS)
        kill(backend, 1)
        with pytest.warns(UserWarning, match="cannot be continued"):
            collector.collect(learner.policy, learner.buffer, NUM_STEPS)
        assert learner.buffer.ended[NUM_STEPS - 1, 3:].all()
        assert learner.update()


def test_an_actor_that_is_lost_again_and_again_ends_the_run_with_its_story():
    limited = WorkerSettings(max_env_failures=2)
    backend = ray_backend(ENV_CASES["corridor"], NUM_ENVS, limited)
    with closing(backend):
        backend.reset(SEED)
        backend.fleet.places.hire = lambda cpus: stillborn(backend.fleet)
        kill(backend, 1)
        backend.recv()
        backend.send(np.full(NUM_ENVS, 1))
        with pytest.raises(WorkerError, match=r"(?s)worker 1 failed 2 times.*1\..*2\."):
            backend.recv()


class Stillborn:
    """An actor that dies of its first order."""

    def obey(self, *words):
        die()

    here = obey


def stillborn(fleet):
    return fleet.ray.remote(Stillborn).remote()


def test_with_stop_the_first_lost_actor_ends_the_run():
    backend = ray_backend(ENV_CASES["corridor"], NUM_ENVS, WorkerSettings(on_env_error="stop"))
    with closing(backend):
        backend.reset(SEED)
        backend.recv()
        kill(backend, 1)
        backend.send(np.full(NUM_ENVS, 1))
        with pytest.raises(WorkerError, match=r"actor 1 \(envs 3\.\.5\) was lost"):
            backend.recv()


def test_a_node_that_is_lost_changes_nothing():
    pytest.importorskip("ray")
    found = run_python(
        "from helpers import lost_node; lost_node.main()",
        expect=0,
        timeout=280,
        env={
            "PYTHONPATH": str(TESTS),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_memory_monitor_refresh_ms": "0",
        },
    )
    told = json.loads(found.stdout.splitlines()[-1])
    assert told["same"]
    # Once: a new actor is not sent to the lost node, though Ray does not know yet that it is lost.
    assert told["health"]["worker_restarts"] == 1


def test_it_is_known_on_which_node_an_actor_is():
    backend = ray_backend(ENV_CASES["corridor"], NUM_ENVS)
    with closing(backend):
        backend.reset(SEED)
        here = backend.fleet.ray.get_runtime_context().get_node_id()
        assert {held.node for held in backend.fleet.slices} == {here}
        kill(backend, 1)
        backend.recv()
        backend.send(np.full(NUM_ENVS, 1))
        backend.recv()
        assert {held.node for held in backend.fleet.slices} == {here}
