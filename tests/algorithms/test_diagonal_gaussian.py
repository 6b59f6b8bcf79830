"""Diagonal Gaussian policies: log-probabilities, action bounds, and PPO on continuous actions."""

from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.testing import assert_allclose, assert_array_equal

from helpers import third_party_envs
from helpers.ppo_learner import make_ppo
from helpers.training_runs import PairedLearners
from hundredfold.algorithms.actor_critic import NetworkSettings
from hundredfold.algorithms.distributions import ActionBounds, DiagonalGaussian
from hundredfold.algorithms.ppo import PPOSettings
from hundredfold.core.batch import ArraySpec
from hundredfold.core.errors import SettingsError
from hundredfold.envs.gymnasium_env import GymnasiumBatchEnv

STYLES = {
    "joint": PPOSettings(entropy_coefficient=0.0),
    "separate": PPOSettings(num_value_epochs=3, num_policy_epochs=2),
}


class TargetEnv(gymnasium.Env):
    """One step per episode: the reward is the negative squared distance to two observed targets."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Box(np.array([-4, 10], np.float32), np.array([4, 20], np.float32), dtype=np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.targets = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.targets, {}

    def step(self, action):
        assert self.action_space.contains(action)
        target = np.array([4.0, 5.0]) * 0.8 * self.targets + [0.0, 15.0]
        cost = np.square((action - target) / [4.0, 5.0]).sum()
        return self.targets, -float(cost), True, False, {}


def make_gymnasium_ppo(make_env, settings=STYLES["joint"], num_envs=8, num_steps=16, updates=30):
    batch_env = partial(GymnasiumBatchEnv, make_env=make_env)
    return make_ppo(batch_env, settings, num_envs, num_steps, updates)


def make_distribution(rows=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn((rows, 3), generator=generator)
    return DiagonalGaussian(means, torch.tensor([-1.0, 0.0, 0.7]))


# --- the distribution


def test_log_prob_and_entropy_equal_torch_normal():
    distribution = make_distribution()
    reference = torch.distributions.Normal(distribution.means, distribution.log_std.exp())
    drawn = reference.sample()
    assert torch.allclose(distribution.log_prob(drawn), reference.log_prob(drawn).sum(-1), atol=1e-5)
    assert torch.allclose(distribution.entropy(), reference.entropy().sum(-1), atol=1e-6)
    assert torch.equal(distribution.mode(), distribution.means)


def test_samples_have_the_mean_and_std_of_the_distribution():
    means = torch.tensor([[2.0, -1.0]]).expand(20_000, 2)
    distribution = DiagonalGaussian(means, torch.tensor([-1.0, 0.5]))
    drawn = distribution.sample(torch.from_numpy(np.random.default_rng(1).random((20_000, 2))))
    assert_allclose(drawn.mean(dim=0), [2.0, -1.0], atol=0.05)
    assert_allclose(drawn.std(dim=0), np.exp([-1.0, 0.5]), rtol=0.03)


@pytest.mark.parametrize("last", [1.0 - 2.0**-53, 1.0])
def test_samples_at_the_ends_of_the_uniform_range_are_finite(last):
    distribution = make_distribution(rows=2)
    ends = torch.tensor([[0.0] * 3, [last] * 3], dtype=torch.float64)
    drawn = distribution.sample(ends)
    assert torch.isfinite(drawn).all()
    assert torch.isfinite(distribution.log_prob(drawn)).all()
    assert (drawn[0] < distribution.means[0]).all()
    assert (drawn[1] > distribution.means[1]).all()


def test_a_sample_does_not_depend_on_other_rows():
    uniforms = torch.from_numpy(np.random.default_rng(2).random((257, 3)))
    distribution = make_distribution(rows=257)
    whole = distribution.sample(uniforms)
    for rows in (slice(0, 1), slice(3, 10), slice(200, 257)):
        subset = DiagonalGaussian(distribution.means[rows], distribution.log_std)
        assert torch.equal(subset.sample(uniforms[rows]), whole[rows])


def test_bounded_actions_stay_within_the_box():
    box = ArraySpec((4,), "float32", (-0.1, 2.0, -np.inf, -np.inf), (0.1, np.inf, -3.0, np.inf))
    far = ActionBounds(box)(torch.tensor([[50.0] * 4, [-50.0] * 4])).numpy().astype(np.float64)
    assert (far >= np.array(box.low)).all()
    assert (far <= np.array(box.high)).all()
    assert_allclose(far[0], [0.1, 53.0, -3.0, 50.0], rtol=1e-6)
    assert_allclose(ActionBounds(box)(torch.zeros(1, 4))[0], [0.0, 3.0, -4.0, 0.0])


# --- in PPO


@pytest.mark.parametrize(
    "make_env", [third_party_envs.BoxActions, third_party_envs.ScalarBoxAction, third_party_envs.UnevenBoxActions]
)
def test_actions_stay_within_box_spaces_of_any_shape(make_env):
    # The envs raise an error if their space does not contain the action.
    learner, collector = make_gymnasium_ppo(make_env)
    collector.collect(learner.policy, learner.buffer, 16)
    assert learner.buffer.actions.shape == (16, 8, *make_env.action_space.shape)
    assert learner.buffer.actions.dtype == np.float32
    assert learner.update()["first_ratio_error"] < 1e-5
    best = learner.policy.act_deterministic(collector.batch.observation, None)
    assert best.shape == (8, *make_env.action_space.shape)


def test_the_buffer_stores_unclipped_actions_and_the_env_gets_clipped_ones():
    learner, collector = make_gymnasium_ppo(third_party_envs.BoxActions)
    with torch.no_grad():
        learner.network.log_std.fill_(1.0)
    uniforms = np.random.default_rng(4).random((8, 2))
    sample = learner.policy.sample(collector.batch.observation, None, uniforms)
    assert np.abs(sample.unclipped).max() > 1
    assert_array_equal(sample.actions, sample.unclipped.clip(-1, 1))
    learner.buffer.add_actions(collector.batch, sample)
    assert_array_equal(learner.buffer.actions[0], sample.unclipped)


@pytest.mark.parametrize("style", STYLES)
def test_the_first_probability_ratio_is_one_and_log_std_is_trained(style):
    learner, collector = make_gymnasium_ppo(TargetEnv, STYLES[style])
    before = learner.network.log_std.detach().clone()
    assert_allclose(before.exp(), [0.5, 0.5])
    for _ in range(3):
        collector.collect(learner.policy, learner.buffer, 16)
        assert learner.update()["first_ratio_error"] < 1e-5
    assert (learner.network.log_std != before).all()


@pytest.mark.parametrize("style", STYLES)
def test_a_restored_learner_continues_bit_exact(style):
    learner, collector = make_gymnasium_ppo(TargetEnv, STYLES[style])
    collector.collect(learner.policy, learner.buffer, 16)
    learner.update()
    collector.collect(learner.policy, learner.buffer, 7)  # the state is saved within a rollout
    restored, _ = make_gymnasium_ppo(TargetEnv, STYLES[style])
    restored.restore(learner.state())
    pair = PairedLearners(learner, restored)
    collector.collect(pair, pair, 9)
    assert learner.update() == restored.update()
    for name, array in learner.state().items():
        assert_array_equal(array, restored.state()[name], err_msg=name)


def test_ppo_learns_continuous_targets():
    settings = PPOSettings(learning_rate=3e-3, entropy_coefficient=0.0)
    learner, collector = make_gymnasium_ppo(TargetEnv, settings, num_envs=16, num_steps=16, updates=40)
    for _ in range(40):
        episodes = collector.collect(learner.policy, learner.buffer, 16)
        learner.update()
    # The centre of the box has a mean return of -0.43, uniform random actions of -1.1.
    assert np.mean(episodes.returns) > -0.15
    targets = np.array([[-0.5, 0.5], [0.5, -0.5]], np.float32)
    best = learner.policy.act_deterministic({"observation": targets}, None)
    assert_allclose(best, [[-1.6, 17.0], [1.6, 13.0]], atol=0.8)


@pytest.mark.parametrize("std", [0.0, -1.0, float("nan"), float("inf")])
def test_an_initial_std_that_is_not_positive_and_finite_is_rejected(std):
    with pytest.raises(SettingsError, match="initial_action_std must be above 0"):
        NetworkSettings(initial_action_std=std)
