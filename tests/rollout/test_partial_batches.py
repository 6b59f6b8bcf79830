"""Partial batches: envs that run ahead of others fill the same rollouts."""

import warnings
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from helpers.cases import ENV_CASES
from hundredfold.backends.in_process import InProcessBackend
from hundredfold.backends.processes.backend import FirstReadyBackend
from hundredfold.backends.settings import WorkerSettings
from hundredfold.core.batch import concat_batches
from hundredfold.rollout.collector import Collector
from hundredfold.rollout.rollout_buffer import ActionSample, RolloutBuffer

SEED = 5
NUM_ENVS = 6
NUM_STEPS = 12
SETTINGS = WorkerSettings(workers=2, batch_envs=1)

pytestmark = pytest.mark.process


class RandomPolicy:
    """Samples allowed actions from its uniforms alone, so they depend on env and action count."""

    def __init__(self, spec):
        self.spec = spec

    def sample(self, observation, mask, uniforms):
        rows = len(uniforms)
        mask = np.ones((rows, self.spec.num_logits), bool) if mask is None else mask
        saved, first = [], 0
        for part, count in enumerate(self.spec.action_nvec):
            allowed = mask[:, first : first + count]
            wanted = np.floor(uniforms[:, part] * allowed.sum(axis=1))
            saved.append(np.argmax(allowed.cumsum(axis=1) > wanted[:, None], axis=1))
            first += count
        actions = np.stack(saved, axis=1).reshape(rows, *self.spec.action_shape)
        return ActionSample(actions, uniforms[:, 0].astype(np.float32))


class OneEnvAtATime:
    """A first-ready backend in this process, whose envs become ready one at a time, at random.

    `slowest_speed` is the speed of the last env; that of the first is 1.
    """

    def __init__(self, make_envs, num_envs, seed=0, groups=None, slowest_speed=0.1):
        self.envs = [make_envs(np.array([env_id])) for env_id in range(num_envs)]
        self.spec, self.num_envs = self.envs[0].spec, num_envs
        self.groups = np.arange(num_envs) if groups is None else groups
        self.rng = np.random.default_rng(seed)
        self.speed = np.linspace(1, slowest_speed, num_envs)

    def reset(self, seed):
        self.batches = [env.reset(seed).take(np.arange(1)) for env in self.envs]
        self.ready, self.in_flight = list(range(self.num_envs)), []

    def recv(self):
        if not self.ready:
            weights = self.speed[self.in_flight]
            self.ready = [int(self.rng.choice(self.in_flight, p=weights / weights.sum()))]
        for env_id in self.ready:
            if env_id in self.in_flight:
                self.in_flight.remove(env_id)
        self.last, self.ready = self.ready, []
        return concat_all([self.batches[env_id] for env_id in self.last])

    def send(self, actions, env_ids=None):
        for action, env_id in zip(actions, self.last if env_ids is None else env_ids, strict=True):
            stepped = self.envs[env_id].step(np.array([action]))
            self.batches[env_id] = stepped.take(np.arange(1))
            self.in_flight.append(int(env_id))

    def state(self):
        self.ready = list(self.in_flight)
        states = [env.state() for env in self.envs]
        return {name: np.concatenate([state[name] for state in states]) for name in states[0]}


def concat_all(batches):
    whole = batches[0]
    for batch in batches[1:]:
        whole = concat_batches(whole, batch)
    return whole


def rollouts(backend, num_rollouts=3, num_steps=NUM_STEPS, interval=1):
    """The rollouts of a few updates."""
    collector = Collector(backend, SEED)
    rollout = RolloutBuffer(backend.spec, NUM_ENVS, num_steps * interval)
    collector.start(SEED)
    recorded = []
    for _ in range(num_rollouts):
        for _ in range(interval):
            assert not rollout.full
            collector.collect(RandomPolicy(backend.spec), rollout, num_steps)
        assert rollout.full
        recorded.append(rollout_arrays(rollout))
        rollout.clear()
    return recorded


def rollout_arrays(rollout):
    steps, env_ids, final = np.zeros(0, int), np.zeros(0, int), {}
    if rollout.truncations:
        steps, env_ids, final = rollout.all_truncations()
    order = np.lexsort((env_ids, steps))
    truncations = {"steps": steps[order], "env_ids": env_ids[order]}
    truncations |= {f"final/{name}": array[order] for name, array in final.items()}
    arrays = {
        name: getattr(rollout, name).copy() for name in ("actions", "log_probs", "rewards", "terminated", "ended")
    }
    if rollout.mask is not None:
        arrays["mask"] = rollout.mask.copy()
    arrays |= {f"observation/{name}": array.copy() for name, array in rollout.observation.items()}
    return arrays | truncations


def assert_same_rollouts(recorded, expected):
    assert len(recorded) == len(expected)
    for one, other in zip(recorded, expected, strict=True):
        assert one.keys() == other.keys()
        for name, array in other.items():
            assert_array_equal(one[name], array, err_msg=name)


ENVS = ["corridor", "cartpole", "CartPole-v1", "third_party_masked", "third_party_multi_discrete"]


@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize("interval", [1, 2])
def test_partial_batches_fill_the_same_rollouts_as_full_batches(env, interval):
    with closing(InProcessBackend(ENV_CASES[env], NUM_ENVS)) as backend:
        expected = rollouts(backend, interval=interval)
    with closing(FirstReadyBackend(ENV_CASES[env], NUM_ENVS, SETTINGS)) as backend:
        assert_same_rollouts(rollouts(backend, interval=interval), expected)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("interval", [1, 2])
def test_envs_that_run_ahead_fill_the_same_rollouts(seed, interval):
    env = ENV_CASES["cartpole"]
    with closing(InProcessBackend(env, NUM_ENVS)) as backend:
        expected = rollouts(backend, interval=interval)
    recorded = rollouts(OneEnvAtATime(env, NUM_ENVS, seed), interval=interval)
    assert_same_rollouts(recorded, expected)


def test_no_env_runs_ahead_by_more_than_one_rollout():
    backend = OneEnvAtATime(ENV_CASES["corridor"], NUM_ENVS)
    collector = Collector(backend, SEED)
    rollout = RolloutBuffer(backend.spec, NUM_ENVS, NUM_STEPS)
    collector.start(SEED)
    for _ in range(4):
        collector.collect(RandomPolicy(backend.spec), rollout, NUM_STEPS)
        assert collector.steps_ahead.min() == 0
        assert collector.steps_ahead.max() == NUM_STEPS
        assert rollout.cursor.max() <= 2 * NUM_STEPS
        rollout.clear()


def test_a_group_is_held_back_as_a_whole():
    """One env of the group is far ahead: it acts as long as the other has steps to take."""
    backend = OneEnvAtATime(ENV_CASES["corridor"], 2, groups=np.zeros(2, np.int64))
    collector = Collector(backend, SEED)
    collector.start(SEED)
    collector.steps_ahead[:] = [NUM_STEPS, -1]
    acting, held_back = collector._select_rows(collector.batch, NUM_STEPS)
    assert acting.env_ids.tolist() == [0, 1]
    assert held_back is None


def test_every_episode_is_counted_once():
    with closing(InProcessBackend(ENV_CASES["corridor"], NUM_ENVS)) as backend:
        expected = count_episodes(backend, 40)
    ahead = count_episodes(OneEnvAtATime(ENV_CASES["corridor"], NUM_ENVS), 40)
    # Envs that ran ahead have finished more.
    assert not expected - ahead


def count_episodes(backend, num_steps):
    collector = Collector(backend, SEED)
    collector.start(SEED)
    rollout = RolloutBuffer(backend.spec, NUM_ENVS, num_steps)
    episodes = collector.collect(RandomPolicy(backend.spec), rollout, num_steps)
    found = sorted(zip(episodes.returns, episodes.lengths, strict=True))
    return {(pair, found[:number].count(pair)) for number, pair in enumerate(found)}


def test_progress_and_step_callbacks_cover_every_step():
    backend = OneEnvAtATime(ENV_CASES["corridor"], NUM_ENVS)
    collector = Collector(backend, SEED)
    rollout = RolloutBuffer(backend.spec, NUM_ENVS, NUM_STEPS)
    env_ids_seen, progress = [], []
    collector.start(SEED)
    collector.collect(
        RandomPolicy(backend.spec),
        rollout,
        NUM_STEPS,
        lambda: progress.append(1),
        [lambda batch: env_ids_seen.extend(batch.env_ids.tolist())],
    )
    assert np.bincount(env_ids_seen).tolist() == rollout.cursor.tolist()
    assert len(progress) == len(env_ids_seen) // NUM_ENVS


def call_order(backend, monkeypatch):
    """Names of the calls between the second and the third batch."""
    rollout = RolloutBuffer(backend.spec, NUM_ENVS, NUM_STEPS)
    collector = Collector(backend, SEED)
    collector.start(SEED)
    recorded = []
    for owner, name in ((backend, "recv"), (backend, "send"), (rollout, "add_actions"), (rollout, "add_transitions")):
        original = getattr(owner, name)

        def recording(*given, name=name, original=original):
            recorded.append(name)
            return original(*given)

        monkeypatch.setattr(owner, name, recording)
    collector.collect(RandomPolicy(backend.spec), rollout, NUM_STEPS)
    second, third = [number for number, name in enumerate(recorded) if name == "recv"][1:3]
    return recorded[second + 1 : third]


def test_copied_batches_are_stored_after_the_next_actions_are_sent(monkeypatch):
    recorded = call_order(OneEnvAtATime(ENV_CASES["corridor"], NUM_ENVS), monkeypatch)
    assert recorded == ["send", "add_transitions", "add_actions"]


def test_live_batches_are_stored_before_the_next_actions_are_sent(monkeypatch):
    with closing(InProcessBackend(ENV_CASES["corridor"], NUM_ENVS)) as backend:
        recorded = call_order(backend, monkeypatch)
    assert recorded == ["add_transitions", "add_actions", "send"]


# --- snapshots


@pytest.mark.parametrize("restored_on", [InProcessBackend, FirstReadyBackend])
@pytest.mark.parametrize("interval", [1, 3])
def test_resume_with_steps_in_flight_is_bit_exact(interval, restored_on):
    env = ENV_CASES["cartpole"]
    with closing(InProcessBackend(env, NUM_ENVS)) as backend:
        expected = rollouts(backend, num_rollouts=3, interval=interval)
    interrupted = OneEnvAtATime(env, NUM_ENVS, slowest_speed=0.6)
    collector = Collector(interrupted, SEED)
    rollout = RolloutBuffer(interrupted.spec, NUM_ENVS, NUM_STEPS * interval)
    collector.start(SEED)
    collector.collect(RandomPolicy(interrupted.spec), rollout, NUM_STEPS)
    if interval == 1:
        rollout.clear()
    # In the order in which a run saves them.
    saved = rollout.state(), collector.state(), interrupted.state()
    assert collector.in_flight.any()
    assert collector.steps_ahead.any()
    recorded = [expected[0]] if interval == 1 else []
    settings = replace(SETTINGS, batch_envs=2)
    with closing(restored_on(env, NUM_ENVS, settings)) as backend:
        recorded += continue_from(backend, saved, interval, num_rollouts=3 - len(recorded))
    assert_same_rollouts(recorded, expected)


def continue_from(backend, saved, interval, num_rollouts):
    collector = Collector(backend, SEED)
    rollout = RolloutBuffer(backend.spec, NUM_ENVS, NUM_STEPS * interval)
    rollout.restore(saved[0])
    collector.restore(saved[1], saved[2])
    recorded = []
    for _ in range(num_rollouts):
        while not rollout.full:
            collector.collect(RandomPolicy(backend.spec), rollout, NUM_STEPS)
        recorded.append(rollout_arrays(rollout))
        rollout.clear()
    return recorded


def test_a_restore_truncates_a_third_party_episode_once():
    """An awaited transition is truncated itself, else the last stored step is."""
    interrupted = OneEnvAtATime(ENV_CASES["CartPole-v1"], NUM_ENVS, slowest_speed=0.6)
    collector = Collector(interrupted, SEED)
    rollout = RolloutBuffer(interrupted.spec, NUM_ENVS, NUM_STEPS)
    collector.start(SEED)
    collector.collect(RandomPolicy(interrupted.spec), rollout, NUM_STEPS)
    rollout.clear()
    saved = rollout.state(), collector.state(), interrupted.state()
    awaiting, steps_stored = rollout.awaiting_transition.copy(), rollout.cursor.copy()
    assert awaiting.any()
    with closing(InProcessBackend(ENV_CASES["CartPole-v1"], NUM_ENVS)) as backend:
        collector = Collector(backend, SEED)
        rollout.restore(saved[0])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            collector.restore(saved[1], saved[2])
        rollout.truncate_here(collector.batch)
        collector.collect(RandomPolicy(backend.spec), rollout, NUM_STEPS)
    for env_id in range(NUM_ENVS):
        last = steps_stored[env_id] if awaiting[env_id] else steps_stored[env_id] - 1
        if last >= 0:
            assert rollout.arrays["ended"][last, env_id]
        if awaiting[env_id] and last > 0:
            assert rollout.arrays["rewards"][last, env_id] == 0


def test_clear_without_steps_ahead_keeps_the_arrays():
    spec = ENV_CASES["corridor"](np.arange(1)).spec
    rollout = RolloutBuffer(spec, 2, 3)
    actions = rollout.actions
    for step in range(3):
        batch = spec.batch(np.arange(2))
        rollout.add_actions(batch, ActionSample(np.full(2, step % 3), np.zeros(2, np.float32)))
        rollout.add_transitions(batch)
    rollout.clear()
    assert rollout.actions is actions
    assert rollout.state().keys() == {"cursor"}
