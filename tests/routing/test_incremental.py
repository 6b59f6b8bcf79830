"""Incremental routes: one request per env and step; a solution depends on its own env alone."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from hundredfold.core import rng
from hundredfold.core.errors import CheckpointError, SettingsError, ShapeError
from hundredfold.routing.incremental import IncrementalRoutes, IncrementalSettings
from hundredfold.routing.instances import random_instances
from hundredfold.routing.lns_oracle import LNSOracle, LNSSettings
from hundredfold.routing.problem import Fleet, TravelTable
from hundredfold.routing.verifier import violations

NO_IMPROVEMENT = IncrementalSettings(improve_passes=0, lns_iterations=0)


def stream_keys(num_envs):
    return rng.stream_keys(5, np.arange(num_envs), 0)


def empty_routes(problems, settings=None, max_requests=None):
    return IncrementalRoutes(
        problems.travel, problems.fleet, len(problems), max_requests or problems.max_requests, settings
    )


def add_requests(incremental, problems, steps, keys=None, rows=None):
    keys = stream_keys(len(problems)) if keys is None else keys
    for step in steps:
        incremental.add(
            problems.cells[:, step],
            problems.windows[:, step],
            keys,
            riders=problems.riders[:, step],
            max_ride_minutes=problems.max_ride_minutes[:, step],
            rows=rows,
        )
    return incremental


def assert_same_solutions(one, two):
    assert_array_equal(one.cost, two.cost)
    assert_array_equal(one.routes, two.routes)
    assert_array_equal(one.vehicle, two.vehicle)
    assert_array_equal(one.stop_minutes, two.stop_minutes)


@pytest.fixture(params=[np.inf, 1.5], ids=["free", "limited"])
def problems(request):
    return random_instances(12, 14, seed=1, max_ride_factor=request.param)


def test_every_intermediate_solution_passes_the_verifier(problems):
    incremental = empty_routes(problems)
    for step in range(problems.max_requests):
        add_requests(incremental, problems, [step])
        assert violations(incremental.problems, incremental.solutions()) == []
        assert_array_equal(incremental.solutions().cost, incremental.cost)
        assert_array_equal(incremental.num_requests, step + 1)


def test_final_costs_are_near_those_of_a_search_from_scratch():
    problems = random_instances(64, 30, seed=2)
    incremental = add_requests(empty_routes(problems), problems, range(30))
    scratch = LNSOracle(LNSSettings(final_restarts=1)).solve(problems)
    gap = 100.0 * (incremental.cost.mean() / scratch.cost.mean() - 1.0)
    assert gap < 1.5


def test_solutions_do_not_depend_on_batch_or_threads(problems):
    together = add_requests(empty_routes(problems), problems, range(14))
    threads = add_requests(empty_routes(problems, IncrementalSettings(threads=2)), problems, range(14))
    assert_same_solutions(together, threads)
    some = np.array([7, 2, 11])
    few = add_requests(empty_routes(problems.rows(some)), problems.rows(some), range(14), stream_keys(12)[some])
    assert_array_equal(few.cost, together.cost[some])
    assert_array_equal(few.routes, together.routes[some])


def test_rows_not_selected_stay_unchanged(problems):
    incremental = add_requests(empty_routes(problems), problems, range(5))
    before = incremental.cost.copy()
    odd = np.arange(12) % 2 == 1
    add_requests(incremental, problems, [5], rows=odd)
    assert_array_equal(incremental.cost[~odd], before[~odd])
    assert_array_equal(incremental.num_requests, np.where(odd, 6, 5))
    add_requests(incremental, problems, [5], rows=~odd)
    assert_same_solutions(incremental, add_requests(empty_routes(problems), problems, range(6)))


def test_a_cleared_row_starts_empty(problems):
    incremental = add_requests(empty_routes(problems), problems, range(8))
    first = np.arange(12) == 0
    incremental.clear(first)
    assert incremental.cost[0] == 0.0
    assert incremental.vehicles_used[0] == 0
    assert (incremental.vehicle[0] == -1).all()
    add_requests(incremental, problems, range(8), rows=first)
    assert_same_solutions(incremental, add_requests(empty_routes(problems), problems, range(8)))


def test_restoring_a_state_continues_bit_for_bit(problems):
    incremental = add_requests(empty_routes(problems), problems, range(7))
    state = incremental.state()
    assert all(len(array) == 12 for array in state.values())
    add_requests(incremental, problems, range(7, 14))
    other = empty_routes(problems)
    other.restore(state)
    assert_same_solutions(incremental, add_requests(other, problems, range(7, 14)))


def test_a_state_of_another_size_is_rejected(problems):
    state = add_requests(empty_routes(problems), problems, range(2)).state()
    with pytest.raises(CheckpointError):
        empty_routes(problems.rows(slice(0, 5))).restore(state)


def test_candidate_costs_equal_the_costs_after_adding(problems):
    incremental = add_requests(empty_routes(problems), problems, range(9))
    shifts = np.array([0.0, -30.0, -10.0, 20.0])
    candidates = problems.windows[:, 9, None] + shifts[None, :, None, None]
    ride = problems.max_ride_minutes[:, 9]
    before = incremental.state()
    found = incremental.candidate_costs(problems.cells[:, 9], candidates, max_ride_minutes=ride).insertion
    for name, array in incremental.state().items():
        assert_array_equal(array, before[name])
    for candidate in range(len(shifts)):
        trial = empty_routes(problems, NO_IMPROVEMENT)
        trial.restore(before)
        trial.add(problems.cells[:, 9], candidates[:, candidate], stream_keys(12), max_ride_minutes=ride)
        assert_array_equal(found[:, candidate], trial.cost)


def test_candidate_costs_do_not_depend_on_threads_or_rows(problems):
    incremental = add_requests(empty_routes(problems), problems, range(9))
    threads = add_requests(empty_routes(problems, IncrementalSettings(threads=2)), problems, range(9))
    candidates = np.repeat(problems.windows[:, 9, None], 16, axis=1)
    improved = np.ones((12, 16), bool)
    odd = np.arange(12) % 2 == 1
    search = {"improved": improved, "keys": stream_keys(12)}
    found = incremental.candidate_costs(problems.cells[:, 9], candidates, **search)
    parallel = threads.candidate_costs(problems.cells[:, 9], candidates, **search)
    some = incremental.candidate_costs(problems.cells[:, 9], candidates, rows=odd, **search)
    for all_costs, of_threads, of_rows in zip(found, parallel, some, strict=True):
        assert_array_equal(of_threads, all_costs)
        assert_array_equal(of_rows[odd], all_costs[odd])
        assert np.isinf(of_rows[~odd]).all()


def test_improved_candidate_costs_equal_the_costs_after_adding(problems):
    incremental = add_requests(empty_routes(problems), problems, range(9))
    shifts = np.array([0.0, -30.0, -10.0, 20.0])
    candidates = problems.windows[:, 9, None] + shifts[None, :, None, None]
    keys, ride = stream_keys(12), problems.max_ride_minutes[:, 9]
    before = incremental.state()
    improved = np.arange(12 * 4).reshape(12, 4) % 3 > 0
    search = {"max_ride_minutes": ride, "improved": improved, "keys": keys}
    found = incremental.candidate_costs(problems.cells[:, 9], candidates, **search)
    for name, array in incremental.state().items():
        assert_array_equal(array, before[name])
    assert_array_equal(found.improved[~improved], found.insertion[~improved])
    assert (found.improved < found.insertion - 1e-6).any()
    for candidate in range(len(shifts)):
        trial = empty_routes(problems)
        trial.restore(before)
        trial.add(problems.cells[:, 9], candidates[:, candidate], keys, max_ride_minutes=ride)
        rows = improved[:, candidate] & np.isfinite(found.insertion[:, candidate])
        assert_array_equal(found.improved[rows, candidate], trial.cost[rows])


def test_a_longer_search_finds_candidate_costs_at_most_as_high(problems):
    incremental = add_requests(empty_routes(problems), problems, range(9))
    candidates = np.repeat(problems.windows[:, 9, None], 3, axis=1) + np.array([0.0, -20.0, 20.0])[:, None, None]
    search = {"improved": np.ones((12, 3), bool), "keys": stream_keys(12)}
    short, long = (
        incremental.candidate_costs(problems.cells[:, 9], candidates, lns_iterations=number, **search).improved
        for number in (0, 40)
    )
    assert (long <= short + 1e-6).all()
    assert (long < short - 1e-6).any()


def test_improved_candidate_costs_need_keys_of_the_search(problems):
    incremental = add_requests(empty_routes(problems), problems, range(9))
    with pytest.raises(ShapeError, match="improved and keys together"):
        incremental.candidate_costs(problems.cells[:, 9], problems.windows[:, 9, None], improved=np.ones((12, 1), bool))


def test_ties_go_to_the_lowest_vehicle():
    problems = random_instances(1, 3, seed=3)
    incremental = empty_routes(problems, NO_IMPROVEMENT)
    add_requests(incremental, problems, [0])
    assert incremental.vehicle[0, 0] == 0


def test_an_unservable_request_stays_unserved_and_the_others_are_served():
    problems = random_instances(4, 6, seed=4, fleet=Fleet(capacity=2))
    problems.riders[2, 3] = 3
    incremental = add_requests(empty_routes(problems), problems, range(6))
    assert_array_equal(np.isinf(incremental.cost), [False, False, True, False])
    assert_array_equal(incremental.unserved.sum(axis=1), [0, 0, 1, 0])
    assert incremental.driving_minutes[2] > 0.0
    assert violations(incremental.problems, incremental.solutions()) == []


def test_the_oracle_solves_the_same_instances(problems):
    incremental = add_requests(empty_routes(problems), problems, range(14))
    scratch = LNSOracle().solve(incremental.problems)
    assert_array_equal(scratch.cost, LNSOracle().solve(problems).cost)
    assert scratch.cost.mean() <= incremental.cost.mean()


def test_adding_to_a_full_instance_is_rejected(problems):
    incremental = add_requests(empty_routes(problems), problems, range(14))
    with pytest.raises(ShapeError, match="env 0 is full with 14 requests"):
        add_requests(incremental, problems, [0])


def test_wrong_shapes_and_cells_are_named(problems):
    incremental = empty_routes(problems)
    with pytest.raises(ShapeError, match="cells"):
        incremental.add(np.zeros((3, 2)), np.zeros((12, 2, 2)), stream_keys(12))
    with pytest.raises(ShapeError, match=r"cells must lie in 0\.\.60"):
        incremental.add(problems.cells[:, 0] + 60, problems.windows[:, 0], stream_keys(12))
    with pytest.raises(ShapeError, match="candidate windows"):
        incremental.candidate_costs(problems.cells[:, 0], problems.windows[:, 0])


@pytest.mark.parametrize("wrong", [{"lns_iterations": -1}, {"max_removed": 0}, {"threads": 0}])
def test_settings_out_of_bounds_are_rejected(wrong):
    with pytest.raises(SettingsError):
        IncrementalSettings(**wrong)


def test_removing_a_request_leaves_feasible_routes_of_the_others(problems):
    incremental = add_requests(empty_routes(problems), problems, range(problems.max_requests))
    keys = stream_keys(len(problems))
    before, cost = incremental.solutions(), incremental.cost.copy()
    assert incremental.remove(3, 5, keys)
    assert incremental.num_requests[3] == problems.max_requests - 1
    assert violations(incremental.problems, incremental.solutions()) == []
    assert incremental.cost[3] <= cost[3]
    assert_array_equal(incremental.problems.cells[3, :5], problems.cells[3, :5])
    assert_array_equal(incremental.problems.cells[3, 5:-1], problems.cells[3, 6:])
    others = np.arange(len(problems)) != 3
    assert_array_equal(incremental.routes[others], before.routes[others])
    assert_array_equal(incremental.cost[others], cost[others])


def test_a_request_is_kept_if_the_routes_would_be_late_without_it():
    """The way over cell 1 is a shortcut: without its stop there the vehicle comes too late to cell 2."""
    travel = TravelTable([[0, 1, 30, 1], [1, 0, 1, 1], [30, 1, 0, 1], [1, 1, 1, 0]])
    incremental = IncrementalRoutes(travel, Fleet(num_vehicles=1, capacity=2), 1, 2)
    keys = stream_keys(1)
    incremental.add([[1, 2]], [[[0, 30], [0, 30]]], keys)
    incremental.add([[2, 3]], [[[2, 4], [2, 10]]], keys)
    state = incremental.state()
    assert np.isfinite(incremental.cost[0])
    assert not incremental.remove(0, 0, keys)
    for name, array in incremental.state().items():
        assert_array_equal(array, state[name])
