"""The look-ahead policy and the routes it tracks."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from helpers.acceptance_models import KnownTypes, prior_model
from helpers.offers import NO_CHANGE, NUM_OFFERS, TOTAL_MINUTES
from hundredfold.core import rng
from hundredfold.core.errors import SettingsError
from hundredfold.envs.dvrp.demand import population_for
from hundredfold.envs.dvrp.env import Dvrp
from hundredfold.envs.dvrp.evaluation import simulate_days
from hundredfold.envs.dvrp.heuristics import RandomOffers, current_requests, policy_key, request_keys
from hundredfold.envs.dvrp.lookahead import (
    Lookahead,
    LookaheadSettings,
    PolicyLookahead,
    best_offers,
    prediction_futures,
)
from hundredfold.envs.dvrp.offers import DEFAULT_OFFERS
from hundredfold.envs.dvrp.policies import PolicyOptions
from hundredfold.envs.dvrp.route_costs import TrackedRoutes, day_problems
from hundredfold.envs.dvrp.sampled_futures import SampledFutures
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.routing.exact_oracle import ExactOracle

SETTINGS = DvrpSettings(num_customers=8, num_vehicles=3, lns_iterations=1)
QUICK = LookaheadSettings(samples=2, lns_iterations=1)


def env_after(requests, settings=SETTINGS, envs=20):
    env = Dvrp(np.arange(envs), settings)
    out = env.reset(5)
    offers = RandomOffers(2)
    for _ in range(requests):
        env.step(offers(out))
    return env


def lookahead(env, effort=QUICK, shift_penalty=None, rates=None):
    beliefs = prior_model(env.settings) if rates is None else KnownTypes(env.population, rates)
    return Lookahead(env.population, env.settings, beliefs, policy_key(1), effort, shift_penalty)


def equal_rates(rate=1.0):
    rates = np.full((4, 16), rate)
    rates[:, NO_CHANGE] = 1.0
    return rates


def test_a_tiny_day_is_decided_as_by_exact_enumeration():
    """Two booked, one current and one sampled request: all final costs can be solved exactly."""
    tiny = DvrpSettings(num_customers=4, num_vehicles=2, lns_iterations=0)
    env = env_after(2, tiny)
    rates = equal_rates(0.5)
    rates[:, 3] = 0.2
    policy = lookahead(env, LookaheadSettings(samples=1, lns_iterations=100), 0.01, rates)
    offers = policy(env.out)

    state, trips, out = env.true_state, env.population.trips, env.out
    requests = current_requests(out, env.population)
    keys = request_keys(policy.key, out, requests)
    sampled = policy.futures.sample_requests(state, keys).trips[:, 0, 0] // NUM_OFFERS
    cells = np.concatenate([state["cells"][:, :3], trips.cells[sampled][:, None]], axis=1)
    optimum = np.zeros((20, 16))
    for offer in range(16):
        windows = state["booked_windows"].copy()
        windows[:, 2] = DEFAULT_OFFERS.windows_of_all(requests.windows)[:, offer]
        windows[:, 3] = trips.windows[sampled]
        problems = day_problems(cells, windows, np.full((20, 4), np.inf), env.population, tiny)
        optimum[:, offer] = ExactOracle().solve(problems).cost
    found = policy.final_costs(out, requests, out.mask)[..., 0]
    assert np.isfinite(optimum).all()
    # A short search does not always find the optimum, but nearly always.
    gap = found - optimum
    assert gap.min() > -1e-6
    assert (gap < 1e-6).mean() > 0.8
    added = found - found[:, NO_CHANGE, None] + 0.01 * TOTAL_MINUTES
    expected_cost = np.where(out.mask, rates[0] * added, np.inf)
    chosen = expected_cost[np.arange(20), offers]
    assert_allclose(chosen, expected_cost.min(axis=1), rtol=0, atol=1e-6)
    assert (offers != NO_CHANGE).any()


def test_sampled_requests_are_known_trips_of_customers_without_a_request():
    env = env_after(3)
    policy = lookahead(env, LookaheadSettings(samples=50))
    requests = current_requests(env.out, env.population)
    keys = request_keys(policy.key, env.out, requests)
    sampled = policy.futures.sample_requests(env.true_state, keys)
    assert sampled.trips.shape == (20, 50, 4)
    assert_array_equal(sampled.number, 4)
    trips, offers = np.divmod(sampled.trips, NUM_OFFERS)
    assert_array_equal(offers, NO_CHANGE)
    population = env.population
    owner = np.repeat(np.arange(population.size), population.customers.num_trips)
    customers = owner[trips]
    number = trips - population.first_trip[customers]
    assert (customers < population.customers.num_known).all()
    assert (number < population.num_known_trips[customers]).all()
    for row in range(20):
        with_request = env.true_state["customer_id"][row, :4]
        assert not np.isin(customers[row], with_request).any()
        assert all(len(set(sample.tolist())) == 4 for sample in customers[row])
    # All other customers and trips occur.
    assert len(np.unique(customers)) == population.customers.num_known
    assert (trips[:, 0] != trips[:, 1]).any()


def test_sampled_requests_are_booked_in_the_given_shares():
    env = env_after(3, envs=60)
    futures = SampledFutures(env.population, SETTINGS, samples=40, lns_iterations=0)
    shares = np.zeros((len(env.population.trips.cells), NUM_OFFERS))
    shares[:, 3], shares[:, NO_CHANGE] = 0.25, 0.75
    shares[0] = 0.0
    shares[0, 7] = 2.0
    keys = rng.spawn(policy_key(4), np.arange(60))
    as_requested = futures.sample_requests(env.true_state, keys)
    trips, offers = np.divmod(futures.sample_requests(env.true_state, keys, shares.__getitem__).trips, NUM_OFFERS)
    assert_array_equal(trips, as_requested.trips // NUM_OFFERS)
    assert_array_equal(offers[trips == 0], 7)
    others = offers[trips != 0]
    assert set(others.tolist()) == {3, NO_CHANGE}
    assert abs((others == 3).mean() - 0.25) < 0.02


def test_lookahead_does_not_read_hidden_or_future_state():
    env = env_after(3)
    expected = lookahead(env)(env.out)
    for name in ("customer_id", "trip_id", "cells", "requested_windows", "type"):
        env.true_state[name][:, 4:] = env.true_state[name][:, 4:][::-1]
    for name in ("accepts", "tolerance", "type"):
        env.true_state[name][...] = 0
    assert_array_equal(lookahead(env)(env.out), expected)


@pytest.mark.parametrize("service", ["research", "operator"])
def test_forbidden_and_improbable_offers_are_never_made(service):
    settings = DvrpSettings(service=service, num_customers=8, lns_iterations=0, day_minutes=1100)
    env = env_after(0, settings)
    rates = equal_rates()
    rates[:, 8] = 0.05
    policy = lookahead(env, QUICK, shift_penalty=0.0, rates=rates)
    made = []
    for _ in range(8):
        offers = policy(env.out)
        assert env.out.mask[np.arange(20), offers].all()
        made.append(offers)
        env.step(offers)
    assert 8 not in np.unique(made)
    assert len(np.unique(made)) > 2


def test_a_larger_shift_penalty_makes_fewer_offers():
    beliefs = prior_model(SETTINGS)

    def days_at(penalty):
        options = PolicyOptions(beliefs=beliefs, lookahead=QUICK, shift_penalty=penalty)
        return simulate_days("lookahead", SETTINGS, 10, 3, options=options)[0]

    assert_array_equal(days_at(1e6).offers, NO_CHANGE)
    assert days_at(0.0).made.sum() > days_at(0.5).made.sum() > 0


def test_lookahead_is_reproducible_in_any_batch_size():
    options = PolicyOptions(beliefs=prior_model(SETTINGS), lookahead=QUICK)
    once, _ = simulate_days("lookahead", SETTINGS, 10, 3, options=options)
    again, _ = simulate_days("lookahead", SETTINGS, 10, 3, options=options)
    split, _ = simulate_days("lookahead", SETTINGS, 10, 3, num_envs=3, options=options)
    assert_array_equal(once.offers, again.offers)
    assert_array_equal(once.offers, split.offers)
    assert (once.offers != NO_CHANGE).any()


def test_lookahead_can_start_in_the_middle_of_a_day():
    env = env_after(0)
    policy = lookahead(env)
    for _ in range(5):
        expected = policy(env.out)
        assert_array_equal(lookahead(env)(env.out), expected)
        env.step(expected)


def test_tracked_routes_contain_the_bookings_and_restart_for_other_days():
    env = env_after(5)
    tracked = TrackedRoutes(env.population, SETTINGS, policy_key(0))

    def assert_in_sync():
        tracked.sync(env.out)
        assert_array_equal(tracked.routes.num_requests, env.true_state["num_booked"])
        booked = np.arange(8) < env.true_state["num_booked"][:, None]
        windows = tracked.routes.problems.windows
        assert_array_equal(windows[booked], env.true_state["booked_windows"][booked])

    assert_in_sync()
    env.step(np.full(20, NO_CHANGE))
    assert_in_sync()
    env.reset(6)
    for _ in range(6):
        env.step(np.full(20, NO_CHANGE))
    assert_in_sync()
    env = env_after(2, envs=7)
    assert_in_sync()


@pytest.mark.parametrize("wrong", [{"samples": 0}, {"lns_iterations": -1}, {"min_probability": 2.0}])
def test_lookahead_settings_out_of_bounds_are_rejected(wrong):
    with pytest.raises(SettingsError, match=f"{next(iter(wrong))} must be"):
        LookaheadSettings(**wrong)


# --- on top of a network


OFFERS = DvrpSettings(num_customers=8, num_vehicles=3, lns_iterations=1, observation="offers")


def policy_lookahead(env, costs, samples=2):
    predicted = np.broadcast_to(np.asarray(costs, float), (env.num_envs, 16))
    return PolicyLookahead(env.population, env.settings, lambda batch: predicted, samples, policy_key(1))


def test_the_best_offers_are_evaluated_and_no_change():
    allowed = np.ones((2, 16), bool)
    allowed[1, 3:] = False
    best = best_offers(DEFAULT_OFFERS, np.tile(np.arange(16.0), (2, 1)), allowed, 4)
    assert_array_equal(np.flatnonzero(best[0]), [0, 1, 2, 3, NO_CHANGE])
    assert_array_equal(np.flatnonzero(best[1]), [0, 1, 2, NO_CHANGE])


def test_lookahead_on_a_network_chooses_among_its_best_offers():
    env = env_after(4, OFFERS)
    costs = np.full(16, 50.0)
    costs[[13, 14, 15]], costs[NO_CHANGE] = -1.0, 0.0
    offers = policy_lookahead(env, costs)(env.out)
    assert set(offers.tolist()) <= {NO_CHANGE, 13, 14, 15}


def test_predictions_are_worth_fewer_futures_from_request_to_request():
    worth = prediction_futures(np.arange(8), 8)
    assert_allclose(worth[[0, -1]], [100.0, 25.0])
    assert (np.diff(worth) < 0.0).all()
    assert_allclose(prediction_futures(np.array([0]), 1), 100.0)


def test_predictions_and_futures_are_averaged_by_their_weights():
    env = env_after(4, OFFERS)
    reference = Lookahead(
        env.population,
        env.settings,
        KnownTypes(env.population, equal_rates()),
        policy_key(1),
        LookaheadSettings(samples=64),
    )
    requests = current_requests(env.out, env.population)
    evaluated = best_offers(DEFAULT_OFFERS, np.tile(np.arange(16.0), (20, 1)), env.out.mask, 3)
    costs = reference.final_costs(env.out, requests, evaluated).mean(axis=2)
    predicted = np.where(np.arange(16) < 3, -1.0, 100.0)
    predicted[NO_CHANGE] = 0.0
    weight = 64 / (64 + prediction_futures(np.array([4]), 8)[0])
    combined = weight * (costs - costs[:, NO_CHANGE, None]) + (1 - weight) * predicted
    expected = np.where(evaluated, combined + env.out.observation["shift_cost"], np.inf).argmin(axis=1)
    chosen = policy_lookahead(env, predicted, samples=64)(env.out)
    assert_array_equal(chosen, expected)
    assert len(set(chosen.tolist())) > 1
    sure = np.where(np.arange(16) == 2, -1e6, predicted)
    assert_array_equal(policy_lookahead(env, sure, samples=1)(env.out)[env.out.mask[:, 2]], 2)


def test_lookahead_on_a_network_does_not_depend_on_the_batch():
    def predicted(batch):
        return -batch.observation["offers"][:, :, 4]  # any function of the row

    def simulated(num_envs):
        population = population_for(OFFERS)
        policy = PolicyLookahead(population, OFFERS, predicted, 2, policy_key(1))
        return simulate_days(policy, OFFERS, 6, seed=3, num_envs=num_envs)[0]

    whole, parts = simulated(6), simulated(2)
    assert_array_equal(whole.offers, parts.offers)
    assert (whole.offers != NO_CHANGE).any()
