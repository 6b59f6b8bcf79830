"""The stand-alone blue agent computes the same channels and mask as the env."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from helpers.cage2_game import HOSTS
from hundredfold.core.errors import SettingsError, ShapeError
from hundredfold.envs.cage2.blue_agent import BlueAgent
from hundredfold.envs.cage2.conformance import RECORDINGS, load_trace
from hundredfold.envs.cage2.env import Cage2, Cage2Settings
from hundredfold.envs.cage2.raw_observation import RAW_PORTS

CHANNELS = ("decoys", "decoy_counts", "scans", "scanned_decoys", "recency", "elapsed")


class ScriptedPolicy:
    """Returns given actions and records its observations."""

    def __init__(self, actions):
        self.actions = iter(actions)
        self.observations = []
        self.mask = None

    def reset(self):
        pass

    def act(self, observation, mask):
        self.observations.append({name: array.copy() for name, array in observation.items()})
        self.mask = mask
        return np.array([next(self.actions)])


@pytest.mark.parametrize("red", ["b_line", "meander"])
@pytest.mark.parametrize("decoy_share", [0.2, 0.9])
def test_agent_channels_and_mask_equal_those_of_the_env_at_every_step(red, decoy_share):
    settings = Cage2Settings(red=red, green="scan", channels=CHANNELS, horizons=(101,), action_mask="sensible")
    rng = np.random.default_rng(3)
    decoys = rng.integers(28, 132, 100)
    any_action = rng.integers(0, 145, 100)
    actions = np.where(rng.random(100) < decoy_share, decoys, any_action)
    policy = ScriptedPolicy(actions)
    agent = BlueAgent(policy, settings)
    env = Cage2(np.arange(1), settings)
    batch = env.reset(5)
    for step in range(100):
        assert agent.act(batch.observation["bits"][0]) == actions[step]
        for name, array in batch.observation.items():
            assert_array_equal(policy.observations[-1][name], array, err_msg=f"{name} at step {step}")
        assert_array_equal(policy.mask, batch.mask, err_msg=f"mask at step {step}")
        batch = env.step(actions[step : step + 1])


def test_reset_clears_the_memory():
    settings = Cage2Settings(channels=CHANNELS)
    policy = ScriptedPolicy([28, 29, 30, 31])
    agent = BlueAgent(policy, settings)
    for _ in range(3):
        agent.act(np.ones(52, int))
    agent.reset()
    agent.act(np.zeros(52, int))
    assert all(not array.any() for array in policy.observations[-1].values())


def test_only_the_channels_of_the_policy_are_observed():
    policy = ScriptedPolicy([0])
    BlueAgent(policy, Cage2Settings(channels=("elapsed",))).act(np.zeros(52, int))
    assert policy.observations[0].keys() == {"bits", "elapsed"}
    assert policy.mask is None


@pytest.mark.parametrize("bits", [np.zeros(51), np.full(52, 0.5), np.zeros((1, 52))])
def test_invalid_observations_raise(bits):
    with pytest.raises(ShapeError, match="52 zeros and ones"):
        BlueAgent(ScriptedPolicy([0]), Cage2Settings()).act(bits)


def test_a_policy_with_the_channel_remaining_raises():
    with pytest.raises(SettingsError, match="does not reveal the steps left"):
        BlueAgent(ScriptedPolicy([0]), Cage2Settings(channels=("remaining",)))


def raw_observation(ports, shells):
    """The connections of a recording in the form of CybORG."""
    raw = {"success": 1}
    for name, counts, shell in zip(HOSTS, ports, shells, strict=True):
        connections = [
            {"local_port": port} for port, count in zip(RAW_PORTS, counts, strict=True) for _ in range(count)
        ]
        connections += [{"local_port": 50_000, "remote_port": 4444}] * int(shell)
        raw[name] = {"Processes": [{"Connections": [connection]} for connection in connections]}
    return raw


def test_agent_reads_exploits_from_the_raw_observation_as_the_env_shows_them():
    trace = load_trace(RECORDINGS / "traces_raw.npz")
    recorded = trace.arrays
    for episode in (0, 30):
        policy = ScriptedPolicy([*recorded["blue_action"][episode], 0])
        agent = BlueAgent(policy, Cage2Settings(channels=("exploits",)))
        agent.act(np.zeros(52, int), {})
        for step in range(100):
            raw = raw_observation(recorded["raw_ports"][episode, step], recorded["raw_shell"][episode, step])
            agent.act(np.zeros(52, int), raw)
            assert_array_equal(policy.observations[-1]["exploits"][0], trace.arrays["exploits"][episode, step])
    assert set(np.unique(trace.arrays["exploits"])) == {0, 1, 2, 3}
    with pytest.raises(ShapeError, match="pass CybORG's raw observation"):
        agent.act(np.zeros(52, int))
