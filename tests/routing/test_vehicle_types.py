"""Fleets of several vehicle types: places, wheelchair places and shifts constrain the routes."""

from dataclasses import replace

import numpy as np
import pytest

from hundredfold.core import rng
from hundredfold.core.errors import SettingsError, ShapeError
from hundredfold.routing.exact_oracle import ExactOracle
from hundredfold.routing.incremental import IncrementalRoutes
from hundredfold.routing.instances import random_instances
from hundredfold.routing.lns_oracle import LNSOracle, LNSSettings
from hundredfold.routing.lower_bound import lower_bounds
from hundredfold.routing.problem import WHEELCHAIR, Fleet, RouteProblems, TravelTable, VehicleType
from hundredfold.routing.solution import solutions_from_routes
from hundredfold.routing.verifier import violations

TRAVEL = TravelTable(10.0 * (1.0 - np.eye(5)))
TYPES = (
    VehicleType(count=2, seats=3, wheelchairs=1, shift=(300.0, 840.0), name="early van"),
    VehicleType(count=2, seats=3, wheelchairs=1, shift=(780.0, 1440.0), name="late van"),
    VehicleType(count=3, seats=4, name="minibus"),
)
QUICK = LNSOracle(LNSSettings(lns_iterations=30, final_restarts=2))


def one_day(types, starts, riders=1, max_ride_minutes=np.inf):
    """Requests from cell 1 to cell 2 with a pickup window of five minutes at each start."""
    starts = np.asarray(starts, float)
    windows = np.stack([starts[:, None] + (0.0, 5.0), starts[:, None] + (0.0, 30.0)], axis=1)[None]
    cells = np.tile([1, 2], (1, len(starts), 1))
    fleet = Fleet.of_types(types)
    return RouteProblems.from_arrays(TRAVEL, fleet, cells, windows, riders=riders, max_ride_minutes=max_ride_minutes)


@pytest.mark.parametrize("max_ride_factor", [np.inf, 1.5], ids=["free", "limited"])
def test_random_days_keep_places_and_shifts(max_ride_factor):
    plain = random_instances(6, 24, 3, max_ride_factor=max_ride_factor, detour_factor=0.5)
    in_wheelchair = np.random.default_rng(0).random(plain.riders.shape) < 0.2
    riders = np.where(in_wheelchair, WHEELCHAIR, plain.riders)
    problems = replace(plain, fleet=Fleet.of_types(TYPES), riders=riders)
    solutions = QUICK.solve(problems)
    assert violations(problems, solutions) == []
    assert solutions.unserved.mean() < 0.2
    # Without types the same routes would break the limits of some vehicle.
    identical = replace(plain, fleet=Fleet(num_vehicles=7, capacity=8))
    assert violations(replace(problems, fleet=problems.fleet), QUICK.solve(identical))

    incremental = IncrementalRoutes(problems.travel, problems.fleet, 6, 24)
    keys = rng.spawn(rng.seed_key(0), np.arange(6))
    for request in range(24):
        incremental.add(
            problems.cells[:, request],
            problems.windows[:, request],
            keys,
            riders=problems.riders[:, request],
            max_ride_minutes=problems.max_ride_minutes[:, request],
        )
    assert violations(incremental.problems, incremental.solutions()) == []


def test_a_vehicle_serves_within_its_shift_only():
    morning = VehicleType(count=3, shift=(360.0, 720.0))
    solutions = QUICK.solve(one_day([morning], [400.0, 690.0, 900.0]))
    # At 11:30 the vehicle could not be back by noon: 10 minutes to the dropoff and 10 back.
    assert solutions.unserved[0].tolist() == [False, False, True]
    assert QUICK.solve(one_day([morning], [701.0])).unserved[0].tolist() == [True]
    both = [morning, VehicleType(count=1, shift=(720.0, 1440.0))]
    assert QUICK.solve(one_day(both, [400.0, 690.0, 900.0])).vehicle[0].tolist()[2] == 3


def test_a_shift_begins_at_the_depot():
    early = VehicleType(shift=(400.0, 1440.0))
    assert QUICK.solve(one_day([early], [404.0])).unserved.all()
    served = QUICK.solve(one_day([early], [405.0]))
    assert served.start_minutes[0, 0] == 400.0


def test_wheelchairs_need_wheelchair_places_and_take_no_seats():
    types = [VehicleType(count=2, seats=8), VehicleType(count=1, seats=1, wheelchairs=2)]
    solutions = QUICK.solve(one_day(types, [600.0] * 4, riders=[[1, WHEELCHAIR, WHEELCHAIR, WHEELCHAIR]]))
    assert solutions.unserved.sum() == 1
    assert {int(vehicle) for vehicle in solutions.vehicle[0, 1:] if vehicle >= 0} == {2}
    mixed = QUICK.solve(one_day(types[1:], [600.0] * 2, riders=[[1 + WHEELCHAIR, WHEELCHAIR]]))
    assert not mixed.unserved.any()
    assert QUICK.solve(one_day(types[1:], [600.0], riders=[[2]])).unserved.all()


def test_seats_differ_between_vehicles():
    types = [VehicleType(seats=2), VehicleType(seats=6)]
    solutions = QUICK.solve(one_day(types, [600.0], riders=[[5]]))
    assert solutions.vehicle[0].tolist() == [1]


def test_types_of_identical_vehicles_give_the_routes_of_identical_vehicles():
    plain = random_instances(3, 20, 1)
    fleet = Fleet.of_types([VehicleType(count=5, seats=8)])
    for one, two in zip(vars_of(QUICK.solve(plain)), vars_of(QUICK.solve(replace(plain, fleet=fleet))), strict=True):
        assert np.array_equal(one, two, equal_nan=True)


def vars_of(solutions):
    return [getattr(solutions, name) for name in solutions.__slots__]


def test_the_verifier_names_what_a_vehicle_lacks():
    types = [VehicleType(seats=1, wheelchairs=1, shift=(600.0, 700.0))]
    problems = one_day(types, [650.0, 650.0], riders=[[1 + WHEELCHAIR, 1 + WHEELCHAIR]])
    sentences = " ".join(violations(problems, solutions_from_routes(problems, [[[1, 3, 2, 4]]])))
    assert "carries 2 riders with capacity 1" in sentences
    assert "carries 2 wheelchairs with 1 places" in sentences
    late = one_day(types, [690.0])
    assert violations(late, solutions_from_routes(late, [[[1, 2]]]))


def test_lower_bounds_hold_for_several_types():
    pytest.importorskip("ortools")
    problems = replace(random_instances(2, 8, 5), fleet=Fleet.of_types(TYPES))
    solutions = QUICK.solve(problems)
    assert (lower_bounds(problems) <= solutions.cost + 1e-6).all()


def test_other_oracles_refuse_several_types():
    with pytest.raises(SettingsError, match="exact supports identical vehicles only"):
        ExactOracle().solve(one_day(TYPES, [600.0]))


@pytest.mark.parametrize("wrong", [{"count": 0}, {"seats": -1}, {"shift": (700.0, 600.0)}, {"seats": 2**19}])
def test_types_out_of_bounds_are_rejected(wrong):
    with pytest.raises(SettingsError):
        VehicleType(**wrong)


def test_too_many_riders_are_rejected():
    with pytest.raises(ShapeError, match="riders must be at least 1 and at most 524287"):
        one_day(TYPES, [600.0], riders=[[2**19]])
