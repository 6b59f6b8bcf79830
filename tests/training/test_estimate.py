"""Estimates of epochs, memory and time, compared with the run they describe."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from helpers.third_party_envs import DiceEnv
from hundredfold.config.presets import preset_settings
from hundredfold.config.run import LengthSettings
from hundredfold.envs.gymnasium_env import GymnasiumBatchEnv
from hundredfold.envs.registry import env_factory
from hundredfold.rollout.rollout_buffer import RolloutBuffer
from hundredfold.training import estimate as estimate_module
from hundredfold.training.build import build
from hundredfold.training.estimate import Recommendation, estimate_run, gradient_steps


def make_settings(env="dvrp", preset=None, num_envs=None, **length):
    settings = preset_settings(env, preset)
    if length:
        settings = replace(settings, length=LengthSettings(**length))
    if num_envs:
        settings = replace(settings, rollout=replace(settings.rollout, num_envs=num_envs))
    return settings


def estimate_of(settings, start=None, **options):
    return estimate_run(settings, start or settings, measure=False, **options)


def test_too_few_epochs_give_a_warning_and_a_recommendation_that_fixes_it():
    settings = make_settings(num_envs=256, episodes=1000)
    estimate = estimate_of(settings, make_settings())
    assert estimate.settings.length.epochs == 4
    assert estimate.warnings[0] == (
        "1000 episodes at 256 envs are 4 epochs, too few to learn from; use --episodes 10240 for 40 epochs"
    )
    assert Recommendation("episodes", 1000, 10240, "4 epochs are too few to learn from") in estimate.recommendations
    # As many as the preset trains.
    assert estimate_of(estimate.recommended).settings.length.epochs == 40
    assert make_settings().length.episodes == 40 * make_settings().rollout.num_envs
    assert estimate_of(estimate.recommended).warnings == []


def test_learning_from_returns_is_recommended_to_take_longer():
    settings = make_settings(preset="returns", num_envs=64, episodes=1000)
    assert estimate_of(settings).warnings[0].endswith("use --episodes 6400 for 100 epochs")


def test_episodes_that_do_not_fill_the_last_epoch_give_a_warning():
    settings = make_settings(num_envs=64, episodes=6_401)
    assert estimate_of(settings).warnings == ["6401 episodes do not divide into epochs of 64; 6464 are trained"]


def test_epochs_of_several_episodes_per_env_are_counted():
    settings = make_settings(num_envs=64, episodes=1_000)
    settings = replace(settings, rollout=replace(settings.rollout, num_steps=60))
    assert estimate_of(settings).warnings == [
        "1000 episodes at 64 envs are 8 epochs, too few to learn from; use --episodes 5120 for 40 epochs",
        "1000 episodes do not divide into epochs of 128; 1024 are trained",
    ]


def test_the_default_of_an_env_gives_no_warning():
    assert estimate_of(preset_settings("dvrp")).warnings == []


def test_a_run_of_100_epochs_gives_no_warning():
    assert estimate_of(make_settings(num_envs=64, episodes=6_400)).warnings == []


def test_recommendations_for_meta_train_64_with_256_envs_equal_meta_train_256():
    start = make_settings(preset="meta-train-64")
    settings = make_settings(preset="meta-train-64", num_envs=256, episodes=25_600)
    recommended = {change.setting: change.recommended for change in estimate_of(settings, start).recommendations}
    second = preset_settings("dvrp", "meta-train-256").ppo
    assert recommended["minibatch_size"] == second.minibatch_size == 128
    assert recommended["num_value_epochs"] == second.num_value_epochs == 30
    assert recommended["num_policy_epochs"] == second.num_policy_epochs == 8
    assert recommended["learning_rate"] == pytest.approx(3e-4 * 2**0.5, rel=0.02)
    assert all(change.reason for change in estimate_of(settings, start).recommendations)


def test_settings_changed_by_the_user_get_no_recommendation():
    start = make_settings(preset="meta-train-64")
    settings = make_settings(preset="meta-train-64", num_envs=256, episodes=25_600)
    settings = replace(settings, ppo=replace(settings.ppo, minibatch_size=512, num_value_epochs=5))
    recommended = {change.setting for change in estimate_of(settings, start).recommendations}
    assert recommended.isdisjoint({"minibatch_size", "num_value_epochs", "learning_rate"})


def test_estimated_memory_equals_the_size_of_the_arrays():
    settings = make_settings("corridor", num_envs=24, epochs=2)
    estimate = estimate_of(settings)
    rollout = estimate.settings.rollout
    env = env_factory("corridor", settings.env_settings)(np.arange(24))
    buffer = RolloutBuffer(env.spec, 24, rollout.num_steps)
    assert estimate.memory["observations"] == sum(a.nbytes for a in buffer.observation.values())
    assert estimate.memory["masks"] == buffer.mask.nbytes
    assert estimate.memory["actions"] == buffer.actions.nbytes
    env.reset(0)
    assert estimate.memory["last snapshot"] == sum(a.nbytes for a in env.state().values())


def test_memory_includes_the_routes_of_the_oracle():
    estimate = estimate_of(make_settings(num_envs=4))
    assert estimate.memory["oracle routes"] > 0
    assert estimate.memory["envs"] > 0


def test_largest_num_envs_is_proportional_to_available_memory(monkeypatch):
    monkeypatch.setattr(estimate_module, "available_memory", lambda: 2**30)
    small = estimate_of(make_settings(num_envs=4)).largest_num_envs
    monkeypatch.setattr(estimate_module, "available_memory", lambda: 2**32)
    large = estimate_of(make_settings(num_envs=4)).largest_num_envs
    assert large == pytest.approx(4 * small, abs=4)
    assert small > 100


def test_auto_num_envs_fits_the_memory_and_leaves_enough_epochs(monkeypatch):
    monkeypatch.setattr(estimate_module, "available_memory", lambda: 2**34)
    num_envs, reason = estimate_module.auto_num_envs(make_settings(episodes=6_400))
    assert num_envs == 128
    assert "50 epochs" in reason
    monkeypatch.setattr(estimate_module, "available_memory", lambda: 2**26)
    num_envs, reason = estimate_module.auto_num_envs(make_settings(episodes=10**6))
    assert num_envs == estimate_of(make_settings(num_envs=1)).largest_num_envs
    assert "memory" in reason


@pytest.mark.parametrize("preset", ["default", "meta-train-64", "meta-train-256"])
def test_gradient_steps_are_passes_times_minibatches(preset):
    settings = estimate_of(make_settings(preset=preset)).settings
    ppo, samples = settings.ppo, settings.rollout.samples_per_epoch
    if preset == "default":
        assert gradient_steps(settings) == ppo.update_epochs * ppo.num_minibatches
    else:
        passes = ppo.num_value_epochs + ppo.num_policy_epochs
        assert gradient_steps(settings) == passes * samples // ppo.minibatch_size


def test_time_is_measured_on_this_machine_and_modelled_for_a_missing_device(monkeypatch):
    settings = make_settings("corridor", num_envs=8, epochs=3)
    measured = estimate_run(settings, settings).timing
    assert measured.collect > 0
    assert measured.update > 0
    assert not measured.update_is_modelled
    monkeypatch.setattr(estimate_module.torch.cuda, "is_available", lambda: False)
    modelled = estimate_run(settings, settings, cuda=True).timing
    assert modelled.update_is_modelled
    resolved = estimate_of(settings).settings
    parts = build(resolved)
    num_weights = sum(tensor.numel() for tensor in parts.learner.network.parameters())
    parts.close()
    assert modelled.update == estimate_module.modelled_seconds(resolved, num_weights)


class HeavyEnv(DiceEnv):
    """Holds 2 MB of memory."""

    def __init__(self):
        super().__init__()
        self.ballast = np.ones(250_000)


@pytest.mark.process
def test_the_memory_of_third_party_envs_and_of_their_workers_is_measured(monkeypatch):
    factory = partial(GymnasiumBatchEnv, make_env=HeavyEnv)
    per_env = estimate_module.measured_env_bytes(factory)
    assert 2_000_000 <= per_env < 4_000_000
    settings = make_settings("CartPole-v1", num_envs=2, epochs=1)
    settings = replace(settings, machine=replace(settings.machine, backend="processes"))
    monkeypatch.setattr(estimate_module, "training_factory", lambda settings: factory)
    assert estimate_of(settings).memory["envs"] == pytest.approx(2 * per_env, rel=0.5)
    in_workers = estimate_run(settings, settings).memory["envs"]
    assert in_workers > 2_000_000
