"""Samples of a PPO update: the order of rows and sequences."""

import pytest
from numpy.testing import assert_array_equal

from helpers.ppo_learner import make_ppo
from hundredfold.algorithms.actor_critic import NetworkSettings
from hundredfold.algorithms.ppo import PPOSettings
from hundredfold.envs.cartpole import CartPole
from hundredfold.rollout.rollout_buffer import MEMORY

# Four different numbers, so that no axis can stand in for another one.
ENVS, STEPS, SEQUENCE_STEPS, MEMORY_SIZE = 5, 24, 12, 8


@pytest.fixture(scope="module")
def learner():
    """With a full rollout in which episodes end."""
    network = NetworkSettings(hidden_sizes=(16,), memory="gru", memory_size=MEMORY_SIZE, memory_steps=SEQUENCE_STEPS)
    learner, collector = make_ppo(CartPole, PPOSettings(), num_envs=ENVS, num_steps=STEPS, network=network)
    collector.collect(learner.policy, learner.buffer, STEPS)
    assert learner.buffer.ended[:-1].any()
    return learner


def test_rows_of_a_network_with_memory_are_whole_sequences(learner):
    rollout, (samples, _) = learner.buffer, learner._compute_targets()
    assert len(samples) == ENVS * STEPS // SEQUENCE_STEPS
    for sequence in range(len(samples)):
        env, first = sequence % ENVS, sequence // ENVS * SEQUENCE_STEPS
        steps, rows = slice(first, first + SEQUENCE_STEPS), slice(sequence * SEQUENCE_STEPS, None)
        one = samples.rows(sequence, sequence + 1)
        assert_array_equal(one.log_probs, samples.log_probs[rows][:SEQUENCE_STEPS])
        assert_array_equal(one.log_probs, rollout.log_probs[steps, env])
        assert_array_equal(one.observation["observation"], rollout.observation["observation"][steps, env])
        assert_array_equal(one.sequences.policy_state[0], rollout.arrays[MEMORY][first, env])
        assert_array_equal(one.sequences.starts[1:], rollout.ended[steps, env][:-1])


def test_states_of_the_value_belong_to_their_sequences(learner, monkeypatch):
    values, states = learner.value_memory.values(learner.buffer, learner.device, chunk=50)
    monkeypatch.setattr(learner.value_memory, "values", lambda *_: (values, states))
    samples, _ = learner._compute_targets()
    assert_array_equal(samples.sequences.value_state, states.reshape(-1, MEMORY_SIZE))
    assert samples.sequences.value_state[ENVS:].any()
