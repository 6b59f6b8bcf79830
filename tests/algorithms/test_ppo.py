"""PPO: probability ratios, value targets, joint and separate updates, and learning."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from helpers.ppo_learner import make_ppo
from hundredfold.algorithms.actor_critic import NetworkSettings
from hundredfold.algorithms.minibatches import MetricMeans
from hundredfold.algorithms.ppo import MAX_SKIPPED_GRADIENTS, PPOSettings
from hundredfold.core.errors import SettingsError, TrainingError
from hundredfold.envs.cartpole import CartPole
from hundredfold.envs.corridor import RIGHT, Corridor
from hundredfold.rollout.gae import compute_gae
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
def test_ppo_solves_the_corridor(style):
    learner, collector = make_ppo(Corridor, STYLES[style])
    for _ in range(40):
        episodes = collector.collect(learner.policy, learner.buffer, 32)
        learner.update()
    # From cells 0, 1 and 2 the best returns are 0.4, 0.5 and 0.6.
    assert np.mean(episodes.returns) > 0.47
    cells = {"cell": np.arange(6)[:, None]}
    assert (learner.policy.act_deterministic(cells, np.ones((6, 3), bool)) == RIGHT).all()


def test_targets_bootstrap_at_truncation_and_not_at_termination():
    learner, collector = make_ppo(CartPole, PPOSettings(gamma=0.9, gae_lambda=0.0))
    collector.collect(learner.policy, learner.buffer, 32)
    rollout = learner.buffer
    rollout.terminated[5, 0] = rollout.ended[5, 0] = True
    rollout.ended[7, 1] = True
    final = {"observation": np.full((1, 4), 0.3, np.float32)}
    rollout.truncations = [Truncations(np.array([7]), np.array([1]), final)]
    values = learner._values(rollout.observation).reshape(33, 16)
    final_value = learner._values({"observation": final["observation"][None]})[0]
    samples, _ = learner._compute_targets()
    targets = samples.targets.numpy().reshape(32, 16)
    returns = targets * float(learner.network.value_std) + float(learner.network.value_mean)
    assert_allclose(returns[5, 0], rollout.rewards[5, 0], atol=1e-4)
    assert_allclose(returns[7, 1], rollout.rewards[7, 1] + 0.9 * final_value, atol=1e-4)
    assert_allclose(returns[3, 3], rollout.rewards[3, 3] + 0.9 * values[4, 3], atol=1e-4)


@pytest.mark.parametrize(("momentum", "weight"), [(1.0, 1.0), (0.5, 0.75), (0.1, 0.55)])
def test_value_normalisation_follows_new_rollouts_with_its_momentum(momentum, weight):
    learner, _ = make_ppo(Corridor, PPOSettings(value_norm_momentum=momentum))
    first, later = np.array([-1.0, 1.0], np.float32), np.array([9.0, 11.0], np.float32)
    learner._update_value_norm(first)  # the first rollout sets the statistics
    assert_allclose([learner.network.value_mean, learner.network.value_std], [0.0, 1.0])
    learner.updates = 1
    learner._update_value_norm(later)
    # The second rollout has a weight of at least one half.
    assert_allclose(float(learner.network.value_mean), 10 * max(momentum, 0.5), rtol=1e-6)
    learner.updates = 1000
    learner._update_value_norm(later)
    assert_allclose(float(learner.network.value_mean), 10 * weight, rtol=1e-6)


def test_value_normalisation_mixes_variances_about_the_common_mean():
    learner, _ = make_ppo(Corridor, PPOSettings(value_norm_momentum=0.25))
    rollouts = [np.array(values, np.float32) for values in ([-1.0, 3.0], [4.0, 10.0], [-2.0, 0.5])]
    mean = square = 0.0
    for updates, returns in enumerate(rollouts):
        learner.updates = updates
        learner._update_value_norm(returns)
        weight = (1.0, 0.5, 1 / 3)[updates]
        mean = (1 - weight) * mean + weight * np.mean(returns)
        square = (1 - weight) * square + weight * np.mean(np.square(returns))
        assert_allclose(float(learner.network.value_mean), mean, rtol=1e-6)
        assert_allclose(float(learner.network.value_std), np.sqrt(square - mean**2), rtol=1e-6)


def test_returns_that_do_not_vary_are_normalised_by_a_share_of_their_size():
    for value, std in ((50.0, 0.5), (-50.0, 0.5), (0.0, 1e-4)):
        learner, _ = make_ppo(Corridor, PPOSettings())
        learner._update_value_norm(np.full(8, value, np.float32))
        assert_allclose(float(learner.network.value_std), std, rtol=1e-5)


@pytest.mark.parametrize("normalise", [True, False])
def test_value_targets_and_advantages_are_normalised_if_set(normalise):
    settings = PPOSettings(normalise_advantages=normalise, normalise_values=normalise)
    learner, collector = make_ppo(Corridor, settings)
    collector.collect(learner.policy, learner.buffer, 32)
    rollout = learner.buffer
    values = learner._values(rollout.observation).reshape(33, 16)
    next_values = np.where(rollout.terminated, 0.0, values[1:])
    if rollout.truncations:
        steps, env_ids, final = rollout.all_truncations()
        next_values[steps, env_ids] = learner._values({name: array[None] for name, array in final.items()})
    advantages = compute_gae(rollout.rewards, values[:-1], next_values, rollout.ended, 0.99, 0.95)
    returns = advantages + values[:-1]
    samples, stats = learner._compute_targets()
    assert_allclose(stats["explained_variance"], 1 - np.var(returns - values[:-1]) / np.var(returns), rtol=1e-3)
    if normalise:
        advantages = (advantages - advantages.mean()) / advantages.std()
        returns = (returns - returns.mean()) / returns.std()
    assert_allclose(samples.advantages.numpy(), advantages.ravel(), rtol=1e-3, atol=1e-4)
    assert_allclose(samples.targets.numpy(), returns.ravel(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("momentum", [0.0, -0.1, 1.5, float("nan")])
def test_value_norm_momentum_outside_its_range_is_rejected(momentum):
    with pytest.raises(SettingsError, match="value_norm_momentum"):
        PPOSettings(value_norm_momentum=momentum)


def test_equal_seeds_give_equal_weights_and_different_seeds_do_not():
    def trained(seed):
        learner, collector = make_ppo(Corridor, STYLES["joint"], seed=seed)
        for _ in range(3):
            collector.collect(learner.policy, learner.buffer, 32)
            learner.update()
        return weights_of(learner)

    one, same_seed, other_seed = trained(5), trained(5), trained(6)
    assert all(torch.equal(one[name], same_seed[name]) for name in one)
    assert not all(torch.equal(one[name], other_seed[name]) for name in one)


def test_initial_weights_depend_on_the_seed_alone():
    initial = []
    for seed, global_seed in ((5, 1), (5, 2), (6, 2)):
        torch.manual_seed(global_seed)
        initial.append(weights_of(make_ppo(Corridor, STYLES["joint"], seed=seed)[0]))
        assert torch.initial_seed() == global_seed  # the user's generator is left alone
    one, same_seed, other_seed = initial
    assert all(torch.equal(one[name], same_seed[name]) for name in one)
    assert not all(torch.equal(one[name], other_seed[name]) for name in one)


@pytest.mark.parametrize("style", STYLES)
def test_a_restored_learner_continues_bit_exact(style):
    learner, collector = make_ppo(Corridor, STYLES[style])
    for _ in range(2):
        collector.collect(learner.policy, learner.buffer, 32)
        learner.update()
    states = learner.state(), collector.state(), collector.backend.state()
    collector.collect(learner.policy, learner.buffer, 32)
    report = learner.update()

    restored, restored_collector = make_ppo(Corridor, STYLES[style])
    restored.restore(states[0])
    restored_collector.restore(states[1], states[2])
    restored_collector.collect(restored.policy, restored.buffer, 32)
    assert restored.update() == report
    weights = weights_of(learner)
    assert all(torch.equal(weights[name], tensor) for name, tensor in weights_of(restored).items())


def test_rescaling_keeps_the_values_of_trained_weights_but_not_those_of_a_new_network():
    learner, collector = make_ppo(Corridor, STYLES["joint"])
    collector.collect(learner.policy, learner.buffer, 32)
    observation = {name: array.copy() for name, array in learner.buffer.observation.items()}
    initial = learner._values(observation)
    learner._update_value_norm(np.array([20.0, 30.0], np.float32))
    assert_allclose(learner._values(observation), 5.0 * initial + 25.0, rtol=1e-4)
    for updates in (0, 3):  # the first update of another run's weights, and a later one of the same run
        learner.updates = updates
        before = learner._values(observation)
        learner._update_value_norm(np.array([-2.0, 70.0], np.float32))
        assert float(learner.network.value_std) > 10.0
        assert_allclose(learner._values(observation), before, rtol=1e-3)


@pytest.mark.parametrize("style", STYLES)
def test_an_update_lowers_the_error_of_the_values(style):
    learner, collector = make_ppo(Corridor, replace(STYLES[style], normalise_values=False))
    collector.collect(learner.policy, learner.buffer, 32)
    observation = {name: array.copy() for name, array in learner.buffer.observation.items()}
    returns = learner._compute_targets()[0].targets.numpy().copy()

    def error():
        return np.square(learner._values(observation)[: len(returns)] - returns).mean()

    before = error()
    assert learner.update()["value_loss"] > 0.0
    assert error() < 0.9 * before


@pytest.mark.parametrize("num_chunks", [1, 2, 4])
def test_a_restored_learner_accumulates_gradients_as_before(num_chunks):
    learner, _ = make_ppo(Corridor, STYLES["joint"])
    learner.accumulator.num_chunks = num_chunks
    state = learner.state()
    assert ("gradient_chunks" in state) == (num_chunks > 1)
    restored, _ = make_ppo(Corridor, STYLES["joint"])
    restored.restore(state)
    assert restored.accumulator.num_chunks == num_chunks
    assert restored.learning_seconds == 0.0  # it learns in `update` alone


def test_separate_value_epochs_leave_the_policy_unchanged():
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
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert any(name.startswith("value_layers") for name in changed)
    assert not any(name.startswith("policy") for name in changed)


def test_minibatches_of_any_size_contain_every_sample_once():
    settings = PPOSettings(minibatch_size=100)
    learner, collector = make_ppo(Corridor, settings)
    collector.collect(learner.policy, learner.buffer, 32)
    samples, _ = learner._compute_targets()
    minibatches = list(learner._minibatches(samples, 0))
    assert [len(minibatch) for minibatch in minibatches] == [100] * 5 + [12]
    joined = torch.cat([minibatch.targets for minibatch in minibatches])
    assert torch.equal(joined.sort().values, samples.targets.sort().values)
    assert not torch.equal(joined, samples.targets)


@pytest.mark.parametrize(
    ("size", "sizes"), [({"num_minibatches": 3}, [171, 171, 170]), ({"minibatch_size": 900}, [512])]
)
def test_the_size_of_a_full_minibatch_is_that_of_the_first(size, sizes):
    learner, collector = make_ppo(Corridor, PPOSettings(**size))
    collector.collect(learner.policy, learner.buffer, 32)
    samples, _ = learner._compute_targets()
    assert [len(minibatch) for minibatch in learner._minibatches(samples, 0)] == sizes
    assert learner.minibatch_rows == sizes[0]


def test_learning_rate_and_entropy_coefficient_are_annealed_to_zero():
    settings = PPOSettings(learning_rate=0.01, anneal_entropy=True)
    learner, collector = make_ppo(Corridor, settings, updates=4)
    coefficients = []
    for _ in range(4):
        coefficients.append((learner.learning_rate, learner.entropy_coefficient))
        collector.collect(learner.policy, learner.buffer, 32)
        learner.update()
        assert learner.optimisers["joint"].param_groups[0]["lr"] == coefficients[-1][0]
    assert_allclose(coefficients, [(0.01, 0.01), (0.0075, 0.0075), (0.005, 0.005), (0.0025, 0.0025)])
    assert learner.learning_rate == 0.0


def clipped_loss(ratio, advantages, clip_range):
    """Schulman et al. (2017), equation 7, one sample at a time."""
    low, high = 1 - clip_range, 1 + clip_range
    terms = [min(r * a, min(max(r, low), high) * a) for r, a in zip(ratio.tolist(), advantages.tolist(), strict=True)]
    return -sum(terms) / len(terms)


@pytest.mark.parametrize("clip_range", [0.1, 0.3])
def test_the_policy_loss_is_the_clipped_objective_and_the_entropy_bonus(clip_range):
    settings = PPOSettings(clip_range=clip_range, entropy_coefficient=0.25)
    learner, collector = make_ppo(Corridor, settings)
    collector.collect(learner.policy, learner.buffer, 32)
    samples, _ = learner._compute_targets()
    log_ratio = torch.linspace(-0.7, 0.7, len(samples))
    with torch.no_grad():
        logits = learner.network.logits(samples.observation)
        distribution = learner.network.distribution(logits, samples.mask)
        samples.log_probs = distribution.log_prob(samples.actions) - log_ratio
    ratio, entropy = log_ratio.exp(), float(distribution.entropy().mean())
    metrics = MetricMeans()
    loss = learner._policy_loss(samples, logits, metrics)
    expected = clipped_loss(ratio, samples.advantages, clip_range)
    assert_allclose(float(loss), expected - 0.25 * entropy, rtol=1e-4)
    found = metrics.means()
    assert_allclose(found["policy_loss"], expected, rtol=1e-4)
    assert_allclose(found["entropy"], entropy, rtol=1e-5)
    assert_allclose(found["approx_kl"], float((ratio - 1 - log_ratio).mean()), rtol=1e-3)
    assert_allclose(found["clip_fraction"], np.mean(np.abs(ratio.numpy() - 1) > clip_range), rtol=1e-5)
    assert_allclose(found["first_ratio_error"], np.exp(0.7) - 1, rtol=1e-4)


@pytest.mark.parametrize(
    ("target_kl", "approx_kl", "exceeded"), [(0.02, 0.029, False), (0.02, 0.031, True), (0, 9, False)]
)
def test_an_update_stops_when_the_last_approximate_kl_exceeds_one_and_a_half_times_the_target(
    target_kl, approx_kl, exceeded
):
    learner, _ = make_ppo(Corridor, PPOSettings(target_kl=target_kl))
    metrics = MetricMeans()
    for value in (1.0, 2.0, approx_kl):
        metrics.add(approx_kl=torch.tensor(value))
    assert learner._kl_exceeded(metrics) == exceeded


def test_target_kl_ends_an_update_early():
    settings = PPOSettings(learning_rate=0.05, target_kl=1e-4, update_epochs=50)
    learner, collector = make_ppo(Corridor, settings)
    collector.collect(learner.policy, learner.buffer, 32)
    steps_before = learner.optimisers["joint"].state_dict()["state"]
    assert steps_before == {}
    learner.update()
    (steps, *_) = (int(s["step"]) for s in learner.optimisers["joint"].state_dict()["state"].values())
    assert steps == 4


def test_non_finite_gradients_are_skipped_and_counted_and_end_the_run_if_they_persist():
    learner, collector = make_ppo(Corridor, PPOSettings())
    collector.collect(learner.policy, learner.buffer, 32)
    samples, _ = learner._compute_targets()
    parameters = list(learner.network.parameters())
    before = weights_of(learner)

    def nan_loss(batch):
        return sum(p.sum() for p in parameters) * float("nan")

    for count in range(1, MAX_SKIPPED_GRADIENTS):
        learner._gradient_step("joint", parameters, samples, nan_loss)
        assert learner.skipped_gradients == count
    assert all(torch.equal(before[name], tensor) for name, tensor in weights_of(learner).items())
    with pytest.raises(TrainingError, match=r"not finite 20 times in a row.*learning rate"):
        learner._gradient_step("joint", parameters, samples, nan_loss)


def test_the_count_of_non_finite_gradients_in_a_row_starts_again_after_a_finite_one():
    learner, collector = make_ppo(Corridor, PPOSettings())
    collector.collect(learner.policy, learner.buffer, 32)
    samples, _ = learner._compute_targets()
    parameters = list(learner.network.parameters())
    for factor in [*[float("nan")] * (MAX_SKIPPED_GRADIENTS - 1), 1.0] * 2:
        learner._gradient_step("joint", parameters, samples, lambda _, f=factor: sum(p.sum() for p in parameters) * f)
    assert learner.skipped_gradients == 2 * (MAX_SKIPPED_GRADIENTS - 1)
    assert learner.update()["skipped_gradients"] == 0.0  # those of this update


def test_a_shared_network_rejects_separate_value_and_policy_epochs():
    with pytest.raises(SettingsError, match="shared network"):
        make_ppo(Corridor, STYLES["separate"], network=NetworkSettings(shared=True))


def test_a_shared_network_solves_the_corridor():
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
def test_invalid_settings_are_rejected_with_the_allowed_range(wrong, message):
    with pytest.raises(SettingsError, match=message):
        PPOSettings(**wrong)
