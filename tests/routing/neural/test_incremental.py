"""Kept plans with a policy, alone and in the env."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from hundredfold.core import rng
from hundredfold.core.errors import SettingsError
from hundredfold.envs.dvrp.env import Dvrp
from hundredfold.envs.dvrp.offers import NO_CHANGE
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.routing.incremental import IncrementalRoutes, IncrementalSettings
from hundredfold.routing.instances import random_instances
from hundredfold.routing.neural.oracle import NeuralKeptPlans, NeuralOracle, NeuralSettings
from hundredfold.routing.verifier import violations

DAYS = random_instances(6, 10, seed=1)
KEYS = rng.stream_keys(0, np.arange(len(DAYS)), 0)


def neural_plans(num_envs=6, **settings):
    oracle = NeuralOracle(NeuralSettings(improve_passes=1, **settings))
    return NeuralKeptPlans(DAYS.travel, DAYS.fleet, num_envs, DAYS.max_requests, oracle)


def book(plans, days=DAYS, keys=KEYS, calls=range(10), rows=None):
    for call in calls:
        plans.add(days.cells[:, call], days.windows[:, call], keys, rows=rows)
    return plans


def test_plans_are_verified_and_no_dearer_than_the_policy_says():
    plans = book(neural_plans())
    assert violations(DAYS, plans.solutions()) == []
    policy = NeuralOracle(NeuralSettings(improve_passes=1)).solve(DAYS)
    assert (plans.cost <= policy.cost).all()


def test_one_more_request_is_never_priced_above_putting_it_in():
    neural = book(neural_plans(), calls=range(9))
    settings = IncrementalSettings(improve_passes=1, lns_iterations=0)
    plain = IncrementalRoutes(DAYS.travel, DAYS.fleet, len(DAYS), DAYS.max_requests, settings)
    plain.restore(neural.state())
    book(plain, calls=[9])
    book(neural, calls=[9])
    assert (neural.cost <= plain.cost).all()


def test_a_plan_does_not_depend_on_who_else_is_there():
    together = book(neural_plans(oracle_samples=2))
    for env in (0, 4):
        only = slice(env, env + 1)
        alone = book(neural_plans(1, oracle_samples=2), DAYS.rows(only), KEYS[only])
        assert_array_equal(alone.routes[0], together.routes[env])
    some = neural_plans(oracle_samples=2)
    book(some, rows=np.arange(len(DAYS)) % 2 == 0)
    assert_array_equal(some.routes[::2], together.routes[::2])
    assert_array_equal(some.num_requests[1::2], 0)


def played(num_envs, first=0, **settings):
    env = Dvrp(
        np.arange(first, first + num_envs),
        DvrpSettings(oracle="neural", num_customers=6, **settings),
    )
    env.reset(3)
    prices = []
    for step in range(8):
        out = env.step(np.full(num_envs, 5 if step % 2 else NO_CHANGE))
        prices.append(out.info["cost"].copy())
    return np.array(prices)


def test_the_env_tells_the_same_story_in_any_batch():
    together = played(4)
    assert_array_equal(played(2, first=2), together[:, 2:])
    assert_array_equal(played(4, oracle_batch=1, oracle_threads=2), together)


def test_offering_nothing_earns_nothing():
    env = Dvrp(np.arange(3), DvrpSettings(oracle="neural", num_customers=5))
    env.reset(1)
    for _ in range(5):
        out = env.step(np.full(3, NO_CHANGE))
        assert_array_equal(out.reward, 0.0)
    assert_array_equal(out.episode_info["improvement_pct"], 0.0)


def test_a_snapshot_of_the_env_goes_on_alike():
    settings = DvrpSettings(oracle="neural", num_customers=6)
    env, other = Dvrp(np.arange(3), settings), Dvrp(np.arange(3), settings)
    env.reset(5)
    other.reset(6)
    env.step(np.full(3, 5))
    other.restore(env.state())
    offers = np.array([3, 12, 7])
    assert_array_equal(env.step(offers).reward, other.step(offers).reward)


def test_unknown_oracles_and_empty_batches_are_refused():
    with pytest.raises(SettingsError, match="did you mean neural"):
        DvrpSettings(oracle="neutral")
    with pytest.raises(SettingsError, match="oracle_batch"):
        DvrpSettings(oracle_batch=0)
