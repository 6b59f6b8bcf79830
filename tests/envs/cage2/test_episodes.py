"""Recorded episodes of cage2: the episodes of the evaluation, in words, with all points accounted for."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from helpers.cage2_game import HOSTS, OP_SERVER0
from hundredfold.envs.cage2.baselines import make_policy
from hundredfold.envs.cage2.env import Cage2, Cage2Settings
from hundredfold.envs.cage2.episodes import CAUSES, RESTORED, log_rows, record_episodes, replay_legend, replay_record
from hundredfold.envs.cage2.evaluation import step_rewards

SETTINGS = Cage2Settings(red="b_line", horizons=(30,))


@pytest.mark.parametrize("name", ["sleep", "random", "reactive"])
def test_recorded_episodes_are_those_of_the_evaluation(name):
    for red in ("b_line", "meander"):
        settings = replace(SETTINGS, red=red)
        recorded = record_episodes(make_policy(name, 1), settings, 20, seed=4)
        assert_array_equal(recorded.rewards, step_rewards(make_policy(name, 1), settings, 20, seed=4))


@pytest.mark.parametrize("name", ["sleep", "random", "reactive"])
def test_lost_points_add_up_to_the_reward(name):
    recorded = record_episodes(make_policy(name, 2), replace(SETTINGS, horizons=(100,)), 20, seed=5)
    lost = recorded.lost_tenths()
    assert_array_equal(lost.sum(axis=(2, 3)), np.rint(-10 * recorded.rewards))
    assert lost.shape == (20, 100, len(HOSTS), len(CAUSES))
    assert (lost[..., RESTORED] > 0).any() == (name != "sleep")
    if name == "sleep":
        assert lost[:, :, OP_SERVER0, 1].any()


def test_the_last_state_is_that_of_the_recorded_episode_and_not_of_the_next():
    recorded = record_episodes(make_policy("sleep"), SETTINGS, 1, seed=4)
    # A longer episode goes through the same states: its draws depend on the step alone.
    env = Cage2(np.arange(1), replace(SETTINGS, horizons=(40,)))
    out = env.reset(4)
    for step in range(1, 31):
        env.step(np.zeros(1, np.int64))
        for name, array in recorded.truth.items():
            assert_array_equal(array[0, step], out.true_state[name][0], err_msg=f"{name} after step {step}")
        assert_array_equal(recorded.bits[0, step], out.observation["bits"][0])


def test_a_log_row_says_in_words_what_happened():
    rows = list(log_rows(record_episodes(make_policy("reactive"), SETTINGS, 2, seed=4)))
    assert len(rows) == 60
    assert rows[0]["red"] == "DiscoverRemoteSystems User"
    assert rows[0]["truth"] == {"User0": {"red_access": "privileged", "red_sessions": 1}}
    restored = next(row for row in rows if row["blue"].startswith("Restore"))
    host = restored["blue"].split()[1]
    assert restored["lost"][f"{host}: Restore"] == 1.0
    assert rows[29]["return"] == pytest.approx(sum(row["reward"] for row in rows[:30]))
    scanned = next(row for row in rows if row["red"].startswith("DiscoverNetworkServices"))
    assert scanned["observed"][scanned["red"].split()[1]]["activity"] == "scan"


def test_a_replay_names_every_code_it_uses():
    record = replay_record(record_episodes(make_policy("random", 3), SETTINGS, 1, seed=6), "random")
    legend = replay_legend()
    states = len(record["actions"]) + 1
    for name, names in (("access", "access"), ("activity", "activity"), ("compromised", "compromised")):
        codes = np.array(record[name])
        assert codes.shape == (states, len(HOSTS))
        assert codes.min() >= 0
        assert codes.max() < len(legend[names])
    assert max(record["actions"]) < len(legend["actions"]) == len(legend["action_hosts"])
    assert max(record["red_action"]) < len(legend["red_actions"])
