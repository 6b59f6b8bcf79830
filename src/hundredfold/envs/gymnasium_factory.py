"""Settings and factory of Gymnasium envs that are made by their id."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
from gymnasium.wrappers import OrderEnforcing

from hundredfold.core.batch import IntArray
from hundredfold.core.errors import SettingsError, describe_exception
from hundredfold.envs.atari import AtariFrames, register_atari
from hundredfold.envs.gymnasium_env import Env, GymnasiumBatchEnv
from hundredfold.envs.gymnasium_spaces import PrivilegedKeys
from hundredfold.envs.registry import ATARI


@dataclass(frozen=True, slots=True, kw_only=True)
class GymnasiumSettings:
    """Settings of a Gymnasium env."""

    env_kwargs: tuple[str, ...] = ()
    """Keyword arguments of the env as key=value, for example: is_slippery=false map_name=8x8"""

    seed_episodes: bool = True
    """Reset every episode with a seed of its own, so that any episode can be reproduced; otherwise
    only the first one, as Gymnasium's vector envs do, which is faster for cheap, short episodes"""

    atari: bool = False
    """Usual preprocessing of Atari games (ids ALE/...; extra: atari): actions repeated for 4 frames,
    the last 4 of these frames in grey and 84 x 84 pixels, up to 30 steps without an action at first"""

    privileged_keys: tuple[str, ...] = ()
    """Keys of a Dict observation or of the info that the policy does not see; with --critic
    privileged the value function does, in training"""

    def privileged(self, observed: bool) -> PrivilegedKeys:
        """The privileged keys, as observed by the value function or left out."""
        if observed and not self.privileged_keys:
            raise SettingsError(
                "--critic privileged needs --privileged-keys: keys of the env's Dict observation or of its info that "
                "only the value function sees."
            )
        return PrivilegedKeys(self.privileged_keys, observed)

    @property
    def keywords(self) -> dict[str, Any]:
        """`env_kwargs` as Python values: parsed as JSON if possible, strings otherwise."""
        return dict(_parse_keyword(pair) for pair in self.env_kwargs)

    def __post_init__(self) -> None:
        for pair in self.env_kwargs:
            _parse_keyword(pair)


@dataclass(frozen=True, slots=True)
class GymnasiumFactory:
    """Creates a `GymnasiumBatchEnv` by Gymnasium id; plain data, so workers can unpickle it."""

    env_id: str
    keywords: Mapping[str, Any]
    seed_episodes: bool = True
    privileged: PrivilegedKeys | None = None
    atari: bool = False

    def __call__(self, env_ids: IntArray) -> GymnasiumBatchEnv:
        return GymnasiumBatchEnv(
            env_ids, self.make_env, self.env_id, seed_episodes=self.seed_episodes, privileged=self.privileged
        )

    def make_env(self) -> Env:
        if self.env_id.startswith(ATARI):
            register_atari()
        keywords = {**self.keywords, **({"frameskip": 1} if self.atari else {})}
        try:
            # Every step is checked here; Gymnasium's passive checker would repeat that.
            env = gymnasium.make(self.env_id, disable_env_checker=True, **keywords)
        except Exception as error:
            given = f" with {dict(self.keywords)}" if self.keywords else ""
            raise SettingsError(f"Gymnasium cannot create {self.env_id}{given}: {describe_exception(error)}") from error
        env = _without_order_check(env)
        return AtariFrames(env) if self.atari else env


def _parse_keyword(pair: str) -> tuple[str, Any]:
    key, equals, text = pair.partition("=")
    if not equals or not key.isidentifier():
        raise SettingsError(f"env_kwargs got {pair!r}; write key=value, for example is_slippery=false.")
    try:
        return key, json.loads(text)
    except json.JSONDecodeError:
        return key, text


def _without_order_check(env: Env) -> Env:
    """The env without Gymnasium's `OrderEnforcing` wrapper: here reset always comes first."""
    if isinstance(env, OrderEnforcing):
        return env.env
    if isinstance(env, gymnasium.Wrapper):
        env.env = _without_order_check(env.env)
    return env
