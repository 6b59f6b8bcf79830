"""Final costs under sampled future requests."""

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

NO_IMPROVEMENT = IncrementalSettings(improve_passes=0, lns_iterations=0)
NO_SEARCH = LNSParams(improve_passes=0, iterations=0, max_removed=4, infeasible_iterations=0)
SHORT_SEARCH = NO_SEARCH._replace(improve_passes=1, iterations=5, start_threshold=0.0)
UNSERVED_MINUTES = 200.0
SHIFTS = np.array([0.0, -10.0, 15.0])


def stream_keys(num_envs, scenarios=1):
    return rng.spawn(rng.stream_keys(3, np.arange(num_envs), 0)[:, None], range(scenarios))


def routes_with(problems, num_requests, room, settings=NO_IMPROVEMENT):
    present = IncrementalRoutes(problems.travel, problems.fleet, len(problems), num_requests + room, settings)
    for index in range(num_requests):
        add(present, problems, index)
    return present


def add(present, problems, index):
    return present.add(
        problems.cells[:, index],
        problems.windows[:, index],
        stream_keys(len(problems))[:, 0],
        max_ride_minutes=problems.max_ride_minutes[:, index],
    ).copy()


def request_of(problems, index):
    envs = len(problems)
    return NewRequests(
        problems.cells[:, index], np.ones(envs, np.int64), np.zeros((envs, 2)), problems.max_ride_minutes[:, index]
    )


def candidate_windows(problems, index):
    return problems.windows[:, index, None] + SHIFTS[:, None, None]


def all_trips(problems):
    """Every request of every instance."""
    return trip_table(
        problems.travel,
        problems.cells.reshape(-1, 2),
        problems.windows.reshape(-1, 2, 2),
        0.0,
        problems.max_ride_minutes.ravel(),
    )


def costs_under(present, problems, index, trips, search=NO_SEARCH, candidate_mask=None):
    """Final costs with request `index` and then these sampled trips (envs, scenarios, width)."""
    envs, scenarios, width = trips.shape
    return final_costs(
        present,
        request_of(problems, index),
        candidate_windows(problems, index),
        np.ones((envs, 3), bool) if candidate_mask is None else candidate_mask,
        all_trips(problems),
        SampledRequests(trips, np.full(envs, width)),
        search,
        stream_keys(envs, scenarios),
        UNSERVED_MINUTES,
    )


@pytest.fixture(params=[np.inf, 1.5], ids=["free", "limited"])
def problems(request):
    return random_instances(10, 9, seed=1, max_ride_factor=request.param)


def test_without_future_requests_the_final_cost_is_the_candidate_cost(problems):
    present = routes_with(problems, 6, 1)
    found = costs_under(present, problems, 6, np.zeros((10, 2, 0), np.int64))
    expected = present.candidate_costs(
        problems.cells[:, 6], candidate_windows(problems, 6), max_ride_minutes=problems.max_ride_minutes[:, 6]
    ).insertion
    served = np.isfinite(expected)
    assert served.any()
    for scenario in range(2):
        assert_allclose(found[..., scenario][served], expected[served], rtol=0, atol=1e-9)


def test_one_sampled_request_costs_the_same_as_adding_both_in_some_order(problems):
    later = np.arange(10) * 9 + 7  # each env's own eighth request
    found = costs_under(routes_with(problems, 6, 2), problems, 6, later.reshape(10, 1, 1))[:, 0, 0]
    request_then_sampled, sampled_then_request = (routes_with(problems, 6, 2), routes_with(problems, 6, 2))
    add(request_then_sampled, problems, 6)
    add(sampled_then_request, problems, 7)
    orders = np.stack([add(request_then_sampled, problems, 7), add(sampled_then_request, problems, 6)])
    assert np.isfinite(orders).all()
    assert (np.abs(orders - found) < 1e-9).any(axis=0).all()


def test_search_lowers_costs_and_leaves_the_present_routes_unchanged(problems):
    present = routes_with(problems, 4, 5)
    before = present.state()
    trips = np.random.default_rng(0).integers(0, 90, (10, 3, 4))
    plain = costs_under(present, problems, 4, trips)
    searched = costs_under(present, problems, 4, trips, SHORT_SEARCH)
    assert (searched <= plain + 1e-9).all()
    assert (searched < plain - 1e-9).any()
    for name, array in present.state().items():
        assert_array_equal(array, before[name])
    expected = routes_with(problems, 5, 4)
    assert_array_equal(add(present, problems, 4), expected.cost)


def test_costs_do_not_depend_on_threads_or_other_scenarios(problems):
    trips = np.random.default_rng(0).integers(0, 90, (10, 3, 4))
    together = costs_under(routes_with(problems, 4, 5), problems, 4, trips, SHORT_SEARCH)
    threaded = routes_with(problems, 4, 5, IncrementalSettings(improve_passes=0, lns_iterations=0, threads=3))
    assert_array_equal(costs_under(threaded, problems, 4, trips, SHORT_SEARCH), together)
    fewer = costs_under(routes_with(problems, 4, 5), problems, 4, trips[:, :1], SHORT_SEARCH)
    assert_array_equal(fewer, together[..., :1])


def test_masked_candidates_are_not_evaluated(problems):
    candidate_mask = np.zeros((10, 3), bool)
    candidate_mask[:, 1] = True
    trips = np.zeros((10, 1, 2), np.int64)
    found = costs_under(routes_with(problems, 4, 5), problems, 4, trips, candidate_mask=candidate_mask)
    all_costs = costs_under(routes_with(problems, 4, 5), problems, 4, trips)
    assert_array_equal(found[:, [0, 2]], 0.0)
    assert_array_equal(found[:, 1], all_costs[:, 1])


def test_unserved_requests_cost_a_fixed_number_of_minutes():
    problems = random_instances(4, 6, seed=2, fleet=Fleet(num_vehicles=1, capacity=1))
    same_time = np.broadcast_to(problems.windows[:, :1], problems.windows.shape)
    problems.windows[...] = same_time
    found = costs_under(routes_with(problems, 1, 5), problems, 1, np.zeros((4, 1, 4), np.int64))
    assert (found > UNSERVED_MINUTES).all()
    assert (found < 6 * UNSERVED_MINUTES).all()


def test_scenarios_that_do_not_fit_are_rejected(problems):
    with pytest.raises(ShapeError, match="do not fit"):
        costs_under(routes_with(problems, 4, 2), problems, 4, np.zeros((10, 1, 2), np.int64))
