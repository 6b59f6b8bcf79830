"""Run settings: TOML round trips, overrides, validation and training length."""

from dataclasses import fields, is_dataclass, replace
from itertools import product

import numpy as np
import pytest

from hundredfold.config.presets import preset_settings
from hundredfold.config.run import ALGORITHMS, LengthSettings
from hundredfold.config.toml import apply_table, changed_settings, to_toml, used_fields, with_overrides
from hundredfold.core.errors import SettingsError
from hundredfold.core.toml_files import read_toml
from hundredfold.envs.corridor import Corridor
from hundredfold.envs.registry import ENVS
from hundredfold.rollout.rollout_buffer import RolloutSettings


@pytest.mark.parametrize("env", [*ENVS, "FrozenLake-v1"])
def test_default_settings_of_every_env_round_trip_through_toml(tmp_path, env):
    settings = preset_settings(env)
    changed = replace(settings, seed=7, ppo=replace(settings.ppo, gamma=0.5))
    path = tmp_path / "settings.toml"
    path.write_text(to_toml(changed))
    assert apply_table(preset_settings(env), read_toml(path), str(path)) == changed


def test_lists_and_literals_round_trip_through_toml(tmp_path):
    settings = with_overrides(
        preset_settings("FrozenLake-v1"),
        {"hidden_sizes": (8, 9, 10), "activation": "silu", "env_kwargs": ("map_name=8x8",)},
    )
    path = tmp_path / "settings.toml"
    path.write_text(to_toml(settings))
    loaded = apply_table(preset_settings("FrozenLake-v1"), read_toml(path), str(path))
    assert loaded.network.hidden_sizes == (8, 9, 10)
    assert loaded.env_settings.keywords == {"map_name": "8x8"}
    assert loaded == settings


WRONG_FILES = {
    "[ppo]\nlearning_rat = 1.0": r"unknown setting 'ppo.learning_rat'; did you mean learning_rate",
    "[poo]\ngamma = 1.0": r"unknown setting 'poo'; did you mean ppo",
    "[ppo]\ngamma = 'high'": r"ppo.gamma must be a number, got 'high'",
    "[rollout]\nnum_envs = 2.5": r"rollout.num_envs must be a whole number, got 2.5",
    "[rollout]\nnum_envs = true": r"rollout.num_envs must be a whole number, got True",
    "[network]\nshared = 1": r"network.shared must be true or false, got 1",
    "[network]\nactivation = 'rellu'": r"network.activation is 'rellu'; did you mean relu",
    "[network]\nhidden_sizes = [64, 'x']": r"network.hidden_sizes must be a whole number, got 'x'",
    "[network]\nhidden_sizes = 64": r"network.hidden_sizes must be a list, got 64",
    "ppo = 3": r"ppo must be a table, got 3",
    "[rollout]\nnum_envs = 0": r"num_envs must be at least 1 and at most 10000000, got 0",
    "env = ": r"not valid TOML",
}


@pytest.mark.parametrize(("text", "message"), WRONG_FILES.items())
def test_an_invalid_settings_file_is_rejected_with_the_setting_and_a_suggestion(tmp_path, text, message):
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=message) as caught:
        apply_table(preset_settings("cartpole"), read_toml(path), "wrong.toml")
    assert "wrong.toml" in str(caught.value)


def test_a_missing_settings_file_is_reported(tmp_path):
    with pytest.raises(SettingsError, match=r"cannot read settings file .*missing\.toml"):
        read_toml(tmp_path / "missing.toml")


def test_integers_are_accepted_for_float_settings():
    settings = apply_table(preset_settings("cartpole"), {"ppo": {"gamma": 1}}, "a test")
    assert settings.ppo.gamma == 1.0
    assert isinstance(settings.ppo.gamma, float)


def test_overrides_apply_to_the_table_that_has_the_setting():
    settings = with_overrides(preset_settings("corridor"), {"num_envs": 3, "gamma": 0.5, "seed": 1})
    assert settings.rollout.num_envs == 3
    assert settings.ppo.gamma == 0.5
    assert settings.seed == 1


def test_an_unknown_override_is_rejected_with_a_suggestion():
    with pytest.raises(SettingsError, match=r"no setting called 'num_env'; did you mean num_envs"):
        with_overrides(preset_settings("corridor"), {"num_env": 3})


def test_changed_settings_lists_the_differing_settings():
    one = preset_settings("corridor")
    other = with_overrides(one, {"gamma": 0.5, "seed": 1, "backend": "serial"})
    assert set(changed_settings(one, other)) == {"seed", "ppo.gamma", "machine.backend"}


class TestLength:
    spec = Corridor(np.arange(1)).spec
    fixed_length = replace(spec, episode_steps=30)
    rollout = RolloutSettings(num_envs=64, num_steps=30)

    def test_episodes_are_converted_to_epochs_by_the_number_of_envs(self):
        length = LengthSettings(episodes=1000)
        assert length.num_epochs(self.fixed_length, self.rollout) == 16
        assert length.num_epochs(self.fixed_length, replace(self.rollout, num_envs=256)) == 4

    def test_steps_are_rounded_up_to_whole_epochs(self):
        assert LengthSettings(steps=1921).num_epochs(self.fixed_length, self.rollout) == 2
        assert LengthSettings(steps=1920).num_epochs(self.fixed_length, self.rollout) == 1

    def test_epochs_are_rounded_up_to_the_policy_update_interval(self):
        rollout = replace(self.rollout, policy_update_interval=2)
        assert LengthSettings(epochs=5).num_epochs(self.fixed_length, rollout) == 6
        assert LengthSettings(steps=1).num_epochs(self.fixed_length, rollout) == 2
        assert LengthSettings(epochs=4).num_epochs(self.fixed_length, rollout) == 4

    def test_num_steps_zero_means_one_whole_episode(self):
        settings = replace(
            preset_settings("corridor"),
            rollout=RolloutSettings(num_envs=4, num_steps=0),
            length=LengthSettings(episodes=8),
        )
        assert settings.resolved(self.fixed_length).rollout.num_steps == 30
        assert settings.resolved(self.fixed_length).length.epochs == 2
        with pytest.raises(SettingsError, match="set --num-steps"):
            settings.resolved(self.spec)

    def test_a_length_in_episodes_needs_envs_of_fixed_episode_length(self):
        with pytest.raises(SettingsError, match=r"no fixed length.*use --steps or --epochs"):
            LengthSettings(episodes=10).num_epochs(self.spec, self.rollout)

    @pytest.mark.parametrize("given", [{}, {"epochs": 1, "steps": 5}])
    def test_exactly_one_of_epochs_episodes_and_steps_is_required(self, given):
        with pytest.raises(SettingsError, match="one of --epochs, --episodes and --steps"):
            LengthSettings(**given).num_epochs(self.fixed_length, self.rollout)

    def test_a_negative_length_is_rejected(self):
        with pytest.raises(SettingsError, match="steps must be at least 0"):
            LengthSettings(steps=-1)


def test_settings_names_are_unique_over_all_tables():
    """Flags and overrides use bare names, so no two tables may share one."""
    for env, algo in product([*ENVS, "CartPole-v1"], ALGORITHMS):
        settings = preset_settings(env, algo=algo)
        tables = used_fields(settings)
        names = [
            item.name
            for table in tables
            if is_dataclass(getattr(settings, table.name))
            for item in fields(getattr(settings, table.name))
        ]
        top = [t.name for t in tables if not is_dataclass(getattr(settings, t.name))]
        assert len({*names, *top}) == len(names) + len(top)
