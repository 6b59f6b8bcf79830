"""Seeds of Gymnasium envs: for every episode, or once."""

import numpy as np

from helpers import third_party_envs as envs
from helpers.trajectories import assert_same_trajectory, record_env_trajectory
from hundredfold.core.failures import RestartPolicy
from hundredfold.envs.gymnasium_env import GymnasiumBatchEnv

SEED = 5


class ReportsSeed(envs.DiceEnv):
    """Reports the seed of its last reset in its info."""

    def reset(self, *, seed=None, options=None):
        self.seed = seed
        return super().reset(seed=seed, options=options)

    def info(self):
        return {"seed": self.seed}


def seeded_once(env_ids, make_env):
    return GymnasiumBatchEnv(np.asarray(env_ids), make_env, seed_episodes=False)


def seeds_of(env, steps):
    """Seeds of all episodes of row 0 within so many steps."""
    actions = np.zeros(env.num_envs, np.int64)
    ended = (env.step(actions).ended[0] for _ in range(steps))
    return [env.infos[0]["seed"], *(env.infos[0]["seed"] for has_ended in ended if has_ended)]


def test_every_episode_has_its_own_seed():
    env = GymnasiumBatchEnv(np.arange(2), ReportsSeed)
    env.reset(SEED)
    found = seeds_of(env, 40)
    assert len(found) > 4
    assert len(set(found)) == len(found)


def test_with_seed_episodes_false_only_the_first_episode_is_seeded():
    often, once = GymnasiumBatchEnv(np.arange(2), ReportsSeed), seeded_once([0, 1], ReportsSeed)
    often.reset(SEED)
    once.reset(SEED)
    first, *later = seeds_of(once, 40)
    assert first == seeds_of(often, 0)[0]
    assert later
    assert set(later) == {None}


def test_an_env_seeded_once_is_the_same_in_any_batch():
    both = record_env_trajectory(seeded_once([0, 1], envs.DiceEnv), SEED, 60)
    assert_same_trajectory(record_env_trajectory(seeded_once([1], envs.DiceEnv), SEED, 60), both.select_envs([1]))


def test_an_env_seeded_once_is_seeded_again_after_truncation_and_reset():
    env = seeded_once([0, 1], ReportsSeed)
    env.reset(SEED)
    (first,) = seeds_of(env, 0)
    env.truncate_all(np.ones(2, np.int64))
    (second,) = seeds_of(env, 0)
    assert second not in (first, None)
    env.reset(SEED)
    assert seeds_of(env, 0) == [first]


class RaisesOnceAndReportsSeed(ReportsSeed):
    """The first instance raises in its second step."""

    made = 0

    def __init__(self):
        type(self).made += 1
        self.has_fault = self.made == 1

    def step(self, action):
        if self.has_fault and self.step_count == 1:
            raise OSError("the env failed in reset")
        return super().step(action)


def test_an_env_seeded_once_is_seeded_again_when_recreated():
    env = seeded_once([0], RaisesOnceAndReportsSeed)
    env.restart_policy = RestartPolicy("restart")
    env.reset(SEED)
    (first,) = seeds_of(env, 0)
    for _ in range(2):
        env.step(np.zeros(1, np.int64))
    assert seeds_of(env, 0)[0] not in (first, None)
