"""Fairness: offers and shifts by group of customers. Concentration of demand."""

import numpy as np
import pytest

from helpers.offers import NO_CHANGE, TOTAL_MINUTES
from hundredfold.envs.dvrp.analysis import demand_row, effective_number, fairness_rows, gini, request_groups
from hundredfold.envs.dvrp.evaluation import DayScorer, simulate_days
from hundredfold.envs.dvrp.settings import DvrpSettings

SETTINGS = DvrpSettings(num_customers=10, num_vehicles=3, lns_iterations=0)


@pytest.fixture(scope="module")
def random_days():
    return simulate_days("random", SETTINGS, 30, 3)


def test_gini_is_0_for_equal_shares_and_large_for_one_owner():
    assert gini(np.full(10, 3.0)) == pytest.approx(0.0)
    assert gini(np.array([0.0, 0.0, 0.0, 8.0])) == pytest.approx(0.75)
    assert gini(np.array([1.0, 3.0])) == pytest.approx(0.25)
    assert gini(np.zeros(5)) == 0.0


def test_every_grouping_counts_every_request_once(random_days):
    days, population = random_days
    rows = fairness_rows(days, population)
    names = set(request_groups(days, population))
    assert names == {"type", "purpose", "neighbourhood", "age", "occupation"}
    shift = days.shift_minutes.sum()
    for name in (*names, "all"):
        mine = [row for row in rows if row["by"] == name]
        assert sum(row["requests"] for row in mine) == 300
        total = sum(row["requests"] * row["shift_minutes"] for row in mine)
        assert total == pytest.approx(shift)


def test_shares_are_those_of_the_group(random_days):
    days, population = random_days
    (row,) = [row for row in fairness_rows(days, population) if row["group"] == "early"]
    mine = population.customers.types[days.customer_id] == 1
    offered = mine & (days.offers != NO_CHANGE)
    assert row["requests"] == mine.sum()
    assert row["offered_pct"] == pytest.approx(100 * offered.sum() / mine.sum())
    assert row["accepted_pct"] == pytest.approx(100 * days.accepted[offered].mean())
    accepted = offered & days.accepted
    assert row["shift_minutes"] == pytest.approx(TOTAL_MINUTES[days.offers[accepted]].sum() / mine.sum())


def test_the_distribution_over_customers_is_reported(random_days):
    days, population = random_days
    row = fairness_rows(days, population)[0]
    offers = np.bincount(days.customer_id[days.offers != NO_CHANGE])
    assert (row["by"], row["max_offers"]) == ("all", offers.max())
    assert row["customers"] == len(np.unique(days.customer_id))
    assert 0.0 < row["gini"] < 1.0


def test_without_offers_all_shares_are_zero():
    days, population = simulate_days("none", SETTINGS, 4, 3)
    for row in fairness_rows(days, population):
        assert row["offered_pct"] == row["shift_minutes"] == row["shifted_pct"] == 0.0
        assert row["accepted_pct"] is None
    first = fairness_rows(days, population)[0]
    assert (first["gini"], first["max_offers"]) == (0.0, 0)


def test_privileged_largest_shifts_flexible_customers_more():
    days, population = simulate_days("privileged_largest", SETTINGS, 40, 3)
    rows = fairness_rows(days, population)
    minutes = {row["group"]: row["shift_minutes"] for row in rows if row["by"] == "type"}
    assert minutes["both"] > minutes["none"]


def test_the_effective_number_counts_equally_frequent_categories():
    assert effective_number(np.repeat([7, 9, 11], 5)) == pytest.approx(3.0)
    assert effective_number(np.zeros((4, 4), np.int64)) == 1.0
    assert effective_number(np.array([0, 0, 0, 1])) == pytest.approx(1.6)


def test_the_demand_of_days_is_counted_per_request(random_days):
    days, population = random_days
    scores = DayScorer().scores(days, population, SETTINGS)
    row = demand_row(days, scores, population)
    neighbours = 0
    for cells, windows in zip(days.cells, days.requested_windows, strict=True):
        for one in range(10):
            for other in set(range(10)) - {one}:
                driving = population.city.travel_minutes[cells[one, 0], cells[other, 0]]
                apart = abs(windows[one, 0, 0] - windows[other, 0, 0])
                neighbours += driving <= 10.0 and apart <= 30.0
    assert row["neighbours"] == pytest.approx(neighbours / 300)
    tolerance = population.trips.tolerance[days.trip_id]
    assert row["earlier_10_pct"] == pytest.approx(100 * (tolerance[..., 0] >= 10).mean())
    assert row["later_10_pct"] == pytest.approx(100 * (tolerance[..., 1] >= 10).mean())
    assert row["baseline_cost"] == scores.baseline_cost.mean()
    assert row["od_pairs"] > row["pickup_cells"]
