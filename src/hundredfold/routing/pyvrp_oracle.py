"""PyVRP as a reference oracle: iterated local search.

It supports shipments, time windows, capacity, service times and route durations, but no ride-time
limits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hundredfold.core.bounds import AtLeastOne, Positive, check_bounds
from hundredfold.core.errors import MissingExtraError, SettingsError
from hundredfold.routing.instance_arrays import FleetConstraints, InstanceArrays, to_instance_arrays
from hundredfold.routing.problem import UNLIMITED, RouteProblems, Solutions, milliseconds_down, milliseconds_up
from hundredfold.routing.solution import solutions_from_routes


@dataclass(frozen=True, slots=True, kw_only=True)
class PyVRPSettings:
    """Stopping criterion."""

    seconds: Positive | None = 1.0
    """Wall-clock seconds per instance; costs are then irreproducible. None: `max_iterations`."""
    max_iterations: AtLeastOne = 1000
    """Iterations per instance if `seconds` is None; reproducible."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_bounds(self)


class PyVRPOracle:
    """Solves instances one by one with PyVRP."""

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
        """Return one solution per instance; its cost is inf where the solver finds none."""
        problems.fleet.require_identical("pyvrp")
        if np.isfinite(problems.max_ride_minutes[problems.request_mask]).any():
            raise SettingsError(
                "PyVRP supports no ride-time limit; solve instances with max_ride_minutes with "
                "`insertion`, `or_tools` or, if they are small, `exact`."
            )
        instances, constraints = to_instance_arrays(problems)
        found = [self._routes(instances, constraints, instance) for instance in range(len(problems))]
        return solutions_from_routes(problems, found)

    def _routes(self, instances: InstanceArrays, constraints: FleetConstraints, instance: int) -> list[list[int]]:
        num_requests = int(instances.num_requests[instance])
        if num_requests == 0 or (instances.early[instance] > instances.late[instance]).any():
            return []
        if instances.riders[instance].max() > constraints.capacity:
            return []
        model = self._model(instances, constraints, instance, num_requests)
        stop = self._pyvrp.stop
        criterion = (
            stop.MaxIterations(self.settings.max_iterations)
            if self.settings.seconds is None
            else stop.MaxRuntime(self.settings.seconds)
        )
        result = model.solve(criterion, seed=self.settings.seed, collect_stats=False, display=False)
        if not result.is_feasible():
            return []
        return [_stops_of(route) for route in result.best.routes()]

    def _model(self, instances: InstanceArrays, constraints: FleetConstraints, instance: int, num_requests: int) -> Any:
        model = self._pyvrp.Model()
        num_stops = 2 * num_requests + 1
        cells = instances.cell[instance, :num_stops]
        locations = [model.add_location(0, 0) for _ in range(num_stops)]
        drive = milliseconds_up(instances.drive[np.ix_(cells, cells)]).tolist()
        for here in range(num_stops):
            for there in range(num_stops):
                leg = drive[here][there]
                model.add_edge(locations[here], locations[there], leg, leg)
        early = np.maximum(milliseconds_up(instances.early[instance, :num_stops]), 0).tolist()
        late = milliseconds_down(instances.late[instance, :num_stops]).tolist()
        service = milliseconds_up(instances.service[instance, :num_stops]).tolist()
        depot = model.add_depot(locations[0], tw_early=early[0], tw_late=late[0])
        extra: dict[str, int] = {}
        if constraints.max_route < UNLIMITED:
            extra["shift_duration"] = int(milliseconds_down(constraints.max_route))
        free = min(constraints.free_vehicles, constraints.num_vehicles)
        for count, fixed_cost in ((free, 0), (constraints.num_vehicles - free, constraints.extra_vehicle_cost)):
            if count > 0:
                model.add_vehicle_type(
                    count,
                    capacity=constraints.capacity,
                    start_depot=depot,
                    end_depot=depot,
                    fixed_cost=int(milliseconds_up(fixed_cost)),
                    tw_early=early[0],
                    tw_late=late[0],
                    **extra,
                )
        for pickup in range(1, num_stops, 2):
            dropoff = pickup + 1
            model.add_shipment(
                locations[pickup],
                locations[dropoff],
                pickup_tw_early=early[pickup],
                pickup_tw_late=late[pickup],
                pickup_service_duration=service[pickup],
                delivery_tw_early=early[dropoff],
                delivery_tw_late=late[dropoff],
                delivery_service_duration=service[dropoff],
                amount=int(instances.riders[instance, pickup]),
            )
        return model


def _stops_of(route: Any) -> list[int]:
    """The route's stops, numbered as in `RouteProblems`."""
    stops = []
    for activity in route.schedule():
        if activity.is_pickup():
            stops.append(2 * int(activity.idx) + 1)
        elif activity.is_delivery():
            stops.append(2 * int(activity.idx) + 2)
    return stops
