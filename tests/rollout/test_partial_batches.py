"""Learning from whoever is ready: envs at their own pace fill the same rollout."""

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


class Lucky:
    """Chooses by luck alone, so that an env's actions are a matter of its own count of choices."""

    def __init__(self, spec):
        self.spec = spec

    def sample(self, observation, mask, uniforms):
        rows = len(uniforms)
        mask = np.ones((rows, self.spec.num_logits), bool) if mask is None else mask
        parts, first = [], 0
        for part, count in enumerate(self.spec.action_nvec):
            allowed = mask[:, first : first + count]
            wanted = np.floor(uniforms[:, part] * allowed.sum(axis=1))
            parts.append(np.argmax(allowed.cumsum(axis=1) > wanted[:, None], axis=1))
            first += count
        actions = np.stack(parts, axis=1).reshape(rows, *self.spec.action_shape)
        return ActionSample(actions, uniforms[:, 0].astype(np.float32))


class OneByOne:
    """A first-ready backend in this process, whose envs arrive one at a time in a drawn order.

    `slowest` is the pace of the last env, where the first one's is 1.
    """

    def __init__(self, make_envs, num_envs, seed=0, groups=None, slowest=0.1):
        self.envs = [make_envs(np.array([env_id])) for env_id in range(num_envs)]
        self.spec, self.num_envs = self.envs[0].spec, num_envs
        self.groups = np.arange(num_envs) if groups is None else groups
        self.noise = np.random.default_rng(seed)
        self.pace = np.linspace(1, slowest, num_envs)

    def reset(self, seed):
        self.batches = [env.reset(seed).take(np.arange(1)) for env in self.envs]
        self.ready, self.at_work = list(range(self.num_envs)), []

    def recv(self):
        if not self.ready:
            wishes = self.pace[self.at_work]
            self.ready = [int(self.noise.choice(self.at_work, p=wishes / wishes.sum()))]
        for env_id in self.ready:
            if env_id in self.at_work:
                self.at_work.remove(env_id)
        self.last, self.ready = self.ready, []
        return together([self.batches[env_id] for env_id in self.last])

    def send(self, actions, env_ids=None):
        for action, env_id in zip(actions, self.last if env_ids is None else env_ids, strict=True):
            stepped = self.envs[env_id].step(np.array([action]))
            self.batches[env_id] = stepped.take(np.arange(1))
            self.at_work.append(int(env_id))

    def state(self):
        self.ready = list(self.at_work)
        states = [env.state() for env in self.envs]
        return {name: np.concatenate([state[name] for state in states]) for name in states[0]}


def together(batches):
    whole = batches[0]
    for batch in batches[1:]:
        whole = concat_batches(whole, batch)
    return whole


def rollouts(backend, collects=3, num_steps=NUM_STEPS, interval=1):
    """What a learner would see in each of some updates."""
    collector = Collector(backend, SEED)
    rollout = RolloutBuffer(backend.spec, NUM_ENVS, num_steps * interval)
    collector.start(SEED)
    told = []
    for _ in range(collects):
        for _ in range(interval):
            assert not rollout.full
            collector.collect(Lucky(backend.spec), rollout, num_steps)
        assert rollout.full
        told.append(seen_by_a_learner(rollout))
        rollout.clear()
    return told


def seen_by_a_learner(rollout):
    steps, env_ids, final = np.zeros(0, int), np.zeros(0, int), {}
    if rollout.truncations:
        steps, env_ids, final = rollout.all_truncations()
    order = np.lexsort((env_ids, steps))
    cut_off = {"steps": steps[order], "env_ids": env_ids[order]}
    cut_off |= {f"final/{name}": array[order] for name, array in final.items()}
    arrays = {
        name: getattr(rollout, name).copy()
        for name in ("actions", "log_probs", "rewards", "terminated", "ended")
    }
    if rollout.mask is not None:
        arrays["mask"] = rollout.mask.copy()
    arrays |= {f"observation/{name}": array.copy() for name, array in rollout.observation.items()}
    return arrays | cut_off


def assert_same_rollouts(told, expected):
    assert len(told) == len(expected)
    for one, other in zip(told, expected, strict=True):
        assert one.keys() == other.keys()
        for name, array in other.items():
            assert_array_equal(one[name], array, err_msg=name)


ENVS = ["corridor", "cartpole", "CartPole-v1", "third_party_masked", "third_party_multi_discrete"]


@pytest.mark.parametrize("env", ENVS)
@pytest.mark.parametrize("interval", [1, 2])
def test_whoever_is_ready_fills_the_same_rollouts_as_all_together(env, interval):
    with closing(InProcessBackend(ENV_CASES[env], NUM_ENVS)) as backend:
        expected = rollouts(backend, interval=interval)
    with closing(FirstReadyBackend(ENV_CASES[env], NUM_ENVS, SETTINGS)) as backend:
        assert_same_rollouts(rollouts(backend, interval=interval), expected)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("interval", [1, 2])
def test_however_far_some_run_ahead(seed, interval):
    env = ENV_CASES["cartpole"]
    with closing(InProcessBackend(env, NUM_ENVS)) as backend:
        expected = rollouts(backend, interval=interval)
    told = rollouts(OneByOne(env, NUM_ENVS, seed), interval=interval)
    assert_same_rollouts(told, expected)


def test_nobody_runs_ahead_further_than_one_collect():
    backend = OneByOne(ENV_CASES["corridor"], NUM_ENVS)
    collector = Collector(backend, SEED)
    rollout = RolloutBuffer(backend.spec, NUM_ENVS, NUM_STEPS)
    collector.start(SEED)
    for _ in range(4):
        collector.collect(Lucky(backend.spec), rollout, NUM_STEPS)
        assert collector.steps_ahead.min() == 0
        assert collector.steps_ahead.max() == NUM_STEPS
        assert rollout.cursor.max() <= 2 * NUM_STEPS
        rollout.clear()


def test_envs_that_step_together_are_held_back_together():
    """One of the pair is far ahead: it goes on as long as the other has steps to play."""
    backend = OneByOne(ENV_CASES["corridor"], 2, groups=np.zeros(2, np.int64))
    collector = Collector(backend, SEED)
    collector.start(SEED)
    collector.steps_ahead[:] = [NUM_STEPS, -1]
    acting, held = collector._select_rows(collector.batch, NUM_STEPS)
    assert acting.env_ids.tolist() == [0, 1]
    assert held is None


def test_episodes_are_told_once_and_whole():
    with closing(InProcessBackend(ENV_CASES["corridor"], NUM_ENVS)) as backend:
        expected = told_episodes(backend, 40)
    ahead = told_episodes(OneByOne(ENV_CASES["corridor"], NUM_ENVS), 40)
    # Some of those who ran ahead have told of more.
    assert not expected - ahead


def told_episodes(backend, num_steps):
    collector = Collector(backend, SEED)
    collector.start(SEED)
    rollout = RolloutBuffer(backend.spec, NUM_ENVS, num_steps)
    episodes = collector.collect(Lucky(backend.spec), rollout, num_steps)
    found = sorted(zip(episodes.returns, episodes.lengths, strict=True))
    return {(pair, found[:number].count(pair)) for number, pair in enumerate(found)}


def test_ticks_and_listeners_hear_of_every_step():
    backend = OneByOne(ENV_CASES["corridor"], NUM_ENVS)
    collector = Collector(backend, SEED)
    rollout = RolloutBuffer(backend.spec, NUM_ENVS, NUM_STEPS)
    heard, ticks = [], []
    collector.start(SEED)
    collector.collect(
        Lucky(backend.spec),
        rollout,
        NUM_STEPS,
        lambda: ticks.append(1),
        [lambda batch: heard.extend(batch.env_ids.tolist())],
    )
    assert np.bincount(heard).tolist() == rollout.cursor.tolist()
    assert len(ticks) == len(heard) // NUM_ENVS


def order_of_events(backend, monkeypatch):
    """What happens around the third batch, up to the next."""
    rollout = RolloutBuffer(backend.spec, NUM_ENVS, NUM_STEPS)
    collector = Collector(backend, SEED)
    collector.start(SEED)
    told = []
    for owner, name in (
        (backend, "recv"),
        (backend, "send"),
        (rollout, "add_actions"),
        (rollout, "add_transitions"),
    ):
        plain = getattr(owner, name)

        def noted(*given, name=name, plain=plain):
            told.append(name)
            return plain(*given)

        monkeypatch.setattr(owner, name, noted)
    collector.collect(Lucky(backend.spec), rollout, NUM_STEPS)
    second, third = [number for number, name in enumerate(told) if name == "recv"][1:3]
    return told[second + 1 : third]


def test_envs_go_on_before_what_lasts_is_written_down(monkeypatch):
    told = order_of_events(OneByOne(ENV_CASES["corridor"], NUM_ENVS), monkeypatch)
    assert told == ["send", "add_transitions", "add_actions"]


def test_what_envs_will_write_over_is_written_down_before_they_go_on(monkeypatch):
    with closing(InProcessBackend(ENV_CASES["corridor"], NUM_ENVS)) as backend:
        told = order_of_events(backend, monkeypatch)
    assert told == ["add_transitions", "add_actions", "send"]


# --- snapshots


@pytest.mark.parametrize("restored_on", [InProcessBackend, FirstReadyBackend])
@pytest.mark.parametrize("interval", [1, 3])
def test_a_snapshot_in_the_middle_of_it_all_goes_on_exactly(interval, restored_on):
    env = ENV_CASES["cartpole"]
    with closing(InProcessBackend(env, NUM_ENVS)) as backend:
        expected = rollouts(backend, collects=3, interval=interval)
    taken = OneByOne(env, NUM_ENVS, slowest=0.6)
    collector = Collector(taken, SEED)
    rollout = RolloutBuffer(taken.spec, NUM_ENVS, NUM_STEPS * interval)
    collector.start(SEED)
    collector.collect(Lucky(taken.spec), rollout, NUM_STEPS)
    if interval == 1:
        rollout.clear()
    # In the order in which a run takes them.
    parts = rollout.state(), collector.state(), taken.state()
    assert collector.in_flight.any()
    assert collector.steps_ahead.any()
    told = [expected[0]] if interval == 1 else []
    settings = replace(SETTINGS, batch_envs=2)
    with closing(restored_on(env, NUM_ENVS, settings)) as backend:
        told += go_on(backend, parts, interval, collects=3 - len(told))
    assert_same_rollouts(told, expected)


def go_on(backend, parts, interval, collects):
    collector = Collector(backend, SEED)
    rollout = RolloutBuffer(backend.spec, NUM_ENVS, NUM_STEPS * interval)
    rollout.restore(parts[0])
    collector.restore(parts[1], parts[2])
    told = []
    for _ in range(collects):
        while not rollout.full:
            collector.collect(Lucky(backend.spec), rollout, NUM_STEPS)
        told.append(seen_by_a_learner(rollout))
        rollout.clear()
    return told


def test_a_foreign_episode_is_cut_off_once_by_a_restore():
    """Where an outcome was awaited it says so itself; where none was, the last step does."""
    taken = OneByOne(ENV_CASES["CartPole-v1"], NUM_ENVS, slowest=0.6)
    collector = Collector(taken, SEED)
    rollout = RolloutBuffer(taken.spec, NUM_ENVS, NUM_STEPS)
    collector.start(SEED)
    collector.collect(Lucky(taken.spec), rollout, NUM_STEPS)
    rollout.clear()
    parts = rollout.state(), collector.state(), taken.state()
    awaited, played = rollout.awaiting_transition.copy(), rollout.cursor.copy()
    assert awaited.any()
    with closing(InProcessBackend(ENV_CASES["CartPole-v1"], NUM_ENVS)) as backend:
        collector = Collector(backend, SEED)
        rollout.restore(parts[0])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            collector.restore(parts[1], parts[2])
        rollout.truncate_here(collector.batch)
        collector.collect(Lucky(backend.spec), rollout, NUM_STEPS)
    for env_id in range(NUM_ENVS):
        last = played[env_id] if awaited[env_id] else played[env_id] - 1
        if last >= 0:
            assert rollout.arrays["ended"][last, env_id]
        if awaited[env_id] and last > 0:
            assert rollout.arrays["rewards"][last, env_id] == 0


def test_a_rollout_that_nobody_ran_ahead_in_keeps_its_arrays():
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
