"""Envs of known cost: what they promise the benchmarks."""

import pickle

import pytest
from gymnasium.utils.env_checker import check_env

from hundredfold.profiling.workloads import EPISODE_STEPS, Computing, Talkative, Waiting

WORKLOADS = (Waiting, Computing, Talkative)


@pytest.mark.parametrize("make_env", WORKLOADS)
def test_they_are_proper_envs_that_travel(make_env, monkeypatch):
    monkeypatch.setattr(Waiting, "mean_seconds", 1e-6)
    env = pickle.loads(pickle.dumps(make_env()))
    check_env(env, skip_render_check=True)


def test_the_slowest_of_a_hundred_waits_three_and_a_half_times_the_mean():
    env = Waiting()
    env.reset(seed=1)
    seconds = env.draw_seconds(20_000).reshape(-1, 100)
    assert seconds.mean() == pytest.approx(0.010, rel=0.03)
    assert (seconds.max(axis=1) / seconds.mean()).mean() == pytest.approx(3.5, abs=0.2)


def test_one_step_in_ten_computes_for_long():
    env = Computing()
    env.reset(seed=1)
    seconds = env.draw_seconds(5_000)
    assert set(seconds) == {0.001, 0.005}
    assert (seconds == 0.005).mean() == pytest.approx(0.1, abs=0.02)


def test_a_reward_is_the_seconds_a_step_was_meant_to_take(monkeypatch):
    spent = []
    monkeypatch.setattr(Waiting, "spend", lambda self, seconds: spent.append(seconds))
    env = Waiting()
    env.reset(seed=3)
    outcomes = [env.step(0) for _ in range(EPISODE_STEPS)]
    assert [outcome[1] for outcome in outcomes] == spent
    assert [outcome[3] for outcome in outcomes] == [False] * (EPISODE_STEPS - 1) + [True]


def test_the_talkative_one_tells_five_kilobytes():
    _, info = Talkative().reset(seed=0)
    assert 4_500 < len(pickle.dumps(info)) < 5_500
