"""Action values, their hand-made gradients, and acting on them."""

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


def network_of(spec=CARTPOLE, dueling=False, **settings):
    torch.manual_seed(3)
    return QNetwork(spec, NetworkSettings(hidden_sizes=(16, 12), **settings), dueling)


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_hand_made_gradients_are_those_of_autograd(activation, dueling):
    network = network_of(dueling=dueling, activation=activation)
    twin = copy.deepcopy(network)
    by_hand = ManualGradients(network, activation)
    rows, slopes = torch.randn(10, 4), torch.randn(6, 2)
    values = by_hand.forward(rows)
    by_hand.backward(slopes)
    assert_allclose(values, twin.values(rows).detach(), atol=1e-6)
    # Only the first six rows are learned from.
    (twin.values(rows)[:6] * slopes).sum().backward()
    expected = torch.cat([parameter.grad.reshape(-1) for parameter in twin.parameters()])
    assert_allclose(by_hand.gradient, expected, atol=1e-5)
    assert expected.abs().max() > 1e-3


def test_all_weights_live_in_one_vector_that_moves_the_network():
    network = network_of()
    by_hand = ManualGradients(network, "relu")
    rows = torch.randn(5, 4)
    before = network.values(rows)
    by_hand.weights *= 2.0
    assert not torch.allclose(network.values(rows), before)
    network.load_state_dict(network_of().state_dict())
    assert torch.equal(network.values(rows), before)
    assert_allclose(by_hand.forward(rows), before.detach(), atol=1e-7)


def test_adam_takes_the_steps_of_torchs_own():
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(50, generator=generator)
    theirs = torch.nn.Parameter(start.clone())
    optimiser = torch.optim.Adam([theirs], lr=0.01)
    weights, gradient = start.clone(), torch.zeros(50)
    ours = FlatAdam(weights, gradient, 0.01)
    for step in range(30):
        if step == 10:
            state = ours.state()
            ours = FlatAdam(weights, gradient, 0.01)
            ours.restore(state)
        gradient.copy_(torch.randn(50, generator=generator) * torch.logspace(-6, 3, 50))
        theirs.grad = gradient.clone()
        optimiser.step()
        ours.step()
        assert_allclose(weights, theirs.detach(), rtol=1e-4, atol=1e-6)
    assert not torch.allclose(weights, start, atol=0.05)


def test_adam_refuses_a_snapshot_of_another_network():
    state = FlatAdam(torch.zeros(5), torch.zeros(5), 0.01).state()
    with pytest.raises(CheckpointError, match="for 5 weights, this network has 7"):
        FlatAdam(torch.zeros(7), torch.zeros(7), 0.01).restore(state)


def test_dueling_values_average_to_the_situation():
    network = network_of(CORRIDOR, dueling=True)
    rows = torch.randn(5, 6)
    values = network.values(rows)
    assert values.shape == (5, 3)
    assert_allclose(values.mean(dim=1).detach(), network.layers(rows)[:, 0].detach(), atol=1e-6)


def test_exploring_is_even_over_allowed_actions_and_as_frequent_as_epsilon_says():
    policy = QPolicy(network_of(CORRIDOR), CPU, num_envs=4)
    policy.epsilons = np.array([0.0, 0.2, 0.6, 1.0])
    rows = 40_000
    luck = np.random.default_rng(0).random((rows, 1))
    cells = {"cell": np.full((rows, 1), 2)}
    mask = np.zeros((rows, 3), bool)
    mask[:, [0, 2]] = True
    best = policy.act_deterministic(cells, mask)[0]
    other = 2 - best
    choice = policy.sample(cells, mask, luck)
    for env, epsilon in enumerate(policy.epsilons):
        chosen = choice.actions[env::4]
        assert set(chosen.tolist()) <= {best, other}
        assert_allclose((chosen == other).mean(), epsilon / 2, atol=0.02)
    likely = np.exp(choice.log_probs)
    turn = np.arange(rows) % 4
    assert_allclose(likely[(turn == 1) & (choice.actions == other)], 0.1, rtol=1e-5)
    assert_allclose(likely[(turn == 1) & (choice.actions == best)], 0.9, rtol=1e-5)
    assert_allclose(likely[turn == 0], 1.0)


def test_without_a_mask_every_action_is_tried():
    policy = QPolicy(network_of(), CPU)
    policy.epsilons[:] = 1.0
    seen = {"observation": np.zeros((500, 4), np.float32)}
    actions = policy.sample(seen, None, np.random.default_rng(0).random((500, 1))).actions
    assert 200 < actions.sum() < 300


def test_rates_take_turns_when_only_some_envs_come():
    policy = QPolicy(network_of(), CPU, num_envs=3)
    policy.epsilons = np.array([0.1, 0.2, 0.3])
    assert_array_equal(policy._next_epsilons(2), [0.1, 0.2])
    assert_array_equal(policy._next_epsilons(2), [0.3, 0.1])
    assert_array_equal(policy._next_epsilons(2), [0.2, 0.3])
    assert_array_equal(policy._next_epsilons(3), [0.1, 0.2, 0.3])


def test_the_last_draw_below_epsilon_still_is_an_action():
    policy = QPolicy(network_of(CORRIDOR), CPU)
    policy.epsilons[:] = 0.3
    cells, mask = {"cell": np.zeros((1, 1), np.int64)}, np.array([[False, True, True]])
    action = policy.sample(cells, mask, np.array([[np.nextafter(0.3, 0)]])).actions
    assert action == 2


def test_a_broken_network_takes_no_forbidden_action_either():
    network = network_of(CORRIDOR)
    with torch.no_grad():
        network.layers[-1].bias.fill_(torch.nan)
    policy = QPolicy(network, CPU)
    mask = np.array([[False, True, False], [False, False, True]])
    assert_array_equal(policy.act_deterministic({"cell": np.zeros((2, 1), np.int64)}, mask), [1, 2])


def test_nth_allowed_counts_allowed_actions_only():
    mask = np.array([[True, False, True, True], [False, True, False, True]])
    assert_array_equal(nth_allowed(mask, np.array([1, 0])), [2, 1])
    assert_array_equal(nth_allowed(mask, np.array([2, 1])), [3, 3])


def test_a_spread_of_rates_falls_from_epsilon_and_needs_no_second_env():
    assert_allclose(apex_epsilons(0.4, 7.0, 1), [0.4])
    assert_allclose(apex_epsilons(0.4, 0.0, 3), [0.4, 0.4, 0.4])
    assert_allclose(apex_epsilons(1.0, 7.0, 3), [1.0, 1.0, 1.0])
