"""CartPole agrees with Gymnasium's CartPole-v1 step by step."""

import math

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.wrappers import TimeLimit
from numpy.testing import assert_allclose, assert_array_equal

from hundredfold.core import rng
from hundredfold.core.errors import SettingsError
from hundredfold.envs.cartpole import BOUNDS, CartPole, CartPoleSettings

TOLERANCE = 1e-5

ANGLES = np.linspace(-0.3, 0.3, 2001)
SAME_SINE = all(np.sin(a) == math.sin(a) and np.cos(a) == math.cos(a) for a in ANGLES)


def balance(physics):
    """A linear policy that balances the pole."""
    position, velocity, angle, angular_velocity = physics.T
    return (0.05 * position + 0.15 * velocity + angle + 0.5 * angular_velocity > 0).astype(np.int64)


def compare(env, act, num_steps, max_steps=500, sync_every=None):
    """Step the batch and one Gymnasium env per row; returns the lengths of ended episodes.

    Whenever an episode starts, Gymnasium's env is set to the same start state; from then on they
    share only the actions, unless states are synchronised again every `sync_every` steps.
    """
    peers = [TimeLimit(CartPoleEnv(), max_steps) for _ in range(env.num_envs)]
    lengths, running = [], np.zeros(env.num_envs, np.int64)

    def start(row):
        peers[row].reset(seed=0)
        peers[row].unwrapped.state = env.out.true_state["physics"][row].copy()
        running[row] = 0

    for row in range(env.num_envs):
        start(row)
    for _ in range(num_steps):
        actions = act(env.out.true_state["physics"])
        out = env.step(actions)
        running += 1
        results = [peer.step(int(action)) for peer, action in zip(peers, actions, strict=True)]
        observation, reward, terminated, truncated, _ = (np.array(field) for field in zip(*results, strict=True))
        current = np.where(
            (terminated | truncated)[:, None], out.final_observation["observation"], out.observation["observation"]
        )
        assert_allclose(current, observation, rtol=0, atol=TOLERANCE)
        assert_array_equal(out.reward, reward)
        assert_array_equal(out.terminated, terminated)
        assert_array_equal(out.truncated, truncated)
        for row in np.flatnonzero(terminated | truncated):
            lengths.append((int(running[row]), bool(terminated[row]), bool(truncated[row])))
            start(row)
        if sync_every and running[0] % sync_every == 0:
            for row, peer in enumerate(peers):
                peer.unwrapped.state = out.true_state["physics"][row].copy()
    return lengths


def cartpole(num_envs, seed=0, **settings):
    env = CartPole(np.arange(num_envs), CartPoleSettings(**settings))
    env.reset(seed)
    return env


def test_hundreds_of_random_episodes_agree_with_gymnasium():
    rng = np.random.default_rng(1)
    lengths = compare(cartpole(16), lambda physics: rng.integers(0, 2, len(physics)), 300)
    assert len(lengths) > 200
    assert max(length for length, _, _ in lengths) > 50
    assert all(terminated and not truncated for _, terminated, truncated in lengths)


def test_pushing_one_way_agrees_with_gymnasium():
    for action in (0, 1):
        lengths = compare(cartpole(4), lambda physics, a=action: np.full(len(physics), a), 40)
        assert len(lengths) >= 8


def test_balanced_episodes_end_at_500_steps_as_in_gymnasium():
    lengths = compare(cartpole(3, seed=4), balance, 501, sync_every=100)
    assert lengths == [(500, False, True)] * 3


@pytest.mark.skipif(not SAME_SINE, reason="numpy's sine is not the C library's on this machine")
def test_balanced_episodes_agree_over_all_500_steps():
    """An upright pole doubles any difference every ten steps, so all bits must agree."""
    assert len(compare(cartpole(4, seed=5), balance, 500)) == 4


def test_leaving_the_track_terminates_as_in_gymnasium():
    def drift(physics):
        """Keep the pole up while the cart runs away to the right."""
        _, velocity, angle, angular_velocity = physics.T
        return (angle - 0.06 + 0.5 * angular_velocity + 0.02 * (velocity - 1) > 0).astype(np.int64)

    lengths = compare(cartpole(4), drift, 200)
    assert len(lengths) >= 4
    assert all(terminated and not truncated for _, terminated, truncated in lengths)
    assert positions_at_the_end(cartpole(4), drift).max() > 2.4


def positions_at_the_end(env, act):
    for _ in range(300):
        out = env.step(act(env.out.true_state["physics"]))
        if out.terminated.any():
            return np.abs(out.final_observation["observation"][out.terminated, 0])
    raise AssertionError("no cart left the track")


def test_falling_in_the_last_step_both_terminates_and_truncates_as_in_gymnasium():
    act = lambda physics: np.zeros(len(physics), np.int64)  # noqa: E731
    (length, _, _), *_ = compare(cartpole(1), act, 20)
    ends = compare(cartpole(1, max_episode_steps=length), act, length, max_steps=length)
    assert ends == [(length, True, True)]


def test_the_double_precision_state_is_the_true_state():
    env = cartpole(5)
    for _ in range(10):
        out = env.step(balance(env.out.true_state["physics"]))
        assert_array_equal(out.observation["observation"], out.true_state["physics"].astype(np.float32))


def test_a_fallen_pole_starts_its_next_episode_in_the_same_step():
    env = cartpole(8)
    for _ in range(30):
        out = env.step(np.zeros(8, np.int64))
        if out.terminated.any():
            break
    row = int(np.flatnonzero(out.terminated)[0])
    last = out.final_observation["observation"][row]
    assert abs(last[2]) > 12 * np.pi / 180
    assert np.abs(out.observation["observation"][row]).max() <= 0.05
    assert_allclose(out.true_state["physics"][row], start_states(0, [row], 1)[0], atol=1e-15)


def start_states(seed, env_ids, episode):
    keys = rng.stream_keys(seed, env_ids, episode)
    return 0.1 * rng.uniforms(keys[:, None], np.arange(4)) - 0.05


def test_start_states_come_from_the_rng_streams():
    physics = cartpole(6, seed=5).out.true_state["physics"]
    assert_allclose(physics, start_states(5, np.arange(6), 0), rtol=0, atol=1e-15)


def test_start_states_are_uniform():
    physics = cartpole(20_000, seed=2).out.true_state["physics"]
    assert np.abs(physics).max() <= 0.05
    for part in range(4):
        counts = np.histogram(physics[:, part], 20, (-0.05, 0.05))[0]
        chi_square = ((counts - 1000) ** 2 / 1000).sum()
        assert chi_square < 19 + 5 * np.sqrt(2 * 19)
    assert np.abs(np.corrcoef(physics.T) - np.eye(4)).max() < 5 / np.sqrt(20_000)


def test_the_spec_equals_gymnasiums():
    env = gymnasium.make("CartPole-v1")
    spec = CartPole(np.arange(1)).spec
    announced = spec.observation["observation"]
    assert spec.action_nvec == (env.action_space.n,)
    assert announced.shape == env.observation_space.shape
    assert announced.dtype == env.observation_space.dtype
    assert_allclose(np.float32(announced.high), env.observation_space.high)
    assert_allclose(np.float32(announced.low), env.observation_space.low)
    assert tuple(-bound for bound in BOUNDS) == announced.low


def test_the_time_limit_equals_gymnasiums():
    assert CartPoleSettings().max_episode_steps == gymnasium.spec("CartPole-v1").max_episode_steps


@pytest.mark.parametrize("steps", [0, -1])
def test_an_episode_of_no_steps_is_refused(steps):
    with pytest.raises(SettingsError, match=f"at least 1, got {steps}"):
        CartPoleSettings(max_episode_steps=steps)
