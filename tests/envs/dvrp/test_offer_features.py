"""Features of offers: pair potentials against a plain implementation, pooling, independence."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from helpers.offers import NO_CHANGE, OFFER_MINUTES
from hundredfold.core import rng
from hundredfold.envs.dvrp import offer_features as features
from hundredfold.envs.dvrp.demand import ROUTES_CHILD
from hundredfold.envs.dvrp.env import Dvrp
from hundredfold.envs.dvrp.heuristics import RandomOffers
from hundredfold.envs.dvrp.offers import DEFAULT_OFFERS
from hundredfold.envs.dvrp.settings import DvrpSettings

SETTINGS = DvrpSettings(num_customers=8, observation="offers", cost_hint=True)


def env_after(requests, settings=SETTINGS, envs=12):
    env = Dvrp(np.arange(envs), settings)
    out = env.reset(3)
    offers = RandomOffers(1)
    for _ in range(requests):
        out = env.step(offers(out))
    return env


def plain_potentials(city, first, second):
    """Potentials of two trips, ((cells, windows), (cells, windows)), by trying all orders of stops."""
    travel, depot, service = city
    stops = [(cells[side], *windows[side]) for cells, windows in (first, second) for side in range(2)]
    alone = sum(
        travel[depot, cells[0]] + travel[cells[0], cells[1]] + travel[cells[1], depot] for cells, _ in (first, second)
    )
    direct = sum(travel[cells[0], cells[1]] for cells, _ in (first, second))
    found = np.zeros(6)
    for order in permutations(range(4)):
        if order.index(0) > order.index(1) or order.index(2) > order.index(3):
            continue
        cell, now, path = stops[order[0]][0], stops[order[0]][1], 0.0
        on_time = True
        for stop in order[1:]:
            leg = travel[cell, stops[stop][0]]
            cell, path, now = stops[stop][0], path + leg, max(stops[stop][1], now + service + leg)
            on_time &= now <= stops[stop][2] + 1e-9
        if not on_time:
            continue
        savings = alone - travel[depot, stops[order[0]][0]] - path - travel[cell, depot]
        found[0] = max(found[0], savings)
        if order == (0, 1, 2, 3):
            found[4] = max(0.0, 15.0 - travel[first[0][1], second[0][0]])
        elif order == (2, 3, 0, 1):
            found[5] = max(0.0, 15.0 - travel[second[0][1], first[0][0]])
        else:
            found[1:4] = np.maximum(found[1:4], [savings, direct - path, 10.0 - (path - direct)])
    return found


def potentials_of(env, first, second):
    city, found = env.offer_features.city, np.zeros(features.NUM_POTENTIALS)
    pair = features.new_pair.py_func()
    features.set_pair.py_func(city, first[0], *second, pair)
    features.pair_potentials.py_func(pair, first[1], city.service_minutes, found)
    return found


@pytest.mark.parametrize("service_minutes", [0.0, 3.0])
def test_pair_potentials_equal_a_plain_enumeration(service_minutes):
    env = Dvrp(np.arange(1), replace(SETTINGS, service_minutes=service_minutes))
    trips = env.population.trips
    chosen = np.random.default_rng(0).integers(0, len(trips.cells), (400, 2))
    some_shared = False
    for a, b in chosen:
        first, second = ((trips.cells[k], trips.windows[k]) for k in (a, b))
        expected = plain_potentials(env.offer_features.city, first, second)
        assert_allclose(potentials_of(env, first, second), expected, atol=1e-9)
        some_shared |= expected[1] > 0
    assert some_shared


def test_potentials_with_bookings_are_pooled_and_relative_to_no_change():
    env = env_after(5)
    state, out = env.true_state, env.out
    windows = DEFAULT_OFFERS.windows_of_all(state["requested_windows"][:, 5])
    for row in range(3):
        pooled = np.zeros((16, features.NUM_BOOKED))
        for offer in range(16):
            pairs = np.sort(
                [
                    potentials_of(
                        env,
                        (state["cells"][row, 5], windows[row, offer]),
                        (state["cells"][row, k], state["booked_windows"][row, k]),
                    )
                    for k in range(5)
                ],
                axis=0,
            )
            pooled[offer] = np.concatenate([pairs[-1], pairs[-2], pairs.sum(axis=0)])
        found = out.observation["offers"][row, :, features.NUM_BASIC : features.NUM_BASIC + features.NUM_BOOKED]
        assert_allclose(found, pooled - pooled[NO_CHANGE], atol=1e-3)
        in_context = out.observation["context"][row, features.NUM_REQUEST :][: features.NUM_BOOKED]
        assert_allclose(in_context, pooled[NO_CHANGE] / 10.0, atol=1e-3)


def test_basic_columns_hold_insertion_cost_shift_and_slack():
    env = env_after(4)
    out, state = env.out, env.true_state
    offers = out.observation["offers"]
    assert_allclose(offers[:, :, 0], out.observation["cost_hint"], rtol=1e-6)
    windows = DEFAULT_OFFERS.windows_of_all(state["requested_windows"][:, 4])
    rides = state["max_ride_minutes"][:, 4]
    keys = rng.spawn(env._episode_keys(), ROUTES_CHILD)
    search = (np.ones((12, 16), bool), keys)
    improved = env.route_costs.insertion_costs(state["cells"][:, 4], windows, rides, *search).improved
    assert_allclose(offers[:, :, 2], improved - improved[:, NO_CHANGE, None], rtol=1e-5, atol=1e-5)
    assert (offers[:, :, 2] != offers[:, :, 0]).any()
    for column in (0, 2):
        assert_allclose(offers[:, :, column + 1], np.minimum(offers[:, :, column], 0.0))
    assert_allclose(offers[:, :, 4:6], np.broadcast_to(OFFER_MINUTES / 10.0, (12, 16, 2)))
    # An earlier pickup and a later dropoff widen the time in between by the whole shift.
    widened = offers[:, :, 6:8] - offers[:, NO_CHANGE, None, 6:8]
    assert_allclose(widened, np.broadcast_to(OFFER_MINUTES.sum(axis=1)[None, :, None] / 30.0, (12, 16, 2)), atol=1e-5)


def test_offers_that_are_hardly_ever_accepted_have_no_features():
    env = env_after(4)
    expected = env.out.observation["offers"].copy()
    rates = np.ones_like(env.beliefs.accept_given_type[0])
    rates[..., [0, 5]] = 0.04
    rates[..., 6] = 0.05
    env.set_shared_params({"accept_given_type": rates})
    env.observe()
    expected[:, [0, 5]] = 0.0
    assert_array_equal(env.out.observation["offers"], expected)


def test_expected_future_requests_leave_out_customers_who_have_called():
    env = env_after(7)  # the last request of the day
    future = slice(features.NUM_BASIC + features.NUM_BOOKED, None)
    assert_array_equal(env.out.observation["offers"][:, :, future], 0.0)
    assert_array_equal(env.out.observation["context"][:, 6], 0.0)
    early = env_after(0)
    assert (early.out.observation["context"][:, 6] > 0).any()
    assert np.abs(early.out.observation["offers"][:, :, future]).max() > 0.1


def test_features_do_not_read_hidden_or_future_state():
    env = env_after(3)
    expected = {name: array.copy() for name, array in env.out.observation.items()}
    for name, array in env.true_state.items():
        if name in ("tolerance", "accepts", "type", "baseline_cost", "accepted", "offers"):
            array[...] = 0
        elif name in ("customer_id", "trip_id", "cells", "requested_windows"):
            array[:, 4:] = 0
    env.observe()
    for name in ("offers", "context"):
        assert_array_equal(env.out.observation[name], expected[name])


def test_final_observations_of_offers_are_zero():
    env = env_after(8)
    assert env.out.terminated.all()
    for name in ("offers", "context", "acceptance_hint", "shift_cost"):
        assert_array_equal(env.out.final_observation[name], 0.0)


def test_large_populations_are_represented_by_some_customers():
    env = Dvrp(np.arange(2), DvrpSettings(service="operator", observation="offers"))
    env.reset(0)
    assert env.offer_features.potentials.table.shape[2] == features.MAX_FUTURE_CUSTOMERS
    assert np.isfinite(env.out.observation["offers"]).all()


def test_envs_of_one_population_share_the_table_of_potentials():
    first, second = env_after(0), env_after(0)
    table = first.offer_features.potentials
    assert second.offer_features.potentials is table
    used = table.num_used
    first.reset(3)
    assert table.num_used == used
    env = env_after(0, replace(SETTINGS, service_minutes=2.0))
    assert env.offer_features.potentials is not table
