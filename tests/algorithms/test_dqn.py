"""DQN: targets, number of gradient steps, bit-exact resume, and learning."""

import warnings

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from hundredfold.algorithms.actor_critic import NetworkSettings
from hundredfold.algorithms.dqn import DQN, DQNSettings, check_supported, sample_minibatches
from hundredfold.algorithms.ppo import MAX_SKIPPED_GRADIENTS
from hundredfold.backends import make_backend
from hundredfold.core.batch import ArraySpec, EnvSpec
from hundredfold.core.errors import SettingsError, TrainingError
from hundredfold.envs.cartpole import CartPole
from hundredfold.envs.corridor import LEFT, RIGHT, Corridor
from hundredfold.rollout.collector import Collector
from hundredfold.rollout.rollout_buffer import RolloutSettings

CPU = torch.device("cpu")
QUICK = DQNSettings(
    learning_rate=3e-3,
    learning_starts=200,
    replay_size=5_000,
    train_frequency=64,
    gradient_steps=32,
    target_interval=50,
)
STYLES = {
    "double": {},
    "single": {"double_q": False},
    "dueling": {"dueling": True},
    "one step, mse, soft target": {
        "n_step": 1, "loss": "mse", "target_interval": 1, "tau": 0.02,
    },
    "epsilon per env": {"epsilon_alpha": 3.0, "exploration_end": 0.3},
}  # fmt: skip


def settings_of(**changes):
    base = {name: getattr(QUICK, name) for name in QUICK.__slots__}
    return DQNSettings(**{**base, **changes})


def make_dqn(env, settings=QUICK, num_envs=8, num_steps=64, epochs=12, seed=5, network=None):
    backend = make_backend("in_process", env, num_envs)
    learner = DQN(
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


def train(learner, collector, epochs=1, num_steps=64):
    for _ in range(epochs):
        collector.collect(learner.policy, learner.buffer, num_steps)
        report = learner.update()
    return report


def weights_of(learner):
    nets = {"network": learner.network, "target": learner.target}
    return {
        f"{name}/{key}": tensor.clone()
        for name, network in nets.items()
        for key, tensor in network.state_dict().items()
    }


def assert_equal_weights(one, other):
    right = weights_of(other)
    for name, tensor in weights_of(one).items():
        assert torch.equal(tensor, right[name]), name


@pytest.mark.parametrize("style", STYLES)
def test_dqn_solves_the_corridor(style):
    learner, collector = make_dqn(Corridor, settings_of(**STYLES[style]))
    report = train(learner, collector, epochs=6)
    assert report["skipped_gradients"] == 0
    cells = {"cell": np.arange(6)[:, None]}
    assert (learner.policy.act_deterministic(cells, np.ones((6, 3), bool)) == RIGHT).all()
    # From cell c the exit is 6 - c steps away; each step costs 0.1, the last one pays 1.
    steps = 6 - np.arange(6)
    expected = [np.sum(0.99 ** np.arange(n) * -0.1) + 0.99 ** (n - 1) for n in steps]
    q_values = learner.network({"cell": torch.arange(6)[:, None]}).max(dim=1).values
    assert_allclose(q_values.detach(), expected, atol=0.1)


def test_no_forbidden_action_is_taken_in_a_million_masked_steps():
    settings = settings_of(
        exploration_end=0.5, exploration_fraction=0.01, replay_size=100_000, train_frequency=20_000, gradient_steps=8
    )
    learner, collector = make_dqn(Corridor, settings, num_envs=1_000, num_steps=100, epochs=10)
    at_the_wall = lefts_elsewhere = 0
    for _ in range(10):
        # The backend raises an error for a forbidden action.
        train(learner, collector, num_steps=100)
        replay = learner.replay
        cells, went_left = replay.observation["cell"][:, 0], replay.actions == LEFT
        acted = replay.is_transition.copy()
        acted[np.arange(1_000) * replay.rows_per_env + replay.cursor] = False
        assert not (acted & went_left & (cells == 0)).any()
        at_the_wall += int(np.sum(acted & (cells == 0)))
        lefts_elsewhere += int(np.sum(acted & went_left))
    assert learner.samples == 1_000_000
    assert learner.gradient_steps > 300
    assert at_the_wall > 50_000
    assert lefts_elsewhere > 50_000


def draw_minibatches(learner, steps=1):
    size = learner.settings.batch_size
    return sample_minibatches(learner.replay, steps, size, learner.network.inputs, CPU)


def gradient_step(learner, drawn):
    """One gradient step; returns the TD error of each sample."""
    (batch,) = drawn.one_by_one()
    errors, values = torch.empty_like(batch.returns), torch.empty_like(batch.returns)
    with torch.no_grad():
        learner._gradient_step(batch, learner.target.values(drawn.inputs[0, 1]), errors, values)
    return errors.squeeze(1)


@pytest.mark.parametrize("double_q", [True, False])
def test_targets_use_allowed_actions_only(double_q):
    learner, collector = make_dqn(Corridor, settings_of(double_q=double_q, learning_starts=300))
    train(learner, collector)
    # The forbidden action at the wall has by far the largest Q-value.
    q_values = torch.tensor([1e4, 1.0, 2.0])
    for weights, network in ((learner.target_weights, learner.target), (learner.gradients.weights, learner.network)):
        weights.zero_()
        network.layers[-1].bias.data.copy_(q_values)
    drawn = draw_minibatches(learner)
    may_go_left = drawn.mask[0, :, LEFT]
    assert 0 < may_go_left.sum() < 64
    next_values = torch.where(may_go_left, 1e4, 2.0)
    targets = drawn.returns[0, :, 0] + drawn.discounts[0, :, 0] * next_values
    expected = q_values[drawn.actions[0, :, 0]] - targets
    assert_allclose(gradient_step(learner, drawn), expected, rtol=1e-5)


@pytest.mark.parametrize("q_loss", ["huber", "mse"])
@pytest.mark.parametrize("double_q", [True, False])
def test_a_gradient_step_equals_autograd_of_the_same_loss(double_q, q_loss):
    settings = settings_of(double_q=double_q, loss=q_loss, learning_starts=300, max_gradient_norm=1e9)
    learner, collector = make_dqn(CartPole, settings)
    train(learner, collector)
    drawn = draw_minibatches(learner)
    observations, next_observations = drawn.inputs[0]
    with torch.no_grad():
        target_q = learner.target.values(next_observations)
        selector = learner.network.values(next_observations) if double_q else target_q
        next_values = target_q.gather(1, selector.argmax(dim=1, keepdim=True)).squeeze(1)
        targets = drawn.returns[0, :, 0] + drawn.discounts[0, :, 0] * next_values
    chosen = learner.network.values(observations).gather(1, drawn.actions[0]).squeeze(1)
    losses = {"huber": torch.nn.functional.huber_loss, "mse": torch.nn.functional.mse_loss}
    loss = losses[q_loss](chosen, targets)
    expected = torch.autograd.grad(loss, list(learner.network.parameters()))
    errors = gradient_step(learner, drawn)
    expected_gradient = torch.cat([gradient.reshape(-1) for gradient in expected])
    atol = 1e-5 * float(expected_gradient.abs().max()) + 1e-6
    assert_allclose(learner.gradients.gradient, expected_gradient, atol=atol)
    assert_allclose(errors, (chosen - targets).detach(), atol=1e-5)


def test_gradients_are_clipped_by_norm():
    learner, collector = make_dqn(CartPole, settings_of(max_gradient_norm=1e-3))
    train(learner, collector)
    assert_allclose(float(learner.gradients.gradient.norm()), 1e-3, rtol=1e-4)


def test_the_ratio_of_gradient_steps_to_samples_does_not_depend_on_the_number_of_envs():
    settings = settings_of(train_frequency=48, gradient_steps=7, learning_starts=200)
    for num_envs in (1, 5, 64):
        learner, collector = make_dqn(CartPole, settings, num_envs=num_envs, num_steps=1)
        samples_at_start = None
        while learner.samples < 1_000:
            train(learner, collector, num_steps=1)
            if len(learner.replay) < 200:
                assert learner.gradient_steps == 0
            elif samples_at_start is None:
                samples_at_start = learner.samples - num_envs
        assert learner.gradient_steps == (learner.samples - samples_at_start) // 48 * 7


def test_gradient_steps_happen_during_collection():
    learner, collector = make_dqn(CartPole, settings_of(learning_starts=100))
    before = weights_of(learner)
    collector.collect(learner.policy, learner.buffer, 64)
    assert learner.gradient_steps > 0
    assert not torch.equal(before["network/layers.0.weight"], learner.network.layers[0].weight)


def test_the_target_network_is_updated_at_its_interval_with_tau():
    hard = settings_of(target_interval=10, train_frequency=8, gradient_steps=1)
    learner, collector = make_dqn(CartPole, hard)
    moved_at, old = [], weights_of(learner)["target/layers.0.weight"]
    while learner.gradient_steps < 35:
        train(learner, collector, num_steps=1)
        new = weights_of(learner)
        if not torch.equal(new["target/layers.0.weight"], old):
            moved_at.append(learner.gradient_steps)
            assert torch.equal(new["target/layers.0.weight"], new["network/layers.0.weight"])
        old = new["target/layers.0.weight"]
    assert moved_at == [10, 20, 30]

    soft = settings_of(target_interval=1, tau=0.25, train_frequency=8, gradient_steps=1)
    learner, collector = make_dqn(CartPole, soft)
    while learner.gradient_steps < 1:
        before = learner.target_weights.detach().clone()
        train(learner, collector, num_steps=1)
    after = learner.target_weights.detach()
    assert_allclose(after, before + 0.25 * (learner.gradients.weights.detach() - before), atol=1e-7)


def test_epsilon_is_annealed_over_its_fraction_of_the_run_and_may_differ_by_env():
    settings = settings_of(exploration_start=0.9, exploration_end=0.1, exploration_fraction=0.5)
    learner, collector = make_dqn(CartPole, settings, epochs=4)
    epsilons = [learner.epsilon]
    for _ in range(4):
        train(learner, collector)
        epsilons.append(learner.epsilon)
    assert_allclose(epsilons, [0.9, 0.5, 0.1, 0.1, 0.1])
    learner, _ = make_dqn(CartPole, settings_of(exploration_start=0.4, epsilon_alpha=7.0), num_envs=3)
    assert_allclose(learner.policy.epsilons, [0.4, 0.4**4.5, 0.4**8])


def test_equal_seeds_give_equal_weights_and_different_seeds_do_not():
    def trained(seed):
        learner, collector = make_dqn(Corridor, seed=seed)
        train(learner, collector, epochs=2)
        return learner

    one, same_seed, other_seed = trained(5), trained(5), trained(6)
    assert_equal_weights(one, same_seed)
    assert not torch.equal(one.gradients.weights, other_seed.gradients.weights)


@pytest.mark.parametrize("style", STYLES)
def test_a_restored_learner_continues_bit_exact(style):
    settings = settings_of(**STYLES[style], train_frequency=100, gradient_steps=9)
    network = NetworkSettings(hidden_sizes=(16,), normalise_observations=True)
    learner, collector = make_dqn(Corridor, settings, network=network)
    train(learner, collector, epochs=2)
    states = learner.state(), collector.state(), collector.backend.state()
    report = train(learner, collector)

    restored, restored_collector = make_dqn(Corridor, settings, network=network)
    restored.restore(states[0])
    restored_collector.restore(states[1], states[2])
    assert train(restored, restored_collector) == report
    assert_equal_weights(learner, restored)
    right = restored.state()
    for name, array in learner.state().items():
        assert_array_equal(array, right[name], err_msg=name)


def test_without_a_saved_replay_buffer_restore_warns_once_and_training_waits_for_new_samples():
    settings = settings_of(save_replay=False, learning_starts=300)
    learner, collector = make_dqn(Corridor, settings)
    train(learner, collector, epochs=2)
    state = learner.state()
    assert not any(name.startswith("replay") for name in state)
    restored, restored_collector = make_dqn(Corridor, settings)
    with pytest.warns(UserWarning, match="no replay.*300 new samples") as caught:
        restored.restore(state)
    assert len(caught) == 1
    assert_equal_weights(learner, restored)
    assert (restored.samples, restored.epsilon) == (learner.samples, learner.epsilon)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(restored, restored_collector, num_steps=30)
        assert restored.gradient_steps == learner.gradient_steps
        train(restored, restored_collector, num_steps=30)
    assert restored.gradient_steps > learner.gradient_steps


def test_non_finite_gradients_are_skipped_and_counted_and_end_the_run_if_they_persist():
    learner, collector = make_dqn(CartPole)
    train(learner, collector)
    before = weights_of(learner)
    learner.replay.returns[:] = np.nan
    for count in range(1, MAX_SKIPPED_GRADIENTS):
        learner._train(1)
        assert learner.skipped_gradients == count
    after = weights_of(learner)
    assert torch.equal(before["network/layers.0.weight"], after["network/layers.0.weight"])
    assert learner.update()["skipped_gradients"] == MAX_SKIPPED_GRADIENTS - 1
    with pytest.raises(TrainingError, match=r"not finite 20 times in a row.*learning rate"):
        learner._train(1)


def test_input_normalisation_uses_replayed_observations():
    network = NetworkSettings(hidden_sizes=(8,), normalise_observations=True)
    learner, collector = make_dqn(CartPole, network=network)
    train(learner, collector, epochs=2)
    replay = learner.replay
    indices, _ = replay.sample(5_000)
    observations = replay.observation["observation"][indices]
    inputs = learner.network.inputs
    assert inputs is learner.target.inputs
    assert_allclose(inputs.std, observations.std(axis=0), rtol=0.3)
    scaled = inputs({"observation": torch.from_numpy(observations)})
    assert_allclose(scaled.std(dim=0), 1.0, atol=0.3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"action_nvec": (3, 2)}, r"pairs have 2 dimensions.*Use PPO"),
        ({"continuous_action": ArraySpec((2,), "float32")}, "pairs has continuous actions"),
        (
            {"action_nvec": (2,), "observation": {"x": ArraySpec((16, 16), "uint8", 0.0, 255.0)}},
            r"pairs observes images.*Use PPO",
        ),
    ],
)
def test_unsupported_action_and_observation_spaces_are_rejected(changes, message):
    spec = EnvSpec(**{"name": "pairs", "observation": {"x": ArraySpec((1,))}, **changes})
    with pytest.raises(SettingsError, match=message):
        check_supported(spec)


def test_the_replay_buffer_size_respects_settings_and_memory():
    spec = CartPole(np.arange(1)).spec
    # A row of CartPole takes 4 floats and 15 bytes: 31 in all.
    assert settings_of(replay_size=8_000).rows_per_env(spec, 8) == 1_001
    assert settings_of(replay_size=8_000, replay_memory_gb=31e-6).rows_per_env(spec, 8) == 126
    with pytest.raises(SettingsError, match="replay_memory_gb must be"):
        settings_of(replay_memory_gb=float("inf"))
    with pytest.raises(SettingsError, match=r"1000 samples \(of 3.1e-05 GB\) is too small.*1200"):
        settings_of(replay_memory_gb=31e-6, learning_starts=1_200).rows_per_env(spec, 8)
    with pytest.raises(SettingsError, match="100 samples is too small for 64 envs"):
        settings_of(replay_size=100, learning_starts=0).rows_per_env(spec, 64)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"learning_rate": 0.0}, "learning_rate must be above 0"),
        ({"gamma": 1.5}, r"gamma must be at least 0 and at most 1"),
        ({"exploration_end": -0.1}, r"exploration_end must be at least 0 and at most 1"),
        ({"tau": 0.0}, "tau must be above 0"),
        ({"tau": 2.0}, r"tau must be above 0 and at most 1"),
        ({"train_frequency": 0}, "train_frequency must be at least 1"),
        ({"epsilon_alpha": float("nan")}, "epsilon_alpha must be at least 0"),
    ],
)
def test_invalid_settings_are_rejected_with_the_allowed_range(wrong, message):
    with pytest.raises(SettingsError, match=message):
        DQNSettings(**wrong)
