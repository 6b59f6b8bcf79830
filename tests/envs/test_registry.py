"""Envs by name: built-in, Gymnasium ids, callables, unknown names."""

import pickle
from importlib import import_module

import gymnasium
import numpy as np
import pytest

from helpers.third_party_envs import DiceEnv
from helpers.trajectories import assert_same_trajectory, record_env_trajectory
from hundredfold.core.errors import SettingsError
from hundredfold.envs.cartpole import CartPole, CartPoleSettings
from hundredfold.envs.corridor import Corridor, CorridorSettings
from hundredfold.envs.gymnasium_env import GymnasiumBatchEnv
from hundredfold.envs.gymnasium_factory import GymnasiumSettings
from hundredfold.envs.registry import ENVS, FROM_CALLABLE, callable_factory, env_factory, settings_class


@pytest.mark.parametrize("name", ENVS)
def test_every_registry_entry_resolves(name):
    entry = ENVS[name]
    module = import_module(entry.module)
    env = getattr(module, entry.env)(np.arange(2), getattr(module, entry.settings)())
    assert env.spec.name == name
    assert entry.summary
    assert entry.gymnasium_id in gymnasium.registry
    env.reset(0)


@pytest.mark.parametrize(
    ("name", "settings", "env"),
    [
        ("corridor", CorridorSettings, Corridor),
        ("cartpole", CartPoleSettings, CartPole),
        ("CartPole-v1", GymnasiumSettings, GymnasiumBatchEnv),
        ("FrozenLake-v1", GymnasiumSettings, GymnasiumBatchEnv),
    ],
)
def test_names_resolve_to_settings_and_env(name, settings, env):
    assert settings_class(name) is settings
    made = env_factory(name, settings())(np.arange(3))
    assert isinstance(made, env)
    assert made.spec.name == name


def test_settings_reach_the_env():
    env = env_factory("corridor", CorridorSettings(length=9))(np.arange(1))
    assert env.spec.observation["cell"].categories == (9,)
    lake = env_factory("FrozenLake-v1", GymnasiumSettings(env_kwargs=("map_name=8x8",)))
    assert lake(np.arange(1)).spec.observation["observation"].categories == (64,)


@pytest.mark.parametrize("name", ["corridor", "cartpole", "CartPole-v1"])
def test_factories_can_be_pickled(name):
    factory = env_factory(name, settings_class(name)())
    unpickled = pickle.loads(pickle.dumps(factory))
    ids = np.arange(2)
    assert_same_trajectory(record_env_trajectory(unpickled(ids), 3, 10), record_env_trajectory(factory(ids), 3, 10))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("cartpol", "did you mean cartpole"),
        ("coridor", "did you mean corridor"),
        ("CartPole-v7", "CartPole-v1"),
        ("FrozenLake", "FrozenLake-v1"),
    ],
)
def test_an_unknown_env_is_refused_with_close_names(name, hint):
    for look_up in (settings_class, lambda name: env_factory(name, None)):
        with pytest.raises(SettingsError, match=f"no env called '{name}'") as refusal:
            look_up(name)
        assert hint in str(refusal.value)


def test_all_envs_are_listed_if_no_name_is_close():
    with pytest.raises(SettingsError) as refusal:
        settings_class("qqqqqqq")
    for name in (*ENVS, "Gymnasium id such as CartPole-v1"):
        assert name in str(refusal.value)


def test_ids_with_a_module_are_left_to_gymnasium():
    assert settings_class("some_package:Maze-v0") is GymnasiumSettings


def test_a_callable_makes_a_batch_env():
    env = callable_factory(DiceEnv)(np.arange(3))
    assert isinstance(env, GymnasiumBatchEnv)
    assert env.spec.name == "DiceEnv"
    assert len(env.reset(1)) == 3


def test_a_run_on_a_callable_asks_for_the_callable_again():
    name = f"{FROM_CALLABLE}make_maze"
    assert settings_class(name) is GymnasiumSettings
    with pytest.raises(SettingsError, match=r"make_maze\).*pass that function again"):
        env_factory(name, GymnasiumSettings())
