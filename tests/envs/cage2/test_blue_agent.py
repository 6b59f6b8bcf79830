"""The agent for the original simulator keeps the books that the env keeps."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from hundredfold.core.errors import SettingsError, ShapeError
from hundredfold.envs.cage2.blue_agent import BlueAgent
from hundredfold.envs.cage2.env import Cage2, Cage2Settings

CHANNELS = ("decoys", "decoy_counts", "scans", "baits", "recency", "elapsed")


class Scripted:
    """Plays given actions and keeps what it saw."""

    def __init__(self, actions):
        self.actions = iter(actions)
        self.seen = []
        self.mask = None

    def act_deterministic(self, observation, mask):
        self.seen.append({name: array.copy() for name, array in observation.items()})
        self.mask = mask
        return np.array([next(self.actions)])


@pytest.mark.parametrize("red", ["b_line", "meander"])
@pytest.mark.parametrize("decoy_share", [0.2, 0.9])
def test_memory_equals_the_envs_own_channels_at_every_step(red, decoy_share):
    settings = Cage2Settings(
        red=red, green="scan", channels=CHANNELS, horizons=(101,), action_mask="sensible"
    )
    draw = np.random.default_rng(3)
    decoys = draw.integers(28, 132, 100)
    anything = draw.integers(0, 145, 100)
    actions = np.where(draw.random(100) < decoy_share, decoys, anything)
    policy = Scripted(actions)
    agent = BlueAgent(policy, settings)
    env = Cage2(np.arange(1), settings)
    batch = env.reset(5)
    for step in range(100):
        assert agent.act(batch.observation["bits"][0]) == actions[step]
        for name, array in batch.observation.items():
            assert_array_equal(policy.seen[-1][name], array, err_msg=f"{name} at step {step}")
        assert_array_equal(policy.mask, batch.mask, err_msg=f"mask at step {step}")
        batch = env.step(actions[step : step + 1])


def test_reset_forgets_the_last_episode():
    settings = Cage2Settings(channels=CHANNELS)
    policy = Scripted([28, 29, 30, 31])
    agent = BlueAgent(policy, settings)
    for _ in range(3):
        agent.act(np.ones(52, int))
    agent.reset()
    agent.act(np.zeros(52, int))
    assert all(not array.any() for array in policy.seen[-1].values())


def test_only_the_channels_of_the_policy_are_shown():
    policy = Scripted([0])
    BlueAgent(policy, Cage2Settings(channels=("elapsed",))).act(np.zeros(52, int))
    assert policy.seen[0].keys() == {"bits", "elapsed"}
    assert policy.mask is None


@pytest.mark.parametrize("bits", [np.zeros(51), np.full(52, 0.5), np.zeros((1, 52))])
def test_wrong_observations_are_refused(bits):
    with pytest.raises(ShapeError, match="52 zeros and ones"):
        BlueAgent(Scripted([0]), Cage2Settings()).act(bits)


def test_a_policy_that_needs_the_steps_left_is_refused():
    with pytest.raises(SettingsError, match="nobody tells them"):
        BlueAgent(Scripted([0]), Cage2Settings(channels=("remaining",)))
