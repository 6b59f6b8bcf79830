"""Schedules and costs of routes, computed here for every oracle.

Every stop is served as early as the constraints allow; a vehicle leaves the depot just in time for
its first stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from hundredfold.core.batch import BoolArray, FloatArray, IntArray
from hundredfold.core.numba_kernels import kernel
from hundredfold.routing.instance_arrays import FleetConstraints, InstanceArrays, to_instance_arrays
from hundredfold.routing.problem import EARLY, LATE, RouteProblems, Solutions, to_minutes
from hundredfold.routing.route_kernels import schedule_exists
from hundredfold.routing.workspace import (
    DEPOT,
    MAX_RIDE,
    ROUTE_STATS,
    SHIFT_END,
    SHIFT_START,
    TRIAL_LEG,
    TRIAL_STOP,
    TRIAL_TIME,
    UNASSIGNED,
)

# A time that does not exist: of an unserved stop, of a vehicle that stays in the depot.
NEVER: Final = -(2**62)


class Schedule(NamedTuple):
    """Schedules of a batch of solutions in microseconds; NEVER where there is no time."""

    driving: IntArray  # (instances,) total driving time
    vehicle: IntArray  # (instances, requests), or UNASSIGNED
    stop: IntArray  # (instances, stops) start of service
    start: IntArray  # (instances, vehicles) leaving the depot
    end: IntArray  # (instances, vehicles) back at the depot


def empty_schedule(num_instances: int, num_requests: int, num_vehicles: int) -> Schedule:
    """The schedule of solutions without routes."""
    return Schedule(
        driving=np.zeros(num_instances, np.int64),
        vehicle=np.full((num_instances, num_requests), UNASSIGNED),
        stop=np.full((num_instances, 2 * num_requests + 1), NEVER),
        start=np.full((num_instances, num_vehicles), NEVER),
        end=np.full((num_instances, num_vehicles), NEVER),
    )


def solutions_from_routes(problems: RouteProblems, found: Sequence[Sequence[Sequence[int]]]) -> Solutions:
    """Solutions with these routes: for every instance, one list of stops per vehicle used."""
    width = max(1, 2 * problems.max_requests)
    routes = np.zeros((len(problems), problems.fleet.num_vehicles, width), np.int64)
    lengths = np.zeros(routes.shape[:2], np.int64)
    for instance, vehicles in enumerate(found):
        for vehicle, stops in enumerate(vehicles):
            routes[instance, vehicle, : len(stops)] = stops
            lengths[instance, vehicle] = len(stops)
    instances, constraints = to_instance_arrays(problems)
    return build_solutions(instances, constraints, routes, lengths)


def build_solutions(
    instances: InstanceArrays, constraints: FleetConstraints, routes: IntArray, lengths: IntArray
) -> Solutions:
    """Solutions with these routes, which must be feasible; the arrays are not copied.

    Args:
        instances: the batch.
        constraints: constraints of the fleet.
        routes: (instances, vehicles, width) stops without the depot, then zeros.
        lengths: (instances, vehicles) stops on each route.

    """
    num_instances, num_stops = instances.cell.shape
    schedule = empty_schedule(num_instances, num_stops // 2, constraints.num_vehicles)
    schedule_rows(instances, constraints, np.arange(num_instances), routes, lengths, schedule)
    return Solutions(
        cost=cost_minutes(instances, constraints, lengths, schedule),
        driving_minutes=to_minutes(schedule.driving),
        routes=routes,
        lengths=lengths,
        vehicle=schedule.vehicle,
        stop_minutes=minutes_or_nan(schedule.stop),
        start_minutes=minutes_or_nan(schedule.start),
        end_minutes=minutes_or_nan(schedule.end),
        unserved=unserved_requests(instances, schedule),
    )


def cost_minutes(
    instances: InstanceArrays, constraints: FleetConstraints, lengths: IntArray, schedule: Schedule
) -> FloatArray:
    """(instances,) costs in minutes, inf where a request is unserved."""
    cost = to_minutes(cost_microseconds(constraints, lengths, schedule))
    return np.where(unserved_requests(instances, schedule).any(axis=1), np.inf, cost)


def cost_microseconds(constraints: FleetConstraints, lengths: IntArray, schedule: Schedule) -> IntArray:
    """(instances,) driving time plus fixed costs of extra vehicles, of the served requests."""
    extra = np.maximum(np.count_nonzero(lengths, axis=1) - constraints.free_vehicles, 0)
    return np.asarray(schedule.driving + extra * constraints.extra_vehicle_cost)


def unserved_requests(instances: InstanceArrays, schedule: Schedule) -> BoolArray:
    """(instances, requests) True where a request has no vehicle."""
    mask = np.arange(schedule.vehicle.shape[1]) < instances.num_requests[:, None]
    return np.asarray(mask & (schedule.vehicle == UNASSIGNED))


def minutes_or_nan(microseconds: IntArray) -> FloatArray:
    """Minutes, NaN where NEVER."""
    return np.where(microseconds == NEVER, np.nan, to_minutes(microseconds))


@kernel
def schedule_rows(instances: Any, constraints: Any, rows: Any, routes: Any, lengths: Any, schedule: Any) -> None:
    """Compute the schedule of these rows from their routes, which must be feasible."""
    num_stops = instances.cell.shape[1]
    stops = np.zeros((num_stops, 4), np.int64)
    trial = np.zeros((num_stops + 1, 4), np.int64)
    for row in rows:
        schedule.driving[row] = 0
        schedule.vehicle[row] = UNASSIGNED
        schedule.stop[row] = NEVER
        schedule.start[row] = NEVER
        schedule.end[row] = NEVER
        stops[:, EARLY] = instances.early[row]
        stops[:, LATE] = instances.late[row]
        stops[:, MAX_RIDE] = instances.max_ride[row]
        for vehicle in range(constraints.num_vehicles):
            length = lengths[row, vehicle]
            if length == 0:
                continue
            trial[0, TRIAL_STOP] = DEPOT
            trial[length + 1, TRIAL_STOP] = DEPOT
            for k in range(length):
                stop = routes[row, vehicle, k]
                trial[k + 1, TRIAL_STOP] = stop
                schedule.vehicle[row, (stop - 1) >> 1] = vehicle
            for k in range(length + 1):
                here, after = trial[k, TRIAL_STOP], trial[k + 1, TRIAL_STOP]
                drive = instances.drive[instances.cell[row, here], instances.cell[row, after]]
                schedule.driving[row] += drive
                trial[k, TRIAL_LEG] = instances.service[row, here] + drive
            stops[DEPOT, EARLY] = instances.vehicles[vehicle, SHIFT_START - ROUTE_STATS]
            stops[DEPOT, LATE] = instances.vehicles[vehicle, SHIFT_END - ROUTE_STATS]
            schedule_exists(stops, trial, length, constraints.max_route)
            for k in range(1, length + 1):
                schedule.stop[row, trial[k, TRIAL_STOP]] = trial[k, TRIAL_TIME]
            schedule.start[row, vehicle] = trial[1, TRIAL_TIME] - trial[0, TRIAL_LEG]
            schedule.end[row, vehicle] = trial[length + 1, TRIAL_TIME]
