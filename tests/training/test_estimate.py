"""What a plan says before a run starts, held against what the run then is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hundredfold.config.presets import preset_settings
from hundredfold.config.run import LengthSettings
from hundredfold.envs.registry import env_factory
from hundredfold.rollout.rollout_buffer import RolloutBuffer
from hundredfold.training import estimate as planning
from hundredfold.training.build import build
from hundredfold.training.estimate import Recommendation, estimate_run, gradient_steps


def asked(env="dvrp", preset=None, num_envs=None, **length):
    settings = preset_settings(env, preset)
    if length:
        settings = replace(settings, length=LengthSettings(**length))
    if num_envs:
        settings = replace(settings, rollout=replace(settings.rollout, num_envs=num_envs))
    return settings


def planned(settings, start=None, **how):
    return estimate_run(settings, start or settings, measure=False, **how)


def test_too_few_epochs_get_the_warning_and_the_advice_that_mends_it():
    settings = asked(num_envs=256, episodes=1000)
    plan = planned(settings, asked())
    assert plan.settings.length.epochs == 4
    assert plan.warnings[0] == (
        "1000 episodes at 256 envs are 4 epochs; use --episodes 25600 for 100"
    )
    assert (
        Recommendation("episodes", 1000, 25600, "4 epochs are too few to learn from")
        in plan.recommendations
    )
    assert planned(plan.recommended).settings.length.epochs == 100
    assert planned(plan.recommended).warnings == []


def test_a_rest_of_episodes_is_told():
    settings = asked(num_envs=64, episodes=6_401)
    assert planned(settings).warnings == [
        "6401 episodes do not divide into epochs of 64; 6464 are trained"
    ]


def test_epochs_of_several_days_count_all_of_them():
    settings = asked(num_envs=64, episodes=1_000)
    settings = replace(settings, rollout=replace(settings.rollout, num_steps=60))
    assert planned(settings).warnings == [
        "1000 episodes at 64 envs are 8 epochs; use --episodes 12800 for 100",
        "1000 episodes do not divide into epochs of 128; 1024 are trained",
    ]


def test_a_run_of_a_hundred_epochs_warns_of_nothing():
    assert planned(asked(num_envs=64, episodes=6_400)).warnings == []


def test_scaling_the_first_preset_up_leads_to_the_second():
    start = asked(preset="meta-train-64")
    settings = asked(preset="meta-train-64", num_envs=256, episodes=25_600)
    advised = {
        change.setting: change.recommended for change in planned(settings, start).recommendations
    }
    second = preset_settings("dvrp", "meta-train-256").ppo
    assert advised["minibatch_size"] == second.minibatch_size == 128
    assert advised["num_value_epochs"] == second.num_value_epochs == 30
    assert advised["num_policy_epochs"] == second.num_policy_epochs == 8
    assert advised["learning_rate"] == pytest.approx(3e-4 * 2**0.5, rel=0.02)
    assert all(change.reason for change in planned(settings, start).recommendations)


def test_what_the_user_chose_is_left_alone():
    start = asked(preset="meta-train-64")
    settings = asked(preset="meta-train-64", num_envs=256, episodes=25_600)
    settings = replace(settings, ppo=replace(settings.ppo, minibatch_size=512, num_value_epochs=5))
    advised = {change.setting for change in planned(settings, start).recommendations}
    assert advised.isdisjoint({"minibatch_size", "num_value_epochs", "learning_rate"})


def test_the_memory_of_a_plan_is_that_of_the_arrays():
    settings = asked("corridor", num_envs=24, epochs=2)
    plan = planned(settings)
    rollout = plan.settings.rollout
    env = env_factory("corridor", settings.env_settings)(np.arange(24))
    held = RolloutBuffer(env.spec, 24, rollout.num_steps)
    assert plan.memory["observations"] == sum(a.nbytes for a in held.observation.values())
    assert plan.memory["masks"] == held.mask.nbytes
    assert plan.memory["actions"] == held.actions.nbytes
    env.reset(0)
    assert plan.memory["last snapshot"] == sum(a.nbytes for a in env.state().values())


def test_an_env_with_an_oracle_tells_the_memory_of_its_plans():
    plan = planned(asked(num_envs=4))
    assert plan.memory["oracle routes"] > 0
    assert plan.memory["envs"] > 0


def test_the_largest_number_of_envs_follows_the_memory_at_hand(monkeypatch):
    monkeypatch.setattr(planning, "available_memory", lambda: 2**30)
    small = planned(asked(num_envs=4)).largest_num_envs
    monkeypatch.setattr(planning, "available_memory", lambda: 2**32)
    large = planned(asked(num_envs=4)).largest_num_envs
    assert large == pytest.approx(4 * small, abs=4)
    assert small > 100


def test_auto_takes_what_fits_and_leaves_enough_epochs(monkeypatch):
    monkeypatch.setattr(planning, "available_memory", lambda: 2**34)
    num_envs, reason = planning.auto_num_envs(asked(episodes=6_400))
    assert num_envs == 128
    assert "50 epochs" in reason
    monkeypatch.setattr(planning, "available_memory", lambda: 2**26)
    num_envs, reason = planning.auto_num_envs(asked(episodes=10**6))
    assert num_envs == planned(asked(num_envs=1)).largest_num_envs
    assert "memory" in reason


@pytest.mark.parametrize("preset", ["default", "meta-train-64", "meta-train-256"])
def test_gradient_steps_are_passes_times_minibatches(preset):
    settings = planned(asked(preset=preset)).settings
    ppo, samples = settings.ppo, settings.rollout.samples_per_epoch
    if preset == "default":
        assert gradient_steps(settings) == ppo.update_epochs * ppo.num_minibatches
    else:
        passes = ppo.num_value_epochs + ppo.num_policy_epochs
        assert gradient_steps(settings) == passes * samples // ppo.minibatch_size


def test_time_is_measured_here_and_modelled_for_a_device_that_is_not(monkeypatch):
    settings = asked("corridor", num_envs=8, epochs=3)
    here = estimate_run(settings, settings).timing
    assert here.collect > 0
    assert here.update > 0
    assert not here.update_is_modelled
    monkeypatch.setattr(planning.torch.cuda, "is_available", lambda: False)
    elsewhere = estimate_run(settings, settings, cuda=True).timing
    assert elsewhere.update_is_modelled
    resolved = planned(settings).settings
    parts = build(resolved)
    weights = sum(part.numel() for part in parts.learner.network.parameters())
    parts.close()
    assert elsewhere.update == planning.modelled_seconds(resolved, weights)
