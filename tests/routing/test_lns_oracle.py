"""The insertion oracle on whole days: limits kept, prices repeatable, settings checked."""

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_allclose

from hundredfold.core.errors import SettingsError
from hundredfold.routing.instances import loose_instances, random_instances
from hundredfold.routing.lns_oracle import LNSOracle, LNSSettings
from hundredfold.routing.ortools_oracle import OrToolsOracle, OrToolsSettings
from hundredfold.routing.problem import Fleet, RouteProblems, TravelTable
from hundredfold.routing.verifier import violations

QUICK = LNSSettings(lns_iterations=20, final_restarts=1)


def test_ride_time_limits_cost_something_and_are_kept():
    free = LNSOracle().solve(random_instances(8, 20, seed=1))
    days = random_instances(8, 20, seed=1, max_ride_factor=1.0)
    limited = LNSOracle().solve(days)
    assert violations(days, limited) == []
    assert np.isfinite(limited.cost).all()
    assert limited.cost.mean() > free.cost.mean()


def test_a_ride_that_needs_a_late_departure_is_found():
    # The dropoff opens at 100 and the ride may take 12 minutes: the car must wait before the
    # pickup, whose window has been open since 0.
    book = RouteProblems.from_arrays(
        TravelTable([[0.0, 5.0, 5.0], [5.0, 0.0, 10.0], [5.0, 10.0, 0.0]]),
        Fleet(),
        [[[1, 2]]],
        [[[[0.0, 200.0], [100.0, 110.0]]]],
        max_ride_minutes=12.0,
    )
    plans = LNSOracle(QUICK).solve(book)
    assert plans.cost[0] == 20.0
    assert plans.stop_minutes[0, 1:].tolist() == [88.0, 100.0]
    assert plans.start_minutes[0, 0] == 83.0
    assert violations(book, plans) == []


def test_a_route_may_not_last_too_long():
    long = Fleet(max_route_minutes=240.0)
    days = random_instances(6, 12, seed=2, fleet=long)
    plans = LNSOracle(QUICK).solve(days)
    assert violations(days, plans) == []
    durations = plans.end_minutes - plans.start_minutes
    served = np.isfinite(plans.cost)
    assert served.any()
    assert (durations[~np.isnan(durations)] <= 240.0 + 1e-6).all()


def test_vehicles_beyond_the_free_ones_are_avoided_when_they_cost():
    free = LNSOracle().solve(random_instances(8, 20, seed=3))
    priced = random_instances(
        8, 20, seed=3, fleet=Fleet(free_vehicles=1, extra_vehicle_minutes=200.0)
    )
    plans = LNSOracle().solve(priced)
    assert violations(priced, plans) == []
    assert plans.vehicles_used.mean() < free.vehicles_used.mean()
    extra = np.maximum(plans.vehicles_used - 1, 0)
    assert_allclose(plans.cost, plans.driving_minutes + 200.0 * extra, rtol=1e-12)


def test_detours_may_be_the_shorter_way():
    rng = np.random.default_rng(0)
    minutes = rng.uniform(5.0, 40.0, (61, 61))
    np.fill_diagonal(minutes, 0.0)
    table = TravelTable(minutes)
    assert table.max_shortcut > 0
    for factor in (np.inf, 1.5):
        days = random_instances(6, 15, seed=4, travel=table, max_ride_factor=factor)
        plans = LNSOracle(QUICK).solve(days)
        assert violations(days, plans) == []


def test_prices_are_exact_sums_of_whole_seconds():
    days = random_instances(4, 15, seed=5)
    plans = LNSOracle(QUICK).solve(days)
    for book in range(4):
        seconds = 0
        for vehicle in range(5):
            path = [0, *plans.route(book, vehicle), 0]
            cells = [0 if stop == 0 else days.cells[book].flat[stop - 1] for stop in path]
            seconds += sum(round(60 * days.travel.minutes[a, b]) for a, b in pairwise(cells))
        assert plans.cost[book] == seconds / 60


def test_more_effort_does_not_cost_more():
    days = random_instances(20, 30, seed=6)
    mean = [
        LNSOracle(LNSSettings(lns_iterations=rounds, final_restarts=1)).solve(days).cost.mean()
        for rounds in (0, 20, 200)
    ]
    assert mean[0] > mean[1] > mean[2]


def test_a_time_limit_is_kept_and_helps():
    days = random_instances(1, 60, seed=7)
    LNSOracle(QUICK).solve(days)
    plans = LNSOracle(LNSSettings(seconds=0.3)).solve(days)
    assert violations(days, plans) == []
    assert plans.cost[0] <= LNSOracle(QUICK).solve(days).cost[0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"lns_iterations": -1},
        {"improve_passes": -1},
        {"final_restarts": 0},
        {"max_removed": 0},
        {"threads": 0},
        {"seconds": 0.0},
    ],
)
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(SettingsError):
        LNSSettings(**wrong)


@pytest.mark.slow
def test_relaxing_a_window_seldom_raises_the_closing_price():
    """An optimum never rises; how often ours does is the noise of the oracle."""
    days = random_instances(200, 30, seed=9)
    which = np.random.default_rng(1).integers(0, 30, 200)
    relaxed = days.windows.copy()
    relaxed[np.arange(200), which] += [-15.0, 15.0]
    before = LNSOracle().solve(days).cost
    after = LNSOracle().solve(dataclasses.replace(days, windows=relaxed)).cost
    raised = after > before
    print(f"raised {100 * raised.mean():.1f} %, by {(after - before)[raised].mean():.2f} minutes")
    assert raised.mean() < 0.2
    assert (after - before)[raised].mean() < 3.0
    assert after.mean() < before.mean()


@pytest.mark.slow
@pytest.mark.parametrize("days", [random_instances, loose_instances])
def test_full_days_are_cheaper_than_with_or_tools(days):
    pytest.importorskip("ortools")
    problems = days(50, 30, seed=8)
    theirs = OrToolsOracle(OrToolsSettings(seconds=1.0)).solve(problems)
    ours = LNSOracle().solve(problems)
    assert violations(problems, theirs) == []
    assert violations(problems, ours) == []
    assert ours.cost.mean() < 0.995 * theirs.cost.mean()
    assert (ours.cost <= 1.02 * theirs.cost).all()
