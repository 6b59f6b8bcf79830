"""Autoreset modes: same episodes in both, and exact statistics from other libraries' wrappers."""

from contextlib import closing
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import NormalizeReward, RecordEpisodeStatistics
from numpy.testing import assert_array_equal

import hundredfold
from helpers.cases import ENV_CASES, backend_param
from hundredfold.backends import make_backend
from hundredfold.core.action_scaling import random_actions
from hundredfold.core.errors import SettingsError
from hundredfold.core.protocols import PerEnvBatch
from hundredfold.distributed.actor import ShardFactory
from hundredfold.envs.next_step import NextStepFactory
from hundredfold.envs.registry import callable_factory
from hundredfold.interop.gymnasium import BackendVectorEnv

NUM_ENVS = 5
SEED = 3
NUM_EPISODES = 4


def vector_env(case, backend="in_process", mode=AutoresetMode.NEXT_STEP):
    make_envs = ENV_CASES[case]
    if mode is AutoresetMode.NEXT_STEP:
        make_envs = NextStepFactory(make_envs)
    return BackendVectorEnv(make_backend(backend, make_envs, NUM_ENVS), autoreset_mode=mode, seed=SEED)


def action_of(spec, env_id, step, mask):
    """A random allowed action, which depends on env and step of the env alone."""
    uniforms = np.random.default_rng((env_id, step)).random((1, spec.num_logits))
    return random_actions(spec, uniforms, None if mask is None else mask[None])[0]


def episodes_alone(case):
    """(return, length) of the first episodes of each env, played alone on the bare batch env."""
    episodes = []
    for env_id in range(NUM_ENVS):
        env = ENV_CASES[case](np.array([env_id]))
        out, step = env.reset(SEED), 0
        for _ in range(NUM_EPISODES):
            total, length, is_over = 0.0, 0, False
            while not is_over:
                mask = None if out.mask is None else out.mask[0]
                out = env.step(action_of(env.spec, env_id, step, mask)[None])
                step, length, total, is_over = step + 1, length + 1, total + out.reward[0], out.ended[0]
            episodes.append((env_id, round(float(total), 6), length))
        env.close()
    return sorted(episodes)


def play_until_enough(envs, spec, on_step):
    """Play until every env has ended enough episodes; a row that waits for its reset gets a forbidden action."""
    _, infos = envs.reset()
    steps, ended, counts = np.zeros(NUM_ENVS, int), np.zeros(NUM_ENVS, bool), np.zeros(NUM_ENVS, int)
    is_next_step = envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    while counts.min() < NUM_EPISODES:
        masks = infos.get("action_mask", [None] * NUM_ENVS)
        actions = np.stack([action_of(spec, row, steps[row], masks[row]) for row in range(NUM_ENVS)])
        stepped = ~ended if is_next_step else np.ones(NUM_ENVS, bool)
        if spec.has_mask and len(spec.action_nvec) == 1 and not stepped.all():
            actions[~stepped] = [int(masks[row].argmin()) for row in np.flatnonzero(~stepped)]
        outputs = envs.step(actions)
        steps[stepped] += 1
        _, _, terminated, truncated, infos = outputs
        ended = terminated | truncated
        on_step(outputs, counts)
        counts[ended] += 1


def statistics(envs, spec):
    """(env, return, length) that `RecordEpisodeStatistics` reports for the first episodes of each env."""
    episodes = []

    def record(outputs, counts):
        infos = outputs[-1]
        for row in np.flatnonzero(infos.get("_episode", [])):
            if counts[row] < NUM_EPISODES:
                stats = infos["episode"]
                episodes.append((int(row), round(float(stats["r"][row]), 6), int(stats["l"][row])))

    play_until_enough(RecordEpisodeStatistics(envs), spec, record)
    return sorted(episodes)


@pytest.mark.parametrize(
    ("case", "backend"),
    [
        *[(case, "in_process") for case in ENV_CASES if case != "spotlight"],
        backend_param("cartpole", "processes"),
        backend_param("third_party_masked", "processes"),
        backend_param("third_party_masked", "first_ready"),
    ],
)
def test_gymnasium_counts_returns_and_lengths_exactly(case, backend):
    if backend == "first_ready":
        envs = hundredfold.make_vec(ENV_CASES[case].keywords["make_env"], NUM_ENVS, backend=backend, seed=SEED)
    else:
        envs = vector_env(case, backend)
    with closing(envs):
        assert statistics(envs, envs.backend.spec) == episodes_alone(case)


@pytest.mark.parametrize("case", ["cartpole", "dvrp", "cage2", "third_party_masked", "third_party_box"])
def test_both_modes_show_the_same_episodes(case):
    def played(mode):
        seen = []

        def record(outputs, counts):
            observation, reward, terminated, truncated, infos = outputs
            ended = terminated | truncated
            for row in np.flatnonzero(ended & (counts < NUM_EPISODES)):
                last = row_of(observation, row) if mode is AutoresetMode.NEXT_STEP else infos["final_obs"][row]
                end = (float(reward[row]), bool(terminated[row]), bool(truncated[row]))
                seen.append((int(row), int(counts[row]), end, last))

        with closing(vector_env(case, mode=mode)) as envs:
            play_until_enough(envs, envs.backend.spec, record)
        return sorted(seen, key=lambda episode: episode[:2])

    for one, other in zip(played(AutoresetMode.NEXT_STEP), played(AutoresetMode.SAME_STEP), strict=True):
        assert one[:3] == other[:3]
        for mine, theirs in zip(leaves(one[3]), leaves(other[3]), strict=True):
            assert_array_equal(mine, theirs)


def row_of(observation, row):
    if isinstance(observation, dict):
        return {name: array[row] for name, array in observation.items()}
    return observation[row]


def leaves(observation):
    return list(observation.values()) if isinstance(observation, dict) else [observation]


class RowAlone(gymnasium.Env):
    """One env of a batch as a single Gymnasium env, which Gymnasium's own vector env resets."""

    def __init__(self, case, env_id):
        self.env = ENV_CASES[case](np.array([env_id]))
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,))
        self.action_space = gymnasium.spaces.Discrete(2)
        self.has_started = False

    def reset(self, *, seed=None, options=None):
        if not self.has_started:
            self.env.reset(SEED)
        self.has_started = True
        return self.env.out.observation["observation"][0].copy(), {}

    def step(self, action):
        out = self.env.step(np.array([action]))
        arrays = out.final_observation if out.ended[0] else out.observation
        flags = bool(out.terminated[0]), bool(out.truncated[0])
        return arrays["observation"][0].copy(), float(out.reward[0]), *flags, {}


@pytest.mark.parametrize("case", ["cartpole", "CartPole-v1"])
def test_steps_and_normalised_rewards_are_those_of_gymnasiums_own_vector_env(case):
    ours = NormalizeReward(vector_env(case))
    own = NormalizeReward(SyncVectorEnv([partial(RowAlone, case, env_id) for env_id in range(NUM_ENVS)]))
    assert ours.metadata["autoreset_mode"] is own.metadata["autoreset_mode"]
    assert_array_equal(ours.reset()[0], own.reset()[0])
    for step in range(80):
        actions = np.random.default_rng(step).integers(0, 2, NUM_ENVS)
        for mine, theirs in zip(ours.step(actions)[:4], own.step(actions)[:4], strict=True):
            assert_array_equal(mine, theirs)


def test_sb3_monitor_counts_returns_and_lengths_exactly():
    pytest.importorskip("stable_baselines3")
    from stable_baselines3.common.vec_env import VecMonitor

    from hundredfold.interop.sb3.envs import BackendVecEnv

    backend = make_backend("in_process", ENV_CASES["cartpole"], NUM_ENVS)
    monitor = VecMonitor(BackendVecEnv(backend, SEED))
    monitor.reset()
    episodes, steps = [], np.zeros(NUM_ENVS, int)
    counts = np.zeros(NUM_ENVS, int)
    while counts.min() < NUM_EPISODES:
        _, _, dones, infos = monitor.step(
            np.array([action_of(backend.spec, row, steps[row], None) for row in range(NUM_ENVS)])
        )
        steps += 1
        for row in np.flatnonzero(dones):
            if counts[row] < NUM_EPISODES:
                episodes.append((int(row), infos[row]["episode"]["r"], infos[row]["episode"]["l"]))
            counts[row] += 1
    assert sorted(episodes) == episodes_alone("cartpole")


class Ledger(gymnasium.Env):
    """Episodes of 1 to 6 steps with uneven rewards, of which it keeps account."""

    observation_space = gymnasium.spaces.Box(0, 10, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    finished: list[tuple[float, int]] = []  # noqa: RUF012

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left, self.rewards = int(self.np_random.integers(1, 7)), []
        return np.full(1, self.left, np.float32), {}

    def step(self, action):
        self.left -= 1
        self.rewards.append(float(self.np_random.integers(1, 100)))
        if self.left == 0:
            self.finished.append((sum(self.rewards), len(self.rewards)))
        return np.full(1, self.left, np.float32), self.rewards[-1], self.left == 0, False, {}


@pytest.mark.ray
def test_rllib_counts_returns_and_lengths_exactly():
    pytest.importorskip("ray")
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner
    from ray.tune.registry import register_env

    from hundredfold.envs.registry import callable_factory
    from hundredfold.interop.rllib.envs import make_env

    register_env("ledger", partial(make_env, "ledger"))
    config = (
        PPOConfig()
        .environment("ledger", env_config={"make_envs": callable_factory(Ledger), "seed": SEED})
        .env_runners(num_envs_per_env_runner=NUM_ENVS, gym_env_vectorize_mode="vector_entry_point")
    )
    runner = SingleAgentEnvRunner(config=config)
    Ledger.finished.clear()
    episodes = runner.sample(num_timesteps=200, random_actions=True)
    runner.stop()
    counted = sorted((episode.get_return(), len(episode)) for episode in episodes if episode.is_done)
    assert len(counted) > 30
    assert counted == sorted(Ledger.finished)


def test_infos_of_an_ended_episode_come_with_its_last_step():
    envs = hundredfold.make_vec("corridor", 2, length=2)
    envs.reset(seed=0)
    for _ in range(2):
        *_, terminated, _, infos = envs.step(np.ones(2, int))
    assert terminated.all()
    assert_array_equal(infos["reached_exit"], [True, True])
    assert "final_obs" not in infos
    observation, reward, terminated, _, infos = envs.step(np.ones(2, int))
    assert not terminated.any()
    assert not reward.any()
    assert not infos["toll_paid"].any()
    assert_array_equal(observation["cell"], envs.reset(seed=0)[0]["cell"])


def test_infos_of_third_party_envs_come_with_their_own_step():
    class Numbered(Ledger):
        number = 0

        def reset(self, *, seed=None, options=None):
            Numbered.number += 1
            return super().reset(seed=seed)[0], {"started": Numbered.number}

        def step(self, action):
            *outputs, _ = super().step(action)
            return *outputs, {"left": self.left}

    envs = hundredfold.make_vec(Numbered, 1, seed=1)
    _, infos = envs.reset()
    was_over = False
    for _ in range(30):
        *_, terminated, _, infos = envs.step(np.zeros(1, int))
        assert ("started" in infos) == was_over
        assert ("left" in infos) == (not was_over)
        assert "final_info" not in infos
        was_over = terminated[0]


@pytest.mark.parametrize("case", ["cartpole", "CartPole-v1"])
def test_third_party_envs_are_still_stepped_one_by_one(case):
    env = ENV_CASES[case](np.arange(2))
    assert isinstance(NextStepFactory(ENV_CASES[case])(np.arange(2)), PerEnvBatch) == isinstance(env, PerEnvBatch)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, "NextStep", "SameStep"])
def test_the_mode_is_declared_by_make_vec_and_by_registered_ids(mode):
    for make in (partial(hundredfold.make_vec, "cartpole"), partial(gymnasium.make_vec, "hundredfold/CartPole-v0")):
        envs = make(num_envs=2, autoreset_mode=mode)
        assert envs.metadata["autoreset_mode"] is AutoresetMode(mode)
        assert "autoreset_mode" not in BackendVectorEnv.metadata
    assert gymnasium.make_vec("hundredfold/CartPole-v0").metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP


@pytest.mark.parametrize("mode", ["Disabled", "next step", AutoresetMode.DISABLED])
def test_other_modes_are_rejected(mode):
    with pytest.raises(SettingsError, match="must be NextStep or SameStep, got"):
        hundredfold.make_vec("cartpole", 2, autoreset_mode=mode)


def test_third_party_envs_keep_their_restart_policy():
    make_envs = NextStepFactory(callable_factory(partial(gymnasium.make, "CartPole-v1")))
    with closing(make_envs(np.arange(2))) as env:
        assert isinstance(env, PerEnvBatch)  # backends give such envs a restart policy


@pytest.mark.parametrize("case", ["cartpole", "CartPole-v1"])
def test_a_shard_skips_episodes_whose_reset_lost_its_actor(case):
    plain = ShardFactory(ENV_CASES[case], 2, first_episode=3)(np.arange(2)).reset(SEED)
    wrapped = ShardFactory(NextStepFactory(ENV_CASES[case]), 2, first_episode=3)(np.arange(2)).reset(SEED)
    assert_array_equal(wrapped.observation["observation"], plain.observation["observation"])
