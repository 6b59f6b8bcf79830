"""PQN: Q(lambda) targets, masks, gradients, schedules, bit-exact resume, and learning."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from hundredfold.algorithms.actor_critic import NetworkSettings
from hundredfold.algorithms.ppo import MAX_SKIPPED_GRADIENTS
from hundredfold.algorithms.pqn import PQN, PQNSettings
from hundredfold.backends import make_backend
from hundredfold.core.batch import ArraySpec, EnvSpec
from hundredfold.core.errors import SettingsError, TrainingError
from hundredfold.envs.cartpole import CartPole
from hundredfold.envs.corridor import LEFT, RIGHT, Corridor
from hundredfold.rollout.collector import Collector
from hundredfold.rollout.rollout_buffer import RolloutSettings

CPU = torch.device("cpu")
QUICK = PQNSettings(learning_rate=3e-3, q_lambda=0.8, num_minibatches=4)
# The forbidden action at the wall has by far the largest value.
TEMPTING = torch.tensor([1e4, 1.0, 2.0])


def make_pqn(env, settings=QUICK, num_envs=8, num_steps=64, epochs=12, seed=5, network=None):
    backend = make_backend("in_process", env, num_envs)
    learner = PQN(
        backend.spec,
        settings=settings,
        network=network or NetworkSettings(hidden_sizes=(32, 32)),
        rollout=RolloutSettings(num_envs=num_envs, num_steps=num_steps),
        num_updates=epochs,
        seed=seed,
        device=CPU,
    )
    collector = Collector(backend, seed)
    collector.start(seed)
    return learner, collector


def train(learner, collector, epochs=1):
    for _ in range(epochs):
        collector.collect(learner.policy, learner.buffer, learner.buffer.num_steps)
        report = learner.update()
    return report


def targets_of(learner):
    """(steps, envs) Q(lambda) targets of a full rollout, in the env's units."""
    inputs = learner.network.inputs(learner._flat_observation())
    samples = learner._compute_targets(inputs)
    network = learner.network
    targets = samples.targets * network.value_std + network.value_mean
    return targets.reshape(learner.buffer.num_steps, learner.buffer.num_envs).numpy()


def best_value(network, observation, mask):
    """Highest value of the allowed actions of one observation."""
    rows = {name: torch.from_numpy(np.array(array))[None] for name, array in observation.items()}
    values = network(rows)[0].detach().numpy()
    return max(value for value, allowed in zip(values, mask, strict=True) if allowed)


def slow_targets(learner):
    """The same targets, step by step from the definition of Q(lambda)."""
    rollout, settings, network = learner.buffer, learner.settings, learner.network
    num_steps, num_envs = rollout.num_steps, rollout.num_envs
    everything = np.ones(learner.spec.num_logits, bool)
    masks = rollout.observation_mask
    finals = {}
    if rollout.truncations:
        steps, env_ids, final = rollout.all_truncations()
        for row, key in enumerate(zip(steps.tolist(), env_ids.tolist(), strict=True)):
            finals[key] = {name: array[row] for name, array in final.items()}
    targets = np.zeros((num_steps, num_envs))
    for env in range(num_envs):
        for step in reversed(range(num_steps)):
            reward = float(rollout.rewards[step, env])
            if rollout.terminated[step, env]:
                targets[step, env] = reward
                continue
            if rollout.ended[step, env]:
                mask = everything if masks is None else masks[step, env]
                targets[step, env] = reward + settings.gamma * best_value(network, finals[step, env], mask)
                continue
            mask = everything if masks is None else masks[step + 1, env]
            observation = {name: array[step + 1, env] for name, array in rollout.observation.items()}
            value = best_value(network, observation, mask)
            later = value if step == num_steps - 1 else targets[step + 1, env]
            mixed = (1 - settings.q_lambda) * value + settings.q_lambda * later
            targets[step, env] = reward + settings.gamma * mixed
    return targets


@pytest.mark.parametrize("env", [CartPole, Corridor])
@pytest.mark.parametrize("q_lambda", [0.0, 0.65, 1.0])
def test_targets_equal_a_slow_loop_over_the_definition(env, q_lambda):
    # After some training, so that values differ between actions and states.
    learner, collector = make_pqn(env, replace(QUICK, q_lambda=q_lambda), num_steps=30)
    train(learner, collector, epochs=2)
    collector.collect(learner.policy, learner.buffer, 30)
    assert learner.buffer.ended.any()
    expected = slow_targets(learner)
    assert_allclose(targets_of(learner), expected, rtol=1e-4, atol=1e-4)
    assert expected.std() > 0.01


def test_truncated_episodes_bootstrap_from_their_final_observation():
    learner, collector = make_pqn(Corridor, num_steps=40)
    # Nobody leaves by the exit: all episodes are truncated.
    learner.gradients.weights.zero_()
    learner.network.layers[-1].bias.data.copy_(torch.tensor([2.0, 1.0, 0.0]))
    learner.policy.epsilons[:] = 0.0
    collector.collect(learner.policy, learner.buffer, 40)
    truncated = learner.buffer.ended & ~learner.buffer.terminated
    assert truncated.any()
    expected = slow_targets(learner)
    assert_allclose(targets_of(learner), expected, rtol=1e-5)


def test_targets_use_allowed_actions_only_also_after_the_last_step():
    learner, collector = make_pqn(Corridor, replace(QUICK, q_lambda=0.0), num_envs=64, num_steps=3)
    train(learner, collector)
    learner.gradients.weights.zero_()
    learner.network.rescale_values(0.0, 1.0, keep_values=False)
    learner.network.layers[-1].bias.data.copy_(TEMPTING)
    collector.collect(learner.policy, learner.buffer, 3)
    rollout = learner.buffer
    may_go_left = rollout.observation_mask[1:, :, LEFT].copy()
    cells = rollout.observation["cell"][1:, :, 0]
    goes_on = ~rollout.ended
    # The masks fit the observations they belong to, that after the last step included.
    assert_array_equal(may_go_left[goes_on], cells[goes_on] > 0)
    last = goes_on[-1]
    assert 0 < may_go_left[-1][last].sum() < last.sum()
    expected = rollout.rewards + 0.99 * np.where(may_go_left, 1e4, 2.0)
    assert_allclose(targets_of(learner)[goes_on], expected[goes_on], rtol=1e-4)


def test_no_forbidden_action_is_taken():
    settings = replace(QUICK, exploration_end=0.5, exploration_fraction=0.1)
    learner, collector = make_pqn(Corridor, settings, num_envs=500, num_steps=40, epochs=10)
    at_the_wall = lefts_elsewhere = 0
    for _ in range(10):
        # The backend raises an error for a forbidden action.
        collector.collect(learner.policy, learner.buffer, 40)
        cells, went_left = learner.buffer.observation["cell"][:-1, :, 0], learner.buffer.actions == LEFT
        assert not (went_left & (cells == 0)).any()
        at_the_wall += int(np.sum(cells == 0))
        lefts_elsewhere += int(np.sum(went_left))
        learner.update()
    assert at_the_wall > 10_000
    assert lefts_elsewhere > 10_000


def test_pqn_solves_the_corridor():
    learner, collector = make_pqn(Corridor, num_envs=32, num_steps=16, epochs=60)
    report = train(learner, collector, epochs=60)
    assert report["skipped_gradients"] == 0
    cells = {"cell": np.arange(6)[:, None]}
    assert (learner.policy.act_deterministic(cells, np.ones((6, 3), bool)) == RIGHT).all()
    # From cell c the exit is 6 - c steps away; each step costs 0.1, the last one pays 1.
    steps = 6 - np.arange(6)
    expected = [np.sum(0.99 ** np.arange(n) * -0.1) + 0.99 ** (n - 1) for n in steps]
    q_values = learner.network({"cell": torch.arange(6)[:, None]}).max(dim=1).values
    # Exploring actions are part of the returns, so that values are somewhat lower.
    assert_allclose(q_values.detach(), expected, atol=0.25)


def test_a_gradient_step_equals_autograd_of_the_same_loss():
    learner, collector = make_pqn(CartPole, replace(QUICK, max_gradient_norm=1e9))
    train(learner, collector)
    collector.collect(learner.policy, learner.buffer, 64)
    samples = learner._compute_targets(learner.network.inputs(learner._flat_observation()))
    chosen = learner.network.layers(samples.inputs).gather(1, samples.actions)
    loss = torch.nn.functional.huber_loss(chosen, samples.targets)
    expected = torch.autograd.grad(loss, list(learner.network.parameters()))
    expected_gradient = torch.cat([gradient.reshape(-1) for gradient in expected])
    with torch.no_grad():
        values = learner._gradient_step(samples)
    assert_allclose(learner._losses(values, samples.targets)["q_loss"], loss.item(), rtol=1e-5)
    atol = 1e-5 * float(expected_gradient.abs().max()) + 1e-6
    assert_allclose(learner.gradients.gradient, expected_gradient, atol=atol)
    assert float(expected_gradient.abs().max()) > 1e-4


def test_value_normalisation_does_not_change_values():
    learner, collector = make_pqn(CartPole)
    train(learner, collector, epochs=2)
    rows = {"observation": torch.randn(20, 4)}
    before = learner.network(rows).detach()
    mean, std = float(learner.network.value_mean), float(learner.network.value_std)
    assert mean > 5
    learner.network.rescale_values(2 * mean, 3 * std)
    assert_allclose(learner.network(rows).detach(), before, rtol=1e-4)


def test_rewards_in_other_units_are_learned_alike():
    class Scaled(CartPole):
        def step(self, actions):
            batch = super().step(actions)
            batch.reward *= 1_024.0
            return batch

    learner, collector = make_pqn(CartPole)
    scaled, scaled_collector = make_pqn(Scaled)
    for _ in range(4):
        train(learner, collector)
        train(scaled, scaled_collector)
    rows = {"observation": torch.randn(20, 4)}
    expected = 1_024.0 * learner.network(rows).detach()
    assert_allclose(scaled.network(rows).detach(), expected, rtol=0.03)


def test_every_pass_learns_from_every_sample_once():
    learner, collector = make_pqn(CartPole, replace(QUICK, update_epochs=3, num_minibatches=7))
    collector.collect(learner.policy, learner.buffer, 64)
    samples = learner._compute_targets(learner.network.inputs(learner._flat_observation()))
    orders = []
    for epoch in range(2):
        batches = list(learner._minibatches(samples, epoch))
        assert [len(batch.actions) for batch in batches] == [74] * 6 + [68]
        orders.append(torch.cat([batch.inputs for batch in batches]))
        assert_array_equal(np.sort(orders[-1][:, 0]), np.sort(samples.inputs[:, 0]))
    assert not torch.equal(*orders)
    assert learner.update()["gradient_steps"] == 21


def test_epsilon_and_learning_rate_follow_their_schedules():
    settings = replace(QUICK, exploration_start=0.9, exploration_end=0.1, exploration_fraction=0.5)
    learner, collector = make_pqn(CartPole, settings, num_steps=4, epochs=4)
    epsilons, rates = [learner.epsilon], [learner.learning_rate]
    for _ in range(4):
        report = train(learner, collector)
        assert report["exploration"] == epsilons[-1]
        assert learner.optimiser.learning_rate == rates[-1]
        epsilons.append(learner.epsilon)
        rates.append(learner.learning_rate)
        assert_array_equal(learner.policy.epsilons, epsilons[-1])
    assert_allclose(epsilons, [0.9, 0.5, 0.1, 0.1, 0.1])
    assert_allclose(rates, [3e-3, 2.25e-3, 1.5e-3, 0.75e-3, 0.0])
    learner, _ = make_pqn(CartPole, replace(settings, anneal_learning_rate=False))
    learner.updates = 3
    assert learner.learning_rate == 3e-3


def test_equal_seeds_give_equal_weights_and_different_seeds_do_not():
    def trained(seed):
        learner, collector = make_pqn(Corridor, seed=seed)
        train(learner, collector, epochs=2)
        return learner.gradients.weights

    assert torch.equal(trained(5), trained(5))
    assert not torch.equal(trained(5), trained(6))


@pytest.mark.parametrize("env", [CartPole, Corridor])
def test_a_restored_learner_continues_bit_exact(env):
    network = NetworkSettings(hidden_sizes=(16,), normalise_observations=True)
    learner, collector = make_pqn(env, network=network, num_steps=20)
    train(learner, collector, epochs=3)
    # In the middle of a rollout.
    collector.collect(learner.policy, learner.buffer, 7)
    assert learner.update() == {}
    states = learner.state(), collector.state(), collector.backend.state()

    def finish(learner, collector):
        collector.collect(learner.policy, learner.buffer, 13)
        return learner.update()

    report = finish(learner, collector)
    restored, restored_collector = make_pqn(env, network=network, num_steps=20)
    restored.restore(states[0])
    restored_collector.restore(states[1], states[2])
    assert finish(restored, restored_collector) == report
    right = restored.state()
    assert right.keys() == learner.state().keys()
    for name, array in learner.state().items():
        assert_array_equal(array, right[name], err_msg=name)


def test_the_weights_of_another_run_keep_their_values():
    learner, collector = make_pqn(CartPole)
    train(learner, collector, epochs=2)
    weights = {name: tensor.numpy().copy() for name, tensor in learner.network.state_dict().items()}
    started, started_collector = make_pqn(CartPole, replace(QUICK, learning_rate=1e-9), seed=8)
    started.load_weights(weights)
    rows = {"observation": torch.randn(20, 4)}
    before = started.network(rows).detach()
    assert torch.equal(before, learner.network(rows).detach())
    train(started, started_collector)
    assert_allclose(started.network(rows).detach(), before, rtol=1e-3)


def test_non_finite_gradients_are_skipped_and_counted_and_end_the_run_if_they_persist():
    learner, collector = make_pqn(CartPole, num_steps=8)
    train(learner, collector)
    collector.collect(learner.policy, learner.buffer, 8)
    samples = learner._compute_targets(learner.network.inputs(learner._flat_observation()))
    before = learner.gradients.weights.clone()
    with torch.no_grad():
        broken = samples._replace(targets=torch.full_like(samples.targets, torch.nan))
        for count in range(1, MAX_SKIPPED_GRADIENTS):
            learner._gradient_step(broken)
            assert learner.skipped_gradients == count
        assert torch.equal(before, learner.gradients.weights)
        with pytest.raises(TrainingError, match=r"not finite 20 times in a row.*learning rate"):
            learner._gradient_step(broken)


def test_continuous_actions_are_rejected_by_name():
    spec = EnvSpec(name="arm", observation={"x": ArraySpec((1,))}, continuous_action=ArraySpec((2,), "float32"))
    with pytest.raises(SettingsError, match=r"arm has continuous actions; PQN needs one discrete action"):
        PQN(
            spec,
            settings=QUICK,
            network=NetworkSettings(),
            rollout=RolloutSettings(),
            num_updates=1,
            seed=0,
            device=CPU,
        )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"learning_rate": 0.0}, "learning_rate must be above 0"),
        ({"q_lambda": 1.5}, r"q_lambda must be at least 0 and at most 1"),
        ({"num_minibatches": 0}, "num_minibatches must be at least 1"),
        ({"exploration_end": -0.1}, r"exploration_end must be at least 0 and at most 1"),
    ],
)
def test_invalid_settings_are_rejected_with_the_allowed_range(wrong, message):
    with pytest.raises(SettingsError, match=message):
        PQNSettings(**wrong)
