"""The rule that plays the rest of the day in its head."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from helpers.believers import Sure, prior_believer
from hundredfold.core.errors import SettingsError
from hundredfold.envs.dvrp.env import Dvrp
from hundredfold.envs.dvrp.evaluation import PolicyOptions, simulate_days
from hundredfold.envs.dvrp.heuristics import call_keys, calling
from hundredfold.envs.dvrp.lookahead import Lookahead, LookaheadSettings
from hundredfold.envs.dvrp.offers import NO_CHANGE, TOTAL_MINUTES, windows_of_all_offers
from hundredfold.envs.dvrp.policies import RandomOffers, policy_key
from hundredfold.envs.dvrp.route_costs import TrackedRoutes, day_problems
from hundredfold.envs.dvrp.settings import DvrpSettings
from hundredfold.routing.exact_oracle import ExactOracle

SETTINGS = DvrpSettings(num_customers=8, num_vehicles=3, lns_iterations=1)
QUICK = LookaheadSettings(samples=2, search_rounds=1)


def env_after(calls, settings=SETTINGS, envs=20):
    batch_env = Dvrp(np.arange(envs), settings)
    out = batch_env.reset(5)
    offers = RandomOffers(2)
    for _ in range(calls):
        batch_env.step(offers(out))
    return batch_env


def lookahead(batch_env, thinks=QUICK, price=None, rates=None):
    beliefs = (
        prior_believer(batch_env.settings) if rates is None else Sure(batch_env.population, rates)
    )
    return Lookahead(
        batch_env.population, batch_env.settings, beliefs, policy_key(1), thinks, price
    )


def everything_known(chance=1.0):
    rates = np.full((4, 16), chance)
    rates[:, NO_CHANGE] = 1.0
    return rates


def test_a_tiny_day_is_decided_as_by_brute_force():
    """Two are booked, one calls, one is guessed: every offer's closing price can be proven."""
    tiny = DvrpSettings(num_customers=4, num_vehicles=2, lns_iterations=0)
    batch_env = env_after(2, tiny)
    rates = everything_known(0.5)
    rates[:, 3] = 0.2
    policy = lookahead(batch_env, LookaheadSettings(samples=1, search_rounds=100), 0.01, rates)
    offers = policy(batch_env.out)

    day, trips, out = batch_env.true_state, batch_env.population.trips, batch_env.out
    calls = calling(out, batch_env.population)
    keys = call_keys(policy.key, out, calls)
    guessed = policy.guesses(out, calls, keys).trips[:, 0, 0]
    cells = np.concatenate([day["cells"][:, :3], trips.cells[guessed][:, None]], axis=1)
    price = np.zeros((20, 16))
    for offer in range(16):
        windows = day["booked_windows"].copy()
        windows[:, 2] = windows_of_all_offers(calls.windows)[:, offer]
        windows[:, 3] = trips.windows[guessed]
        books = day_problems(cells, windows, np.full((20, 4), np.inf), batch_env.population, tiny)
        price[:, offer] = ExactOracle().solve(books).cost
    found = policy.final_costs(out, calls, out.mask)[..., 0]
    assert np.isfinite(price).all()
    # A short search is no proof: never below the optimum, and nearly always on it.
    above = found - price
    assert above.min() > -1e-6
    assert (above < 1e-6).mean() > 0.8
    gain = found - found[:, NO_CHANGE, None] + 0.01 * TOTAL_MINUTES
    worth = np.where(out.mask, rates[0] * gain, np.inf)
    assert_allclose(worth[np.arange(20), offers], worth.min(axis=1), rtol=0, atol=1e-6)
    assert (offers != NO_CHANGE).any()


def test_guesses_are_trips_of_known_people_who_have_not_called():
    batch_env = env_after(3)
    policy = lookahead(batch_env, LookaheadSettings(samples=50))
    calls = calling(batch_env.out, batch_env.population)
    keys = call_keys(policy.key, batch_env.out, calls)
    guesses = policy.guesses(batch_env.out, calls, keys)
    assert guesses.trips.shape == (20, 50, 4)
    assert_array_equal(guesses.number, 4)
    population = batch_env.population
    person = np.repeat(np.arange(population.size), population.customers.num_trips)
    people = person[guesses.trips]
    number = guesses.trips - population.first_trip[people]
    assert (people < population.customers.num_known).all()
    assert (number < population.num_known_trips[people]).all()
    for env in range(20):
        called = batch_env.true_state["customer_id"][env, :4]
        assert not np.isin(people[env], called).any()
        assert all(len(set(guess.tolist())) == 4 for guess in people[env])
    # Everybody who is left has a chance, and so has every trip.
    assert len(np.unique(people)) == population.customers.num_known
    assert (guesses.trips[:, 0] != guesses.trips[:, 1]).any()


def test_the_day_that_will_really_come_is_not_looked_at():
    batch_env = env_after(3)
    expected = lookahead(batch_env)(batch_env.out)
    for name in ("customer_id", "trip_id", "cells", "requested_windows", "type"):
        batch_env.true_state[name][:, 4:] = batch_env.true_state[name][:, 4:][::-1]
    for name in ("accepts", "tolerance", "type"):
        batch_env.true_state[name][...] = 0
    assert_array_equal(lookahead(batch_env)(batch_env.out), expected)


@pytest.mark.parametrize("kind", ["research", "operator"])
def test_forbidden_and_hopeless_offers_are_never_made(kind):
    settings = DvrpSettings(service=kind, num_customers=8, lns_iterations=0, day_minutes=1100)
    batch_env = env_after(0, settings)
    rates = everything_known()
    rates[:, 8] = 0.05
    policy = lookahead(batch_env, QUICK, price=0.0, rates=rates)
    made = []
    for _ in range(8):
        offers = policy(batch_env.out)
        assert batch_env.out.mask[np.arange(20), offers].all()
        made.append(offers)
        batch_env.step(offers)
    assert 8 not in np.unique(made)
    assert len(np.unique(made)) > 2


def test_a_huge_price_silences_it_and_no_price_does_not():
    beliefs = prior_believer(SETTINGS)

    def offers_at(price):
        options = PolicyOptions(beliefs=beliefs, lookahead=QUICK, shift_penalty=price)
        return simulate_days("lookahead", SETTINGS, 10, 3, options=options)[0]

    assert_array_equal(offers_at(1e6).offers, NO_CHANGE)
    free, dear = offers_at(0.0), offers_at(0.5)
    assert free.made.sum() > dear.made.sum() > 0


def test_it_repeats_and_batches_do_not_matter():
    options = PolicyOptions(beliefs=prior_believer(SETTINGS), lookahead=QUICK)
    once, _ = simulate_days("lookahead", SETTINGS, 10, 3, options=options)
    again, _ = simulate_days("lookahead", SETTINGS, 10, 3, options=options)
    apart, _ = simulate_days("lookahead", SETTINGS, 10, 3, num_envs=3, options=options)
    assert_array_equal(once.offers, again.offers)
    assert_array_equal(once.offers, apart.offers)
    assert (once.offers != NO_CHANGE).any()


def test_it_takes_up_a_day_wherever_it_stands():
    batch_env = env_after(0)
    steady = lookahead(batch_env)
    for _ in range(5):
        expected = steady(batch_env.out)
        assert_array_equal(lookahead(batch_env)(batch_env.out), expected)
        batch_env.step(expected)


def test_followed_plans_hold_what_was_booked_and_forget_other_days():
    batch_env = env_after(5)
    plans = TrackedRoutes(batch_env.population, SETTINGS, policy_key(0))

    def assert_followed():
        plans.follow(batch_env.out)
        assert_array_equal(plans.kept.num_requests, batch_env.true_state["num_booked"])
        booked = np.arange(8) < batch_env.true_state["num_booked"][:, None]
        assert_array_equal(
            plans.kept.problems.windows[booked], batch_env.true_state["booked_windows"][booked]
        )

    assert_followed()
    batch_env.step(np.full(20, NO_CHANGE))
    assert_followed()
    batch_env.reset(6)
    for _ in range(6):
        batch_env.step(np.full(20, NO_CHANGE))
    assert_followed()
    batch_env = env_after(2, envs=7)
    assert_followed()


@pytest.mark.parametrize("wrong", [{"samples": 0}, {"search_rounds": -1}, {"least_chance": 2.0}])
def test_impossible_thinking_is_refused(wrong):
    with pytest.raises(SettingsError, match="lookahead needs"):
        LookaheadSettings(**wrong)
