"""OR-Tools as a reference oracle: parallel cheapest insertion, then guided local search.

A time limit makes costs irreproducible; with `max_solutions` the search stops after that many
improvements and always returns the same solution.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hundredfold.core.bounds import AtLeastOne, Positive, check_bounds
from hundredfold.core.errors import MissingExtraError
from hundredfold.routing.instance_arrays import FleetConstraints, InstanceArrays, to_instance_arrays
from hundredfold.routing.problem import UNLIMITED, RouteProblems, Solutions, milliseconds_down, milliseconds_up
from hundredfold.routing.solution import solutions_from_routes


@dataclass(frozen=True, slots=True, kw_only=True)
class OrToolsSettings:
    """Stopping criteria: whichever limit is reached first."""

    seconds: Positive = 1.0
    """Wall-clock seconds per instance."""
    max_solutions: AtLeastOne | None = None
    """Stop after this many solutions; reproducible as long as `seconds` is generous."""

    def __post_init__(self) -> None:
        check_bounds(self)


class OrToolsOracle:
    """Solves instances one by one with OR-Tools' routing library."""

    def __init__(self, settings: OrToolsSettings | None = None) -> None:
        self.settings = settings or OrToolsSettings()
        try:
            from ortools.constraint_solver import pywrapcp, routing_enums_pb2
        except ImportError:
            raise MissingExtraError("ortools", "routing", "The or_tools oracle") from None
        self._pywrapcp: Any = pywrapcp
        self._enums: Any = routing_enums_pb2

    def solve(self, problems: RouteProblems) -> Solutions:
        """Return one solution per instance; its cost is inf where the solver finds none."""
        problems.fleet.require_identical("or_tools")
        instances, constraints = to_instance_arrays(problems)
        found = [self._routes(instances, constraints, instance) for instance in range(len(problems))]
        return solutions_from_routes(problems, found)

    def _routes(self, instances: InstanceArrays, constraints: FleetConstraints, instance: int) -> list[list[int]]:
        num_requests = int(instances.num_requests[instance])
        if num_requests == 0:
            return []
        num_stops = 2 * num_requests + 1
        manager = self._pywrapcp.RoutingIndexManager(num_stops, constraints.num_vehicles, 0)
        model = self._pywrapcp.RoutingModel(manager)
        self._add_costs(model, instances, constraints, instance, num_stops)
        time = self._add_times(model, manager, instances, constraints, instance, num_stops)
        if time is None:
            return []
        riders = model.RegisterUnaryTransitVector(instances.riders[instance, :num_stops].tolist())
        model.AddDimension(riders, 0, constraints.capacity, True, "riders")
        self._add_pairs(model, manager, time, instances, instance, num_requests)
        solution = model.SolveWithParameters(self._parameters())
        return [] if solution is None else _routes_of(model, manager, solution, constraints)

    def _add_costs(
        self, model: Any, instances: InstanceArrays, constraints: FleetConstraints, instance: int, num_stops: int
    ) -> None:
        cells = instances.cell[instance, :num_stops]
        drive = milliseconds_up(instances.drive[np.ix_(cells, cells)])
        model.SetArcCostEvaluatorOfAllVehicles(model.RegisterTransitMatrix(drive.tolist()))
        for vehicle in range(constraints.free_vehicles, constraints.num_vehicles):
            model.SetFixedCostOfVehicle(int(milliseconds_up(constraints.extra_vehicle_cost)), vehicle)

    def _add_times(
        self,
        model: Any,
        manager: Any,
        instances: InstanceArrays,
        constraints: FleetConstraints,
        instance: int,
        num_stops: int,
    ) -> Any | None:
        cells = instances.cell[instance, :num_stops]
        service = instances.service[instance, :num_stops, None]
        early = milliseconds_up(instances.early[instance, :num_stops])
        late = milliseconds_down(instances.late[instance, :num_stops])
        if (early > late).any() or (late < 0).any():
            return None
        legs = model.RegisterTransitMatrix(milliseconds_up(service + instances.drive[np.ix_(cells, cells)]).tolist())
        horizon = int(late.max())
        model.AddDimension(legs, horizon, horizon, False, "time")
        time = model.GetDimensionOrDie("time")
        for stop in range(1, num_stops):
            time.CumulVar(manager.NodeToIndex(stop)).SetRange(max(0, int(early[stop])), int(late[stop]))
        for vehicle in range(constraints.num_vehicles):
            for index in (model.Start(vehicle), model.End(vehicle)):
                time.CumulVar(index).SetRange(max(0, int(early[0])), int(late[0]))
            if constraints.max_route < UNLIMITED:
                time.SetSpanUpperBoundForVehicle(int(milliseconds_down(constraints.max_route)), vehicle)
        return time

    def _add_pairs(
        self, model: Any, manager: Any, time: Any, instances: InstanceArrays, instance: int, num_requests: int
    ) -> None:
        solver = model.solver()
        for request in range(num_requests):
            pickup = manager.NodeToIndex(2 * request + 1)
            dropoff = manager.NodeToIndex(2 * request + 2)
            model.AddPickupAndDelivery(pickup, dropoff)
            solver.Add(model.VehicleVar(pickup) == model.VehicleVar(dropoff))
            solver.Add(time.CumulVar(pickup) <= time.CumulVar(dropoff))
            max_ride = int(instances.max_ride[instance, 2 * request + 1])
            if max_ride < UNLIMITED:
                ride = time.CumulVar(dropoff) - time.CumulVar(pickup)
                solver.Add(ride <= int(milliseconds_down(max_ride)))

    def _parameters(self) -> Any:
        parameters = self._pywrapcp.DefaultRoutingSearchParameters()
        parameters.first_solution_strategy = self._enums.FirstSolutionStrategy.PARALLEL_CHEAPEST_INSERTION
        parameters.local_search_metaheuristic = self._enums.LocalSearchMetaheuristic.GUIDED_LOCAL_SEARCH
        parameters.time_limit.FromMilliseconds(int(1000 * self.settings.seconds))
        if self.settings.max_solutions is not None:
            parameters.solution_limit = self.settings.max_solutions
        return parameters


def _routes_of(model: Any, manager: Any, solution: Any, constraints: FleetConstraints) -> list[list[int]]:
    routes = []
    for vehicle in range(constraints.num_vehicles):
        index = solution.Value(model.NextVar(model.Start(vehicle)))
        stops = []
        while not model.IsEnd(index):
            stops.append(int(manager.IndexToNode(index)))
            index = solution.Value(model.NextVar(index))
        routes.append(stops)
    return routes
