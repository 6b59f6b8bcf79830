"""Gymnasium envs by their ids: what may be said about them, and how they are made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
from gymnasium.wrappers import OrderEnforcing

from hundredfold.core.batch import IntArray
from hundredfold.core.errors import SettingsError
from hundredfold.worlds.gymnasium_world import Env, GymnasiumWorld


@dataclass(frozen=True, slots=True, kw_only=True)
class GymnasiumSettings:
    """How to make the env."""

    env_kwargs: tuple[str, ...] = ()
    """Arguments of the env as key=value, for example: is_slippery=false map_name=8x8"""

    seed_episodes: bool = True
    """Give every episode a seed of its own, so that it can be played again; otherwise only the
    first one, as Gymnasium's vector envs do: cheap envs with short episodes are faster that way"""

    @property
    def keywords(self) -> dict[str, Any]:
        """The arguments as Python values: JSON where it parses, plain text otherwise."""
        return dict(_parse_keyword(pair) for pair in self.env_kwargs)

    def __post_init__(self) -> None:
        for pair in self.env_kwargs:
            _parse_keyword(pair)


@dataclass(frozen=True, slots=True)
class GymnasiumFactory:
    """Makes a `GymnasiumWorld` from an env id; plain data, so it travels to worker processes."""

    env_id: str
    keywords: Mapping[str, Any]
    seed_episodes: bool = True

    def __call__(self, env_ids: IntArray) -> GymnasiumWorld:
        return GymnasiumWorld(env_ids, self.make_env, self.env_id, seed_episodes=self.seed_episodes)

    def make_env(self) -> Env:
        try:
            # The adapter checks every step itself; Gymnasium's passive checker would do it again.
            env = gymnasium.make(self.env_id, disable_env_checker=True, **self.keywords)
        except Exception as error:
            given = f" with {dict(self.keywords)}" if self.keywords else ""
            raise SettingsError(
                f"Gymnasium cannot make {self.env_id}{given}: {type(error).__name__}: {error}"
            ) from error
        return _without_order_check(env)


def _parse_keyword(pair: str) -> tuple[str, Any]:
    key, equals, text = pair.partition("=")
    if not equals or not key.isidentifier():
        raise SettingsError(
            f"env_kwargs got {pair!r}; write key=value, for example is_slippery=false."
        )
    try:
        return key, json.loads(text)
    except json.JSONDecodeError:
        return key, text


def _without_order_check(env: Env) -> Env:
    """The env without Gymnasium's check that a reset comes first: here it always does."""
    if isinstance(env, OrderEnforcing):
        return env.env
    if isinstance(env, gymnasium.Wrapper):
        env.env = _without_order_check(env.env)
    return env
