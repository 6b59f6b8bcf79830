"""Who is checked by the contract suites. A new env or backend adds its line here, no more.

Envs: a name and a function from env ids to an env, with settings under which episodes end
within a few dozen steps (or with `spec.episode_steps` set). Backends: a name and a function from a
env factory and a number of envs to a backend. Both must be picklable, since workers get them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from helpers import third_party_envs
from helpers.own_envs import Spotlight
from helpers.ray_pool import two_actors
from hundredfold.backends.in_process import InProcessBackend
from hundredfold.backends.processes.backend import FirstReadyBackend, ProcessBackend
from hundredfold.backends.serial import SerialBackend
from hundredfold.backends.settings import WorkerSettings
from hundredfold.envs.cage2.env import Cage2, Cage2Settings
from hundredfold.envs.cartpole import CartPole, CartPoleSettings
from hundredfold.envs.corridor import Corridor, CorridorSettings
from hundredfold.envs.dvrp.env import Dvrp, DvrpSettings
from hundredfold.envs.gymnasium_env import GymnasiumBatchEnv, GymnasiumFactory

ENV_CASES = {
    "corridor": partial(Corridor, settings=CorridorSettings(max_episode_steps=9)),
    "cartpole": partial(CartPole, settings=CartPoleSettings(max_episode_steps=25)),
    # With a ride limit and a day's end, some offers are forbidden.
    "dvrp": partial(
        Dvrp,
        settings=DvrpSettings(service="operator", num_customers=9, lns_iterations=1),
    ),
    "cage2": partial(Cage2, settings=Cage2Settings(horizons=(20,))),
    "CartPole-v1": GymnasiumFactory("CartPole-v1", {}),
    "FrozenLake-v1": GymnasiumFactory("FrozenLake-v1", {}),
    "masked_foreign": partial(GymnasiumBatchEnv, make_env=third_party_envs.MaskInInfo),
    "foreign_parts": partial(GymnasiumBatchEnv, make_env=third_party_envs.MultiDiscreteActions),
    "foreign_box": partial(GymnasiumBatchEnv, make_env=third_party_envs.UnevenBoxActions),
    "spotlight": Spotlight,
    "foreign_picture": partial(GymnasiumBatchEnv, make_env=third_party_envs.ImageAndVectorGoalEnv),
}


def two_workers(make_envs, num_envs, settings=None):
    """Two, however many cores there are, so that envs meet across workers."""
    settings = replace(settings or WorkerSettings(), workers=2)
    return ProcessBackend(make_envs, num_envs, settings)


def two_workers_first_ready(make_envs, num_envs, settings=None):
    """The smallest batches there are: whoever is ready, if it is a single env."""
    settings = replace(settings or WorkerSettings(), workers=2, batch_envs=1)
    return FirstReadyBackend(make_envs, num_envs, settings)


BACKEND_CASES = {
    "in_process": InProcessBackend,
    "serial": SerialBackend,
    "processes": two_workers,
    "first_ready": two_workers_first_ready,
    "ray": two_actors,
}
