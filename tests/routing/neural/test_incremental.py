"""Incremental routes of the neural oracle, alone and in the env."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from helpers.offers import NO_CHANGE
from hundredfold.core import rng
from hundredfold.core.errors import SettingsError
from hundredfold.envs.dvrp.env import Dvrp
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.routing.incremental import IncrementalRoutes, IncrementalSettings
from hundredfold.routing.instances import random_instances
from hundredfold.routing.neural.oracle import NeuralIncrementalRoutes, NeuralOracle, NeuralSettings
from hundredfold.routing.verifier import violations

DAYS = random_instances(6, 10, seed=1)
KEYS = rng.stream_keys(0, np.arange(len(DAYS)), 0)


def neural_routes(num_envs=6, **settings):
    oracle = NeuralOracle(NeuralSettings(improve_passes=1, **settings))
    return NeuralIncrementalRoutes(DAYS.travel, DAYS.fleet, num_envs, DAYS.max_requests, oracle)


def add_requests(routes, days=DAYS, keys=KEYS, requests=range(10), rows=None):
    for request in requests:
        routes.add(days.cells[:, request], days.windows[:, request], keys, rows=rows)
    return routes


def test_routes_are_verified_and_cost_at_most_the_policys():
    routes = add_requests(neural_routes())
    assert violations(DAYS, routes.solutions()) == []
    policy = NeuralOracle(NeuralSettings(improve_passes=1)).solve(DAYS)
    assert (routes.cost <= policy.cost).all()


def test_a_new_request_never_costs_more_than_by_insertion_alone():
    neural = add_requests(neural_routes(), requests=range(9))
    settings = IncrementalSettings(improve_passes=1, lns_iterations=0)
    plain = IncrementalRoutes(DAYS.travel, DAYS.fleet, len(DAYS), DAYS.max_requests, settings)
    plain.restore(neural.state())
    add_requests(plain, requests=[9])
    add_requests(neural, requests=[9])
    assert (neural.cost <= plain.cost).all()


def test_routes_do_not_depend_on_the_other_envs():
    together = add_requests(neural_routes(oracle_samples=2))
    for env in (0, 4):
        only = slice(env, env + 1)
        alone = add_requests(neural_routes(1, oracle_samples=2), DAYS.rows(only), KEYS[only])
        assert_array_equal(alone.routes[0], together.routes[env])
    some = neural_routes(oracle_samples=2)
    add_requests(some, rows=np.arange(len(DAYS)) % 2 == 0)
    assert_array_equal(some.routes[::2], together.routes[::2])
    assert_array_equal(some.num_requests[1::2], 0)


def episode_costs(num_envs, first=0, **settings):
    env = Dvrp(np.arange(first, first + num_envs), DvrpSettings(oracle="neural", num_customers=6, **settings))
    env.reset(3)
    costs = []
    for step in range(8):
        out = env.step(np.full(num_envs, 5 if step % 2 else NO_CHANGE))
        costs.append(out.info["cost"].copy())
    return np.array(costs)


def test_costs_in_the_env_do_not_depend_on_the_batch():
    together = episode_costs(4)
    assert_array_equal(episode_costs(2, first=2), together[:, 2:])
    assert_array_equal(episode_costs(4, oracle_batch=1, oracle_threads=2), together)


def test_reward_is_zero_without_offers():
    env = Dvrp(np.arange(3), DvrpSettings(oracle="neural", num_customers=5))
    env.reset(1)
    for _ in range(5):
        out = env.step(np.full(3, NO_CHANGE))
        assert_array_equal(out.reward, 0.0)
    assert_array_equal(out.episode_info["improvement_pct"], 0.0)


def test_a_restored_env_continues_identically():
    settings = DvrpSettings(oracle="neural", num_customers=6)
    env, other = Dvrp(np.arange(3), settings), Dvrp(np.arange(3), settings)
    env.reset(5)
    other.reset(6)
    env.step(np.full(3, 5))
    other.restore(env.state())
    offers = np.array([3, 12, 7])
    assert_array_equal(env.step(offers).reward, other.step(offers).reward)


def test_unknown_oracles_and_zero_batches_are_rejected():
    with pytest.raises(SettingsError, match="did you mean neural"):
        DvrpSettings(oracle="neutral")
    with pytest.raises(SettingsError, match="oracle_batch"):
        DvrpSettings(oracle_batch=0)
