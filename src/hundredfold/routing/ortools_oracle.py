"""Google's OR-Tools as a reference oracle: good plans, slowly.

Parallel cheapest insertion, then guided local search. A time limit makes prices unrepeatable; with
`max_solutions` the search stops after that many improvements and always finds the same plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hundredfold.core.errors import MissingExtraError, SettingsError
from hundredfold.routing.instance_arrays import FleetConstraints, InstanceArrays, to_instance_arrays
from hundredfold.routing.problem import (
    UNLIMITED,
    RouteProblems,
    Solutions,
    milliseconds_down,
    milliseconds_up,
)
from hundredfold.routing.solution import solutions_from_routes


@dataclass(frozen=True, slots=True, kw_only=True)
class OrToolsSettings:
    """When the search stops: whichever limit comes first."""

    seconds: float = 1.0
    """Wall-clock seconds per book."""
    max_solutions: int | None = None
    """Stop after this many solutions; repeatable as long as `seconds` is generous."""

    def __post_init__(self) -> None:
        if self.seconds <= 0.0 or (self.max_solutions is not None and self.max_solutions < 1):
            raise SettingsError(
                f"or_tools needs seconds > 0 and max_solutions >= 1, "
                f"got {self.seconds} and {self.max_solutions}."
            )


class OrToolsOracle:
    """Solves one book after the other with OR-Tools' routing library."""

    def __init__(self, settings: OrToolsSettings | None = None) -> None:
        self.settings = settings or OrToolsSettings()
        try:
            from ortools.constraint_solver import pywrapcp, routing_enums_pb2
        except ImportError:
            raise MissingExtraError("ortools", "routing", "The or_tools oracle") from None
        self._pywrapcp: Any = pywrapcp
        self._enums: Any = routing_enums_pb2

    def solve(self, problems: RouteProblems) -> Solutions:
        """One plan per book; priced inf where the solver finds none."""
        books, rules = to_instance_arrays(problems)
        found = [self._routes(books, rules, book) for book in range(len(problems))]
        return solutions_from_routes(problems, found)

    def _routes(self, books: InstanceArrays, rules: FleetConstraints, book: int) -> list[list[int]]:
        num_requests = int(books.num_requests[book])
        if num_requests == 0:
            return []
        num_stops = 2 * num_requests + 1
        manager = self._pywrapcp.RoutingIndexManager(num_stops, rules.num_vehicles, 0)
        model = self._pywrapcp.RoutingModel(manager)
        self._add_costs(model, books, rules, book, num_stops)
        time = self._add_times(model, manager, books, rules, book, num_stops)
        if time is None:
            return []
        riders = model.RegisterUnaryTransitVector(books.riders[book, :num_stops].tolist())
        model.AddDimension(riders, 0, rules.capacity, True, "riders")
        self._add_pairs(model, manager, time, books, book, num_requests)
        solution = model.SolveWithParameters(self._parameters())
        return [] if solution is None else _routes_of(model, manager, solution, rules)

    def _add_costs(
        self, model: Any, books: InstanceArrays, rules: FleetConstraints, book: int, num_stops: int
    ) -> None:
        cells = books.cell[book, :num_stops]
        drive = milliseconds_up(books.drive[np.ix_(cells, cells)])
        model.SetArcCostEvaluatorOfAllVehicles(model.RegisterTransitMatrix(drive.tolist()))
        for vehicle in range(rules.free_vehicles, rules.num_vehicles):
            model.SetFixedCostOfVehicle(int(milliseconds_up(rules.extra_vehicle_cost)), vehicle)

    def _add_times(
        self,
        model: Any,
        manager: Any,
        books: InstanceArrays,
        rules: FleetConstraints,
        book: int,
        num_stops: int,
    ) -> Any | None:
        cells = books.cell[book, :num_stops]
        service = books.service[book, :num_stops, None]
        early = milliseconds_up(books.early[book, :num_stops])
        late = milliseconds_down(books.late[book, :num_stops])
        if (early > late).any() or (late < 0).any():
            return None
        legs = model.RegisterTransitMatrix(
            milliseconds_up(service + books.drive[np.ix_(cells, cells)]).tolist()
        )
        horizon = int(late.max())
        model.AddDimension(legs, horizon, horizon, False, "time")
        time = model.GetDimensionOrDie("time")
        for stop in range(1, num_stops):
            time.CumulVar(manager.NodeToIndex(stop)).SetRange(
                max(0, int(early[stop])), int(late[stop])
            )
        for vehicle in range(rules.num_vehicles):
            for index in (model.Start(vehicle), model.End(vehicle)):
                time.CumulVar(index).SetRange(max(0, int(early[0])), int(late[0]))
            if rules.max_route < UNLIMITED:
                time.SetSpanUpperBoundForVehicle(int(milliseconds_down(rules.max_route)), vehicle)
        return time

    def _add_pairs(
        self,
        model: Any,
        manager: Any,
        time: Any,
        books: InstanceArrays,
        book: int,
        num_requests: int,
    ) -> None:
        solver = model.solver()
        for request in range(num_requests):
            pickup = manager.NodeToIndex(2 * request + 1)
            dropoff = manager.NodeToIndex(2 * request + 2)
            model.AddPickupAndDelivery(pickup, dropoff)
            solver.Add(model.VehicleVar(pickup) == model.VehicleVar(dropoff))
            solver.Add(time.CumulVar(pickup) <= time.CumulVar(dropoff))
            longest = int(books.max_ride[book, 2 * request + 1])
            if longest < UNLIMITED:
                ride = time.CumulVar(dropoff) - time.CumulVar(pickup)
                solver.Add(ride <= int(milliseconds_down(longest)))

    def _parameters(self) -> Any:
        parameters = self._pywrapcp.DefaultRoutingSearchParameters()
        parameters.first_solution_strategy = (
            self._enums.FirstSolutionStrategy.PARALLEL_CHEAPEST_INSERTION
        )
        parameters.local_search_metaheuristic = (
            self._enums.LocalSearchMetaheuristic.GUIDED_LOCAL_SEARCH
        )
        parameters.time_limit.FromMilliseconds(int(1000 * self.settings.seconds))
        if self.settings.max_solutions is not None:
            parameters.solution_limit = self.settings.max_solutions
        return parameters


def _routes_of(model: Any, manager: Any, solution: Any, rules: FleetConstraints) -> list[list[int]]:
    routes = []
    for vehicle in range(rules.num_vehicles):
        index = solution.Value(model.NextVar(model.Start(vehicle)))
        stops = []
        while not model.IsEnd(index):
            stops.append(int(manager.IndexToNode(index)))
            index = solution.Value(model.NextVar(index))
        routes.append(stops)
    return routes
