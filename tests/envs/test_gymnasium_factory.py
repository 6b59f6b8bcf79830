"""Gymnasium envs by id: keyword arguments, errors, names."""

from functools import partial

import gymnasium
import numpy as np
import pytest

from helpers import third_party_envs as envs
from helpers.gymnasium_batches import make_batch
from hundredfold.core.errors import SettingsError
from hundredfold.envs.gymnasium_factory import GymnasiumFactory, GymnasiumSettings

SEED = 5


def by_id(env_id, num_envs=1, **kwargs):
    pairs = tuple(f"{key}={value}" for key, value in kwargs.items())
    return GymnasiumFactory(env_id, GymnasiumSettings(env_kwargs=pairs).keywords)(np.arange(num_envs))


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        ("is_slippery=false", {"is_slippery": False}),
        ("size=8", {"size": 8}),
        ("rate=0.5", {"rate": 0.5}),
        ("map_name=8x8", {"map_name": "8x8"}),
        ('map_name="8x8"', {"map_name": "8x8"}),
        ("desc=[1, 2]", {"desc": [1, 2]}),
        ("nothing=null", {"nothing": None}),
        ("text=", {"text": ""}),
        ("formula=a=b", {"formula": "a=b"}),
    ],
)
def test_env_kwargs_are_parsed_as_json_or_kept_as_text(pair, expected):
    assert GymnasiumSettings(env_kwargs=(pair,)).keywords == expected


@pytest.mark.parametrize("pair", ["is_slippery", "=3", "two words=3", "8x8=true", ""])
def test_env_kwargs_without_key_or_value_are_refused(pair):
    with pytest.raises(SettingsError, match="key=value"):
        GymnasiumSettings(env_kwargs=(pair,))


def test_env_kwargs_reach_the_env():
    assert by_id("FrozenLake-v1").spec.observation["observation"].categories == (16,)
    large = by_id("FrozenLake-v1", map_name="8x8", is_slippery="false")
    assert large.spec.observation["observation"].categories == (64,)
    large.reset(SEED)
    assert large.step(np.array([2])).observation["observation"].tolist() == [1]


def test_unknown_env_kwargs_are_refused():
    with pytest.raises(SettingsError, match=r"FrozenLake-v1.*'slippery'"):
        by_id("FrozenLake-v1", slippery="false")


def test_invalid_values_of_env_kwargs_are_refused():
    with pytest.raises(SettingsError, match=r"FrozenLake-v1.*9x9"):
        by_id("FrozenLake-v1", map_name="9x9")


def test_a_module_that_cannot_be_imported_is_refused():
    with pytest.raises(SettingsError, match="no_such_module"):
        by_id("no_such_module:Env-v0")


def test_an_env_is_named_after_its_id_or_its_class():
    assert by_id("FrozenLake-v1").spec.name == "FrozenLake-v1"
    assert make_batch(partial(gymnasium.make, "CartPole-v1"), 1).spec.name == "CartPole-v1"
    assert make_batch(lambda: gymnasium.wrappers.TimeLimit(envs.DiceEnv(), 3), 1).spec.name == "DiceEnv"
