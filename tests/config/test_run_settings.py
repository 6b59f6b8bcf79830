"""Settings: composed in one place, TOML in and out, and a typo gets an answer."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from hundredfold.config.presets import preset_settings
from hundredfold.config.run import ALGORITHMS, LengthSettings
from hundredfold.config.toml import (
    apply_table,
    changed_settings,
    read_toml,
    to_toml,
    used_fields,
    with_overrides,
)
from hundredfold.core.errors import SettingsError
from hundredfold.envs.corridor import Corridor
from hundredfold.envs.registry import ENVS
from hundredfold.rollout.rollout_buffer import RolloutSettings


@pytest.mark.parametrize("env", [*ENVS, "FrozenLake-v1"])
def test_every_env_has_a_starting_point_that_survives_a_file(tmp_path, env):
    settings = preset_settings(env)
    changed = replace(settings, seed=7, ppo=replace(settings.ppo, gamma=0.5))
    path = tmp_path / "settings.toml"
    path.write_text(to_toml(changed))
    assert apply_table(preset_settings(env), read_toml(path), str(path)) == changed


def test_lists_and_choices_survive_a_file(tmp_path):
    settings = with_overrides(
        preset_settings("FrozenLake-v1"),
        {"hidden_sizes": (8, 9, 10), "activation": "silu", "env_kwargs": ("map_name=8x8",)},
    )
    path = tmp_path / "settings.toml"
    path.write_text(to_toml(settings))
    again = apply_table(preset_settings("FrozenLake-v1"), read_toml(path), str(path))
    assert again.network.hidden_sizes == (8, 9, 10)
    assert again.env_settings.keywords == {"map_name": "8x8"}
    assert again == settings


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
    "[rollout]\nnum_envs = 0": r"num_envs must be at least 1, got 0",
    "env = ": r"not valid TOML",
}


@pytest.mark.parametrize(("text", "message"), WRONG_FILES.items())
def test_a_wrong_file_says_where_and_what_to_do(tmp_path, text, message):
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=message) as caught:
        apply_table(preset_settings("cartpole"), read_toml(path), "wrong.toml")
    assert "wrong.toml" in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SettingsError, match=r"cannot read settings file .*gone\.toml"):
        read_toml(tmp_path / "gone.toml")


def test_a_whole_number_serves_where_a_number_is_wanted():
    settings = apply_table(preset_settings("cartpole"), {"ppo": {"gamma": 1}}, "here")
    assert settings.ppo.gamma == 1.0
    assert isinstance(settings.ppo.gamma, float)


def test_overrides_find_their_table_by_name():
    settings = with_overrides(preset_settings("corridor"), {"num_envs": 3, "gamma": 0.5, "seed": 1})
    assert settings.rollout.num_envs == 3
    assert settings.ppo.gamma == 0.5
    assert settings.seed == 1


def test_an_unknown_override_is_refused_with_a_near_name():
    with pytest.raises(SettingsError, match=r"no setting called 'num_env'; did you mean num_envs"):
        with_overrides(preset_settings("corridor"), {"num_env": 3})


def test_differences_name_what_differs():
    one = preset_settings("corridor")
    other = with_overrides(one, {"gamma": 0.5, "seed": 1, "backend": "serial"})
    assert set(changed_settings(one, other)) == {"seed", "ppo.gamma", "machine.backend"}


class TestLength:
    spec = Corridor(np.arange(1)).spec
    day = replace(spec, episode_steps=30)
    rollout = RolloutSettings(num_envs=64, num_steps=30)

    def test_a_thousand_episodes_of_64_envs_are_16_epochs_and_of_256_are_4(self):
        length = LengthSettings(episodes=1000)
        assert length.num_epochs(self.day, self.rollout) == 16
        assert length.num_epochs(self.day, replace(self.rollout, num_envs=256)) == 4

    def test_steps_are_rounded_up_to_epochs(self):
        assert LengthSettings(steps=1921).num_epochs(self.day, self.rollout) == 2
        assert LengthSettings(steps=1920).num_epochs(self.day, self.rollout) == 1

    def test_nothing_that_is_gathered_goes_unlearned(self):
        twos = replace(self.rollout, policy_update_interval=2)
        assert LengthSettings(epochs=5).num_epochs(self.day, twos) == 6
        assert LengthSettings(steps=1).num_epochs(self.day, twos) == 2
        assert LengthSettings(epochs=4).num_epochs(self.day, twos) == 4

    def test_no_steps_mean_one_whole_episode(self):
        asked = replace(
            preset_settings("corridor"),
            rollout=RolloutSettings(num_envs=4, num_steps=0),
            length=LengthSettings(episodes=8),
        )
        assert asked.resolved(self.day).rollout.num_steps == 30
        assert asked.resolved(self.day).length.epochs == 2
        with pytest.raises(SettingsError, match="set --num-steps"):
            asked.resolved(self.spec)

    def test_episodes_need_a_fixed_length(self):
        with pytest.raises(SettingsError, match=r"no fixed length.*use --steps or --epochs"):
            LengthSettings(episodes=10).num_epochs(self.spec, self.rollout)

    @pytest.mark.parametrize("given", [{}, {"epochs": 1, "steps": 5}])
    def test_exactly_one_of_the_three_is_wanted(self, given):
        with pytest.raises(SettingsError, match="one of --epochs, --episodes and --steps"):
            LengthSettings(**given).num_epochs(self.day, self.rollout)

    def test_a_negative_length_is_refused(self):
        with pytest.raises(SettingsError, match="steps must be at least 0"):
            LengthSettings(steps=-1)


def test_settings_names_are_unique_over_all_tables():
    """Flags and overrides go by bare names, so no two tables of a run may share one."""
    from dataclasses import fields, is_dataclass

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
