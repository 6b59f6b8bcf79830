"""Envs and backends that the contract suites check: a new one is added by a line here.

Envs are factories with settings under which episodes end within a few dozen steps (or with
`spec.episode_steps` set). Backends are functions of an env factory and a number of envs. Both must
be picklable, because they are sent to workers.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from helpers import third_party_envs
from helpers.batch_envs import Spotlight
from helpers.cage2_networks import SMALL_NETWORK
from helpers.ray_pool import two_actors
from hundredfold.backends.in_process import InProcessBackend, SerialBackend
from hundredfold.backends.processes.backend import FirstReadyBackend, ProcessBackend
from hundredfold.backends.settings import WorkerSettings
from hundredfold.envs.cage2.env import Cage2, Cage2Settings
from hundredfold.envs.cartpole import CartPole, CartPoleSettings
from hundredfold.envs.corridor import Corridor, CorridorSettings
from hundredfold.envs.dvrp.env import Dvrp, DvrpSettings
from hundredfold.envs.gymnasium_env import GymnasiumBatchEnv
from hundredfold.envs.gymnasium_factory import GymnasiumFactory

ENV_CASES = {
    "corridor": partial(Corridor, settings=CorridorSettings(max_episode_steps=9)),
    "cartpole": partial(CartPole, settings=CartPoleSettings(max_episode_steps=25)),
    # With a ride-time limit and an end of service, some offers are masked.
    "dvrp": partial(Dvrp, settings=DvrpSettings(service="operator", num_customers=9, lns_iterations=1)),
    "cage2": partial(Cage2, settings=Cage2Settings(horizons=(20,))),
    # A network and a red agent of the user's own.
    "cage2_own": partial(
        Cage2,
        settings=Cage2Settings(
            network_file=SMALL_NETWORK, red="helpers.cage2_reds:Meander", action_mask="sensible", horizons=(20,)
        ),
    ),
    "CartPole-v1": GymnasiumFactory("CartPole-v1", {}),
    "FrozenLake-v1": GymnasiumFactory("FrozenLake-v1", {}),
    "third_party_masked": partial(GymnasiumBatchEnv, make_env=third_party_envs.MaskInInfo),
    "third_party_multi_discrete": partial(GymnasiumBatchEnv, make_env=third_party_envs.MultiDiscreteActions),
    "third_party_box": partial(GymnasiumBatchEnv, make_env=third_party_envs.UnevenBoxActions),
    "spotlight": Spotlight,
    "third_party_image": partial(GymnasiumBatchEnv, make_env=third_party_envs.ImageAndVectorGoalEnv),
}


def two_workers(make_envs, num_envs, settings=None):
    """Two workers, however many cores there are."""
    settings = replace(settings or WorkerSettings(), workers=2)
    return ProcessBackend(make_envs, num_envs, settings)


def two_workers_first_ready(make_envs, num_envs, settings=None):
    """Two workers and the smallest batches: a single ready env is enough."""
    settings = replace(settings or WorkerSettings(), workers=2, batch_envs=1)
    return FirstReadyBackend(make_envs, num_envs, settings)


# Markers of tests that use a backend.
BACKEND_MARKS = {"processes": pytest.mark.process, "first_ready": pytest.mark.process, "ray": pytest.mark.ray}


def backend_param(*kinds):
    """A pytest parameter of backend names, with the markers of these backends."""
    marks = {kind: BACKEND_MARKS[kind] for kind in kinds if kind in BACKEND_MARKS}
    return pytest.param(*kinds, marks=list(marks.values()))


BACKEND_CASES = {
    "in_process": InProcessBackend,
    "serial": SerialBackend,
    "processes": two_workers,
    "first_ready": two_workers_first_ready,
    "ray": two_actors,
}
