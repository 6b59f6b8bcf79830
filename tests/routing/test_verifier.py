"""The verifier finds every kind of broken promise."""

import dataclasses

import numpy as np
import pytest

from hundredfold.core.errors import ShapeError
from hundredfold.routing.problem import Fleet, RouteProblems, TravelTable
from hundredfold.routing.solution import solutions_from_routes
from hundredfold.routing.verifier import violations

LINE = np.abs(np.subtract.outer(np.arange(5) * 10.0, np.arange(5) * 10.0))
WIDE = [[[0.0, 200.0], [0.0, 200.0]], [[0.0, 200.0], [0.0, 200.0]]]


def book(windows=WIDE, riders=1, service=0.0, ride=np.inf, **fleet):
    """Two requests on a line of places ten minutes apart: 1 to 3 and 2 to 4."""
    return RouteProblems.from_arrays(
        TravelTable(LINE),
        Fleet(**({"num_vehicles": 2, "depot_window": (0.0, 300.0)} | fleet)),
        [[[1, 3], [2, 4]]],
        [windows],
        riders=riders,
        service_minutes=service,
        max_ride_minutes=ride,
    )


def said(problems, *routes, tampered=None):
    plans = solutions_from_routes(problems, [routes])
    if tampered:
        ((name, place),) = tampered.items()
        getattr(plans, name)[place] = 7 if name == "routes" else False
    return " ".join(violations(problems, plans))


def test_a_good_plan_has_no_violations():
    assert said(book(), [1, 3, 2, 4]) == ""
    assert said(book(service=5.0, ride=30.0, max_route_minutes=110.0), [1, 3, 2, 4]) == ""


def test_order_and_pairing():
    assert "drops off request 0 without having picked it up" in said(book(), [2, 1, 3, 4])
    assert "brings request 0 back to the depot" in said(book(), [1, 3, 4], [2])


def test_everybody_once():
    assert said(book(), [1, 2]) == ""  # request 1 is left out, and `unserved` says so
    assert "stop 1 is visited 2 times" in said(book(), [1, 1, 2], [3, 4])
    assert "stop 7 does not exist" in said(book(), [1, 2, 3, 4], tampered={"routes": (0, 0, 3)})
    assert "request 1 is not visited, and `unserved` says the opposite" in said(
        book(), [1, 2], tampered={"unserved": (0, 1)}
    )


def test_windows():
    late = [[[0.0, 200.0], [0.0, 20.0]], WIDE[1]]
    assert "reaches stop 2 at minute 30.000 at the earliest" in said(book(late), [1, 3, 2, 4])
    assert "reaches stop 0 at minute 80.000" in said(book(depot_window=(0.0, 70.0)), [1, 3, 2, 4])


def test_service_takes_time():
    narrow = [[[0.0, 10.0], [0.0, 36.0]], WIDE[1]]
    assert said(book(narrow, service=3.0), [1, 3, 2, 4]) == ""
    assert "reaches stop 2 at minute 38.000" in said(book(narrow, service=4.0), [1, 3, 2, 4])


def test_seats():
    assert "carries 4 riders with capacity 3 at stop 3" in said(
        book(riders=2, capacity=3), [1, 3, 2, 4]
    )
    assert said(book(riders=2, capacity=3), [1, 2], [3, 4]) == ""


def test_ride_time():
    assert said(book(ride=20.0), [1, 3, 2, 4]) == ""
    sentence = said(book(ride=19.0), [1, 3, 2, 4])
    assert "has no schedule within its ride-time and duration limits" in sentence


def test_a_ride_is_short_enough_when_the_pickup_can_wait():
    opens_late = [[[0.0, 200.0], [100.0, 110.0]], WIDE[1]]
    assert said(book(opens_late, ride=25.0), [1, 2], [3, 4]) == ""
    both_bound = [[[0.0, 50.0], [100.0, 110.0]], WIDE[1]]
    assert "vehicle 0" in said(book(both_bound, ride=25.0), [1, 2], [3, 4])


def test_route_duration():
    assert said(book(max_route_minutes=80.0), [1, 3, 2, 4]) == ""
    assert "limits" in said(book(max_route_minutes=79.0), [1, 3, 2, 4])


def test_planned_times():
    plans = solutions_from_routes(book(), [[[1, 3, 2, 4]]])
    plans.stop_minutes[0, 3] = 15.0
    assert "plans stop 3 at minute 15.000 and cannot be there before 20.000" in " ".join(
        violations(book(), plans)
    )
    plans = solutions_from_routes(book(ride=20.0), [[[1, 3, 2, 4]]])
    plans.stop_minutes[0, 2] += 7.0
    plans.stop_minutes[0, 4] += 7.0
    plans.end_minutes[0, 0] += 7.0
    assert "plans a ride of 27.000 minutes for request 0" in " ".join(
        violations(book(ride=20.0), plans)
    )
    plans = solutions_from_routes(book(), [[[1, 3, 2, 4]]])
    plans.stop_minutes[0, 1] = -5.0
    assert "outside 0.000..200.000" in " ".join(violations(book(), plans))


def test_the_price_must_be_the_price():
    plans = solutions_from_routes(book(), [[[1, 3, 2, 4]]])
    assert plans.cost[0] == 80.0
    wrong = dataclasses.replace(plans, cost=np.array([79.9]))
    assert violations(book(), wrong) == [
        "book 0: the price is said to be 79.900000 and is 80.000000."
    ]
    extra = solutions_from_routes(
        book(free_vehicles=1, extra_vehicle_minutes=12.0), [[[1, 2], [3, 4]]]
    )
    assert extra.cost[0] == 60.0 + 80.0 + 12.0


def test_one_plan_per_book():
    plans = solutions_from_routes(book(), [[[1, 3, 2, 4]]])
    with pytest.raises(ShapeError, match="1 plans came for 0 books"):
        violations(book().rows(slice(0, 0)), plans)
