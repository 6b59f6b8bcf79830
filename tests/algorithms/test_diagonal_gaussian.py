"""Continuous actions: honest log-probabilities, bounds that hold, and PPO learns with them."""

from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.testing import assert_allclose, assert_array_equal

from helpers import third_party_envs as foreign
from helpers.training_runs import PairedLearners
from hundredfold.algorithms.actor_critic import NetworkSettings
from hundredfold.algorithms.distributions import ActionBounds, DiagonalGaussian
from hundredfold.algorithms.ppo import PPO, PPOSettings
from hundredfold.backends import make_backend
from hundredfold.core.batch import ArraySpec
from hundredfold.core.errors import SettingsError
from hundredfold.envs.gymnasium_env import GymnasiumBatchEnv
from hundredfold.rollout.collector import Collector
from hundredfold.rollout.rollout_buffer import RolloutSettings

STYLES = {
    "joint": PPOSettings(entropy_coefficient=0.0),
    "separate": PPOSettings(num_value_epochs=3, num_policy_epochs=2),
}


class Aims(gymnasium.Env):
    """Shows two targets; the nearer the action comes to them, the less it costs. One step each."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Box(
        np.array([-4, 10], np.float32), np.array([4, 20], np.float32), dtype=np.float32
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seen = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.seen, {}

    def step(self, action):
        assert self.action_space.contains(action)
        target = np.array([4.0, 5.0]) * 0.8 * self.seen + [0.0, 15.0]
        cost = np.square((action - target) / [4.0, 5.0]).sum()
        return self.seen, -float(cost), True, False, {}


def make_ppo(make_env, settings=STYLES["joint"], num_envs=8, num_steps=16, updates=30, seed=5):
    backend = make_backend("in_process", partial(GymnasiumBatchEnv, make_env=make_env), num_envs)
    learner = PPO(
        backend.spec,
        settings=settings,
        network=NetworkSettings(hidden_sizes=(32, 32)),
        rollout=RolloutSettings(num_envs=num_envs, num_steps=num_steps),
        num_updates=updates,
        seed=seed,
        device=torch.device("cpu"),
    )
    collector = Collector(backend, seed)
    collector.start(seed)
    return learner, collector


def some_options(rows=6, seed=0):
    draw = torch.Generator().manual_seed(seed)
    means = torch.randn((rows, 3), generator=draw)
    return DiagonalGaussian(means, torch.tensor([-1.0, 0.0, 0.7]))


# --- the distribution


def test_log_probabilities_and_entropy_are_those_of_a_normal_distribution():
    options = some_options()
    known = torch.distributions.Normal(options.means, options.log_std.exp())
    drawn = known.sample()
    assert torch.allclose(options.log_prob(drawn), known.log_prob(drawn).sum(-1), atol=1e-5)
    assert torch.allclose(options.entropy(), known.entropy().sum(-1), atol=1e-6)
    assert torch.equal(options.mode(), options.means)


def test_draws_have_the_mean_and_spread_of_the_distribution():
    means = torch.tensor([[2.0, -1.0]]).expand(20_000, 2)
    options = DiagonalGaussian(means, torch.tensor([-1.0, 0.5]))
    drawn = options.sample(torch.from_numpy(np.random.default_rng(1).random((20_000, 2))))
    assert_allclose(drawn.mean(dim=0), [2.0, -1.0], atol=0.05)
    assert_allclose(drawn.std(dim=0), np.exp([-1.0, 0.5]), rtol=0.03)


def test_the_ends_of_chance_are_finite():
    options = some_options(rows=2)
    ends = torch.tensor([[0.0] * 3, [1.0 - 2.0**-53] * 3], dtype=torch.float64)
    drawn = options.sample(ends)
    assert torch.isfinite(drawn).all()
    assert torch.isfinite(options.log_prob(drawn)).all()
    assert (drawn[0] < options.means[0]).all()
    assert (drawn[1] > options.means[1]).all()


def test_a_draw_does_not_depend_on_the_rows_beside_it():
    luck = torch.from_numpy(np.random.default_rng(2).random((257, 3)))
    options = some_options(rows=257)
    whole = options.sample(luck)
    for rows in (slice(0, 1), slice(3, 10), slice(200, 257)):
        alone = DiagonalGaussian(options.means[rows], options.log_std).sample(luck[rows])
        assert torch.equal(alone, whole[rows])


def test_bounds_are_kept_whatever_is_drawn():
    box = ArraySpec((4,), "float32", (-0.1, 2.0, -np.inf, -np.inf), (0.1, np.inf, -3.0, np.inf))
    far = ActionBounds(box)(torch.tensor([[50.0] * 4, [-50.0] * 4])).numpy().astype(np.float64)
    assert (far >= np.array(box.low)).all()
    assert (far <= np.array(box.high)).all()
    assert_allclose(far[0], [0.1, 53.0, -3.0, 50.0], rtol=1e-6)
    assert_allclose(ActionBounds(box)(torch.zeros(1, 4))[0], [0.0, 3.0, -4.0, 0.0])


# --- in PPO


@pytest.mark.parametrize(
    "make_env", [foreign.BoxActions, foreign.ScalarBoxAction, foreign.UnevenBoxActions]
)
def test_boxes_of_any_shape_are_played_within_their_bounds(make_env):
    # The envs themselves refuse an action that their space does not contain.
    learner, collector = make_ppo(make_env)
    collector.collect(learner.policy, learner.buffer, 16)
    assert learner.buffer.actions.shape == (16, 8, *make_env.action_space.shape)
    assert learner.buffer.actions.dtype == np.float32
    assert learner.update()["first_ratio_error"] < 1e-5
    best = learner.policy.act_deterministic(collector.batch.observation, None)
    assert best.shape == (8, *make_env.action_space.shape)


def test_what_was_drawn_is_kept_and_the_env_gets_it_cut_off():
    learner, collector = make_ppo(foreign.BoxActions)
    with torch.no_grad():
        learner.network.log_std.fill_(1.0)
    uniforms = np.random.default_rng(4).random((8, 2))
    choice = learner.policy.sample(collector.batch.observation, None, uniforms)
    assert np.abs(choice.unclipped).max() > 1
    assert_array_equal(choice.actions, choice.unclipped.clip(-1, 1))
    learner.buffer.add_actions(collector.batch, choice)
    assert_array_equal(learner.buffer.actions[0], choice.unclipped)


@pytest.mark.parametrize("style", STYLES)
def test_ratios_are_honest_and_the_spread_learns(style):
    learner, collector = make_ppo(Aims, STYLES[style])
    before = learner.network.log_std.detach().clone()
    assert_allclose(before.exp(), [0.5, 0.5])
    for _ in range(3):
        collector.collect(learner.policy, learner.buffer, 16)
        assert learner.update()["first_ratio_error"] < 1e-5
    assert (learner.network.log_std != before).all()


@pytest.mark.parametrize("style", STYLES)
def test_a_restored_learner_learns_on_bit_for_bit(style):
    learner, collector = make_ppo(Aims, STYLES[style])
    collector.collect(learner.policy, learner.buffer, 16)
    learner.update()
    collector.collect(learner.policy, learner.buffer, 7)  # a snapshot amid a rollout
    again, _ = make_ppo(Aims, STYLES[style])
    again.restore(learner.state())
    twice = PairedLearners(learner, again)
    collector.collect(twice, twice, 9)
    assert learner.update() == again.update()
    for name, array in learner.state().items():
        assert_array_equal(array, again.state()[name], err_msg=name)


def test_it_learns_to_aim():
    settings = PPOSettings(learning_rate=3e-3, entropy_coefficient=0.0)
    learner, collector = make_ppo(Aims, settings, num_envs=16, num_steps=16, updates=40)
    for _ in range(40):
        episodes = collector.collect(learner.policy, learner.buffer, 16)
        learner.update()
    # Always the middle of the box costs 0.43 on average, any action at all 1.1.
    assert np.mean(episodes.returns) > -0.15
    seen = np.array([[-0.5, 0.5], [0.5, -0.5]], np.float32)
    best = learner.policy.act_deterministic({"observation": seen}, None)
    assert_allclose(best, [[-1.6, 17.0], [1.6, 13.0]], atol=0.8)


@pytest.mark.parametrize("spread", [0.0, -1.0, float("nan"), float("inf")])
def test_a_spread_that_is_none_is_refused(spread):
    with pytest.raises(SettingsError, match="initial_action_std must be above 0"):
        NetworkSettings(initial_action_std=spread)
