"""Ray collector: the same steps, updates and snapshots as collecting in one process."""

import pickle
from contextlib import closing

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from helpers.cases import ENV_CASES
from helpers.ray_learning import NUM_STEPS, make_learner
from helpers.ray_pool import ray_backend
from hundredfold.algorithms.weights import network_arrays
from hundredfold.backends.in_process import InProcessBackend
from hundredfold.backends.processes.cpu_affinity import LocalRank
from hundredfold.backends.settings import WorkerSettings
from hundredfold.core.errors import SettingsError
from hundredfold.distributed.actor import ActorShard, EnvActor
from hundredfold.distributed.ray_collector import RayCollector
from hundredfold.distributed.weight_sync import WeightPublisher
from hundredfold.rollout.collector import Collector

SEED = 5
NUM_ENVS = 7

pytestmark = pytest.mark.ray


def in_process(env):
    backend = InProcessBackend(ENV_CASES[env], NUM_ENVS)
    return backend, Collector(backend, SEED)


def in_actors(env, workers=2, **ray):
    backend = ray_backend(ENV_CASES[env], NUM_ENVS, workers=workers, collecting=True, **ray)
    return backend, RayCollector(backend, SEED)


def train(backend, collector, epochs=3, interval=1, step_callbacks=()):
    """All rollouts, episodes and final weights and states of a few epochs."""
    with closing(backend):
        learner = make_learner(backend.spec, interval)
        collector.start(SEED)
        return continue_training(backend, collector, learner, epochs, step_callbacks)


def continue_training(backend, collector, learner, epochs, step_callbacks=()):
    result = {}
    for epoch in range(epochs):
        episodes = collector.collect(learner.policy, learner.buffer, NUM_STEPS, step_callbacks=step_callbacks)
        rollout = learner.buffer
        if rollout.full:
            result |= {f"{epoch}/{name}": array.copy() for name, array in rollout.arrays.items()}
            result |= {f"{epoch}/observation/{k}": array.copy() for k, array in rollout.observation_arrays.items()}
            result |= truncations_of(rollout, epoch)
        result[f"{epoch}/returns"] = np.array(episodes.returns)
        result[f"{epoch}/lengths"] = np.array(episodes.lengths)
        result |= {f"{epoch}/info/{k}": np.concatenate(v) for k, v in episodes.info.items()}
        learner.update()
    result |= {f"weights/{name}": array for name, array in network_arrays(learner.network).items()}
    result |= {f"collector/{name}": array for name, array in collector.state().items()}
    return result | {f"env/{name}": array for name, array in backend.state().items()}


def truncations_of(rollout, epoch):
    """Truncated episodes in order of steps and envs."""
    if not rollout.truncations:
        return {}
    steps, env_ids, final = rollout.all_truncations()
    order = np.lexsort((env_ids, steps))
    parts = {"steps": steps, "env_ids": env_ids, **final}
    return {f"{epoch}/truncations/{name}": array[order] for name, array in parts.items()}


def assert_same(result, expected):
    assert result.keys() == expected.keys()
    for name, array in expected.items():
        assert_array_equal(result[name], array, err_msg=name, strict=True)


@pytest.mark.parametrize("env", ["dvrp", "cage2", "cartpole", "CartPole-v1", "third_party_multi_discrete"])
def test_one_actor_collects_the_same_as_one_process(env):
    assert_same(train(*in_actors(env, workers=1)), train(*in_process(env)))


@pytest.mark.parametrize("env", ["dvrp", "cage2", "cartpole", "CartPole-v1"])
def test_steps_do_not_depend_on_the_number_of_actors(env):
    expected = train(*in_process(env), epochs=1)
    result = train(*in_actors(env, workers=3), epochs=1)
    assert result.keys() == expected.keys()
    for name, array in expected.items():
        # Small matrix products are summed in another order than large ones.
        if name.startswith(("0/log_probs", "weights/")):
            assert_allclose(result[name], array, rtol=1e-4, atol=1e-6, err_msg=name)
        else:
            assert_array_equal(result[name], array, err_msg=name, strict=True)


def test_training_is_reproducible_bit_for_bit():
    assert_same(train(*in_actors("cage2", workers=3)), train(*in_actors("cage2", workers=3)))


def test_fragments_of_several_epochs_fill_one_rollout():
    assert_same(
        train(*in_actors("cartpole", workers=1), epochs=4, interval=2),
        train(*in_process("cartpole"), epochs=4, interval=2),
    )


def test_step_callbacks_get_every_step_of_every_env_in_order():
    def recorded(backend, collector):
        steps = []

        def record(batch):
            reward = batch.reward.astype(np.float32)
            arrays = {**batch.info, "reward": reward, "ended": batch.ended}
            steps.append({name: array.copy() for name, array in arrays.items()})

        train(backend, collector, step_callbacks=[record])
        return {f"{i}/{name}": a for i, arrays in enumerate(steps) for name, a in arrays.items()}

    assert_same(recorded(*in_actors("dvrp")), recorded(*in_process("dvrp")))


def test_progress_callback_is_called_once_per_step_of_all_envs():
    backend, collector = in_actors("corridor", workers=3)
    calls = []
    with closing(backend):
        learner = make_learner(backend.spec)
        collector.start(SEED)
        collector.collect(learner.policy, learner.buffer, NUM_STEPS, on_progress=lambda: calls.append(1))
    assert len(calls) == NUM_STEPS


def test_snapshot_continues_with_any_number_of_actors_and_without():
    def rest_of(backend, collector):
        with closing(backend):
            learner = make_learner(backend.spec)
            learner.restore(saved[0])
            collector.restore(saved[1], saved[2])
            return continue_training(backend, collector, learner, 1)

    backend, collector = in_actors("cage2", workers=2)
    with closing(backend):
        learner = make_learner(backend.spec)
        collector.start(SEED)
        continue_training(backend, collector, learner, 2)
        saved = learner.state(), collector.state(), backend.state()
        whole = continue_training(backend, collector, learner, 1)
    assert_same(rest_of(*in_actors("cage2", workers=2)), whole)
    for other in (in_actors("cage2", workers=3), in_process("cage2")):
        rest = rest_of(*other)
        for name in ("0/actions", "0/rewards", "0/returns", "collector/actions_taken"):
            assert_array_equal(rest[name], whole[name], err_msg=name)


def test_shared_params_reach_every_actor_before_and_between_fragments():
    def play(backend, collector):
        with closing(backend):
            learner = make_learner(backend.spec)
            backend.broadcast({"toll": np.full(6, 0.25)})
            collector.start(SEED)
            first = continue_training(backend, collector, learner, 1)
            backend.broadcast({"toll": np.full(6, 0.5)})
            state = backend.state()
            return {**first, **{f"second/{k}": v for k, v in state.items()}} | {
                f"third/{k}": v for k, v in continue_training(backend, collector, learner, 1).items()
            }

    assert_same(play(*in_actors("corridor", workers=1)), play(*in_process("corridor")))


def test_policy_lag_one_collects_with_the_policy_before_the_update():
    now, late = train(*in_actors("cartpole")), train(*in_actors("cartpole", policy_lag=1))
    assert_array_equal(late["0/actions"], now["0/actions"])
    # The second rollout was collected before the first update.
    assert not np.array_equal(late["1/log_probs"], now["1/log_probs"])
    assert_same(train(*in_actors("cartpole", policy_lag=1)), late)


def test_log_probs_with_policy_lag_are_those_of_the_behaviour_policy():
    backend, collector = in_actors("cage2", policy_lag=1)
    with closing(backend):
        learner = make_learner(backend.spec)
        collector.start(SEED)
        acted = []
        for _ in range(3):
            collector.collect(learner.policy, learner.buffer, NUM_STEPS)
            acted.append((collector.behaviour_weights, learner.buffer.log_probs.copy()))
            learner.update()
    fresh = train(*in_process("cage2"), epochs=1)
    # Rollouts 0 and 1 are both collected with untrained weights.
    assert_array_equal(acted[0][1], fresh["0/log_probs"])
    first, second = acted[0][0], acted[1][0]
    untrained = network_arrays(make_learner(backend.spec).network)
    assert all(np.array_equal(first[name], untrained[name]) for name in untrained)
    assert not all(np.array_equal(second[name], untrained[name]) for name in untrained)


def test_snapshot_with_policy_lag_continues_bit_for_bit():
    toll = [{"toll": np.full(6, 0.1 * k)} for k in range(5)]

    def play(backend, collector, learner, epochs):
        for epoch in epochs:
            collector.collect(learner.policy, learner.buffer, NUM_STEPS)
            learner.update()
            backend.broadcast(toll[epoch])
        return learner.state(), collector.state(), backend.state()

    backend, collector = in_actors("corridor", policy_lag=1)
    with closing(backend):
        learner = make_learner(backend.spec)
        collector.start(SEED)
        half = play(backend, collector, learner, range(2))
        whole = play(backend, collector, learner, range(2, 5))
    backend, collector = in_actors("corridor", policy_lag=1)
    with closing(backend):
        learner = make_learner(backend.spec)
        learner.restore(half[0])
        collector.restore(half[1], half[2])
        again = play(backend, collector, learner, range(2, 5))
    for resumed, expected in zip(again, whole, strict=True):
        assert_same(resumed, expected)


def test_other_algorithms_are_rejected():
    backend, collector = in_actors("corridor")
    with closing(backend):
        collector.start(SEED)
        with pytest.raises(SettingsError, match="PPO"):
            collector.collect(object(), make_learner(backend.spec).buffer, NUM_STEPS)


def test_step_backend_cannot_collect():
    backend = ray_backend(ENV_CASES["corridor"], NUM_ENVS)
    with closing(backend), pytest.raises(SettingsError, match="collecting=True"):
        RayCollector(backend, SEED)


def test_actors_on_one_machine_have_local_ranks():
    backend, _ = in_actors("corridor")
    with closing(backend):
        ranks = [handle.shard.local_rank for handle in backend.pool.actors]
    assert ranks == [LocalRank(rank, len(ranks)) for rank in range(len(ranks))]
    assert len(ranks) > 1


def test_first_ready_inside_actors_takes_the_same_steps():
    expected = train(*in_process("CartPole-v1"), epochs=1)
    backend, collector = in_actors("CartPole-v1", actor_backend="first_ready")
    with closing(backend):
        learner = make_learner(backend.spec)
        collector.start(SEED)
        collector.collect(learner.policy, learner.buffer, NUM_STEPS)
        rollout = learner.buffer
        for name in ("actions", "rewards", "ended"):
            assert_array_equal(rollout.arrays[name], expected[f"0/{name}"], err_msg=name)
        assert_array_equal(rollout.observation_arrays["observation"], expected["0/observation/observation"])
        learner.update()
        # Envs that ran ahead already have steps of the next rollout; it is filled all the same.
        collector.collect(learner.policy, learner.buffer, NUM_STEPS)
        assert learner.buffer.full


@pytest.mark.process
def test_fragment_counts_the_steps_that_ran_ahead():
    settings = WorkerSettings(workers=1, batch_envs=1)
    env = ENV_CASES["CartPole-v1"]
    shard = ActorShard(0, 0, NUM_ENVS, env, "first_ready", settings, collecting=True)
    actor = EnvActor()
    actor.open(pickle.dumps(shard))
    with closing(actor.backend):
        actor.reset(SEED)
        policy = make_learner(actor.backend.spec).policy
        payload = WeightPublisher(pytest.fail).payload(policy, network_arrays(policy.network))
        for num_fragments in (1, 2):
            fragment = actor.collect(*payload, SEED, NUM_STEPS, False, {}).value
            steps_taken = actor.backend.pool.steps_taken.sum()
            extra = steps_taken - num_fragments * NUM_STEPS * NUM_ENVS
            # A reset counts as the first step of every env.
            assert 0 <= fragment.steps_ahead == extra - NUM_ENVS
