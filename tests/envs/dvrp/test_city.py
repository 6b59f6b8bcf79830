import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from hundredfold.envs.dvrp.city import (
    PLACES,
    great_circle_km,
    most_central_cell,
    positions_from_travel,
    synthetic_city,
    travel_seconds,
)


@pytest.mark.parametrize("seed", range(6))
def test_travel_times_look_like_a_city(seed):
    minutes = synthetic_city(seed).travel_minutes
    between = minutes[~np.eye(len(minutes), dtype=bool)]
    assert 15 < np.median(between) < 25
    assert between.max() < 50
    assert between.min() > 3
    assert not np.diag(minutes).any()
    assert (minutes != minutes.T).any(), "the way back takes another time"
    assert_allclose(np.rint(minutes * 60), minutes * 60, rtol=1e-12)


def test_no_detour_is_shorter_than_the_direct_way():
    city = synthetic_city(3)
    minutes = city.travel.microseconds
    for via in range(city.num_cells):
        assert (minutes <= minutes[:, via : via + 1] + minutes[via : via + 1]).all()


def test_the_city_has_all_places_and_a_depot():
    city = synthetic_city(0)
    assert city.num_cells == len(PLACES) + 1 == 61
    assert city.names[city.depot_cell] == "Depot"
    assert city.positions.min() == 0
    assert city.positions.max() == 1


def test_the_same_seed_gives_the_same_city_and_another_one_another():
    degrees = np.array([(place.latitude, place.longitude) for place in PLACES])
    assert_array_equal(travel_seconds(degrees, 5), travel_seconds(degrees, 5))
    assert (travel_seconds(degrees, 5) != travel_seconds(degrees, 6)).any()


def test_the_great_circle_knows_a_degree_of_latitude():
    assert great_circle_km(np.array([[37.0, -122.0], [38.0, -122.0]]))[0, 1] == pytest.approx(
        111.2, abs=0.1
    )


def test_a_map_can_be_drawn_from_travel_times_alone():
    points = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [0.5, 0.5]])
    apart = np.linalg.norm(points[:, None] - points, axis=2)
    drawn = positions_from_travel(10 * apart)
    drawn_apart = np.linalg.norm(drawn[:, None] - drawn, axis=2)
    assert_allclose(drawn_apart / drawn_apart.max(), apart / apart.max(), atol=0.35)
    assert most_central_cell(10 * apart) == 4
