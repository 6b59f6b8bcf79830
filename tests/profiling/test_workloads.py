"""Synthetic envs of known step cost."""

import pickle

import pytest
from gymnasium.utils.env_checker import check_env

from hundredfold.profiling.workloads import EPISODE_STEPS, ComputingEnv, LargeInfoEnv, WaitingEnv

WORKLOADS = (WaitingEnv, ComputingEnv, LargeInfoEnv)


@pytest.mark.parametrize("make_env", WORKLOADS)
def test_synthetic_envs_pass_the_env_checker_after_pickling(make_env, monkeypatch):
    monkeypatch.setattr(WaitingEnv, "mean_seconds", 1e-6)
    env = pickle.loads(pickle.dumps(make_env()))
    check_env(env, skip_render_check=True)


def test_the_slowest_of_100_steps_waits_3_5_times_the_mean():
    env = WaitingEnv()
    env.reset(seed=1)
    seconds = env.draw_seconds(20_000).reshape(-1, 100)
    assert seconds.mean() == pytest.approx(0.010, rel=0.03)
    assert (seconds.max(axis=1) / seconds.mean()).mean() == pytest.approx(3.5, abs=0.2)


def test_one_step_in_ten_computes_for_5_ms():
    env = ComputingEnv()
    env.reset(seed=1)
    seconds = env.draw_seconds(5_000)
    assert set(seconds) == {0.001, 0.005}
    assert (seconds == 0.005).mean() == pytest.approx(0.1, abs=0.02)


def test_rewards_are_the_durations_of_steps(monkeypatch):
    spent = []
    monkeypatch.setattr(WaitingEnv, "spend", lambda self, seconds: spent.append(seconds))
    env = WaitingEnv()
    env.reset(seed=3)
    results = [env.step(0) for _ in range(EPISODE_STEPS)]
    assert [result[1] for result in results] == spent
    assert [result[3] for result in results] == [False] * (EPISODE_STEPS - 1) + [True]


def test_large_info_is_five_kilobytes():
    _, info = LargeInfoEnv().reset(seed=0)
    assert 4_500 < len(pickle.dumps(info)) < 5_500
