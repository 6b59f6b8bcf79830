"""Built-in envs in RLlib, as vectorised batches and with action masks.

    from hundredfold.interop.rllib import module_spec, register

    register()
    config = (
        PPOConfig()
        .environment("hundredfold/CAGE2-v0")
        .env_runners(num_envs_per_env_runner=64, gym_env_vectorize_mode="vector_entry_point")
        .rl_module(rl_module_spec=module_spec("hundredfold/CAGE2-v0"))
    )

Settings of an env go into `env_config`, by name. `--engine rllib` is in `engine`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from hundredfold.distributed.placement import load_ray
from hundredfold.envs.registry import ENVS, canonical_name, env_factory, settings_class


def register() -> None:
    """Register the built-in envs with RLlib under their Gymnasium ids; call it once per program."""
    load_ray()
    from ray.tune.registry import register_env

    from hundredfold.interop.rllib.envs import make_env

    for name, entry in ENVS.items():
        register_env(entry.gymnasium_id, partial(make_env, name))


def module_spec(env: str, network: Any = None, **settings: Any) -> Any:
    """An RLModuleSpec for a built-in env: the default network, which applies action masks.

    Args:
        env: Name or Gymnasium id of the env.
        network: `NetworkSettings`; default: their defaults.
        settings: Settings of the env, as in `env_config`.
    """
    load_ray()
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec

    from hundredfold.algorithms.actor_critic import NetworkSettings
    from hundredfold.interop.rllib.module import ActorCriticModule

    name = canonical_name(env)
    batch_env = env_factory(name, settings_class(name)(**settings))(np.arange(1))
    batch_env.close()
    model = {"env": batch_env.spec, "network": network or NetworkSettings()}
    return RLModuleSpec(module_class=ActorCriticModule, model_config=model)
