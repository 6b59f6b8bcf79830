"""PPO: honest ratios, targets per env, both update styles, and it learns."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from helpers.ppo_learner import make_ppo
from hundredfold.algorithms.actor_critic import NetworkSettings
from hundredfold.algorithms.ppo import MAX_SKIPPED_GRADIENTS, PPOSettings
from hundredfold.core.errors import SettingsError, TrainingError
from hundredfold.envs.cartpole import CartPole
from hundredfold.envs.corridor import RIGHT, Corridor
from hundredfold.rollout.rollout_buffer import Truncations

STYLES = {
    "joint": PPOSettings(learning_rate=3e-3),
    "separate": PPOSettings(learning_rate=3e-3, num_value_epochs=6, num_policy_epochs=4),
}


def weights_of(learner):
    return {name: tensor.clone() for name, tensor in learner.network.state_dict().items()}


@pytest.mark.parametrize("style", STYLES)
def test_the_ratio_of_the_first_minibatch_is_one(style):
    learner, collector = make_ppo(Corridor, STYLES[style])
    for _ in range(5):
        collector.collect(learner.policy, learner.buffer, 32)
        assert learner.update()["first_ratio_error"] < 1e-5


@pytest.mark.parametrize("style", STYLES)
def test_it_solves_the_corridor(style):
    learner, collector = make_ppo(Corridor, STYLES[style])
    for _ in range(40):
        episodes = collector.collect(learner.policy, learner.buffer, 32)
        learner.update()
    # From cells 0, 1 and 2 the best returns are 0.4, 0.5 and 0.6.
    assert np.mean(episodes.returns) > 0.47
    cells = {"cell": np.arange(6)[:, None]}
    assert (learner.policy.act_deterministic(cells, np.ones((6, 3), bool)) == RIGHT).all()


def test_truncated_episodes_are_worth_what_follows_and_terminated_ones_nothing():
    learner, collector = make_ppo(CartPole, PPOSettings(gamma=0.9, gae_lambda=0.0))
    collector.collect(learner.policy, learner.buffer, 32)
    rollout = learner.buffer
    rollout.terminated[5, 0] = rollout.ended[5, 0] = True
    rollout.ended[7, 1] = True
    final = {"observation": np.full((1, 4), 0.3, np.float32)}
    rollout.truncations = [Truncations(np.array([7]), np.array([1]), final)]
    values = learner._values(rollout.observation).reshape(33, 16)
    beyond = learner._values({"observation": final["observation"][None]})[0]
    samples, _ = learner._compute_targets()
    targets = samples.targets.numpy().reshape(32, 16)
    returns = targets * float(learner.network.value_std) + float(learner.network.value_mean)
    assert_allclose(returns[5, 0], rollout.rewards[5, 0], atol=1e-4)
    assert_allclose(returns[7, 1], rollout.rewards[7, 1] + 0.9 * beyond, atol=1e-4)
    assert_allclose(returns[3, 3], rollout.rewards[3, 3] + 0.9 * values[4, 3], atol=1e-4)


@pytest.mark.parametrize(("share", "followed"), [(1.0, 1.0), (0.5, 0.75), (0.1, 0.55)])
def test_the_scale_of_values_follows_the_newest_rollout_by_its_share(share, followed):
    learner, _ = make_ppo(Corridor, PPOSettings(value_norm_momentum=share))
    first, later = np.array([-1.0, 1.0], np.float32), np.array([9.0, 11.0], np.float32)
    learner._update_value_norm(first)  # the first one always counts for everything
    assert_allclose([learner.network.value_mean, learner.network.value_std], [0.0, 1.0])
    learner.updates = 1
    learner._update_value_norm(later)
    # The second counts for half at least: a mean of two.
    assert_allclose(float(learner.network.value_mean), 10 * max(share, 0.5), rtol=1e-6)
    learner.updates = 1000
    learner._update_value_norm(later)
    assert_allclose(float(learner.network.value_mean), 10 * followed, rtol=1e-6)


@pytest.mark.parametrize("share", [0.0, -0.1, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(SettingsError, match="value_norm_momentum"):
        PPOSettings(value_norm_momentum=share)


def test_equal_seeds_learn_equal_weights_and_others_do_not():
    def trained(seed):
        learner, collector = make_ppo(Corridor, STYLES["joint"], seed=seed)
        for _ in range(3):
            collector.collect(learner.policy, learner.buffer, 32)
            learner.update()
        return weights_of(learner)

    one, again, other = trained(5), trained(5), trained(6)
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("style", STYLES)
def test_a_restored_learner_learns_on_bit_for_bit(style):
    learner, collector = make_ppo(Corridor, STYLES[style])
    for _ in range(2):
        collector.collect(learner.policy, learner.buffer, 32)
        learner.update()
    states = learner.state(), collector.state(), collector.backend.state()
    collector.collect(learner.policy, learner.buffer, 32)
    report = learner.update()

    again, other = make_ppo(Corridor, STYLES[style])
    again.restore(states[0])
    other.restore(states[1], states[2])
    other.collect(again.policy, again.buffer, 32)
    assert again.update() == report
    weights = weights_of(learner)
    assert all(torch.equal(weights[name], found) for name, found in weights_of(again).items())


def test_separate_epochs_leave_the_policy_alone_while_values_learn():
    settings = PPOSettings(num_value_epochs=3, num_policy_epochs=1, entropy_coefficient=0.0)
    learner, collector = make_ppo(Corridor, settings)
    collector.collect(learner.policy, learner.buffer, 32)
    before = weights_of(learner)
    samples, _ = learner._compute_targets()

    def loss_of(batch):
        return (learner.network.normalised_value(batch.observation) - batch.targets).square().mean()

    for batch in learner._minibatches(samples, 0):
        learner._gradient_step("value", learner.network.value_parameters(), batch, loss_of)
    after = weights_of(learner)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert any(name.startswith("value_layers") for name in moved)
    assert not any(name.startswith("policy") for name in moved)


def test_minibatches_hold_every_sample_once_whatever_their_size():
    settings = PPOSettings(minibatch_size=100)
    learner, collector = make_ppo(Corridor, settings)
    collector.collect(learner.policy, learner.buffer, 32)
    samples, _ = learner._compute_targets()
    parts = list(learner._minibatches(samples, 0))
    assert [len(part) for part in parts] == [100] * 5 + [12]
    joined = torch.cat([part.targets for part in parts])
    assert torch.equal(joined.sort().values, samples.targets.sort().values)
    assert not torch.equal(joined, samples.targets)


def test_learning_rate_and_entropy_bonus_fall_to_zero_over_the_run():
    settings = PPOSettings(learning_rate=0.01, anneal_entropy=True)
    learner, collector = make_ppo(Corridor, settings, updates=4)
    seen = []
    for _ in range(4):
        seen.append((learner.learning_rate, learner.entropy_coefficient))
        collector.collect(learner.policy, learner.buffer, 32)
        learner.update()
    assert_allclose(seen, [(0.01, 0.01), (0.0075, 0.0075), (0.005, 0.005), (0.0025, 0.0025)])
    assert learner.learning_rate == 0.0


def test_target_kl_ends_an_update_early():
    quick = PPOSettings(learning_rate=0.05, target_kl=1e-4, update_epochs=50)
    learner, collector = make_ppo(Corridor, quick)
    collector.collect(learner.policy, learner.buffer, 32)
    steps_before = learner.optimisers["joint"].state_dict()["state"]
    assert steps_before == {}
    learner.update()
    (steps, *_) = (
        int(s["step"]) for s in learner.optimisers["joint"].state_dict()["state"].values()
    )
    assert steps == 4


def test_a_gradient_that_is_not_finite_is_skipped_and_counted_and_ends_the_run_if_it_persists():
    learner, collector = make_ppo(Corridor, PPOSettings())
    collector.collect(learner.policy, learner.buffer, 32)
    samples, _ = learner._compute_targets()
    parameters = list(learner.network.parameters())
    before = weights_of(learner)

    def bad_loss(batch):
        return sum(p.sum() for p in parameters) * float("nan")

    for count in range(1, MAX_SKIPPED_GRADIENTS):
        learner._gradient_step("joint", parameters, samples, bad_loss)
        assert learner.skipped_gradients == count
    assert all(torch.equal(before[name], found) for name, found in weights_of(learner).items())
    with pytest.raises(TrainingError, match=r"not finite 20 times in a row.*learning rate"):
        learner._gradient_step("joint", parameters, samples, bad_loss)


def test_shared_networks_and_separate_epochs_do_not_go_together():
    with pytest.raises(SettingsError, match="shared network"):
        make_ppo(Corridor, STYLES["separate"], network=NetworkSettings(shared=True))


def test_a_shared_network_learns_too():
    learner, collector = make_ppo(
        Corridor, STYLES["joint"], network=NetworkSettings(hidden_sizes=(32, 32), shared=True)
    )
    for _ in range(40):
        episodes = collector.collect(learner.policy, learner.buffer, 32)
        learner.update()
    assert np.mean(episodes.returns) > 0.47


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"learning_rate": 0.0}, "learning_rate must be above 0"),
        ({"gamma": 1.5}, r"gamma must be at least 0 and at most 1"),
        ({"num_value_epochs": 3}, "go together"),
        ({"update_epochs": 0}, "at least 1"),
        ({"minibatch_size": -1}, "at least 0"),
        ({"num_value_epochs": -1, "num_policy_epochs": 3}, "at least 0"),
        ({"entropy_coefficient": float("nan")}, "entropy_coefficient must be at least 0"),
    ],
)
def test_wrong_settings_say_what_to_do(wrong, message):
    with pytest.raises(SettingsError, match=message):
        PPOSettings(**wrong)
