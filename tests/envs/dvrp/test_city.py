"""The synthetic city and maps from travel times."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from hundredfold.envs.dvrp.city import (
    POINTS_OF_INTEREST,
    great_circle_km,
    most_central_cell,
    positions_from_travel,
    synthetic_city,
    travel_seconds,
)


@pytest.mark.parametrize("seed", range(6))
def test_travel_times_are_plausible(seed):
    minutes = synthetic_city(seed).travel_minutes
    between = minutes[~np.eye(len(minutes), dtype=bool)]
    assert 15 < np.median(between) < 25
    assert between.max() < 50
    assert between.min() > 3
    assert not np.diag(minutes).any()
    assert (minutes != minutes.T).any(), "travel times are asymmetric"
    assert_allclose(np.rint(minutes * 60), minutes * 60, rtol=1e-12)


def test_travel_times_satisfy_the_triangle_inequality():
    city = synthetic_city(3)
    times = city.travel.microseconds
    for via in range(city.num_cells):
        assert (times <= times[:, via : via + 1] + times[via : via + 1]).all()


def test_the_city_has_all_points_of_interest_and_a_depot():
    city = synthetic_city(0)
    assert city.num_cells == len(POINTS_OF_INTEREST) + 1 == 61
    assert city.names[city.depot_cell] == "Depot"
    assert city.positions.min() == 0
    assert city.positions.max() == 1


def test_travel_times_depend_on_the_seed_alone():
    degrees = np.array([(point.latitude, point.longitude) for point in POINTS_OF_INTEREST])
    assert_array_equal(travel_seconds(degrees, 5), travel_seconds(degrees, 5))
    assert (travel_seconds(degrees, 5) != travel_seconds(degrees, 6)).any()


def test_one_degree_of_latitude_is_111_km():
    assert great_circle_km(np.array([[37.0, -122.0], [38.0, -122.0]]))[0, 1] == pytest.approx(111.2, abs=0.1)


def test_positions_from_travel_times_preserve_distances():
    points = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [0.5, 0.5]])
    distances = np.linalg.norm(points[:, None] - points, axis=2)
    found = positions_from_travel(10 * distances)
    found_distances = np.linalg.norm(found[:, None] - found, axis=2)
    assert_allclose(found_distances / found_distances.max(), distances / distances.max(), atol=0.35)
    assert most_central_cell(10 * distances) == 4
