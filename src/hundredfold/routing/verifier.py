"""Independent feasibility and cost check of solutions, in plain Python on minutes.

It shares no code with the oracles. `violations` returns sentences; an empty list means that every
constraint holds.
"""

from __future__ import annotations

import math
from itertools import pairwise

from hundredfold.core.errors import ShapeError
from hundredfold.routing.problem import WHEELCHAIR, RouteProblems, Solutions, VehicleType

# Oracles round durations to a microsecond; over a day's stops that adds up to far less.
TOLERANCE_MINUTES = 1e-4


def violations(problems: RouteProblems, solutions: Solutions) -> list[str]:
    """All violated constraints and wrong figures of the solutions, one sentence each."""
    if len(problems) != len(solutions):
        raise ShapeError(f"{len(solutions)} solutions came for {len(problems)} instances; pass one per instance.")
    found: list[str] = []
    for instance in range(len(problems)):
        check = _InstanceCheck(problems, solutions, instance)
        found += [f"instance {instance}: {sentence}" for sentence in check.sentences()]
    return found


class _InstanceCheck:
    """One instance and its solution, as plain numbers."""

    def __init__(self, problems: RouteProblems, solutions: Solutions, instance: int) -> None:
        self.fleet = problems.fleet
        self.kinds = problems.fleet.vehicle_types
        self.minutes = problems.travel.minutes
        self.num_requests = int(problems.num_requests[instance])
        self.cell = [self.fleet.depot_cell]
        self.window = [self.fleet.depot_window]
        self.service = [0.0]
        self.change = [0]
        for request in range(self.num_requests):
            for side in (0, 1):
                self.cell.append(int(problems.cells[instance, request, side]))
                early, late = problems.windows[instance, request, side]
                self.window.append((float(early), float(late)))
                self.service.append(float(problems.service_minutes[instance, request, side]))
                riders = int(problems.riders[instance, request])
                self.change.append(riders if side == 0 else -riders)
        self.max_ride = [float(limit) for limit in problems.max_ride_minutes[instance]]
        self.routes = [solutions.route(instance, v) for v in range(solutions.lengths.shape[1])]
        self.solutions = solutions
        self.instance = instance

    def sentences(self) -> list[str]:
        found = self._served_requests()
        if found:
            return found
        for vehicle, route in enumerate(self.routes):
            if route:
                self.window[0] = self.kinds[vehicle].shift
                here = self._order_and_load(route, self.kinds[vehicle]) + self._schedule(route)
                here += self._scheduled_times(vehicle, route)
                found += [f"vehicle {vehicle} {sentence}" for sentence in here]
        return found + self._cost()

    def _served_requests(self) -> list[str]:
        found = []
        if len(self.routes) > self.fleet.num_vehicles:
            found.append(f"{len(self.routes)} routes for {self.fleet.num_vehicles} vehicles.")
        visits = [stop for route in self.routes for stop in route]
        for stop in sorted(set(visits)):
            if not 1 <= stop <= 2 * self.num_requests:
                found.append(f"stop {stop} does not exist; there are {2 * self.num_requests}.")
            elif visits.count(stop) > 1:
                found.append(f"stop {stop} is visited {visits.count(stop)} times.")
        for request in range(self.num_requests):
            served = 2 * request + 1 in visits or 2 * request + 2 in visits
            if served == bool(self.solutions.unserved[self.instance, request]):
                word = "is visited" if served else "is not visited"
                found.append(f"request {request} {word}, and `unserved` says otherwise.")
        return found

    def _order_and_load(self, route: list[int], kind: VehicleType) -> list[str]:
        found = []
        on_board: set[int] = set()
        load = 0
        for stop in route:
            request = (stop - 1) // 2
            if stop % 2 == 1:
                on_board.add(request)
            elif request in on_board:
                on_board.remove(request)
            else:
                found.append(f"drops off request {request} without having picked it up.")
            load += self.change[stop]
            wheelchairs, riders = divmod(load, WHEELCHAIR)
            if riders > kind.seats:
                found.append(f"carries {riders} riders with capacity {kind.seats} at stop {stop}.")
            if wheelchairs > kind.wheelchairs:
                found.append(f"carries {wheelchairs} wheelchairs with {kind.wheelchairs} places at stop {stop}.")
        found += [f"brings request {request} back to the depot." for request in sorted(on_board)]
        return found

    def _drive(self, here: int, there: int) -> float:
        return float(self.minutes[self.cell[here], self.cell[there]])

    def _schedule(self, route: list[int]) -> list[str]:
        """Whether any schedule keeps the time windows and duration limits.

        Each constraint reads "event b at least so many minutes after event a". Raising every event
        to its earliest time, round after round, ends with a schedule or with a missed deadline.
        """
        path = [0, *route, 0]
        last = len(path) - 1
        after = [(k, k + 1, self.service[path[k]] + self._drive(path[k], path[k + 1])) for k in range(last)]
        after.append((last, 0, -self.fleet.max_route_minutes))
        for k, stop in enumerate(path):
            if 0 < k < last and stop % 2 == 0 and stop - 1 in route:
                start = path.index(stop - 1)
                limit = self.service[stop - 1] + self.max_ride[(stop - 1) // 2]
                after.append((k, start, -limit))
        time = [self.window[stop][0] for stop in path]
        for _ in range(len(path) + 1):
            settled = True
            for first, second, gap in after:
                if time[second] < time[first] + gap - TOLERANCE_MINUTES:
                    time[second] = time[first] + gap
                    settled = False
            if settled:
                break
        else:
            return ["has no schedule within its ride-time and duration limits."]
        for k, stop in enumerate(path):
            if time[k] > self.window[stop][1] + TOLERANCE_MINUTES:
                return [
                    f"reaches stop {stop} at minute {time[k]:.3f} at the earliest, "
                    f"after its window ends at {self.window[stop][1]:.3f}."
                ]
        return []

    def _scheduled_times(self, vehicle: int, route: list[int]) -> list[str]:
        found = []
        scheduled = self.solutions.stop_minutes[self.instance]
        times = [
            float(self.solutions.start_minutes[self.instance, vehicle]),
            *(float(scheduled[stop]) for stop in route),
            float(self.solutions.end_minutes[self.instance, vehicle]),
        ]
        path = [0, *route, 0]
        for k, (stop, time) in enumerate(zip(path, times, strict=True)):
            early, late = self.window[stop]
            if not early - TOLERANCE_MINUTES <= time <= late + TOLERANCE_MINUTES:
                found.append(f"schedules stop {stop} at minute {time:.3f}, outside {early:.3f}..{late:.3f}.")
            if k > 0:
                ready = times[k - 1] + self.service[path[k - 1]] + self._drive(path[k - 1], stop)
                if time < ready - TOLERANCE_MINUTES:
                    found.append(f"schedules stop {stop} at minute {time:.3f} and cannot be there before {ready:.3f}.")
        for stop in route:
            if stop % 2 == 0 and stop - 1 in route:
                request = (stop - 1) // 2
                ride = float(scheduled[stop] - scheduled[stop - 1]) - self.service[stop - 1]
                if ride > self.max_ride[request] + TOLERANCE_MINUTES:
                    found.append(
                        f"schedules a ride of {ride:.3f} minutes for request {request}, "
                        f"which allows {self.max_ride[request]:.3f}."
                    )
        duration = times[-1] - times[0]
        if duration > self.fleet.max_route_minutes + TOLERANCE_MINUTES:
            found.append(f"is away for {duration:.3f} minutes, and {self.fleet.max_route_minutes:.3f} are allowed.")
        return found

    def _cost(self) -> list[str]:
        driving = 0.0
        for route in self.routes:
            path = [0, *route, 0] if route else []
            driving += sum(self._drive(here, there) for here, there in pairwise(path))
        used = sum(1 for route in self.routes if route)
        cost = driving + self.fleet.extra_vehicle_minutes * max(0, used - self.fleet.free_vehicles)
        if self.solutions.unserved[self.instance].any():
            cost = math.inf
        given = float(self.solutions.cost[self.instance])
        if given != cost and not abs(given - cost) <= TOLERANCE_MINUTES:
            return [f"the cost is given as {given:.6f} and is {cost:.6f}."]
        return []
