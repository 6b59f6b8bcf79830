"""The Q-network: manual gradients, flat Adam, and epsilon-greedy policies."""

import copy

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from hundredfold.algorithms.actor_critic import ACTIVATIONS, NetworkSettings
from hundredfold.algorithms.policies import QPolicy, apex_epsilons, nth_allowed
from hundredfold.algorithms.q_network import FlatAdam, ManualGradients, QNetwork
from hundredfold.core.errors import CheckpointError
from hundredfold.envs.cartpole import CartPole
from hundredfold.envs.corridor import Corridor

CPU = torch.device("cpu")
CARTPOLE = CartPole(np.arange(2)).spec
CORRIDOR = Corridor(np.arange(2)).spec


def make_network(spec=CARTPOLE, dueling=False, **settings):
    torch.manual_seed(3)
    return QNetwork(spec, NetworkSettings(hidden_sizes=(16, 12), **settings), dueling)


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_manual_gradients_equal_autograd(activation, dueling):
    network = make_network(dueling=dueling, activation=activation)
    autograd_network = copy.deepcopy(network)
    gradients = ManualGradients(network, activation)
    rows, output_gradients = torch.randn(10, 4), torch.randn(6, 2)
    values = gradients.forward(rows)
    gradients.backward(output_gradients)
    assert_allclose(values, autograd_network.values(rows).detach(), atol=1e-6)
    # The gradient uses the first six rows only.
    (autograd_network.values(rows)[:6] * output_gradients).sum().backward()
    expected = torch.cat([parameter.grad.reshape(-1) for parameter in autograd_network.parameters()])
    assert_allclose(gradients.gradient, expected, atol=1e-5)
    assert expected.abs().max() > 1e-3


def test_network_parameters_are_views_of_one_weight_vector():
    network = make_network()
    gradients = ManualGradients(network, "relu")
    rows = torch.randn(5, 4)
    before = network.values(rows)
    gradients.weights *= 2.0
    assert not torch.allclose(network.values(rows), before)
    network.load_state_dict(make_network().state_dict())
    assert torch.equal(network.values(rows), before)
    assert_allclose(gradients.forward(rows), before.detach(), atol=1e-7)


def test_flat_adam_equals_torch_adam():
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(50, generator=generator)
    expected = torch.nn.Parameter(start.clone())
    optimiser = torch.optim.Adam([expected], lr=0.01)
    weights, gradient = start.clone(), torch.zeros(50)
    adam = FlatAdam(weights, gradient, 0.01)
    for step in range(30):
        if step == 10:
            state = adam.state()
            adam = FlatAdam(weights, gradient, 0.01)
            adam.restore(state)
        gradient.copy_(torch.randn(50, generator=generator) * torch.logspace(-6, 3, 50))
        expected.grad = gradient.clone()
        optimiser.step()
        adam.step()
        assert_allclose(weights, expected.detach(), rtol=1e-4, atol=1e-6)
    assert not torch.allclose(weights, start, atol=0.05)


def test_flat_adam_rejects_the_state_of_another_network():
    state = FlatAdam(torch.zeros(5), torch.zeros(5), 0.01).state()
    with pytest.raises(CheckpointError, match="for 5 weights, this network has 7"):
        FlatAdam(torch.zeros(7), torch.zeros(7), 0.01).restore(state)


def test_dueling_q_values_average_to_the_state_value():
    network = make_network(CORRIDOR, dueling=True)
    rows = torch.randn(5, 6)
    values = network.values(rows)
    assert values.shape == (5, 3)
    assert_allclose(values.mean(dim=1).detach(), network.layers(rows)[:, 0].detach(), atol=1e-6)


def test_exploration_is_uniform_over_allowed_actions_with_rate_epsilon():
    policy = QPolicy(make_network(CORRIDOR), CPU, num_envs=4)
    policy.epsilons = np.array([0.0, 0.2, 0.6, 1.0])
    rows = 40_000
    uniforms = np.random.default_rng(0).random((rows, 1))
    cells = {"cell": np.full((rows, 1), 2)}
    mask = np.zeros((rows, 3), bool)
    mask[:, [0, 2]] = True
    best = policy.act_deterministic(cells, mask)[0]
    other = 2 - best
    sample = policy.sample(cells, mask, uniforms)
    for env, epsilon in enumerate(policy.epsilons):
        actions = sample.actions[env::4]
        assert set(actions.tolist()) <= {best, other}
        assert_allclose((actions == other).mean(), epsilon / 2, atol=0.02)
    probabilities = np.exp(sample.log_probs)
    env_ids = np.arange(rows) % 4
    assert_allclose(probabilities[(env_ids == 1) & (sample.actions == other)], 0.1, rtol=1e-5)
    assert_allclose(probabilities[(env_ids == 1) & (sample.actions == best)], 0.9, rtol=1e-5)
    assert_allclose(probabilities[env_ids == 0], 1.0)


def test_without_a_mask_all_actions_are_explored():
    policy = QPolicy(make_network(), CPU)
    policy.epsilons[:] = 1.0
    observation = {"observation": np.zeros((500, 4), np.float32)}
    actions = policy.sample(observation, None, np.random.default_rng(0).random((500, 1))).actions
    assert 200 < actions.sum() < 300


def test_epsilons_rotate_over_partial_batches():
    policy = QPolicy(make_network(), CPU, num_envs=3)
    policy.epsilons = np.array([0.1, 0.2, 0.3])
    assert_array_equal(policy._next_epsilons(2), [0.1, 0.2])
    assert_array_equal(policy._next_epsilons(2), [0.3, 0.1])
    assert_array_equal(policy._next_epsilons(2), [0.2, 0.3])
    assert_array_equal(policy._next_epsilons(3), [0.1, 0.2, 0.3])


def test_the_largest_uniform_below_epsilon_gives_a_valid_action():
    policy = QPolicy(make_network(CORRIDOR), CPU)
    policy.epsilons[:] = 0.3
    cells, mask = {"cell": np.zeros((1, 1), np.int64)}, np.array([[False, True, True]])
    action = policy.sample(cells, mask, np.array([[np.nextafter(0.3, 0)]])).actions
    assert action == 2


def test_nan_q_values_never_select_a_forbidden_action():
    network = make_network(CORRIDOR)
    with torch.no_grad():
        network.layers[-1].bias.fill_(torch.nan)
    policy = QPolicy(network, CPU)
    mask = np.array([[False, True, False], [False, False, True]])
    assert_array_equal(policy.act_deterministic({"cell": np.zeros((2, 1), np.int64)}, mask), [1, 2])


def test_nth_allowed_counts_allowed_actions_only():
    mask = np.array([[True, False, True, True], [False, True, False, True]])
    assert_array_equal(nth_allowed(mask, np.array([1, 0])), [2, 1])
    assert_array_equal(nth_allowed(mask, np.array([2, 1])), [3, 3])


def test_apex_epsilons_work_with_one_env_and_constant_rates():
    assert_allclose(apex_epsilons(0.4, 7.0, 1), [0.4])
    assert_allclose(apex_epsilons(0.4, 0.0, 3), [0.4, 0.4, 0.4])
    assert_allclose(apex_epsilons(1.0, 7.0, 3), [1.0, 1.0, 1.0])
