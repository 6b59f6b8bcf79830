"""Kept plans: one booking per env and step, depending on nothing but the env's own history."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from hundredfold.core import rng
from hundredfold.core.errors import CheckpointError, SettingsError, ShapeError
from hundredfold.routing.incremental import IncrementalRoutes, IncrementalSettings
from hundredfold.routing.instances import random_instances
from hundredfold.routing.lns_oracle import LNSOracle, LNSSettings
from hundredfold.routing.problem import Fleet
from hundredfold.routing.verifier import violations

NO_IMPROVEMENT = IncrementalSettings(improve_passes=0, lns_iterations=0)


def keys_of(num_envs):
    return rng.stream_keys(5, np.arange(num_envs), 0)


def empty_plans(days, settings=None, max_requests=None):
    return IncrementalRoutes(
        days.travel, days.fleet, len(days), max_requests or days.max_requests, settings
    )


def book(kept, days, steps, keys=None, rows=None):
    keys = keys_of(len(days)) if keys is None else keys
    for step in steps:
        kept.add(
            days.cells[:, step],
            days.windows[:, step],
            keys,
            riders=days.riders[:, step],
            max_ride_minutes=days.max_ride_minutes[:, step],
            rows=rows,
        )
    return kept


def assert_same_plans(one, two):
    assert_array_equal(one.cost, two.cost)
    assert_array_equal(one.routes, two.routes)
    assert_array_equal(one.vehicle, two.vehicle)
    assert_array_equal(one.stop_minutes, two.stop_minutes)


@pytest.fixture(params=[np.inf, 1.5], ids=["free", "limited"])
def days(request):
    return random_instances(12, 14, seed=1, max_ride_factor=request.param)


def test_every_plan_on_the_way_passes_the_verifier(days):
    kept = empty_plans(days)
    for step in range(days.max_requests):
        book(kept, days, [step])
        assert violations(kept.problems, kept.solutions()) == []
        assert_array_equal(kept.solutions().cost, kept.cost)
        assert_array_equal(kept.num_requests, step + 1)


def test_the_end_of_the_day_is_near_a_search_from_scratch():
    days = random_instances(64, 30, seed=2)
    kept = book(empty_plans(days), days, range(30))
    scratch = LNSOracle(LNSSettings(final_restarts=1)).solve(days)
    gap = 100.0 * (kept.cost.mean() / scratch.cost.mean() - 1.0)
    assert gap < 1.5


def test_an_env_has_one_story_alone_in_any_batch_and_with_any_threads(days):
    together = book(empty_plans(days), days, range(14))
    threads = book(empty_plans(days, IncrementalSettings(threads=2)), days, range(14))
    assert_same_plans(together, threads)
    some = np.array([7, 2, 11])
    few = book(empty_plans(days.rows(some)), days.rows(some), range(14), keys_of(12)[some])
    assert_array_equal(few.cost, together.cost[some])
    assert_array_equal(few.routes, together.routes[some])


def test_rows_that_take_no_part_stay_as_they_are(days):
    kept = book(empty_plans(days), days, range(5))
    before = kept.cost.copy()
    odd = np.arange(12) % 2 == 1
    book(kept, days, [5], rows=odd)
    assert_array_equal(kept.cost[~odd], before[~odd])
    assert_array_equal(kept.num_requests, np.where(odd, 6, 5))
    book(kept, days, [5], rows=~odd)
    assert_same_plans(kept, book(empty_plans(days), days, range(6)))


def test_a_cleared_row_begins_again(days):
    kept = book(empty_plans(days), days, range(8))
    first = np.arange(12) == 0
    kept.clear(first)
    assert kept.cost[0] == 0.0
    assert kept.vehicles_used[0] == 0
    assert (kept.vehicle[0] == -1).all()
    book(kept, days, range(8), rows=first)
    assert_same_plans(kept, book(empty_plans(days), days, range(8)))


def test_a_snapshot_goes_on_bit_for_bit(days):
    kept = book(empty_plans(days), days, range(7))
    state = kept.state()
    assert all(len(array) == 12 for array in state.values())
    book(kept, days, range(7, 14))
    other = empty_plans(days)
    other.restore(state)
    assert_same_plans(kept, book(other, days, range(7, 14)))


def test_a_snapshot_of_another_size_is_refused(days):
    state = book(empty_plans(days), days, range(2)).state()
    with pytest.raises(CheckpointError):
        empty_plans(days.rows(slice(0, 5))).restore(state)


def test_candidates_are_priced_as_if_they_were_booked(days):
    kept = book(empty_plans(days), days, range(9))
    shifts = np.array([0.0, -30.0, -10.0, 20.0])
    offers = days.windows[:, 9, None] + shifts[None, :, None, None]
    ride = days.max_ride_minutes[:, 9]
    before = kept.state()
    found = kept.candidate_costs(days.cells[:, 9], offers, max_ride_minutes=ride)
    for name, array in kept.state().items():
        assert_array_equal(array, before[name])
    for candidate in range(len(shifts)):
        trial = empty_plans(days, NO_IMPROVEMENT)
        trial.restore(before)
        trial.add(days.cells[:, 9], offers[:, candidate], keys_of(12), max_ride_minutes=ride)
        assert_array_equal(found[:, candidate], trial.cost)


def test_candidates_do_not_depend_on_threads_or_rows(days):
    kept = book(empty_plans(days), days, range(9))
    threads = book(empty_plans(days, IncrementalSettings(threads=2)), days, range(9))
    offers = np.repeat(days.windows[:, 9, None], 16, axis=1)
    found = kept.candidate_costs(days.cells[:, 9], offers)
    assert_array_equal(threads.candidate_costs(days.cells[:, 9], offers), found)
    odd = np.arange(12) % 2 == 1
    some = kept.candidate_costs(days.cells[:, 9], offers, rows=odd)
    assert_array_equal(some[odd], found[odd])
    assert np.isinf(some[~odd]).all()


def test_equal_places_go_to_the_lowest_vehicle():
    days = random_instances(1, 3, seed=3)
    kept = empty_plans(days, NO_IMPROVEMENT)
    book(kept, days, [0])
    assert kept.vehicle[0, 0] == 0


def test_whom_nobody_can_serve_is_left_out_and_the_rest_goes_on():
    days = random_instances(4, 6, seed=4, fleet=Fleet(capacity=2))
    days.riders[2, 3] = 3
    kept = book(empty_plans(days), days, range(6))
    assert_array_equal(np.isinf(kept.cost), [False, False, True, False])
    assert_array_equal(kept.unserved.sum(axis=1), [0, 0, 1, 0])
    assert kept.driving_minutes[2] > 0.0
    assert violations(kept.problems, kept.solutions()) == []


def test_the_closing_price_comes_from_the_same_books(days):
    kept = book(empty_plans(days), days, range(14))
    closing = LNSOracle().solve(kept.problems)
    assert_array_equal(closing.cost, LNSOracle().solve(days).cost)
    assert closing.cost.mean() <= kept.cost.mean()


def test_a_full_book_is_refused(days):
    kept = book(empty_plans(days), days, range(14))
    with pytest.raises(ShapeError, match="env 0 is full with 14 requests"):
        book(kept, days, [0])


def test_wrong_shapes_are_named(days):
    kept = empty_plans(days)
    with pytest.raises(ShapeError, match="cells"):
        kept.add(np.zeros((3, 2)), np.zeros((12, 2, 2)), keys_of(12))
    with pytest.raises(ShapeError, match=r"cells must lie in 0\.\.60"):
        kept.add(days.cells[:, 0] + 60, days.windows[:, 0], keys_of(12))
    with pytest.raises(ShapeError, match="candidate windows"):
        kept.candidate_costs(days.cells[:, 0], days.windows[:, 0])


@pytest.mark.parametrize("wrong", [{"lns_iterations": -1}, {"max_removed": 0}, {"threads": 0}])
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(SettingsError):
        IncrementalSettings(**wrong)
