"""Who is asked and who is moved."""

import numpy as np
import pytest

from hundredfold.envs.dvrp.analysis import fairness_rows, gini, groups_of_callers
from hundredfold.envs.dvrp.evaluation import simulate_days
from hundredfold.envs.dvrp.offers import NO_CHANGE, TOTAL_MINUTES
from hundredfold.envs.dvrp.settings import DvrpSettings

SETTINGS = DvrpSettings(num_customers=10, num_vehicles=3, lns_iterations=0)


@pytest.fixture(scope="module")
def asked_at_random():
    return simulate_days("random", SETTINGS, 30, 3)


def test_gini_is_none_for_equals_and_large_for_one():
    assert gini(np.full(10, 3.0)) == pytest.approx(0.0)
    assert gini(np.array([0.0, 0.0, 0.0, 8.0])) == pytest.approx(0.75)
    assert gini(np.array([1.0, 3.0])) == pytest.approx(0.25)
    assert gini(np.zeros(5)) == 0.0


def test_every_grouping_counts_every_caller_once(asked_at_random):
    played, population = asked_at_random
    rows = fairness_rows(played, population)
    names = set(groups_of_callers(played, population))
    assert names == {"type", "purpose", "neighbourhood", "age", "occupation"}
    moved = played.shift_minutes.sum()
    for name in (*names, "all"):
        mine = [row for row in rows if row["by"] == name]
        assert sum(row["callers"] for row in mine) == 300
        total = sum(row["callers"] * row["shift_minutes"] for row in mine)
        assert total == pytest.approx(moved)


def test_shares_are_those_of_the_group(asked_at_random):
    played, population = asked_at_random
    (row,) = [row for row in fairness_rows(played, population) if row["group"] == "early"]
    mine = population.customers.types[played.customer_id] == 1
    asked = mine & (played.offers != NO_CHANGE)
    assert row["callers"] == mine.sum()
    assert row["asked_pct"] == pytest.approx(100 * asked.sum() / mine.sum())
    assert row["accepted_pct"] == pytest.approx(100 * played.accepted[asked].mean())
    yes = asked & played.accepted
    assert row["shift_minutes"] == pytest.approx(
        TOTAL_MINUTES[played.offers[yes]].sum() / mine.sum()
    )


def test_the_burden_on_people_is_told(asked_at_random):
    played, population = asked_at_random
    row = fairness_rows(played, population)[0]
    asks = np.bincount(played.customer_id[played.offers != NO_CHANGE])
    assert (row["by"], row["max_asks"]) == ("all", asks.max())
    assert row["people"] == len(np.unique(played.customer_id))
    assert 0.0 < row["gini"] < 1.0


def test_whoever_asks_nobody_burdens_nobody():
    played, population = simulate_days("none", SETTINGS, 4, 3)
    for row in fairness_rows(played, population):
        assert row["asked_pct"] == row["shift_minutes"] == row["moved_pct"] == 0.0
        assert row["accepted_pct"] is None
    first = fairness_rows(played, population)[0]
    assert (first["gini"], first["max_asks"]) == (0.0, 0)


def test_knowing_rules_move_flexible_people_more():
    played, population = simulate_days("privileged_largest", SETTINGS, 40, 3)
    rows = fairness_rows(played, population)
    minutes = {row["group"]: row["shift_minutes"] for row in rows if row["by"] == "type"}
    assert minutes["both"] > minutes["none"]
