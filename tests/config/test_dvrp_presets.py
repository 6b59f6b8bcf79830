"""Presets of dvrp: the documented values and TOML round trips."""

from __future__ import annotations

import tomllib

import numpy as np
import pytest

from hundredfold.config.presets import PRESETS, preset_settings
from hundredfold.config.toml import apply_table, to_toml
from hundredfold.core.errors import SettingsError
from hundredfold.envs.registry import env_factory

COMMON = {
    "hidden_sizes": (256, 256, 128),
    "activation": "tanh",
    "shared": False,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip_range": 0.1,
    "entropy_coefficient": 0.05,
    "value_coefficient": 0.5,
    "max_gradient_norm": 0.5,
    "anneal_learning_rate": False,
    "policy_update_interval": 1,
    "save_interval": 10,
    "log_interval": 1,
    "eval_interval": 5,
    "eval_seed": 9999,
    "acceptance_model": "embedding",
    "acceptance_buffer_size": 64_000,
    "epsilon_start": 0.2,
    "epsilon_end": 0.0,
    "mask_mode": "sampled_type",
    "observation": "counts",
    "reward": "marginal",
    "num_customers": 30,
}
TABLE = {
    "meta-train-64": {
        "num_envs": 64,
        "learning_rate": 3e-4,
        "num_value_epochs": 40,
        "num_policy_epochs": 10,
        "minibatch_size": 64,
        "epochs": 16,
        "samples_per_epoch": 1_920,
    },
    "meta-train-256": {
        "num_envs": 256,
        "learning_rate": 5e-4,
        "num_value_epochs": 30,
        "num_policy_epochs": 8,
        "minibatch_size": 128,
        "epochs": 100,
        "samples_per_epoch": 7_680,
    },
}


def resolve(preset):
    settings = preset_settings("dvrp", preset)
    env = env_factory("dvrp", settings.env_settings)(np.arange(1))
    return settings.resolved(env.spec)


@pytest.mark.parametrize("preset", TABLE)
def test_meta_train_presets_have_the_documented_values(preset):
    settings = resolve(preset)
    tables = (
        settings.rollout,
        settings.ppo,
        settings.network,
        settings.evaluation,
        settings.saving,
        settings.belief_model,
        settings.env_settings,
        settings.length,
    )
    for name, expected in {**COMMON, **TABLE[preset]}.items():
        (value,) = [getattr(table, name) for table in tables if hasattr(table, name)]
        assert value == expected, name


def test_the_default_preset_learns_from_futures_with_a_per_offer_network():
    settings = resolve("default")
    assert settings == preset_settings("dvrp").resolved(env_factory("dvrp", settings.env_settings)(np.arange(1)).spec)
    assert settings.ppo.advantages == "futures"
    assert settings.network.architecture == "per_action"
    assert settings.env_settings.future_samples > 0
    assert settings.belief_model.acceptance_model == "bayes"


@pytest.mark.parametrize("options", [{"preset": "returns"}, {"algo": "dqn"}, {"engine": "sb3"}, {"engine": "rllib"}])
def test_other_algorithms_and_libraries_learn_from_undiscounted_returns(options):
    settings = preset_settings("dvrp", **options)
    assert settings.ppo.advantages == "gae"
    assert settings.learner.gamma == 1.0
    assert settings.network.architecture == "mlp"
    assert settings.env_settings.observation == "booking"
    assert settings.env_settings.future_samples == 0


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_round_trip_through_toml(preset):
    settings = preset_settings(PRESETS[preset].env, preset)
    loaded = apply_table(preset_settings(PRESETS[preset].env), tomllib.loads(to_toml(settings)), "the file")
    assert loaded == settings


def test_an_unknown_preset_is_rejected_with_a_suggestion():
    with pytest.raises(SettingsError, match="did you mean meta-train-64"):
        preset_settings("dvrp", "meta-train-46")
    with pytest.raises(SettingsError, match="no preset 'meta-train-64' for corridor"):
        preset_settings("corridor", "meta-train-64")
