"""PyVRP as a reference oracle: iterated local search by specialists.

It knows shipments, windows, capacity, service times and route durations, no limit on ride time.
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
class PyVRPSettings:
    """When the search stops."""

    seconds: float | None = 1.0
    """Wall-clock seconds per book; makes prices unrepeatable. None: count iterations instead."""
    max_iterations: int = 1000
    """Iterations per book where `seconds` is None; repeatable."""
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.seconds is not None and self.seconds <= 0.0) or self.max_iterations < 1:
            raise SettingsError(
                f"pyvrp needs seconds > 0 (or None) and max_iterations >= 1, "
                f"got {self.seconds} and {self.max_iterations}."
            )


class PyVRPOracle:
    """Solves one book after the other with PyVRP."""

    def __init__(self, settings: PyVRPSettings | None = None) -> None:
        self.settings = settings or PyVRPSettings()
        try:
            import pyvrp
            import pyvrp.stop
        except ImportError:
            raise MissingExtraError("pyvrp", "routing", "The pyvrp oracle") from None
        if not hasattr(pyvrp.Model, "add_shipment"):
            raise MissingExtraError("pyvrp >= 0.14", "routing", "The pyvrp oracle")
        self._pyvrp: Any = pyvrp

    def solve(self, problems: RouteProblems) -> Solutions:
        """One plan per book; priced inf where the solver finds none."""
        if np.isfinite(problems.max_ride_minutes[problems.request_mask]).any():
            raise SettingsError(
                "PyVRP has no limit on ride time; price books with max_ride_minutes by "
                "`insertion`, `or_tools` or, when they are small, `exact`."
            )
        books, rules = to_instance_arrays(problems)
        found = [self._routes(books, rules, book) for book in range(len(problems))]
        return solutions_from_routes(problems, found)

    def _routes(self, books: InstanceArrays, rules: FleetConstraints, book: int) -> list[list[int]]:
        num_requests = int(books.num_requests[book])
        if num_requests == 0 or (books.early[book] > books.late[book]).any():
            return []
        if books.riders[book].max() > rules.capacity:
            return []
        model = self._model(books, rules, book, num_requests)
        stop = self._pyvrp.stop
        ending = (
            stop.MaxIterations(self.settings.max_iterations)
            if self.settings.seconds is None
            else stop.MaxRuntime(self.settings.seconds)
        )
        result = model.solve(ending, seed=self.settings.seed, collect_stats=False, display=False)
        if not result.is_feasible():
            return []
        return [_stops_of(route) for route in result.best.routes()]

    def _model(
        self, books: InstanceArrays, rules: FleetConstraints, book: int, num_requests: int
    ) -> Any:
        model = self._pyvrp.Model()
        num_stops = 2 * num_requests + 1
        cells = books.cell[book, :num_stops]
        places = [model.add_location(0, 0) for _ in range(num_stops)]
        drive = milliseconds_up(books.drive[np.ix_(cells, cells)]).tolist()
        for here in range(num_stops):
            for there in range(num_stops):
                minutes = drive[here][there]
                model.add_edge(places[here], places[there], minutes, minutes)
        early = np.maximum(milliseconds_up(books.early[book, :num_stops]), 0).tolist()
        late = milliseconds_down(books.late[book, :num_stops]).tolist()
        service = milliseconds_up(books.service[book, :num_stops]).tolist()
        depot = model.add_depot(places[0], tw_early=early[0], tw_late=late[0])
        extra: dict[str, int] = {}
        if rules.max_route < UNLIMITED:
            extra["shift_duration"] = int(milliseconds_down(rules.max_route))
        free = min(rules.free_vehicles, rules.num_vehicles)
        for count, price in ((free, 0), (rules.num_vehicles - free, rules.extra_vehicle_cost)):
            if count > 0:
                model.add_vehicle_type(
                    count,
                    capacity=rules.capacity,
                    start_depot=depot,
                    end_depot=depot,
                    fixed_cost=int(milliseconds_up(price)),
                    tw_early=early[0],
                    tw_late=late[0],
                    **extra,
                )
        for pickup in range(1, num_stops, 2):
            dropoff = pickup + 1
            model.add_shipment(
                places[pickup],
                places[dropoff],
                pickup_tw_early=early[pickup],
                pickup_tw_late=late[pickup],
                pickup_service_duration=service[pickup],
                delivery_tw_early=early[dropoff],
                delivery_tw_late=late[dropoff],
                delivery_service_duration=service[dropoff],
                amount=int(books.riders[book, pickup]),
            )
        return model


def _stops_of(route: Any) -> list[int]:
    """The route's stops by our numbers."""
    stops = []
    for activity in route.schedule():
        if activity.is_pickup():
            stops.append(2 * int(activity.idx) + 1)
        elif activity.is_delivery():
            stops.append(2 * int(activity.idx) + 2)
    return stops
