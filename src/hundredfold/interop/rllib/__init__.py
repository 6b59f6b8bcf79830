"""Our worlds in RLlib, whole batches at a time, masks included.

    from hundredfold.interop.rllib import module_spec, register

    register()
    config = (
        PPOConfig()
        .environment("hundredfold/CAGE2-v0")
        .env_runners(num_envs_per_env_runner=64, gym_env_vectorize_mode="vector_entry_point")
        .rl_module(rl_module_spec=module_spec("hundredfold/CAGE2-v0"))
    )

Settings of a world go into `env_config`, by name.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from hundredfold.distributed.placement import load_ray
from hundredfold.envs.registry import WORLDS, own_name, settings_class, world_factory


def register() -> None:
    """Tell RLlib about our worlds, by the ids they have in Gymnasium; call it once per program."""
    load_ray()
    from ray.tune.registry import register_env

    from hundredfold.interop.rllib.envs import make_env

    for name, entry in WORLDS.items():
        register_env(entry.gymnasium_id, partial(make_env, name))


def module_spec(world: str, network: Any = None, **settings: Any) -> Any:
    """An RLModule for one of our worlds: our network, which knows the masks.

    `network` are `NetworkSettings`; settings of the world go by name, as in `env_config`.
    """
    load_ray()
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec

    from hundredfold.algorithms.actor_critic import NetworkSettings
    from hundredfold.interop.rllib.module import WorldModule

    name = own_name(world)
    made = world_factory(name, settings_class(name)(**settings))(np.arange(1))
    made.close()
    model = {"world": made.spec, "network": network or NetworkSettings()}
    return RLModuleSpec(module_class=WorldModule, model_config=model)
