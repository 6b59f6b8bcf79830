"""DQN: honest targets, the promised number of gradient steps, exact resume, and it learns."""

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
    "spread": {"epsilon_alpha": 3.0, "exploration_end": 0.3},
}  # fmt: skip


def settings_of(**changes):
    base = {name: getattr(QUICK, name) for name in QUICK.__slots__}
    return DQNSettings(**{**base, **changes})


def make_ppo(env, settings=QUICK, num_envs=8, num_steps=64, epochs=12, seed=5, network=None):
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


def play(learner, collector, epochs=1, num_steps=64):
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
def test_it_solves_the_corridor(style):
    learner, collector = make_ppo(Corridor, settings_of(**STYLES[style]))
    report = play(learner, collector, epochs=6)
    assert report["skipped_gradients"] == 0
    cells = {"cell": np.arange(6)[:, None]}
    assert (learner.policy.act_deterministic(cells, np.ones((6, 3), bool)) == RIGHT).all()
    # The way from cell c takes 6 - c steps of -0.1, and the last one pays 1.
    steps = 6 - np.arange(6)
    worth = [np.sum(0.99 ** np.arange(n) * -0.1) + 0.99 ** (n - 1) for n in steps]
    found = learner.network({"cell": torch.arange(6)[:, None]}).max(dim=1).values
    assert_allclose(found.detach(), worth, atol=0.1)


def test_no_forbidden_action_in_a_million_masked_steps():
    settings = settings_of(
        exploration_end=0.5,
        exploration_fraction=0.01,
        replay_size=100_000,
        train_frequency=20_000,
        gradient_steps=8,
    )
    learner, collector = make_ppo(Corridor, settings, num_envs=1_000, num_steps=100, epochs=10)
    at_the_wall = lefts_elsewhere = 0
    for _ in range(10):
        # The backend's door refuses a forbidden action with an error.
        play(learner, collector, num_steps=100)
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


def draw(learner, steps=1):
    size = learner.settings.batch_size
    return sample_minibatches(learner.replay, steps, size, learner.network.inputs, CPU)


def descend(learner, drawn):
    """One gradient step; returns the samples' errors."""
    (batch,) = drawn.one_by_one()
    errors, values = torch.empty_like(batch.returns), torch.empty_like(batch.returns)
    with torch.no_grad():
        learner._gradient_step(batch, learner.target.values(drawn.inputs[0, 1]), errors, values)
    return errors.squeeze(1)


@pytest.mark.parametrize("double_q", [True, False])
def test_targets_look_at_allowed_actions_alone(double_q):
    learner, collector = make_ppo(Corridor, settings_of(double_q=double_q, learning_starts=300))
    play(learner, collector)
    # Whoever believed in going left at the wall would expect the env of it.
    beliefs = torch.tensor([1e4, 1.0, 2.0])
    for weights, network in (
        (learner.target_weights, learner.target),
        (learner.gradients.weights, learner.network),
    ):
        weights.zero_()
        network.layers[-1].bias.data.copy_(beliefs)
    drawn = draw(learner)
    may_go_left = drawn.mask[0, :, LEFT]
    assert 0 < may_go_left.sum() < 64
    ahead = torch.where(may_go_left, 1e4, 2.0)
    targets = drawn.returns[0, :, 0] + drawn.discounts[0, :, 0] * ahead
    expected = beliefs[drawn.actions[0, :, 0]] - targets
    assert_allclose(descend(learner, drawn), expected, rtol=1e-5)


@pytest.mark.parametrize("q_loss", ["huber", "mse"])
@pytest.mark.parametrize("double_q", [True, False])
def test_a_gradient_step_is_what_autograd_makes_of_the_same_loss(double_q, q_loss):
    settings = settings_of(
        double_q=double_q, loss=q_loss, learning_starts=300, max_gradient_norm=1e9
    )
    learner, collector = make_ppo(CartPole, settings)
    play(learner, collector)
    drawn = draw(learner)
    seen, ahead = drawn.inputs[0]
    with torch.no_grad():
        future = learner.target.values(ahead)
        judge = learner.network.values(ahead) if double_q else future
        worth = future.gather(1, judge.argmax(dim=1, keepdim=True)).squeeze(1)
        targets = drawn.returns[0, :, 0] + drawn.discounts[0, :, 0] * worth
    chosen = learner.network.values(seen).gather(1, drawn.actions[0]).squeeze(1)
    losses = {"huber": torch.nn.functional.huber_loss, "mse": torch.nn.functional.mse_loss}
    loss = losses[q_loss](chosen, targets)
    expected = torch.autograd.grad(loss, list(learner.network.parameters()))
    errors = descend(learner, drawn)
    whole = torch.cat([part.reshape(-1) for part in expected])
    assert_allclose(learner.gradients.gradient, whole, atol=1e-5 * float(whole.abs().max()) + 1e-6)
    assert_allclose(errors, (chosen - targets).detach(), atol=1e-5)


def test_long_gradients_are_shortened():
    learner, collector = make_ppo(CartPole, settings_of(max_gradient_norm=1e-3))
    play(learner, collector)
    assert_allclose(float(learner.gradients.gradient.norm()), 1e-3, rtol=1e-4)


def test_gradient_steps_keep_their_ratio_to_samples_whatever_the_number_of_envs():
    settings = settings_of(train_frequency=48, gradient_steps=7, learning_starts=200)
    for num_envs in (1, 5, 64):
        learner, collector = make_ppo(CartPole, settings, num_envs=num_envs, num_steps=1)
        begun = None
        while learner.samples < 1_000:
            play(learner, collector, num_steps=1)
            if len(learner.replay) < 200:
                assert learner.gradient_steps == 0
            elif begun is None:
                begun = learner.samples - num_envs
        assert learner.gradient_steps == (learner.samples - begun) // 48 * 7


def test_it_learns_while_an_epoch_goes_on():
    learner, collector = make_ppo(CartPole, settings_of(learning_starts=100))
    before = weights_of(learner)
    collector.collect(learner.policy, learner.buffer, 64)
    assert learner.gradient_steps > 0
    assert not torch.equal(before["network/layers.0.weight"], learner.network.layers[0].weight)


def test_the_target_network_moves_at_its_interval_and_as_far_as_it_should():
    hard = settings_of(target_interval=10, train_frequency=8, gradient_steps=1)
    learner, collector = make_ppo(CartPole, hard)
    moved_at, old = [], weights_of(learner)["target/layers.0.weight"]
    while learner.gradient_steps < 35:
        play(learner, collector, num_steps=1)
        new = weights_of(learner)
        if not torch.equal(new["target/layers.0.weight"], old):
            moved_at.append(learner.gradient_steps)
            assert torch.equal(new["target/layers.0.weight"], new["network/layers.0.weight"])
        old = new["target/layers.0.weight"]
    assert moved_at == [10, 20, 30]

    soft = settings_of(target_interval=1, tau=0.25, train_frequency=8, gradient_steps=1)
    learner, collector = make_ppo(CartPole, soft)
    while learner.gradient_steps < 1:
        before = learner.target_weights.detach().clone()
        play(learner, collector, num_steps=1)
    after = learner.target_weights.detach()
    assert_allclose(after, before + 0.25 * (learner.gradients.weights.detach() - before), atol=1e-7)


def test_epsilon_falls_over_its_share_of_the_run_and_envs_may_differ():
    settings = settings_of(exploration_start=0.9, exploration_end=0.1, exploration_fraction=0.5)
    learner, collector = make_ppo(CartPole, settings, epochs=4)
    seen = [learner.epsilon]
    for _ in range(4):
        play(learner, collector)
        seen.append(learner.epsilon)
    assert_allclose(seen, [0.9, 0.5, 0.1, 0.1, 0.1])
    learner, _ = make_ppo(
        CartPole, settings_of(exploration_start=0.4, epsilon_alpha=7.0), num_envs=3
    )
    assert_allclose(learner.policy.epsilons, [0.4, 0.4**4.5, 0.4**8])


def test_equal_seeds_learn_equal_weights_and_others_do_not():
    def trained(seed):
        learner, collector = make_ppo(Corridor, seed=seed)
        play(learner, collector, epochs=2)
        return learner

    one, again, other = trained(5), trained(5), trained(6)
    assert_equal_weights(one, again)
    assert not torch.equal(one.gradients.weights, other.gradients.weights)


@pytest.mark.parametrize("style", STYLES)
def test_a_restored_learner_learns_on_bit_for_bit(style):
    settings = settings_of(**STYLES[style], train_frequency=100, gradient_steps=9)
    network = NetworkSettings(hidden_sizes=(16,), normalise_observations=True)
    learner, collector = make_ppo(Corridor, settings, network=network)
    play(learner, collector, epochs=2)
    states = learner.state(), collector.state(), collector.backend.state()
    report = play(learner, collector)

    again, other = make_ppo(Corridor, settings, network=network)
    again.restore(states[0])
    other.restore(states[1], states[2])
    assert play(again, other) == report
    assert_equal_weights(learner, again)
    right = again.state()
    for name, array in learner.state().items():
        assert_array_equal(array, right[name], err_msg=name)


def test_without_a_saved_replay_it_says_so_once_and_gathers_a_new_one_before_it_learns_on():
    settings = settings_of(save_replay=False, learning_starts=300)
    learner, collector = make_ppo(Corridor, settings)
    play(learner, collector, epochs=2)
    state = learner.state()
    assert not any(name.startswith("replay") for name in state)
    again, other = make_ppo(Corridor, settings)
    with pytest.warns(UserWarning, match="no replay.*300 new samples") as told:
        again.restore(state)
    assert len(told) == 1
    assert_equal_weights(learner, again)
    assert (again.samples, again.epsilon) == (learner.samples, learner.epsilon)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        play(again, other, num_steps=30)
        assert again.gradient_steps == learner.gradient_steps
        play(again, other, num_steps=30)
    assert again.gradient_steps > learner.gradient_steps


def test_a_gradient_that_is_not_finite_is_skipped_and_counted_and_ends_the_run_if_it_persists():
    learner, collector = make_ppo(CartPole)
    play(learner, collector)
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


def test_inputs_are_scaled_by_what_is_replayed():
    network = NetworkSettings(hidden_sizes=(8,), normalise_observations=True)
    learner, collector = make_ppo(CartPole, network=network)
    play(learner, collector, epochs=2)
    replay = learner.replay
    rows, _ = replay.sample(5_000)
    kept = replay.observation["observation"][rows]
    inputs = learner.network.inputs
    assert inputs is learner.target.inputs
    assert_allclose(inputs.std, kept.std(axis=0), rtol=0.3)
    scaled = inputs({"observation": torch.from_numpy(kept)})
    assert_allclose(scaled.std(dim=0), 1.0, atol=0.3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"action_nvec": (3, 2)}, r"pairs have 2 dimensions.*Use PPO"),
        (
            {"continuous_action": ArraySpec((2,), "float32")},
            "pairs has continuous actions",
        ),
        (
            {"action_nvec": (2,), "observation": {"x": ArraySpec((16, 16), "uint8", 0.0, 255.0)}},
            r"pairs observes images.*Use PPO",
        ),
    ],
)
def test_what_dqn_cannot_value_or_see_is_for_ppo(changes, words):
    spec = EnvSpec(**{"name": "pairs", "observation": {"x": ArraySpec((1,))}, **changes})
    with pytest.raises(SettingsError, match=words):
        check_supported(spec)


def test_the_replay_is_as_large_as_settings_and_memory_allow():
    spec = CartPole(np.arange(1)).spec
    # A row of CartPole takes 4 floats and 15 bytes: 31 in all.
    assert settings_of(replay_size=8_000).rows_per_env(spec, 8) == 1_001
    assert settings_of(replay_size=8_000, replay_memory_gb=31e-6).rows_per_env(spec, 8) == 126
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
def test_wrong_settings_say_what_to_do(wrong, message):
    with pytest.raises(SettingsError, match=message):
        DQNSettings(**wrong)
