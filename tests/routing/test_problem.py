"""Problems, fleets and travel tables are checked when they are built."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from hundredfold.core.errors import SettingsError, ShapeError
from hundredfold.routing.problem import (
    MICROSECONDS_PER_MINUTE,
    UNLIMITED,
    Fleet,
    RouteProblems,
    TravelTable,
    microseconds_down,
    microseconds_up,
    to_minutes,
)

TABLE = TravelTable(np.ones((4, 4)) - np.eye(4))
CELLS = np.array([[[1, 2], [2, 3]]])
WINDOWS = np.broadcast_to([0.0, 60.0], (1, 2, 2, 2))


@pytest.mark.parametrize(
    ("minutes", "message"),
    [
        (np.zeros((2, 3)), "square"),
        (np.zeros(4), "square"),
        ([[0.0, -1.0], [1.0, 0.0]], "from cell 0 to cell 1 is -1.0"),
        ([[0.0, 1.0], [np.nan, 0.0]], "from cell 1 to cell 0 is nan"),
        ([[0.0, np.inf], [1.0, 0.0]], "is inf"),
    ],
)
def test_travel_tables_are_checked(minutes, message):
    with pytest.raises((ShapeError, SettingsError), match=message):
        TravelTable(minutes)


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_vehicles": 0},
        {"capacity": 0},
        {"depot_window": (10.0, 5.0)},
        {"depot_window": (0.0, np.inf)},
        {"extra_vehicle_minutes": -1.0},
        {"max_route_minutes": -1.0},
    ],
)
def test_fleets_are_checked(wrong):
    with pytest.raises(SettingsError):
        Fleet(**wrong)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cells": CELLS[0]}, "instances, requests, 2"),
        ({"cells": CELLS + 2}, r"cells must lie in 0\.\.3"),
        ({"windows": WINDOWS[:, :1, :1, :1] * np.zeros(5)}, "windows came with shape"),
        ({"windows": WINDOWS * np.nan}, "NaN or endless"),
        ({"num_requests": 3}, r"num_requests must lie in 0\.\.2"),
        ({"riders": 0}, "riders must be at least 1"),
        ({"service_minutes": -1.0}, "service_minutes must be at least 0"),
        ({"max_ride_minutes": np.nan}, "max_ride_minutes must be >= 0"),
    ],
)
def test_instances_are_checked(changes, message):
    arrays = {"cells": CELLS, "windows": WINDOWS} | changes
    with pytest.raises(ShapeError, match=message):
        RouteProblems.from_arrays(TABLE, Fleet(), **arrays)


def test_instances_are_copies_and_padding_is_cleared():
    windows = WINDOWS.copy()
    windows[0, 1] = np.nan
    problems = RouteProblems.from_arrays(TABLE, Fleet(), CELLS, windows, num_requests=1)
    assert_array_equal(problems.windows[0, 1], 0.0)
    assert np.isnan(windows[0, 1]).all()
    assert_array_equal(problems.request_mask, [[True, False]])


def test_a_ride_time_limit_in_the_padding_is_ignored():
    problems = RouteProblems.from_arrays(
        TABLE, Fleet(), CELLS, WINDOWS, num_requests=1, max_ride_minutes=[[np.inf, 5.0]]
    )
    assert not problems.has_duration_limits


def test_whole_seconds_are_exact():
    seconds = np.arange(100_000)
    assert_array_equal(microseconds_up(seconds / 60.0), seconds * MICROSECONDS_PER_MINUTE // 60)
    assert_array_equal(microseconds_down(seconds / 60.0), seconds * MICROSECONDS_PER_MINUTE // 60)
    assert_array_equal(to_minutes(microseconds_up(seconds / 60.0)), seconds / 60.0)


def test_durations_round_up_and_deadlines_down():
    minutes = np.array([np.pi, np.sqrt(2.0), 1e-9])
    assert (to_minutes(microseconds_up(minutes)) >= minutes).all()
    assert (to_minutes(microseconds_down(minutes)) <= minutes).all()
    assert microseconds_up(np.inf) == microseconds_down(np.inf) == UNLIMITED


def test_max_shortcut_is_the_largest_triangle_violation():
    assert TABLE.max_shortcut == 0
    bent = TravelTable([[0.0, 5.0, 1.0], [5.0, 0.0, 5.0], [5.0, 1.0, 0.0]])
    assert bent.max_shortcut == 3 * MICROSECONDS_PER_MINUTE
