"""Days brought to their end in several ways: what a request may come to cost."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from hundredfold.core import rng
from hundredfold.core.errors import ShapeError
from hundredfold.routing.incremental import IncrementalRoutes, IncrementalSettings
from hundredfold.routing.instance_arrays import NewRequests
from hundredfold.routing.instances import random_instances
from hundredfold.routing.lns import LNSParams
from hundredfold.routing.problem import Fleet
from hundredfold.routing.scenario_costs import SampledRequests, final_costs, trip_table

PLAIN = IncrementalSettings(improve_passes=0, lns_iterations=0)
NO_SEARCH = LNSParams(improve_passes=0, iterations=0, max_removed=4, infeasible_iterations=0)
SHORT_SEARCH = NO_SEARCH._replace(improve_passes=1, iterations=5, start_threshold=0.0)
LEFT_OUT = 200.0
SHIFTS = np.array([0.0, -10.0, 15.0])


def keys_of(num_envs, guesses=1):
    return rng.spawn(rng.stream_keys(3, np.arange(num_envs), 0)[:, None], range(guesses))


def plans_of(days, booked, room, settings=PLAIN):
    kept = IncrementalRoutes(days.travel, days.fleet, len(days), booked + room, settings)
    for place in range(booked):
        add(kept, days, place)
    return kept


def add(kept, days, place):
    return kept.add(
        days.cells[:, place],
        days.windows[:, place],
        keys_of(len(days))[:, 0],
        max_ride_minutes=days.max_ride_minutes[:, place],
    ).copy()


def request_of(days, place):
    envs = len(days)
    return NewRequests(
        days.cells[:, place],
        np.ones(envs, np.int64),
        np.zeros((envs, 2)),
        days.max_ride_minutes[:, place],
    )


def candidates(days, place):
    return days.windows[:, place, None] + SHIFTS[:, None, None]


def table_of(days):
    """Every request of every day, day after day."""
    return trip_table(
        days.travel,
        days.cells.reshape(-1, 2),
        days.windows.reshape(-1, 2, 2),
        0.0,
        days.max_ride_minutes.ravel(),
    )


def rolled(kept, days, place, trips, search=NO_SEARCH, wanted=None):
    """Prices with request `place`, and then these guessed trips (envs, guesses, width)."""
    envs, guesses, width = trips.shape
    return final_costs(
        kept,
        request_of(days, place),
        candidates(days, place),
        np.ones((envs, 3), bool) if wanted is None else wanted,
        table_of(days),
        SampledRequests(trips, np.full(envs, width)),
        search,
        keys_of(envs, guesses),
        LEFT_OUT,
    )


@pytest.fixture(params=[np.inf, 1.5], ids=["free", "limited"])
def days(request):
    return random_instances(10, 9, seed=1, max_ride_factor=request.param)


def test_the_last_request_costs_what_putting_it_in_costs(days):
    kept = plans_of(days, 6, 1)
    found = rolled(kept, days, 6, np.zeros((10, 2, 0), np.int64))
    expected = kept.candidate_costs(
        days.cells[:, 6], candidates(days, 6), max_ride_minutes=days.max_ride_minutes[:, 6]
    )
    served = np.isfinite(expected)
    assert served.any()
    for guess in range(2):
        assert_allclose(found[..., guess][served], expected[served], rtol=0, atol=1e-9)


def test_one_guess_costs_what_booking_both_costs_in_one_order_or_the_other(days):
    later = np.arange(10) * 9 + 7  # everybody's own eighth request
    found = rolled(plans_of(days, 6, 2), days, 6, later.reshape(10, 1, 1))[:, 0, 0]
    request_first, guess_first = plans_of(days, 6, 2), plans_of(days, 6, 2)
    add(request_first, days, 6)
    add(guess_first, days, 7)
    orders = np.stack([add(request_first, days, 7), add(guess_first, days, 6)])
    assert np.isfinite(orders).all()
    assert (np.abs(orders - found) < 1e-9).any(axis=0).all()


def test_searching_makes_days_cheaper_and_leaves_the_plans_as_they_are(days):
    kept = plans_of(days, 4, 5)
    before = kept.state()
    trips = np.random.default_rng(0).integers(0, 90, (10, 3, 4))
    plain = rolled(kept, days, 4, trips)
    searched = rolled(kept, days, 4, trips, SHORT_SEARCH)
    assert (searched <= plain + 1e-9).all()
    assert (searched < plain - 1e-9).any()
    for name, array in kept.state().items():
        assert_array_equal(array, before[name])
    expected = plans_of(days, 5, 4)
    assert_array_equal(add(kept, days, 4), expected.cost)


def test_prices_depend_on_nothing_but_the_row(days):
    trips = np.random.default_rng(0).integers(0, 90, (10, 3, 4))
    together = rolled(plans_of(days, 4, 5), days, 4, trips, SHORT_SEARCH)
    threaded = plans_of(
        days, 4, 5, IncrementalSettings(improve_passes=0, lns_iterations=0, threads=3)
    )
    assert_array_equal(rolled(threaded, days, 4, trips, SHORT_SEARCH), together)
    fewer = rolled(plans_of(days, 4, 5), days, 4, trips[:, :1], SHORT_SEARCH)
    assert_array_equal(fewer, together[..., :1])


def test_candidates_that_nobody_wants_are_not_priced(days):
    wanted = np.zeros((10, 3), bool)
    wanted[:, 1] = True
    trips = np.zeros((10, 1, 2), np.int64)
    found = rolled(plans_of(days, 4, 5), days, 4, trips, wanted=wanted)
    everything = rolled(plans_of(days, 4, 5), days, 4, trips)
    assert_array_equal(found[:, [0, 2]], 0.0)
    assert_array_equal(found[:, 1], everything[:, 1])


def test_whoever_fits_nowhere_has_a_price():
    days = random_instances(4, 6, seed=2, fleet=Fleet(num_vehicles=1, capacity=1))
    same_time = np.broadcast_to(days.windows[:, :1], days.windows.shape)
    days.windows[...] = same_time
    found = rolled(plans_of(days, 1, 5), days, 1, np.zeros((4, 1, 4), np.int64))
    assert (found > LEFT_OUT).all()
    assert (found < 6 * LEFT_OUT).all()


def test_guesses_that_do_not_fit_into_the_book_are_refused(days):
    with pytest.raises(ShapeError, match="do not fit"):
        rolled(plans_of(days, 4, 2), days, 4, np.zeros((10, 1, 2), np.int64))
