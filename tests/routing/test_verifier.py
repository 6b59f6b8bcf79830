"""The verifier finds every kind of violation."""

import dataclasses

import numpy as np
import pytest

from hundredfold.core.errors import ShapeError
from hundredfold.routing.problem import Fleet, RouteProblems, TravelTable
from hundredfold.routing.solution import solutions_from_routes
from hundredfold.routing.verifier import violations

LINE = np.abs(np.subtract.outer(np.arange(5) * 10.0, np.arange(5) * 10.0))
WIDE = [[[0.0, 200.0], [0.0, 200.0]], [[0.0, 200.0], [0.0, 200.0]]]


def problem(windows=WIDE, riders=1, service=0.0, ride=np.inf, **fleet):
    """Two requests on a line of cells ten minutes apart: 1 to 3 and 2 to 4."""
    return RouteProblems.from_arrays(
        TravelTable(LINE),
        Fleet(**({"num_vehicles": 2, "depot_window": (0.0, 300.0)} | fleet)),
        [[[1, 3], [2, 4]]],
        [windows],
        riders=riders,
        service_minutes=service,
        max_ride_minutes=ride,
    )


def found(problems, *routes, tampered=None):
    solutions = solutions_from_routes(problems, [routes])
    if tampered:
        ((name, place),) = tampered.items()
        getattr(solutions, name)[place] = 7 if name == "routes" else False
    return " ".join(violations(problems, solutions))


def test_a_feasible_solution_has_no_violations():
    assert found(problem(), [1, 3, 2, 4]) == ""
    assert found(problem(service=5.0, ride=30.0, max_route_minutes=110.0), [1, 3, 2, 4]) == ""


def test_order_and_pairing_are_checked():
    assert "drops off request 0 without having picked it up" in found(problem(), [2, 1, 3, 4])
    assert "brings request 0 back to the depot" in found(problem(), [1, 3, 4], [2])


def test_every_request_is_served_once():
    assert found(problem(), [1, 2]) == ""  # request 1 is left out, and `unserved` says so
    assert "stop 1 is visited 2 times" in found(problem(), [1, 1, 2], [3, 4])
    assert "stop 7 does not exist" in found(problem(), [1, 2, 3, 4], tampered={"routes": (0, 0, 3)})
    assert "request 1 is not visited, and `unserved` says otherwise" in found(
        problem(), [1, 2], tampered={"unserved": (0, 1)}
    )


def test_time_windows_are_checked():
    late = [[[0.0, 200.0], [0.0, 20.0]], WIDE[1]]
    assert "reaches stop 2 at minute 30.000 at the earliest" in found(problem(late), [1, 3, 2, 4])
    assert "reaches stop 0 at minute 80.000" in found(problem(depot_window=(0.0, 70.0)), [1, 3, 2, 4])


def test_service_takes_time():
    narrow = [[[0.0, 10.0], [0.0, 36.0]], WIDE[1]]
    assert found(problem(narrow, service=3.0), [1, 3, 2, 4]) == ""
    assert "reaches stop 2 at minute 38.000" in found(problem(narrow, service=4.0), [1, 3, 2, 4])


def test_capacity_is_checked():
    assert "carries 4 riders with capacity 3 at stop 3" in found(problem(riders=2, capacity=3), [1, 3, 2, 4])
    assert found(problem(riders=2, capacity=3), [1, 2], [3, 4]) == ""


def test_ride_time_limits_are_checked():
    assert found(problem(ride=20.0), [1, 3, 2, 4]) == ""
    sentence = found(problem(ride=19.0), [1, 3, 2, 4])
    assert "has no schedule within its ride-time and duration limits" in sentence


def test_a_pickup_may_wait_to_keep_the_ride_time_limit():
    opens_late = [[[0.0, 200.0], [100.0, 110.0]], WIDE[1]]
    assert found(problem(opens_late, ride=25.0), [1, 2], [3, 4]) == ""
    both_bound = [[[0.0, 50.0], [100.0, 110.0]], WIDE[1]]
    assert "vehicle 0" in found(problem(both_bound, ride=25.0), [1, 2], [3, 4])


def test_route_durations_are_checked():
    assert found(problem(max_route_minutes=80.0), [1, 3, 2, 4]) == ""
    assert "limits" in found(problem(max_route_minutes=79.0), [1, 3, 2, 4])


def test_scheduled_times_are_checked():
    solutions = solutions_from_routes(problem(), [[[1, 3, 2, 4]]])
    solutions.stop_minutes[0, 3] = 15.0
    assert "schedules stop 3 at minute 15.000 and cannot be there before 20.000" in " ".join(
        violations(problem(), solutions)
    )
    solutions = solutions_from_routes(problem(ride=20.0), [[[1, 3, 2, 4]]])
    solutions.stop_minutes[0, 2] += 7.0
    solutions.stop_minutes[0, 4] += 7.0
    solutions.end_minutes[0, 0] += 7.0
    assert "schedules a ride of 27.000 minutes for request 0" in " ".join(violations(problem(ride=20.0), solutions))
    solutions = solutions_from_routes(problem(), [[[1, 3, 2, 4]]])
    solutions.stop_minutes[0, 1] = -5.0
    assert "outside 0.000..200.000" in " ".join(violations(problem(), solutions))


def test_the_cost_is_checked():
    solutions = solutions_from_routes(problem(), [[[1, 3, 2, 4]]])
    assert solutions.cost[0] == 80.0
    wrong = dataclasses.replace(solutions, cost=np.array([79.9]))
    assert violations(problem(), wrong) == ["instance 0: the cost is given as 79.900000 and is 80.000000."]
    extra = solutions_from_routes(problem(free_vehicles=1, extra_vehicle_minutes=12.0), [[[1, 2], [3, 4]]])
    assert extra.cost[0] == 60.0 + 80.0 + 12.0


def test_one_solution_per_instance_is_required():
    solutions = solutions_from_routes(problem(), [[[1, 3, 2, 4]]])
    with pytest.raises(ShapeError, match="1 solutions came for 0 instances"):
        violations(problem().rows(slice(0, 0)), solutions)
