"""Collecting through Ray actors: the same steps, the same learning, the same books."""

import pickle
from contextlib import closing

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from helpers.cases import ENV_CASES
from helpers.ray_learning import NUM_STEPS, learner_for
from helpers.ray_pool import ray_backend
from hundredfold.algorithms.weights import network_arrays
from hundredfold.backends.in_process import InProcessBackend
from hundredfold.backends.processes.cpu_affinity import LocalRank
from hundredfold.backends.settings import WorkerSettings
from hundredfold.core.errors import SettingsError
from hundredfold.distributed.actor import SliceActor, SlicePlan
from hundredfold.distributed.ray_collector import RayCollector
from hundredfold.distributed.weight_sync import Teacher
from hundredfold.rollout.collector import Collector

SEED = 5
NUM_ENVS = 7


def in_process(env):
    backend = InProcessBackend(ENV_CASES[env], NUM_ENVS)
    return backend, Collector(backend, SEED)


def in_actors(env, workers=2, **ray):
    backend = ray_backend(ENV_CASES[env], NUM_ENVS, workers=workers, collecting=True, **ray)
    return backend, RayCollector(backend, SEED)


def trained(backend, collector, epochs=3, interval=1, step_callbacks=()):
    """What a few epochs leave behind: all rollouts, episodes and weights."""
    with closing(backend):
        learner = learner_for(backend.spec, interval)
        collector.start(SEED)
        return go_on(backend, collector, learner, epochs, step_callbacks)


def go_on(backend, collector, learner, epochs, step_callbacks=()):
    told = {}
    for epoch in range(epochs):
        episodes = collector.collect(
            learner.policy, learner.buffer, NUM_STEPS, step_callbacks=step_callbacks
        )
        rollout = learner.buffer
        if rollout.full:
            told |= {f"{epoch}/{name}": array.copy() for name, array in rollout.arrays.items()}
            told |= {
                f"{epoch}/seen/{k}": array.copy() for k, array in rollout.observation_arrays.items()
            }
            told |= cut_offs(rollout, epoch)
        told[f"{epoch}/returns"] = np.array(episodes.returns)
        told[f"{epoch}/lengths"] = np.array(episodes.lengths)
        told |= {f"{epoch}/info/{k}": np.concatenate(v) for k, v in episodes.info.items()}
        learner.update()
    told |= {f"weights/{name}": array for name, array in network_arrays(learner.network).items()}
    told |= {f"collector/{name}": array for name, array in collector.state().items()}
    return told | {f"env/{name}": array for name, array in backend.state().items()}


def cut_offs(rollout, epoch):
    """Truncated episodes in one order, whoever told of them first."""
    if not rollout.truncations:
        return {}
    steps, env_ids, final = rollout.all_truncations()
    order = np.lexsort((env_ids, steps))
    parts = {"steps": steps, "env_ids": env_ids, **final}
    return {f"{epoch}/cut_off/{name}": array[order] for name, array in parts.items()}


def assert_same(told, expected):
    assert told.keys() == expected.keys()
    for name, array in expected.items():
        assert_array_equal(told[name], array, err_msg=name, strict=True)


@pytest.mark.parametrize(
    "env", ["dvrp", "cage2", "cartpole", "CartPole-v1", "third_party_multi_discrete"]
)
def test_an_actor_collects_what_one_process_collects(env):
    assert_same(trained(*in_actors(env, workers=1)), trained(*in_process(env)))


@pytest.mark.parametrize("env", ["dvrp", "cage2", "cartpole", "CartPole-v1"])
def test_the_same_actions_give_the_same_steps_whatever_the_number_of_actors(env):
    expected = trained(*in_process(env), epochs=1)
    told = trained(*in_actors(env, workers=3), epochs=1)
    assert told.keys() == expected.keys()
    for name, array in expected.items():
        # Small products of matrices are added up in another order than large ones.
        if name.startswith(("0/log_probs", "weights/")):
            assert_allclose(told[name], array, rtol=1e-4, atol=1e-6, err_msg=name)
        else:
            assert_array_equal(told[name], array, err_msg=name, strict=True)


def test_the_same_settings_repeat_bit_for_bit():
    assert_same(trained(*in_actors("cage2", workers=3)), trained(*in_actors("cage2", workers=3)))


def test_epochs_that_are_learned_from_together_lie_behind_each_other():
    assert_same(
        trained(*in_actors("cartpole", workers=1), epochs=4, interval=2),
        trained(*in_process("cartpole"), epochs=4, interval=2),
    )


def test_listeners_hear_every_step_of_every_env_in_order():
    def heard(backend, collector):
        told = []

        def hear(batch):
            told.append({**batch.info, "reward": batch.reward.astype(np.float32)})
            told[-1]["ended"] = batch.ended.copy()
            told[-1] = {name: array.copy() for name, array in told[-1].items()}

        trained(backend, collector, step_callbacks=[hear])
        return {f"{step}/{name}": a for step, part in enumerate(told) for name, a in part.items()}

    assert_same(heard(*in_actors("dvrp")), heard(*in_process("dvrp")))


def test_a_bar_moves_once_for_every_step_of_all_envs():
    backend, collector = in_actors("corridor", workers=3)
    ticks = []
    with closing(backend):
        learner = learner_for(backend.spec)
        collector.start(SEED)
        collector.collect(
            learner.policy, learner.buffer, NUM_STEPS, on_progress=lambda: ticks.append(1)
        )
    assert len(ticks) == NUM_STEPS


def test_a_snapshot_goes_on_with_any_number_of_actors_and_without():
    def rest_of(backend, collector):
        with closing(backend):
            learner = learner_for(backend.spec)
            learner.restore(saved[0])
            collector.restore(saved[1], saved[2])
            return go_on(backend, collector, learner, 1)

    backend, collector = in_actors("cage2", workers=2)
    with closing(backend):
        learner = learner_for(backend.spec)
        collector.start(SEED)
        go_on(backend, collector, learner, 2)
        saved = learner.state(), collector.state(), backend.state()
        whole = go_on(backend, collector, learner, 1)
    assert_same(rest_of(*in_actors("cage2", workers=2)), whole)
    for other in (in_actors("cage2", workers=3), in_process("cage2")):
        rest = rest_of(*other)
        for name in ("0/actions", "0/rewards", "0/returns", "collector/actions_taken"):
            assert_array_equal(rest[name], whole[name], err_msg=name)


def test_knowledge_reaches_every_actor_before_and_between_fragments():
    def told(backend, collector):
        with closing(backend):
            learner = learner_for(backend.spec)
            backend.broadcast({"toll": np.full(6, 0.25)})
            collector.start(SEED)
            first = go_on(backend, collector, learner, 1)
            backend.broadcast({"toll": np.full(6, 0.5)})
            state = backend.state()
            return {**first, **{f"second/{k}": v for k, v in state.items()}} | {
                f"third/{k}": v for k, v in go_on(backend, collector, learner, 1).items()
            }

    assert_same(told(*in_actors("corridor", workers=1)), told(*in_process("corridor")))


def test_a_lag_of_one_learns_from_rollouts_of_the_policy_before():
    now, late = trained(*in_actors("cartpole")), trained(*in_actors("cartpole", collect_lag=1))
    assert_array_equal(late["0/actions"], now["0/actions"])
    # The second rollout was played before the first was learned from.
    assert not np.array_equal(late["1/log_probs"], now["1/log_probs"])
    assert_same(trained(*in_actors("cartpole", collect_lag=1)), late)


def test_log_probabilities_under_a_lag_are_those_of_the_weights_that_acted():
    backend, collector = in_actors("cage2", collect_lag=1)
    with closing(backend):
        learner = learner_for(backend.spec)
        collector.start(SEED)
        acted = []
        for _ in range(3):
            collector.collect(learner.policy, learner.buffer, NUM_STEPS)
            acted.append((collector.behaviour, learner.buffer.log_probs.copy()))
            learner.update()
    fresh = trained(*in_process("cage2"), epochs=1)
    # Rollouts 0 and 1 are both played by weights that have learned nothing.
    assert_array_equal(acted[0][1], fresh["0/log_probs"])
    first, second = acted[0][0], acted[1][0]
    untrained = network_arrays(learner_for(backend.spec).network)
    assert all(np.array_equal(first[name], untrained[name]) for name in untrained)
    assert not all(np.array_equal(second[name], untrained[name]) for name in untrained)


def test_a_snapshot_under_a_lag_goes_on_bit_for_bit():
    toll = [{"toll": np.full(6, 0.1 * k)} for k in range(5)]

    def play(backend, collector, learner, epochs):
        for epoch in epochs:
            collector.collect(learner.policy, learner.buffer, NUM_STEPS)
            learner.update()
            backend.broadcast(toll[epoch])
        return learner.state(), collector.state(), backend.state()

    backend, collector = in_actors("corridor", collect_lag=1)
    with closing(backend):
        learner = learner_for(backend.spec)
        collector.start(SEED)
        half = play(backend, collector, learner, range(2))
        whole = play(backend, collector, learner, range(2, 5))
    backend, collector = in_actors("corridor", collect_lag=1)
    with closing(backend):
        learner = learner_for(backend.spec)
        learner.restore(half[0])
        collector.restore(half[1], half[2])
        again = play(backend, collector, learner, range(2, 5))
    for found, expected in zip(again, whole, strict=True):
        assert_same(found, expected)


def test_other_learners_are_sent_to_other_backends():
    backend, collector = in_actors("corridor")
    with closing(backend):
        collector.start(SEED)
        with pytest.raises(SettingsError, match="PPO"):
            collector.collect(object(), learner_for(backend.spec).buffer, NUM_STEPS)


def test_a_step_backend_is_not_collected_from():
    backend = ray_backend(ENV_CASES["corridor"], NUM_ENVS)
    with closing(backend), pytest.raises(SettingsError, match="collecting=True"):
        RayCollector(backend, SEED)


def test_actors_on_one_machine_sit_side_by_side():
    backend, _ = in_actors("corridor")
    with closing(backend):
        found = [held.plan.local_rank for held in backend.fleet.slices]
    assert found == [LocalRank(number, len(found)) for number in range(len(found))]
    assert len(found) > 1


def test_envs_of_an_actor_that_do_not_wait_for_each_other_play_the_same_steps():
    expected = trained(*in_process("CartPole-v1"), epochs=1)
    backend, collector = in_actors("CartPole-v1", actor_backend="first_ready")
    with closing(backend):
        learner = learner_for(backend.spec)
        collector.start(SEED)
        collector.collect(learner.policy, learner.buffer, NUM_STEPS)
        rollout = learner.buffer
        for name in ("actions", "rewards", "ended"):
            assert_array_equal(rollout.arrays[name], expected[f"0/{name}"], err_msg=name)
        assert_array_equal(
            rollout.observation_arrays["observation"], expected["0/seen/observation"]
        )
        learner.update()
        # Whoever ran ahead has steps of the next rollout already; it is filled all the same.
        collector.collect(learner.policy, learner.buffer, NUM_STEPS)
        assert learner.buffer.full


def test_a_fragment_says_how_many_steps_have_run_ahead_of_it():
    settings = WorkerSettings(workers=1, batch_envs=1)
    env = ENV_CASES["CartPole-v1"]
    plan = SlicePlan(0, 0, NUM_ENVS, env, "first_ready", settings, collecting=True)
    actor = SliceActor()
    actor.do_open(pickle.dumps(plan))
    with closing(actor.backend):
        actor.do_reset(SEED)
        policy = learner_for(actor.backend.spec).policy
        lesson = Teacher(pytest.fail).lesson(policy, network_arrays(policy.network))
        for fragments in (1, 2):
            found = actor.do_gather(*lesson, SEED, NUM_STEPS, False, {}).value
            played = actor.backend.pool.steps_taken.sum() - fragments * NUM_STEPS * NUM_ENVS
            # A reset counts as a first step of everybody.
            assert 0 <= found.num_ahead == played - NUM_ENVS
